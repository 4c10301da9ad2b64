package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Variants of marks that do harm without losing data, kept to show that the
// tests detect them.

// sharingTheRow is an enter that takes a lock on the mark's row instead of the
// advisory lock. It keeps stale writers out as well.
const sharingTheRow = `CREATE OR REPLACE FUNCTION fencepost.enter(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
	RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
		PERFORM FROM fencepost.marks WHERE resource = p_resource AND token = p_token AND lease_id = p_lease FOR SHARE;
		IF NOT FOUND THEN PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease); END IF; END $$`

// overtakes starts transactions of the mark's holder while a raise waits, each
// before the previous one has ended, and returns how many got in front of the
// raise; at most three.
func (e *env) overtakes() (n int) {
	e.Helper()
	e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
	ctx := context.Background()
	last := e.holding(claimOf("r", 5))
	raised := e.start(func(func()) error { return e.raise(claimOf("r", 6)) })
	for n < 3 {
		leave := make(chan struct{})
		late := e.start(func(paused func()) error {
			return e.db.fenced(ctx, claimOf("r", 5), func(context.Context, testTx) error {
				paused()
				<-leave
				return nil
			})
		})
		before := last
		last = func() error { close(leave); return <-late }
		if e.int(blockedSQL) == 2 { // it is behind the raise
			last = func() error {
				close(leave)
				if err := <-late; guard.ReasonOf(err) != guard.ReasonStale {
					return fmt.Errorf("the one behind the raise: %v, want stale", err)
				}
				return nil
			}
			noError(e, before())
			break
		}
		n++
		noError(e, before())
		e.waitForBlocked(1) // the raise, again: for the newcomer
	}
	noError(e, errors.Join(last(), <-raised))
	return n
}

// TestRaiseIsNotStarved (P2): the lock's queue is fair: a transaction that
// arrives while a raise waits is behind it. The control locks the mark's row
// FOR SHARE: new transactions join those that are in, for as long as any
// arrive; and lock_timeout does not end the wait, because it applies to each of
// them.
func TestRaiseIsNotStarved(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		if n := e.overtakes(); n != 0 {
			t.Errorf("%d transactions got in front of a raise that waited", n)
		}
		e.exec(sharingTheRow)
		if n := e.overtakes(); n != 3 {
			t.Errorf("FOR SHARE, the control: %d transactions got in front of the raise, want all 3", n)
		}
	})
}

// TestRaiseDoesNotLower (P1, P3): a raise that arrives while a newer one is not
// yet committed is refused. The control takes no lock: it has read the mark
// before, and overwrites the newer one with its own.
func TestRaiseDoesNotLower(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		overtaken := func() (mark guard.Mark, err error) {
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
			tx := e.begin(raiseSQL, "r", 7, "lease-7", 0)
			raised := e.start(func(func()) error { return e.db.Raise(context.Background(), claimOf("r", 6)) })
			must(t, tx.Commit(t.Context()))
			err = <-raised
			mark, markErr := e.db.Mark(t.Context(), "r")
			if markErr != nil {
				t.Fatal(markErr)
			}
			return mark, err
		}
		if mark, err := overtaken(); mark.Token != 7 || guard.ReasonOf(err) != guard.ReasonStale {
			t.Errorf("the mark is %+v, and the older raise got %v", mark, err)
		}
		e.mutate("raise", "PERFORM pg_advisory_xact_lock(", "PERFORM (")
		if mark, err := overtaken(); mark.Token != 6 || err != nil {
			t.Errorf("without the lock, the control: the mark is %+v, and the older raise got %v", mark, err)
		}
	})
}

// TestRaisedAtIsNotTheBegin: a raise that waited is dated when it was done:
// with now(), which is when its transaction began, it would be retired at once.
func TestRaisedAtIsNotTheBegin(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		retiredOf := func(older, newer guard.Token) int64 {
			end := e.holding(claimOf("r", older))
			raised := make(chan error, 1)
			go func() { raised <- e.db.Raise(context.Background(), claimOf("r", newer)) }()
			e.waitForWaiters(1)
			var before time.Time
			must(t, e.admin.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before))
			must(t, end())
			if err := <-raised; err != nil {
				t.Fatal(err)
			}
			retired, err := e.db.Retire(t.Context(), before)
			must(t, err)
			return retired.Count
		}
		if n := retiredOf(5, 6); n != 0 {
			t.Errorf("%d marks were retired", n)
		}
		e.mutate("raise", "clock_timestamp()", "now()")
		if n := retiredOf(7, 8); n != 1 {
			t.Errorf("with now(), the control: %d marks were retired", n)
		}
	})
}
