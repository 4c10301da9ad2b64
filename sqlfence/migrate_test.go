package sqlfence

import (
	"context"
	"errors"
	"flag"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// catalogSQL describes schema fencepost as pg_dump would see it.
const catalogSQL = `SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
	SELECT format('table %s %s %s %s', relname, relkind, reloptions, relacl) FROM pg_class
		WHERE relnamespace = 'fencepost'::regnamespace
	UNION ALL SELECT format('column %s.%s %s %s %s %s', c.relname, attname, format_type(atttypid, atttypmod), attnotnull,
		(SELECT collname FROM pg_collation WHERE oid = attcollation), pg_get_expr(adbin, adrelid))
		FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef d ON d.adrelid = attrelid AND adnum = attnum
		WHERE c.relnamespace = 'fencepost'::regnamespace AND attnum > 0
	UNION ALL SELECT format('constraint %s %s', conname, pg_get_constraintdef(oid)) FROM pg_constraint
		WHERE connamespace = 'fencepost'::regnamespace
	UNION ALL SELECT format('function %s %s', proacl, pg_get_functiondef(oid)) FROM pg_proc
		WHERE pronamespace = 'fencepost'::regnamespace
	UNION ALL SELECT format('applied %s %s %s', component, version, name) FROM fencepost.migrations
) AS lines(line)`

// TestMigrateConcurrently: replicas that start at once on an empty database
// all succeed, and so does each a second time; the schema is the same as one
// replica creates.
func TestMigrateConcurrently(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		want := e.text(catalogSQL)
		for _, level := range []string{"read committed", "serializable"} {
			e.exec("DROP SCHEMA fencepost CASCADE")
			db := e.serverDefault("default_transaction_isolation", level)
			var wg sync.WaitGroup
			for range longtest.ByLength(6, 16) {
				wg.Go(func() {
					for range 2 {
						noError(t, db.Migrate(context.Background()))
					}
				})
			}
			wg.Wait()
			if got := e.text(catalogSQL); got != want {
				t.Errorf("the schema is\n%s\nwant\n%s", got, want)
			}
		}
	})
}

// TestMigrationSQL: the printed text creates the same schema, and Migrate finds
// it applied.
func TestMigrationSQL(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		want := e.text(catalogSQL)
		e.exec("DROP SCHEMA fencepost CASCADE")
		conn, err := e.admin.Acquire(t.Context())
		must(t, err)
		defer conn.Release()
		if _, err := conn.Conn().PgConn().Exec(t.Context(), "BEGIN;"+sqladmin.MigrationSQL()+"COMMIT").ReadAll(); err != nil {
			t.Fatal(err)
		}
		before := e.text("SELECT string_agg(xmin::text || applied_at, ' ') FROM fencepost.migrations")
		must(t, e.db.Migrate(t.Context()))
		if got := e.text(catalogSQL); got != want {
			t.Errorf("the schema is\n%s\nwant\n%s", got, want)
		}
		e.wantText(before, "Migrate applied it again", "SELECT string_agg(xmin::text || applied_at, ' ') FROM fencepost.migrations")
	})
}

// TestMigrateRefusesNewer: a schema of a newer build is left alone.
func TestMigrateRefusesNewer(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("INSERT INTO fencepost.migrations (component, version, name) VALUES ('sqlfence', $1, 'later')", schema().Version()+1)
		before := e.text(catalogSQL)
		err := e.db.Migrate(t.Context())
		if guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "run a newer build") {
			t.Errorf("got %v, want ErrSetup that says to run a newer build", err)
		}
		if e.text(catalogSQL) != before {
			t.Error("the schema was changed")
		}
	})
}

// TestMigrateCancelled: Migrate waits for another migration and gives
// the connection back when its context ends meanwhile.
func TestMigrateCancelled(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		tx, err := e.admin.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(context.Background())
		const key = int64(0x66656e6365707374)
		if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", key); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.db.Migrate(ctx) }()
		// The probe before it waits for locks of its own.
		e.waitFor("the migration to wait", "SELECT ("+waitersSQL+" AND classid::bigint << 32 | objid::bigint = $1) = 1", key)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

var update = flag.Bool("update", false, "write testdata/schema.txt in place of comparing with it")

// TestSchema: what Migrate makes is what testdata/schema.txt says.
func TestSchema(t *testing.T) {
	e := newEnvOf(t, "pgx")
	pgtest.CheckSchema(t, e.admin, "fencepost", "testdata/schema.txt", *update)
}
