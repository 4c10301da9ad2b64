package sqlfence

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// The shapes of marks that do harm without losing data, kept to show that the
// tests notice.

// raisesAmongSharers raises the mark some times among 32 fenced transactions
// that come and go, and returns how long each raise took, shortest first. None
// may take longer than patience.
func (e *env) raisesAmongSharers(raises int, patience time.Duration) (took []time.Duration) {
	var wg sync.WaitGroup
	var token atomic.Int64
	token.Store(1)
	e.exec("DELETE FROM fencepost.marks")
	ctx, stop := context.WithCancel(context.Background())
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := e.db.fenced(context.Background(), claimOf("r", guard.Token(token.Load())), func(ctx context.Context, tx testTx) error {
					_, err := tx.exec(ctx, "SELECT pg_sleep(0.002)")
					return err
				})
				if reason := guard.ReasonOf(err); err != nil && reason != guard.ReasonStale && reason != guard.ReasonUnavailable {
					e.Error(err)
					return
				}
			}
		})
	}
	for i := range raises {
		time.Sleep(20 * time.Millisecond)
		start := time.Now()
		impatient, cancel := context.WithTimeout(e.Context(), patience)
		err := e.db.Raise(impatient, claimOf("r", guard.Token(i+2)))
		if reason := guard.ReasonOf(err); err != nil && reason != guard.ReasonUnavailable && reason != guard.ReasonOutcomeUnknown {
			e.Error(err)
		}
		cancel()
		took = append(took, time.Since(start))
		token.Store(int64(i + 2))
	}
	stop()
	wg.Wait()
	slices.Sort(took)
	return took
}

// sharingTheRow is the enter that takes a lock on the mark's row in place of
// the advisory lock. It keeps stale writers out as well.
const sharingTheRow = `CREATE OR REPLACE FUNCTION fencepost.enter(p_resource text, p_token bigint, p_lease text, p_lock_timeout_ms integer, p_idle_timeout_ms integer)
	RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
		PERFORM FROM fencepost.marks WHERE resource = p_resource AND token = p_token AND lease_id = p_lease FOR SHARE;
		IF NOT FOUND THEN PERFORM fencepost.refuse_entry(p_resource, p_token, p_lease); END IF; END $$`

// TestRaiseAmongSharers: the queue of the lock is fair: a raise among 32
// transactions that come and go is not starved by them. The control locks the
// mark's row FOR SHARE: those that come join those that are in, and
// lock_timeout does not end the wait, because it is for each of them.
func TestRaiseAmongSharers(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		raises := longer(10, 100)
		fair := e.raisesAmongSharers(raises, 10*time.Second)
		t.Logf("raise among 32 sharers: p50 %v, max of %d %v", fair[raises/2], raises, fair[raises-1])
		if fair[raises-1] > 5*time.Second {
			t.Error("a raise took more than 5 s")
		}
		e.exec(sharingTheRow)
		unfair := e.raisesAmongSharers(1, time.Second)
		t.Logf("FOR SHARE, the control: %v", unfair[0])
		if unfair[0] < 5*fair[raises/2] {
			t.Error("the control was as fast")
		}
	})
}

// TestRaisedAtIsNotTheBegin: a raise that waited is dated when it was done: by
// now(), which is when its transaction began, it would be retired at once.
func TestRaisedAtIsNotTheBegin(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		retiredOf := func(older, newer guard.Token) int64 {
			end := e.holding(claimOf("r", older))
			raised := make(chan error, 1)
			go func() { raised <- e.db.Raise(context.Background(), claimOf("r", newer)) }()
			e.waitForWaiters(1)
			var before time.Time
			if err := e.admin.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before); err != nil {
				t.Fatal(err)
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if err := <-raised; err != nil {
				t.Fatal(err)
			}
			retired, err := e.db.Retire(t.Context(), before)
			if err != nil {
				t.Fatal(err)
			}
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
