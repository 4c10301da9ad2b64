package sqlfence

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
)

// TestStore: the marks of a database are a guard.Store, shared by replicas and
// kept over a restart of the process.
func TestStore(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		another := func(context.Context, guard.Store) (guard.Store, error) { return e.open(nil), nil }
		guardtest.Run(t, guardtest.Harness{
			New: func(ctx context.Context) (guard.Store, error) {
				_, err := e.admin.Exec(ctx, "TRUNCATE fencepost.marks")
				return e.open(nil), err
			},
			Replica: another,
			Reopen: func(ctx context.Context, s guard.Store) (guard.Store, error) {
				s.(fence).close()
				return e.open(nil), nil
			},
			Close:  func(s guard.Store) error { s.(fence).close(); return nil },
			Margin: 2 * time.Millisecond,
		})
	})
}

// TestStoreControls: the suite notices a database function that is broken.
func TestStoreControls(t *testing.T) {
	for name, m := range map[string]struct{ function, old, new string }{
		"no lock, read before written": {"raise", "PERFORM pg_advisory_xact_lock(", "PERFORM (SELECT token FROM fencepost.marks WHERE resource = p_resource), pg_sleep(0.001), ("},
		"retire forgets the floor":     {"retire", "IF retired > 0", "IF false"},
		"retire lowers the floor":      {"retire", "greatest(m.token, excluded.token)", "excluded.token"},
	} {
		t.Run(name, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, e *env) {
				e.mutate(m.function, m.old, m.new)
				db := e.open(nil)
				failures := guardtest.Check(t.Context(), guardtest.Harness{
					New: func(ctx context.Context) (guard.Store, error) {
						_, err := e.admin.Exec(ctx, "TRUNCATE fencepost.marks")
						return db, err
					},
					Replica: func(context.Context, guard.Store) (guard.Store, error) { return e.db, nil },
					Margin:  2 * time.Millisecond,
				})
				if len(failures) == 0 {
					t.Error("the suite passed")
				}
			})
		})
	}
}
