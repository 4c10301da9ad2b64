package sqlfence

import (
	"context"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// atLevel is InTxAll at a level, with retries.
func atLevel(db fence, level Isolation) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return db.fencedAll(ctx, []guard.Claim{claim}, &TxOptions{Isolation: level, Retries: maxRetries}, fn)
	}
}

// retrying repeats work that the server rolled back because of other
// transactions.
func retrying(in work) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		for try := 0; ; try++ {
			err := in(ctx, claim, fn)
			if try == maxRetries || !mayRetry(err) || !backOff(ctx, try) {
				return err
			}
		}
	}
}

// someDefaults runs a test under each level as the server's default: all of
// them for both drivers in the long form, else for one driver each.
func someDefaults(t *testing.T, test func(t *testing.T, e *env, db fence, level Isolation)) {
	drivers := someDriver
	if longtest.Long {
		drivers = eachDriver
	}
	for level, name := range levels {
		t.Run(name, func(t *testing.T) {
			drivers(t, func(t *testing.T, e *env) { test(t, e, e.serverDefault("default_transaction_isolation", name), level) })
		})
	}
}

// TestEveryWayUnderEveryDefault (P1, P2) is about the ways that compare with the
// marks of schema fencepost. Single statements compare with their row's own
// mark, so that Admit protects none of them: see TestRowTorture. Whatever the
// server's default level, no way loses an acknowledged update, admits a stale
// insert, or refuses what it wrote; at random, and in the
// schedules in which TestBrokenShapes finds damage.
func TestEveryWayUnderEveryDefault(t *testing.T) {
	someDefaults(t, func(t *testing.T, e *env, db fence, level Isolation) {
		ways := map[string]work{
			"InTx":            db.fenced,
			"Admit, InTx":     after(func(ctx context.Context, claim guard.Claim) error { _, err := db.Admit(ctx, claim); return err }, db.fenced),
			"REPEATABLE READ": atLevel(db, RepeatableRead), "SERIALIZABLE": atLevel(db, Serializable),
			"Raise, Enter": retrying(after(db.Raise, entering(db))),
		}
		if level == ReadCommitted {
			ways["Enter"] = entering(db)
		}
		for name, in := range ways {
			e.freshLedger()
			e.ledgerTorture(name, in, campaign(2))
			for _, written := range []bool{false, true} {
				e.freshLedger()
				if acked, lost, stale := e.interleaved(in, true, written); acked != 2 || lost != 0 || stale != 0 {
					t.Errorf("%s, aimed, written %v: %d were acknowledged, %d lost, %d inserts stale", name, written, acked, lost, stale)
				}
			}
		}
	})
}

// TestBrokenShapes: each variant that is known to lose data loses it in the
// schedule in which TestEveryWayUnderEveryDefault runs the correct ones.
func TestBrokenShapes(t *testing.T) {
	enter := func(ctx context.Context, tx testTx, claim guard.Claim) error {
		_, err := tx.exec(ctx, enterSQL, claim.Resource, int64(claim.Token), claim.LeaseID, 5000, 5000)
		return sqlkit.Failure("enter", claim, err, false)
	}
	shapes := map[string]func(e *env) work{
		"read and write, then enter": func(e *env) work {
			return func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
				return e.db.plain(ctx, func(ctx context.Context, tx testTx) error {
					if err := fn(ctx, tx); err != nil {
						return err
					}
					return tx.enter(ctx, claim)
				})
			}
		},
		"enter in a savepoint that is rolled back": func(e *env) work {
			return after(e.db.Raise, func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
				return e.db.plain(ctx, func(ctx context.Context, tx testTx) error {
					tx.exec(ctx, "SAVEPOINT s")
					if err := enter(ctx, tx, claim); err != nil {
						return err
					}
					tx.exec(ctx, "ROLLBACK TO s")
					return fn(ctx, tx)
				})
			})
		},
		"raise without the lock": func(e *env) work {
			e.mutate("raise", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
			return e.db.fenced
		},
		"enter without the lock": func(e *env) work {
			e.mutate("enter", "pg_catalog.pg_advisory_xact_lock_shared(", "(")
			return e.db.fenced
		},
		"admit, then write without a fence": func(e *env) work {
			return after(func(ctx context.Context, claim guard.Claim) error { _, err := e.db.Admit(ctx, claim); return err }, unfenced(e))
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			someDriver(t, func(t *testing.T, e *env) {
				e.freshLedger()
				if acked, lost, stale := e.interleaved(shape(e), true, false); acked != 2 || lost != 1 || stale != 1 {
					t.Errorf("%d were acknowledged, %d lost, %d inserts stale; want 2, 1, 1", acked, lost, stale)
				}
			})
		})
	}
}

// TestSnapshotControls: above READ COMMITTED the lock alone is not enough. An
// older holder that waits for it while the mark is raised reads the old mark
// from its snapshot; it is refused only if it locks or writes the row.
func TestSnapshotControls(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		for _, level := range []Isolation{RepeatableRead, Serializable} {
			db := e.serverDefault("default_transaction_isolation", levels[level])
			ways := map[string]func() error{
				"InTxAll": func() error { return atLevel(db, level)(context.Background(), claimOf("r", 5), write5) },
				"Enter":   func() error { return entering(db)(context.Background(), claimOf("r", 5), write5) },
			}
			for name, way := range ways {
				rows, err := e.staleEnter(way)
				if reason := guard.ReasonOf(err); rows != 0 || reason != guard.ReasonStale && reason != guard.ReasonUnavailable {
					t.Errorf("%v, %s: %v, %d rows", level, name, err, rows)
				}
			}
		}
		e.mutate("enter_snapshot", "FOR SHARE", "")
		e.mutate("enter_row", "UPDATE fencepost.marks AS x SET lease_id = p_lease\n", "mine := pg_current_xact_id()::xid; UPDATE fencepost.marks AS x SET lease_id = p_lease\n")
		e.mutate("enter_row", "x.token = p_token AND", "false AND")
		e.mutate("enter_row", `COLLATE "C" RETURNING x.xmin INTO mine;`, `COLLATE "C";`)
		db := e.serverDefault("default_transaction_isolation", levels[RepeatableRead])
		for name, way := range map[string]func() error{
			"InTxAll": func() error { return atLevel(db, RepeatableRead)(context.Background(), claimOf("r", 5), write5) },
			"Enter":   func() error { return entering(db)(context.Background(), claimOf("r", 5), write5) },
		} {
			if rows, err := e.staleEnter(way); err != nil || rows != 1 {
				t.Errorf("%s, the control: %v, %d rows", name, err, rows)
			}
		}
	})
}
