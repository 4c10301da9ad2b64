package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestMigrateConcurrently: replicas of two components start at once on an empty
// database.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	pool := dial(t, pgtest.Database(t), func(c *pgxpool.Config) { c.MaxConns = 16 })
	other := migrate.Component{Name: "othercomponent", Migrations: []migrate.Migration{
		{Version: 1, Name: "things", SQL: "CREATE TABLE fencepost.things (id int PRIMARY KEY);"},
	}}
	start := make(chan struct{})
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer conn.Release()
			<-start
			if i%4 == 3 {
				errs[i] = other.Up(t.Context(), migrate.Pgx(conn.Conn()))
			} else {
				errs[i] = pglease.Schema().Up(t.Context(), migrate.Pgx(conn.Conn()))
			}
		})
	}
	close(start)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := pglock.Migrate(t.Context(), pool); err != nil {
		t.Fatalf("again: %v", err)
	}
	var applied int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.migrations").Scan(&applied); err != nil {
		t.Fatal(err)
	}
	if want := pglease.Schema().Version() + 1; applied != want {
		t.Errorf("%d steps recorded, want %d", applied, want)
	}
	mustTry(t, newTestClient(t, pool, nil), "r", time.Minute)
}

// TestMigratePrinted: the printed SQL makes the same schema as Migrate, as one
// script and step by step, and a client accepts it.
func TestMigratePrinted(t *testing.T) {
	t.Parallel()
	want := describe(t, migrated(t))
	if len(want) < 10 {
		t.Fatalf("the description is too short to compare: %q", want)
	}
	apply := func(t *testing.T, scripts ...string) {
		pool := pgtest.Pool(t)
		for _, script := range scripts {
			// The simple protocol, as psql sends a file with --single-transaction.
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Conn().PgConn().Exec(t.Context(), script).ReadAll()
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := describe(t, pool); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("the schemas differ\ngot  %q\nwant %q", got, want)
		}
		mustTry(t, newTestClient(t, pool, nil), "r", time.Minute)
		if err := pglock.Migrate(t.Context(), pool); err != nil {
			t.Errorf("Migrate after the script: %v", err)
		}
	}
	t.Run("script", func(t *testing.T) { apply(t, pglock.MigrationSQL()) })
	t.Run("steps", func(t *testing.T) {
		var steps []string
		for i, m := range pglock.Migrations() {
			if m.Version != i+1 || m.Name == "" {
				t.Errorf("step %d is %+v", i, m)
			}
			steps = append(steps, m.SQL)
		}
		apply(t, steps...)
	})
}

// describe lists everything in the schema that a migration can make.
func describe(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT concat_ws(' ', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
		       pg_get_expr(d.adbin, d.adrelid), l.collname)
		  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		  LEFT JOIN pg_collation l ON l.oid = a.attcollation
		 WHERE c.relnamespace = 'fencepost'::regnamespace
		UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid))
		  FROM pg_constraint WHERE connamespace = 'fencepost'::regnamespace
		UNION ALL SELECT concat_ws(' ', relname, relkind, reloptions, obj_description(oid, 'pg_class'))
		  FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace
		UNION ALL SELECT concat_ws(' ', component, version, name) FROM fencepost.migrations
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestSchemaVersion: a client refuses a schema that is not this build's, says
// what to do, changes nothing, and works once that has been done.
func TestSchemaVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, prepare, says string
		migrateHelps        bool
	}{
		{"no schema", "", "run pglock.Migrate", true},
		{"schema without migrations", "CREATE SCHEMA fencepost", "run pglock.Migrate", true},
		{"other component only", "CREATE SCHEMA fencepost; CREATE TABLE fencepost.migrations (component text, version int, name text)",
			"run pglock.Migrate", true},
		{"newer", pglock.MigrationSQL() + "INSERT INTO fencepost.migrations (component, version, name) VALUES ('lockclient', 1000, 'later')",
			"run a newer build", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := pgtest.Pool(t)
			mustSimple(t, pool, test.prepare)
			client := newTestClient(t, pool, nil)
			_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
			if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want a setup error and %q", err, test.says)
			}
			err = pglock.Migrate(t.Context(), pool)
			if !test.migrateHelps {
				if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("Migrate: got %v, want a setup error and %q", err, test.says)
				}
				if n := countRows(t, pool); n != 0 {
					t.Errorf("%d rows were written", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			mustTry(t, client, "r", time.Minute)
		})
	}
}

// TestRollBack: a later build has migrated under a running holder. Where its step
// allows this build, a process of this build that starts afterwards acquires, and
// Migrate changes nothing; where it does not, both are refused. The holder goes on in
// both cases.
func TestRollBack(t *testing.T) {
	t.Parallel()
	know := pglease.Schema().Version()
	for _, usableFrom := range []int{know, know + 1} {
		t.Run(fmt.Sprint("usable from ", usableFrom-know), func(t *testing.T) {
			pool := migrated(t)
			holder := mustTry(t, newTestClient(t, pool, nil), "held", time.Minute)
			mustSimple(t, pool, fmt.Sprintf("INSERT INTO fencepost.migrations (component, version, name, usable_from) VALUES ('lockclient', %d, 'later', %d)", know+1, usableFrom))
			if err := holder.Renew(t.Context()); err != nil {
				t.Errorf("the holder: %v", err)
			}
			_, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
			for what, err := range map[string]error{"acquire": err, "migrate": pglock.Migrate(t.Context(), pool)} {
				if refused := errors.Is(err, guard.ErrSetup); refused != (usableFrom > know) || err != nil && !refused {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := holder.Release(t.Context()); err != nil {
				t.Errorf("the holder's release: %v", err)
			}
		})
	}
}

// TestSchemaCheckedOnce: once the version was right, it is not read again.
func TestSchemaCheckedOnce(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustTry(t, client, "a", time.Minute)
	mustExec(t, pool, "UPDATE fencepost.migrations SET version = version + 1000, usable_from = usable_from + 1000")
	mustTry(t, client, "b", time.Minute)
	if _, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "c", &AcquireOptions{TTL: time.Minute}); err == nil {
		t.Error("a new client did not check")
	}
}

func TestMigrateFails(t *testing.T) {
	t.Parallel()
	if err := pglock.Migrate(t.Context(), nil); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("nil pool: %v", err)
	}
	closed := pgtest.Pool(t)
	closed.Close()
	if err := pglock.Migrate(t.Context(), closed); !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("closed pool: %v", err)
	}
	pool := pgtest.Pool(t)
	mustSimple(t, pool, "CREATE SCHEMA fencepost; CREATE TABLE fencepost.leases (mine int)")
	if err := pglock.Migrate(t.Context(), pool); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("table in the way: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pglock.Migrate(ctx, pool); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func mustSimple(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// TestMigrateInOwnSchema: a role that may create no schemas migrates where the schema
// is its own. The control is a database without the schema.
func TestMigrateInOwnSchema(t *testing.T) {
	t.Parallel()
	for _, there := range []bool{true, false} {
		url := pgtest.Database(t)
		admin := dial(t, url)
		var role string
		if err := admin.QueryRow(t.Context(), "SELECT 'migrator_' || md5(current_database())").Scan(&role); err != nil {
			t.Fatal(err)
		}
		mustExec(t, admin, "CREATE ROLE "+role)
		t.Cleanup(func() {
			mustExec(t, admin, "DROP OWNED BY "+role+" CASCADE")
			mustExec(t, admin, "DROP ROLE "+role)
		})
		if there {
			mustExec(t, admin, "CREATE SCHEMA fencepost AUTHORIZATION "+role)
		}
		pool := dial(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
		if err := pglock.Migrate(t.Context(), pool); (err == nil) != there || !there && (!errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "GRANT CREATE ON DATABASE")) {
			t.Errorf("the schema is there: %t: %v", there, err)
		}
	}
}
