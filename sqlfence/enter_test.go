package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// levels are the isolation levels with their names as a server's default.
var levels = map[Isolation]string{ReadCommitted: "read committed", RepeatableRead: "repeatable read", Serializable: "serializable"}

// entering is the caller's own transaction that Enter fences.
func entering(db fence) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return db.plain(ctx, func(ctx context.Context, tx testTx) error {
			if err := tx.enter(ctx, claim); err != nil {
				return err
			}
			return fn(guard.WithClaim(ctx, claim), tx)
		})
	}
}

// TestEnterDecides (P1, P4, P6): Enter agrees with guard.Decide for every small
// mark and claim at every level, and the mark is afterwards what it must be.
func TestEnterDecides(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for level, name := range levels {
			db := e.serverDefault("default_transaction_isolation", name)
			for _, mark := range []guard.Mark{{}, {Token: 5, LeaseID: "a"}, {Token: 5, Floor: true}} {
				for _, claim := range []guard.Claim{{Resource: "r", Token: 4, LeaseID: "a"}, {Resource: "r", Token: 5, LeaseID: "a"}, {Resource: "r", Token: 5, LeaseID: "b"}, {Resource: "r", Token: 6, LeaseID: "b"}} {
					e.putMark("r", mark)
					want := guard.ReasonOf(guard.Decide(guard.SameOrNewer, mark, claim))
					err := entering(db)(t.Context(), claim, func(context.Context, testTx) error { return nil })
					after, markErr := e.db.Mark(t.Context(), "r")
					if markErr != nil {
						t.Fatal(markErr)
					}
					admitted := guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}
					if level != ReadCommitted && want == guard.ReasonNone && mark != admitted {
						// A snapshot must not raise: the error says to raise
						// first, and nothing is changed.
						if guard.ReasonOf(err) != guard.ReasonInvalid || after != mark {
							t.Errorf("%v, %+v under %+v: %v, mark %+v; want ErrInvalid", level, claim, mark, err, after)
						}
						continue
					}
					if want != guard.ReasonNone {
						admitted = mark
					}
					if guard.ReasonOf(err) != want || after != admitted {
						t.Errorf("%v, %+v under %+v: got %v and mark %+v, want %q", level, claim, mark, err, after, want)
					}
				}
			}
		}
	})
}

// TestEnterRollsBack: the mark that Enter raised is rolled back with its
// transaction, and until then a raise waits for it.
func TestEnterRollsBack(t *testing.T) {
	failed := errors.New("failed")
	eachDriver(t, func(t *testing.T, e *env) {
		e.putMark("r", guard.Mark{Token: 4, LeaseID: "lease-4"})
		raised := make(chan error, 1)
		err := entering(e.db)(t.Context(), claimOf("r", 5), func(context.Context, testTx) error {
			go func() { raised <- e.db.Raise(context.Background(), claimOf("r", 6)) }()
			e.waitForWaiters(1)
			return failed
		})
		if !errors.Is(err, failed) {
			t.Fatal(err)
		}
		if err := <-raised; err != nil {
			t.Error(err)
		}
		e.putMark("r", guard.Mark{Token: 4, LeaseID: "lease-4"})
		entering(e.db)(t.Context(), claimOf("r", 5), func(context.Context, testTx) error { return failed })
		wantMark(t, e.db, "r", 4)
	})
}

// TestEnterInSavepoint (P1): inside a savepoint of any kind Enter is refused;
// before one it holds, even if the savepoint is rolled back.
func TestEnterInSavepoint(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, token := range []guard.Token{5, 6} { // the mark, and above it
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
			err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if _, err := tx.exec(ctx, "SAVEPOINT s"); err != nil {
					return err
				}
				return tx.enter(ctx, claimOf("r", token))
			})
			if guard.ReasonOf(err) != guard.ReasonInvalid || pgerr.State(err) != pgerr.Subtransaction {
				t.Errorf("token %d: got %v, want ErrInvalid", token, err)
			}
		}
		noError(t, entering(e.db)(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			for _, sql := range []string{"SAVEPOINT s", "SELECT 1", "ROLLBACK TO s"} {
				if _, err := tx.exec(ctx, sql); err != nil {
					return err
				}
			}
			return e.raiseMustWait(claimOf("r", 6))
		}))
	})
}

// raiseMustWait reports an error if a raise does not wait for the calling
// transaction.
func (e *env) raiseMustWait(claim guard.Claim) error {
	err := e.open(&Options{RaiseTimeout: 50 * time.Millisecond, TerminateAfter: -1}).Raise(context.Background(), claim) // else a slow machine ends it
	if guard.ReasonOf(err) != guard.ReasonUnavailable {
		return fmt.Errorf("a raise did not wait: %v", err)
	}
	return nil
}

// TestEnterInSavepointControl: without the check of xmin, Enter in a savepoint
// that is rolled back leaves a transaction whose stale write commits.
func TestEnterInSavepointControl(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		e.mutate("enter_row", "IF mine <> pg_current_xact_id()::xid", "IF false")
		e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
		err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			tx.exec(ctx, "SAVEPOINT s")
			if err := tx.enter(ctx, claimOf("r", 5)); err != nil {
				return err
			}
			tx.exec(ctx, "ROLLBACK TO s")
			if err := e.db.Raise(ctx, claimOf("r", 6)); err != nil {
				return err
			}
			return write5(ctx, tx)
		})
		if err != nil || e.written() != 1 {
			t.Errorf("no stale write: %v, %d rows", err, e.written())
		}
	})
}

// TestEnterBadInput: refused before anything is sent, or with a rollback.
func TestEnterBadInput(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "no claim", tx.enter(ctx), "claims", "")
			wantInvalid(t, "twice", tx.enter(ctx, claimOf("r", 5), claimOf("r", 5)), "claims", `"r"`)
			wantInvalid(t, "malformed", tx.enter(ctx, guard.Claim{Resource: "r"}), "token", "")
			if _, err := tx.exec(ctx, "SELECT 1"); err != nil {
				t.Errorf("the transaction was touched: %v", err)
			}
			return nil
		})
		noError(t, e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "another resource", tx.enter(ctx, claimOf("other", 5)), "claim", `"other"`)
			wantInvalid(t, "a newer raise inside", e.db.Raise(ctx, claimOf("r", 6)), "claim.Token", `"6"`)
			noError(t, e.db.Raise(ctx, claimOf("another", 6)), "a raise of another resource inside")
			return tx.enter(ctx, claimOf("r", 5))
		}))
	})
}

// TestInTxAll: several resources are fenced at once, in any order; one refusal
// refuses all and names its claim.
func TestInTxAll(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		nothing := func(context.Context, testTx) error { return nil }
		for level := range levels {
			e.exec("DELETE FROM fencepost.marks")
			opts := &TxOptions{Isolation: level}
			err := e.db.fencedAll(t.Context(), []guard.Claim{claimOf("b", 5), claimOf("a", 7)}, opts, func(ctx context.Context, tx testTx) error {
				var got string
				if n, err := tx.int(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"); err != nil || n != 2 {
					got = fmt.Sprint(n, " locks: ", err)
				}
				if n, err := tx.int(ctx, "SELECT count(*) FROM (SELECT current_setting('transaction_isolation')) AS s(l) WHERE l = lower($1)", level.String()); err != nil || n != 1 {
					got += fmt.Sprint("not ", level, err)
				}
				if got != "" {
					return errors.New(got)
				}
				return errors.Join(e.raiseMustWait(claimOf("a", 8)), e.raiseMustWait(claimOf("b", 6)))
			})
			if err != nil {
				t.Errorf("%v: %v", level, err)
			}
			var rejected *guard.RejectedError
			err = e.db.fencedAll(t.Context(), []guard.Claim{claimOf("a", 7), claimOf("b", 4)}, opts, nil)
			if !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Claim != claimOf("b", 4) || rejected.Mark.Token != 5 {
				t.Errorf("%v: got %v, want stale for b", level, err)
			}
		}
		wantInvalid(t, "none", e.db.fencedAll(t.Context(), nil, nil, nothing), "claims", "")
		wantInvalid(t, "twice", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5), claimOf("r", 6)}, nil, nothing), "claims", `"r"`)
		wantInvalid(t, "too many", e.db.fencedAll(t.Context(), slices.Repeat([]guard.Claim{claimOf("r", 5)}, maxClaims+1), nil, nothing), "claims", `"65"`)
		wantInvalid(t, "level", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Isolation: 9}, nothing), "TxOptions.Isolation", "9")
		wantInvalid(t, "retries", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Retries: -1}, nothing), "TxOptions.Retries", "-1")
	})
}

// TestInTxAllNoCircle: transactions over the same resources in opposite orders,
// with raises between them, never deadlock.
func TestInTxAllNoCircle(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		var token atomic.Int64
		token.Store(1)
		errs := make(chan error, 6)
		for i := range cap(errs) {
			go func() {
				var err error
				for range campaign(15) {
					a, b := claimOf("a", 1), claimOf("b", 1)
					claims := []guard.Claim{a, b}
					if i%2 == 0 {
						claims = []guard.Claim{b, a}
					}
					n := guard.Token(token.Add(1))
					claims[0].Token, claims[1].Token = n, n
					claims[0].LeaseID, claims[1].LeaseID = "", ""
					in := func() error {
						return e.db.fencedAll(context.Background(), claims, nil, running("SELECT pg_sleep(0.001)"))
					}
					if i >= 3 {
						in = func() error {
							return e.db.plain(context.Background(), func(ctx context.Context, tx testTx) error { return tx.enter(ctx, claims...) })
						}
					}
					if one := in(); one != nil && !errors.Is(one, guard.ErrStale) {
						err = one
					}
				}
				errs <- err
			}()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestEnterAfterSnapshot (P1, P2): above READ COMMITTED, a raise, or another
// Enter, that was committed after the snapshot is 40001 and not overlooked.
func TestEnterAfterSnapshot(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, level := range []Isolation{RepeatableRead, Serializable} {
			db := e.serverDefault("default_transaction_isolation", levels[level])
			for what, meanwhile := range map[string]func() error{
				"a raise": func() error { return e.db.Raise(context.Background(), claimOf("r", 6)) },
				"another Enter": func() error {
					return entering(db)(context.Background(), claimOf("r", 5), func(context.Context, testTx) error { return nil })
				},
			} {
				e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
				err := db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
					if _, err := tx.int(ctx, "SELECT count(*) FROM pg_class"); err != nil { // the snapshot
						return err
					}
					if err := meanwhile(); err != nil {
						return err
					}
					return tx.enter(ctx, claimOf("r", 5))
				})
				if guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != pgerr.Serialization {
					t.Errorf("%v, %s: got %v, want ErrUnavailable with 40001", level, what, err)
				}
			}
		}
	})
}
