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
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// levels are the isolation levels with their names as a server's default.
var levels = map[Isolation]string{ReadCommitted: "read committed", RepeatableRead: "repeatable read", Serializable: "serializable"}

// entering is the caller's own transaction that Enter fences.
func entering(db fence) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return db.plain(guard.WithClaim(ctx, claim), inTurn(enters(claim), fn))
	}
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
		noError(t, <-raised)
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
			err := e.db.plain(t.Context(), inTurn(running("SAVEPOINT s"), enters(claimOf("r", token))))
			if guard.ReasonOf(err) != guard.ReasonInvalid || pgerr.State(err) != pgerr.Subtransaction {
				t.Errorf("token %d: got %v, want ErrInvalid", token, err)
			}
		}
		noError(t, entering(e.db)(t.Context(), claimOf("r", 5), inTurn(running("SAVEPOINT s"), running("SELECT 1"), running("ROLLBACK TO s"),
			func(context.Context, testTx) error { return e.raiseMustWait(claimOf("r", 6)) })))
	})
}

// raiseMustWait reports an error if a raise does not wait for the calling
// transaction.
func (e *env) raiseMustWait(claim guard.Claim) error {
	err := e.open(&Options{RaiseTimeout: 50 * time.Millisecond, TerminateAfter: endsNobody}).Raise(context.Background(), claim) // else a slow machine ends it
	if guard.ReasonOf(err) != guard.ReasonUnavailable {
		return fmt.Errorf("a raise did not wait: %v", err)
	}
	return nil
}

// TestEnterInSavepointControl: without the check of xmin, Enter in a savepoint
// that is rolled back leaves a transaction whose stale write commits.
func TestEnterInSavepointControl(t *testing.T) {
	e := someEnv(t)
	e.createWritten()
	e.mutate("enter_row", "IF mine <> pg_current_xact_id()::xid", "IF false")
	e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
	err := e.db.plain(t.Context(), inTurn(running("SAVEPOINT s"), enters(claimOf("r", 5)), running("ROLLBACK TO s"), e.raises(claimOf("r", 6)), write5))
	if err != nil || e.written() != 1 {
		t.Errorf("no stale write: %v, %d rows", err, e.written())
	}
}

// TestEnterBadInput: refused before anything is sent, or with a rollback; so is a transaction
// that is nil.
func TestEnterBadInput(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		var none testTx
		switch f := e.db.(type) {
		case pgxFence:
			none = pgxTx{db: f.DB}
		case stdFence:
			none = stdTx{db: f.DB}
		}
		wantInvalid(t, "Enter of nothing", none.enter(t.Context(), claimOf("r", 5)), "tx", "nil")
		wantInvalid(t, "Present of nothing", none.present(t.Context(), claimOf("r", 5)), "tx", "nil")
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
			noError(t, err, "%v", level)
			var rejected *guard.RejectedError
			err = e.db.fencedAll(t.Context(), []guard.Claim{claimOf("a", 7), claimOf("b", 4)}, opts, ran)
			if !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Claim != claimOf("b", 4) || rejected.Mark.Token != 5 {
				t.Errorf("%v: got %v, want stale for b", level, err)
			}
		}
		wantInvalid(t, "none", e.db.fencedAll(t.Context(), nil, nil, nothing), "claims", "")
		wantInvalid(t, "twice", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5), claimOf("r", 6)}, nil, nothing), "claims", `"r"`)
		wantInvalid(t, "too many", e.db.fencedAll(t.Context(), slices.Repeat([]guard.Claim{claimOf("r", 5)}, maxClaims+1), nil, nothing), "claims", `"65"`)
		wantInvalid(t, "level", e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Isolation: 9}, nothing), "TxOptions.Isolation", "9")
	})
}

// TestInTxAllNoCircle: transactions over the same resources in opposite orders,
// with raises between them, never deadlock.
func TestInTxAllNoCircle(t *testing.T) {
	e := someEnv(t)
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
		noError(t, <-errs)
	}
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
				err := db.plain(t.Context(), inTurn(
					running("SELECT count(*) FROM pg_class"), // the snapshot
					func(context.Context, testTx) error { return meanwhile() },
					enters(claimOf("r", 5)),
				))
				if guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != pgerr.Serialization {
					t.Errorf("%v, %s: got %v, want ErrUnavailable with 40001", level, what, err)
				}
			}
		}
	})
}

// TestTwoDBsInOneTransaction: a second DB that enters in the transaction of the first
// does not end it, and its own marker is found too.
func TestTwoDBsInOneTransaction(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		other := e.open(nil)
		must(t, e.db.Raise(t.Context(), claimOf("s", 5)))
		err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			entered := func() error {
				if x, ok := tx.(pgxTx); ok {
					return other.(pgxFence).Enter(ctx, x.tx, claimOf("s", 5))
				}
				return other.(stdFence).Enter(ctx, tx.(stdTx).tx, claimOf("s", 5))
			}
			return errors.Join(entered(), entered(), write5(ctx, tx))
		})
		if err != nil || e.written() != 1 {
			t.Errorf("%v, %d rows", err, e.written())
		}
	})
}

// TestReturning: Update and Upsert read the row as they wrote it; a refusal
// reads nothing and has its reason.
func TestReturning(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int, w text DEFAULT 'd', last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 40, 'a', 3)")
		table, ctx := e.table("n", []string{"id"}, nil), t.Context()
		var v int
		var w string
		dest := Dest{"w": &w, "v": &v}
		if err := table.Update(ctx, e.db, claimOf("r", 5), Key{1}, Set{"v": sqlrow.Raw("v + $1", 2)}, dest); err != nil || v != 42 || w != "a" {
			t.Errorf("update: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 5), Key{2}, Set{"v": 7}, dest); err != nil || v != 7 || w != "d" {
			t.Errorf("insert: %v, %d, %q", err, v, w)
		}
		if err := table.Upsert(ctx, e.db, claimOf("r", 6), Key{2}, Set{"v": 8}, dest); err != nil || v != 8 {
			t.Errorf("upsert: %v, %d", err, v)
		}
		v = -1
		if err := table.Update(ctx, e.db, claimOf("r", 4), Key{1}, Set{"v": 1}, dest); !errors.Is(err, guard.ErrStale) || v != -1 {
			t.Errorf("stale: %v, %d", err, v)
		}
		if err := table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 9}, Dest{"w": &w}, Dest{"v": &v}); err != nil || v != 9 || w != "a" {
			t.Errorf("two dests: %v, %d, %q", err, v, w)
		}
		wantInvalid(t, "no pointer", table.Update(ctx, e.db, claimOf("r", 7), Key{1}, Set{"v": 1}, Dest{"v": 1}), "dest column v", "int")
	})
}

// TestEnterAnotherTransaction (P1, P5): Enter in a callback of InTx skips only
// the transaction of that InTx. Another transaction, which may outlive it, is
// fenced separately; so is one that is entered with the callback's context
// after InTx is over.
func TestEnterAnotherTransaction(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		claim := claimOf("r", 5)
		fenced := e.open(&Options{LockTimeout: 100 * time.Millisecond, RaiseTimeout: 100 * time.Millisecond, TerminateAfter: endsNobody})
		newer := func(when string) {
			t.Helper()
			wantState(t, fenced.Raise(t.Context(), claimOf("r", 6)), pgerr.LockTimeout, "%s: a raise", when)
		}
		var after context.Context
		must(t, fenced.plain(t.Context(), func(_ context.Context, other testTx) error {
			err := fenced.fenced(t.Context(), claim, func(ctx context.Context, own testTx) error {
				after = ctx
				noError(t, own.enter(ctx, claim), "its own transaction")
				return other.enter(ctx, claim)
			})
			newer("while the other transaction is open")
			return err
		}))
		noError(t, fenced.plain(t.Context(), func(_ context.Context, late testTx) error {
			if err := late.enter(after, claim); err != nil {
				return err
			}
			newer("while a late transaction is open")
			return nil
		}))
		noError(t, fenced.Raise(t.Context(), claimOf("r", 6)), "afterwards")
	})
}
