package sqlfence

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// holding runs a fenced transaction in the background that inserts a row, has
// begun when holding returns, and ends when the returned function is called,
// which returns its error.
func (e *env) holding(claim guard.Claim) (end func() error) {
	e.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- e.db.fenced(context.Background(), claim, func(ctx context.Context, tx testTx) error {
			_, err := tx.exec(ctx, "INSERT INTO written VALUES ($1)", int64(claim.Token))
			close(entered)
			<-leave
			return err
		})
	}()
	select {
	case <-entered:
	case err := <-done:
		e.Fatalf("the transaction did not begin: %v", err)
	}
	end = sync.OnceValue(func() error { close(leave); return <-done })
	e.Cleanup(func() { end() })
	return end
}

// raise is the statement of a raise alone.
func (e *env) raise(claim guard.Claim) error {
	return e.db.unfenced(context.Background(), raiseSQL, claim.Resource, int64(claim.Token), claim.LeaseID, patience.Milliseconds())
}

// TestRaiseWaits (P2): a raise waits for the older holder's transactions, all
// of them, returns when they have committed, and what they wrote is then
// visible. An enter under the older token is stale from then on, and even while
// the raise waits, such enters cannot pass it forever.
func TestRaiseWaits(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		ends := []func() error{e.holding(claimOf("r", 5)), e.holding(claimOf("r", 5)), e.holding(claimOf("r", 5))}
		raised := e.start(func(func()) error { return e.raise(claimOf("r", 6)) })
		late := e.start(func(func()) error {
			return e.db.fenced(context.Background(), claimOf("r", 5), func(context.Context, testTx) error { return nil })
		})
		if len(raised)+len(late) != 0 {
			t.Fatal("a raise, or an enter behind it, did not wait for the older transactions")
		}
		for i, end := range ends {
			if n := e.int(waitersSQL); n != 2 {
				t.Errorf("%d wait with %d older transactions open, want the raise and the enter", n, len(ends)-i)
			}
			must(t, end())
		}
		if err := <-raised; err != nil {
			t.Fatal(err)
		}
		if n := e.written(); n != int64(len(ends)) {
			t.Errorf("the successor sees %d rows of %d", n, len(ends))
		}
		if err := <-late; !errors.Is(err, guard.ErrStale) {
			t.Errorf("the enter behind the raise: %v, want stale", err)
		}
	})
}

// TestRaiseWaitsControl: a raise that does not take the lock returns at once,
// and what the older holder commits afterwards is missing in what was read.
func TestRaiseWaitsControl(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		e.mutate("raise", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
		end := e.holding(claimOf("r", 5))
		must(t, e.db.Raise(t.Context(), claimOf("r", 6)))
		before := e.written()
		if err := end(); err != nil || before != 0 {
			t.Errorf("%d rows were seen, then %v", before, err)
		}
	})
}

// TestOneHolderSideBySide: transactions under one token do not wait for each
// other, and neither does a raise to the token that already is the mark.
func TestOneHolderSideBySide(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		var inside sync.WaitGroup
		inside.Add(2)
		errs := make(chan error, 2)
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		for range 2 {
			go func() {
				errs <- e.db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					inside.Done()
					inside.Wait() // both are in at once
					return e.db.Raise(ctx, claimOf("r", 5))
				})
			}()
		}
		for range 2 {
			select {
			case err := <-errs:
				noError(t, err)
			case <-time.After(patience):
				t.Fatal("two transactions of one holder are not side by side")
			}
		}
	})
}

// TestStaleRaiseDoesNotQueue: a raise that will be refused takes no lock: in
// the queue it would block the holder's next transactions.
func TestStaleRaiseDoesNotQueue(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		end := e.holding(claimOf("r", 5))
		impatient := e.open(&Options{RaiseTimeout: time.Millisecond}) // a raise that waits gets no verdict
		wantReason(t, impatient.Raise(t.Context(), claimOf("r", 4)), guard.ReasonStale, "an older token")
		wantReason(t, impatient.Raise(t.Context(), guard.Claim{Resource: "r", Token: 5, LeaseID: "another"}), guard.ReasonConflict, "another lease")
		must(t, end())
	})
}

// TestTimesOut: a holder that does not end makes the successor's raise
// ErrUnavailable, with the server's lock timeout inside, and no mark. Behind a raise
// that waits, an enter gives up after Options.LockTimeout.
func TestTimesOut(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		end := e.holding(claimOf("r", 5))
		db := e.open(&Options{RaiseTimeout: 30 * time.Millisecond, LockTimeout: 30 * time.Millisecond, TerminateAfter: -1}) // else a slow machine ends the holder
		never := func(context.Context, testTx) error { t.Error("the callback ran"); return nil }
		timesOut := func(what string, err error) {
			t.Helper()
			if guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != pgerr.LockTimeout {
				t.Errorf("%s: got %v, want ErrUnavailable with SQLSTATE 55P03", what, err)
			}
		}
		timesOut("Raise", db.Raise(t.Context(), claimOf("r", 6)))
		_, err := db.Admit(t.Context(), claimOf("r", 6))
		timesOut("Admit", err)
		timesOut("InTx", db.fenced(t.Context(), claimOf("r", 6), never))
		wantMark(t, db, "r", 5)
		raised := e.start(func(func()) error { return e.raise(claimOf("r", 6)) })
		timesOut("InTx behind a raise", db.fenced(t.Context(), claimOf("r", 5), never))
		noError(t, errors.Join(end(), <-raised), "the holder and the raise")
	})
}

// TestStoppedHolder: a holder that stops inside its transaction is ended by
// the server after Options.IdleTimeout, which frees the successor's raise; its
// own late COMMIT is no success.
func TestStoppedHolder(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		db := e.open(&Options{IdleTimeout: 200 * time.Millisecond})
		err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			// It fails if this process was delayed before it, which is just as
			// good.
			tx.exec(ctx, "INSERT INTO written VALUES (5)")
			noError(t, e.db.Raise(context.WithoutCancel(ctx), claimOf("r", 6)), "the successor's raise") // the process is stopped meanwhile
			return nil
		})
		if reason := guard.ReasonOf(err); reason != guard.ReasonStale && reason != guard.ReasonOutcomeUnknown {
			t.Errorf("got %v, want ErrStale or, at COMMIT, ErrOutcomeUnknown", err)
		}
		e.wantInt(0, "the stopped holder's write is there", "SELECT count(*) FROM written")
	})
}
