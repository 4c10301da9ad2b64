package pgadmin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// offeredSQL is what a role can create in a schema of other roles' search_path:
// overloads that match better than the system's own. Each leaves a trace that
// no rollback removes.
const offeredSQL = `CREATE SEQUENCE shared.ran;
	CREATE FUNCTION shared.eq(oid, regclass) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('shared.ran'); RETURN false; END $$;
	CREATE OPERATOR shared.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = shared.eq);
	CREATE FUNCTION shared.times(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('shared.ran'); RETURN 0; END $$;
	CREATE OPERATOR shared.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = shared.times);
	CREATE FUNCTION shared.times(bigint, interval) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('shared.ran'); RETURN '0 s'; END $$;
	CREATE OPERATOR shared.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = shared.times);
	CREATE FUNCTION shared.cardinality(text[]) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('shared.ran'); RETURN 0; END $$;
	CREATE FUNCTION shared.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('shared.ran'); RETURN ''; END $$;`

// TestOperatorRunsNoCodeOfOthers: what another role put into a schema of the
// search_path does not run with the rights of a role that inspects, lists,
// advances, unlocks, purges or migrates. The controls are some of the queries without protection.
func TestOperatorRunsNoCodeOfOthers(t *testing.T) {
	t.Parallel()
	admin := migrated(t)
	var database string
	if err := admin.QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil {
		t.Fatal(err)
	}
	role := pgx.Identifier{"app_" + database}.Sanitize()
	mustExec(t, admin, "CREATE ROLE "+role)
	defer mustExec(t, admin, "DROP ROLE "+role)
	defer mustExec(t, admin, "DROP OWNED BY "+role+" CASCADE")
	mustExec(t, admin, "CREATE SCHEMA shared AUTHORIZATION "+role)
	conn, err := pgx.Connect(t.Context(), admin.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.PgConn().Exec(t.Context(), "SET SESSION AUTHORIZATION "+role+";"+offeredSQL).ReadAll(); err != nil {
		t.Fatal(err)
	}
	ran := func() (was bool) {
		t.Helper()
		if err := admin.QueryRow(t.Context(), "SELECT is_called FROM shared.ran").Scan(&was); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, "SELECT setval('shared.ran', 1, false)")
		return was
	}
	client := newTestClient(t, admin, nil)
	mustTry(t, client, "r", time.Hour)
	if err := mustTry(t, client, "free", time.Hour).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithCancel(t.Context())
	defer cancel()
	go client.Acquire(waiting, "r", &lockclient.AcquireOptions{TTL: time.Hour})
	eventually(t, "the lease is awaited", func() bool { i, err := client.Get(t.Context(), "r"); return err == nil && i.Awaited })
	for _, path := range []string{"shared, public", "shared, public, pg_catalog"} {
		pool := dial(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = path })
		op, err := New(pool, &Options{OpTimeout: patience, Logger: testkit.Logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		calls := map[string]func() error{
			"Migrate": func() error { return pglock.Migrate(t.Context(), pool) },
			"Inspect": func() error { _, err := op.Inspect(t.Context()); return err },
			"Get":     func() error { _, err := op.Get(t.Context(), "r"); return err },
			"Advance": func() error {
				if _, err := op.Advance(t.Context(), "r", 1000); !errors.Is(err, lockclient.ErrHeld) {
					return errors.Join(errors.New("not held"), err)
				}
				return nil
			},
			"ForceUnlock": func() error { _, err := op.ForceUnlock(t.Context(), "free", "me", "why", nil); return err },
			"Audit": func() error {
				for _, err := range op.Audit(t.Context(), "", nil) {
					return err
				}
				return nil
			},
			"Purge": func() error { _, err := op.Purge(t.Context(), nil); return err },
			"List": func() error {
				_, err := all(op.List(t.Context(), "", &lockadmin.ListOptions{HeldFor: time.Microsecond}))
				return err
			},
		}
		for call, run := range calls {
			if err := run(); err != nil || ran() {
				t.Errorf("%s under %s: %v, or it ran the other role's code", call, path, err)
			}
		}
		for what, sql := range map[string]string{
			"list": strings.NewReplacer("$1", "''", "$2", "'z'", "$3", "''", "$4", "10", "$5", "10", "$6", "NULL", "$7", "false", "$8", "NULL", "$9", "1").Replace(listSQL), "idle": strings.NewReplacer("$1", "''", "$2", "1", "$3", "10").Replace(idleSQL),
		} {
			pool.Exec(t.Context(), sql)
			if !ran() {
				t.Errorf("%s under %s, the control, did not run it", what, path)
			}
		}
	}
}
