package sqlfence

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// atLevel is InTxAll at a level, with retries.
func atLevel(db fence, level Isolation) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return db.fencedAll(ctx, []guard.Claim{claim}, &TxOptions{Isolation: level, Retries: maxRetries}, fn)
	}
}

// retrying repeats work that the server rolled back because of others.
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

// underLoweredMarks repeats work that wrote nothing because the mark that it
// had raised was lowered again (SF004), or that met another's first mark
// (23505), as raises do to each other that take no lock.
func underLoweredMarks(in work) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		for try := 0; ; try++ {
			err := in(ctx, claim, fn)
			state := sqlState(err)
			if try == maxRetries || state != stateRaise && state != "23505" || !backOff(ctx, try) {
				return err
			}
		}
	}
}

// someDefaults runs a test under each level as the server's default: all of
// them for both drivers in the long form, else for one driver each.
func someDefaults(t *testing.T, test func(t *testing.T, e *env, db fence, level Isolation)) {
	drivers := someDriver
	if long {
		drivers = eachDriver
	}
	for level, name := range levels {
		t.Run(name, func(t *testing.T) {
			drivers(t, func(t *testing.T, e *env) { test(t, e, e.serverDefault("default_transaction_isolation", name), level) })
		})
	}
}

// TestEveryWayUnderEveryDefault (P1, P2) is about the ways that compare with the
// marks of schema fencepost. Single statements compare with their row's own, so
// that Admit protects none of them: see TestRowTorture. Whatever the server's
// default level, no way loses an acknowledged update, lets a stale insert in, or
// refuses what it wrote; at random with 12 clients, and when the older holder
// resumes just between its successor's read and write.
func TestEveryWayUnderEveryDefault(t *testing.T) {
	none := func(context.Context, guard.Claim) error { return nil }
	someDefaults(t, func(t *testing.T, e *env, db fence, level Isolation) {
		ways := map[string]work{
			"InTx": db.fenced, "Admit, InTx": func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
				if _, err := db.Admit(ctx, claim); err != nil {
					return err
				}
				return db.fenced(ctx, claim, fn)
			},
			"REPEATABLE READ": atLevel(db, RepeatableRead), "SERIALIZABLE": atLevel(db, Serializable),
			"Raise, Enter": retrying(raising(db, entering(db))),
		}
		if level == ReadCommitted {
			ways["Enter"] = entering(db)
		}
		for name, in := range ways {
			if lost, stale := counterTorture(t, e, in, campaign(4)); lost != 0 || stale != 0 {
				t.Errorf("%s: %d updates were lost, %d inserts were stale", name, lost, stale)
			}
			if sum, acked := overlappingTakeover(e, in, none); sum != acked || acked == 0 {
				t.Errorf("%s, aimed: %d of %d acknowledged updates are there", name, sum, acked)
			}
		}
	})
}

// TestBrokenShapes: the same harness finds each shape that is known to lose
// data.
func TestBrokenShapes(t *testing.T) {
	enter := func(ctx context.Context, tx testTx, claim guard.Claim) error {
		_, err := tx.exec(ctx, enterSQL, claim.Resource, int64(claim.Token), claim.LeaseID, 5000, 5000)
		return failure("enter", claim, err, false)
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
			return raising(e.db, func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
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
			return underLoweredMarks(e.db.fenced)
		},
		"enter without the lock": func(e *env) work {
			e.mutate("enter", "pg_catalog.pg_advisory_xact_lock_shared(", "(")
			return e.db.fenced
		},
		"admit, then write without a fence": func(e *env) work {
			return func(ctx context.Context, claim guard.Claim, fn func(context.Context, testTx) error) error {
				if _, err := e.db.Admit(ctx, claim); err != nil {
					return err
				}
				return e.db.plain(ctx, fn)
			}
		},
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			someDriver(t, func(t *testing.T, e *env) {
				in := retrying(shape(e))
				for range 10 { // it is a race
					if lost, stale := counterTorture(t, e, in, 10); lost != 0 || stale != 0 {
						return
					}
				}
				t.Error("nothing was lost and nothing stale")
			})
		})
	}
}

// TestSnapshotControls: above READ COMMITTED the lock alone does not do. An
// older holder that waits for it while the mark is raised reads the old mark
// from its snapshot; only locking the row, or writing it, refuses it.
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
		e.mutate("enter_row", "IF mine IS NULL THEN", "mine := pg_current_xact_id()::xid; IF mine IS NULL THEN")
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

// TestBatchTorture (P1): batches of 12 clients insert nothing stale and count
// what they acknowledge. The control sends the same writes without a fence.
func TestBatchTorture(t *testing.T) {
	torture := func(t *testing.T, e *env, send func(ctx context.Context, claim guard.Claim, writes []Write) error) (lost, stale int64) {
		e.exec(`DROP TABLE IF EXISTS counters, entries; DELETE FROM fencepost.marks;
			CREATE TABLE counters (id int PRIMARY KEY, v bigint NOT NULL); INSERT INTO counters VALUES (1, 0);
			CREATE TABLE entries (token bigint NOT NULL, seen bigint NOT NULL)`)
		var next, acked atomic.Int64
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				token := next.Add(1)
				for range campaign(10) {
					if rand.IntN(2) == 0 {
						token = next.Add(1)
					}
					err := send(context.Background(), claimOf("r", guard.Token(token)), []Write{
						{"INSERT INTO entries SELECT $1::bigint, count(*) FROM entries WHERE token < $1::bigint", []any{token}},
						{"SELECT pg_sleep(random() * 0.001)", nil},
						{"UPDATE counters SET v = v + 1", nil},
					})
					switch guard.ReasonOf(err) {
					case guard.ReasonNone:
						acked.Add(1)
					case guard.ReasonStale:
					default:
						t.Errorf("token %d: %v", token, err)
						return
					}
				}
			})
		}
		wg.Wait()
		return acked.Load() - e.int("SELECT v FROM counters"), e.int(`SELECT count(*) FROM entries old WHERE EXISTS (
			SELECT FROM entries new WHERE new.token > old.token AND new.seen < (SELECT count(*) FROM entries o WHERE o.token < new.token))`)
	}
	someDefaults(t, func(t *testing.T, e *env, db fence, level Isolation) {
		lost, stale := torture(t, e, func(ctx context.Context, claim guard.Claim, writes []Write) error {
			_, err := db.Batch(ctx, claim, writes...)
			return err
		})
		if lost != 0 || stale != 0 {
			t.Errorf("%d were lost, %d inserts were stale", lost, stale)
		}
		if level != ReadCommitted {
			return // the control would fail for other reasons
		}
		_, stale = torture(t, e, func(ctx context.Context, _ guard.Claim, writes []Write) error {
			return db.plain(ctx, func(ctx context.Context, tx testTx) error {
				for _, w := range writes {
					if _, err := tx.exec(ctx, w.SQL, w.Args...); err != nil {
						return fmt.Errorf("%s: %w", w.SQL, err)
					}
				}
				return nil
			})
		})
		if stale == 0 {
			t.Error("without a fence nothing was stale")
		}
	})
}
