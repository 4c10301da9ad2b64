package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
			testkit.Must(t, err)
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
	testkit.Must(t, err)
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}
