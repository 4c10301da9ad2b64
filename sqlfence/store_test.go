package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
	"github.com/fencepost-go/fencepost/internal/longtest"
)

// TestStore: the marks of a database are a guard.Store, shared by replicas and
// kept across a restart of the process.
func TestStore(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		other := e.connect(poolSize)
		guardtest.Run(t, guardtest.Harness{
			New: func(ctx context.Context) (guard.Store, error) {
				_, err := e.admin.Exec(ctx, "DELETE FROM fencepost.marks")
				return e.open(nil), err
			},
			Replica:    func(context.Context, guard.Store) (guard.Store, error) { return e.on(other, nil), nil },
			Reopen:     func(context.Context, guard.Store) (guard.Store, error) { return e.single(), nil },
			Operations: longtest.ByLength(12, 40),
			Steps:      longtest.ByLength(100, 300),
			Volume:     longtest.ByLength(300, 2500),
			Margin:     2 * time.Millisecond,
			Timeout:    2 * patience,
		})
	})
}

// TestStoreControls: the suite detects a broken database function.
func TestStoreControls(t *testing.T) {
	type mutation struct{ function, old, new string }
	for name, mutations := range map[string][]mutation{
		// All callers that race for a new resource have read that it has no
		// mark before the first of them writes one.
		"no lock, read before written": {{"raise", "PERFORM pg_advisory_xact_lock(", "PERFORM ("},
			{"raise", "INSERT INTO fencepost.marks", "PERFORM pg_sleep(0.2) WHERE starts_with(p_resource, 'new '); INSERT INTO fencepost.marks"}},
		"retire forgets the floor": {{"retire_up_to", "ELSIF retired > 0", "ELSIF false"}},
		"retire lowers the floor":  {{"retire_up_to", "greatest(f.token, excluded.token)", "excluded.token"}},
	} {
		t.Run(name, func(t *testing.T) {
			someDriver(t, func(t *testing.T, e *env) {
				for _, m := range mutations {
					e.mutate(m.function, m.old, m.new)
				}
				db := e.open(nil)
				failures := guardtest.Check(t.Context(), guardtest.Harness{
					New: func(ctx context.Context) (guard.Store, error) {
						_, err := e.admin.Exec(ctx, "DELETE FROM fencepost.marks")
						return db, err
					},
					Replica:    func(context.Context, guard.Store) (guard.Store, error) { return e.db, nil },
					Operations: 12,
					Steps:      100,
					Volume:     300,
					Margin:     2 * time.Millisecond,
					Timeout:    2 * patience,
				})
				if len(failures) == 0 {
					t.Error("the suite passed")
				}
			})
		})
	}
}

// crossRetire makes two retirements meet the same rows in opposite order: the
// first sees a before b and waits in front of them; then a is written again and
// comes after b for the second, which waits between the two.
func (e *env) crossRetire() (err error) {
	e.Helper()
	ctx := context.Background()
	e.exec(`TRUNCATE fencepost.marks;
		INSERT INTO fencepost.marks (resource, token, raised_at) VALUES ('first', 1, '2000-03-01'), ('a', 2, '2000-01-01'), ('b', 3, '2000-01-01'), ('between', 4, '2000-01-01')`)
	hold := func(resource string) (release func()) {
		tx, err := e.admin.Begin(ctx)
		must(e, err)
		if _, err := tx.Exec(ctx, "SELECT FROM fencepost.marks WHERE resource = $1 FOR UPDATE", resource); err != nil {
			e.Fatal(err)
		}
		return func() { tx.Rollback(ctx) }
	}
	waiting := func(n int) {
		e.waitFor("the retirements", "SELECT ("+blockedSQL+") = $1", n)
	}
	done := make(chan error, 2)
	retire := func(month time.Month) {
		_, err := e.db.Retire(ctx, time.Date(2000, month, 2, 0, 0, 0, 0, time.UTC))
		done <- err
	}
	releaseFirst, releaseBetween := hold("first"), hold("between")
	go retire(time.March)
	waiting(1)
	e.exec("UPDATE fencepost.marks SET lease_id = 'x' WHERE resource = 'a'")
	go retire(time.January)
	waiting(2)
	releaseFirst()
	waiting(2) // the first is at b now, if it may proceed to it
	releaseBetween()
	return errors.Join(<-done, <-done)
}

// TestRetireTogether: two retirements at once do not deadlock. The control takes no
// lock, and does.
func TestRetireTogether(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.db = e.serverDefault("deadlock_timeout", "50ms")
		noError(t, e.crossRetire())
		e.mutate("retire_up_to", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
		if err := e.crossRetire(); guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "40P01") {
			t.Errorf("without the lock, the control: got %v, want a deadlock", err)
		}
	})
}
