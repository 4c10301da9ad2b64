package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// schema has the documents and the resource-side log. The log's triggers fire
// while the row that they report is locked, so for each row seq is the order in
// which its changes took effect, and it excludes what is rolled back. Marks and
// leases are logged in their own tables. A grant's time is the later of the
// trigger's and the statement's own: a clock that is stepped back between the
// two makes no grant early.
const schema = `
CREATE SCHEMA campaign;
CREATE TABLE campaign.docs (
  surface text NOT NULL, id text NOT NULL, resource text PRIMARY KEY GENERATED ALWAYS AS (surface || ':' || id) STORED,
  write_id text NOT NULL DEFAULT '', base text NOT NULL DEFAULT '', n bigint NOT NULL DEFAULT 0,
  token bigint NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0, lease_id text NOT NULL DEFAULT '');
CREATE TABLE campaign.guarded (LIKE campaign.docs INCLUDING ALL);
CREATE TABLE campaign.log (
  seq bigint GENERATED ALWAYS AS IDENTITY, resource text, raised boolean, token bigint, lease_id text,
  write_id text NOT NULL DEFAULT '', base text NOT NULL DEFAULT '', n bigint NOT NULL DEFAULT 0);
CREATE TABLE campaign.grants (
  seq bigint GENERATED ALWAYS AS IDENTITY, resource text, lease_id text, token bigint,
  old_token bigint, old_lease text, old_expires timestamptz, at timestamptz, expires timestamptz);

CREATE FUNCTION campaign.log_doc() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF NEW.write_id <> OLD.write_id THEN
    INSERT INTO campaign.log (resource, raised, token, lease_id, write_id, base, n)
      VALUES (NEW.resource, false, NEW.token, NEW.lease_id, NEW.write_id, NEW.base, NEW.n);
  ELSIF NEW.last_fencing_token <> OLD.last_fencing_token THEN
    INSERT INTO campaign.log (resource, raised, token, lease_id) VALUES (NEW.resource, true, NEW.last_fencing_token, NEW.lease_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER log AFTER UPDATE ON campaign.docs FOR EACH ROW EXECUTE FUNCTION campaign.log_doc();
CREATE TRIGGER log AFTER UPDATE ON campaign.guarded FOR EACH ROW EXECUTE FUNCTION campaign.log_doc();

CREATE FUNCTION campaign.log_mark() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  INSERT INTO campaign.log (resource, raised, token, lease_id) VALUES (NEW.resource, true, NEW.token, NEW.lease_id);
  RETURN NULL;
END $$;
CREATE TRIGGER campaign_log AFTER INSERT OR UPDATE ON fencepost.marks FOR EACH ROW EXECUTE FUNCTION campaign.log_mark();

CREATE FUNCTION campaign.log_grant() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO campaign.grants (resource, lease_id, token, old_token, at, expires)
      VALUES (NEW.resource, NEW.lease_id, NEW.token, 0, greatest(clock_timestamp(), NEW.acquired_at), NEW.expires_at);
  ELSIF NEW.lease_id IS NOT NULL AND (NEW.lease_id IS DISTINCT FROM OLD.lease_id OR NEW.token <> OLD.token) THEN
    INSERT INTO campaign.grants (resource, lease_id, token, old_token, old_lease, old_expires, at, expires)
      VALUES (NEW.resource, NEW.lease_id, NEW.token, OLD.token, OLD.lease_id, OLD.expires_at, greatest(clock_timestamp(), NEW.acquired_at), NEW.expires_at);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER campaign_log AFTER INSERT OR UPDATE ON fencepost.leases FOR EACH ROW EXECUTE FUNCTION campaign.log_grant();
`

// database is the server that leases, marks and rows are on.
type database struct {
	*pgtest.Server
	skew *skew
}

// startDatabase starts a server, whose clock can be stepped if skewed is set,
// and makes the schema.
func startDatabase(ctx context.Context, guards string, skewed bool) (_ *database, err error) {
	d := &database{}
	start := func() error {
		d.Server, err = pgtest.Start(ctx, &pgtest.Options{Settings: map[string]string{"deadlock_timeout": "200ms"}})
		return err
	}
	if !skewed {
		err = start()
	} else if d.skew, err = newSkew(); err == nil {
		err = d.skew.preloaded(start)
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.create(ctx, guards), d.tryClock(ctx)); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// tryClock checks that a step reaches the server: otherwise the nemesis would
// do nothing.
func (d *database) tryClock(ctx context.Context) error {
	if d.skew == nil {
		return nil
	}
	conn, err := pgx.Connect(ctx, d.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := d.skew.step(time.Hour); err != nil {
		return err
	}
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return err
	}
	if ahead := time.Until(now); ahead < 59*time.Minute {
		return fmt.Errorf("the server's clock does not follow libfaketime: it is %v ahead after a step of an hour", ahead)
	}
	return d.skew.step(0)
}

func (d *database) close() error {
	err := d.Stop()
	if d.skew != nil {
		err = errors.Join(err, d.skew.remove())
	}
	return err
}

// create makes the tables; with guards on, the triggers too.
func (d *database) create(ctx context.Context, guards string) error {
	pool, err := pgxpool.New(ctx, d.URL())
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := errors.Join(sqladmin.Pgx(pool).Migrate(ctx), pglock.Migrate(ctx, pool)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}
	for _, s := range surfaces {
		_, err := pool.Exec(ctx, "INSERT INTO "+tableOf(s.name)+" (surface, id) SELECT $1, generate_series(0, $2 - 1)::text", s.name, resourcesPerSurface)
		if err != nil {
			return err
		}
	}
	if guards != guardsOn {
		return nil
	}
	return sqladmin.Pgx(pool).InstallTrigger(ctx, guardedTable)
}

// settle waits until no client's session is left. All connections have been
// closed, so each session ends when it has done what it was sent.
func (d *database) settle(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		var left int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&left)
		if err != nil || left == 0 {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// strand ends the leases that a backward step of the clock has stranded in the
// future, as an operator would. Their tokens stay.
func (d *database) strand(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, d.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE expires_at > clock_timestamp() + interval '1 minute'")
	return err
}

// log adds the changes that took effect to a history.
func (d *database) log(ctx context.Context, h *oracle.History) error {
	conn, err := pgx.Connect(ctx, d.URL())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "SELECT seq, resource, raised, token, coalesce(lease_id, ''), write_id, base, n FROM campaign.log ORDER BY seq")
	if err != nil {
		return err
	}
	log, err := pgx.CollectRows(rows, pgx.RowToStructByPos[oracle.Entry])
	h.Log = append(h.Log, log...)
	return err
}

// read adds everything that the server recorded to a history.
func (d *database) read(ctx context.Context, h *oracle.History) error {
	if err := d.log(ctx, h); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, d.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `SELECT seq, resource, lease_id, token, old_token, coalesce(old_lease, ''),
		coalesce((extract(epoch FROM old_expires) * 1000000)::bigint, 0), (extract(epoch FROM at) * 1000000)::bigint,
		(extract(epoch FROM expires) * 1000000)::bigint FROM campaign.grants ORDER BY seq`)
	if err != nil {
		return err
	}
	if h.Grants, err = pgx.CollectRows(rows, pgx.RowToStructByPos[oracle.Grant]); err != nil {
		return err
	}
	rows, err = conn.Query(ctx, "SELECT resource, write_id, n FROM campaign.docs WHERE resource NOT LIKE 's3-%' UNION ALL SELECT resource, write_id, n FROM campaign.guarded")
	if err != nil {
		return err
	}
	var resource string
	var f oracle.Final
	_, err = pgx.ForEachRow(rows, []any{&resource, &f.Write, &f.N}, func() error {
		h.Final[resource] = f
		return nil
	})
	return err
}
