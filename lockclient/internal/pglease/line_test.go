package pglease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// TestLongestWaitingFirst: among processes the lease is granted in the order in
// which they came. A process that died in its place costs the time for which the
// lease is kept and no more: the next one is woken, and does not have to ask on
// its own.
func TestLongestWaitingFirst(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	const processes = 6
	type outcome struct {
		lease *lockclient.Lease
		err   error
	}
	crew, got := make([]*lockclient.Client, processes), make([]chan outcome, processes)
	issuers := make([]*pglease.Issuer, processes)
	dead := func(n int) bool { return n == 0 || n == 2 || n == 3 }
	holder := newIssuer(t, pool, nil)
	lease := acquire(t, holder, "r", "holder's")
	for n := range crew {
		issuers[n] = newIssuer(t, pool, nil)
		defer issuers[n].Subscribe("it listens before", func() {})()
		testkit.Eventually(t, "it listens", issuers[n].Listening)
		if dead(n) {
			if _, err := issuers[n].Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "dead"}, func() {}); err != nil {
				t.Fatal(err)
			}
			issuers[n].Close()
		} else {
			client, err := lockclient.New(patientIssuer{issuers[n]}, fmt.Sprint("process ", n), nil)
			testkit.Must(t, err)
			defer client.Close(context.Background())
			crew[n], got[n] = client, make(chan outcome, 1)
			go func() {
				lease, err := client.Acquire(context.Background(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
				got[n] <- outcome{lease, err}
			}()
		}
		testkit.Eventually(t, "it stands in line", func() bool {
			return n+1 == leasetest.Value[int](t, pool, "SELECT coalesce(array_length(waiters, 1), 0) FROM fencepost.leases WHERE resource = 'r'")
		})
	}
	// On a busy machine the mark would run out, since nobody asks again.
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 hour' WHERE resource = 'r'")
	release(t, holder, lease)
	for n := range crew {
		if dead(n) {
			continue
		}
		o := <-got[n]
		if o.err != nil {
			t.Fatal(o.err)
		}
		for later := n + 1; later < processes; later++ {
			if len(got[later]) > 0 {
				t.Errorf("process %d came before process %d", later, n)
			}
		}
		// The process that was granted has left the line with the dead ones
		// before it, so that nobody waits for one of them again.
		var line []string
		for _, i := range issuers[n+1:] {
			line = append(line, i.Process())
		}
		if now := leasetest.Value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); !slices.Equal(now, line) {
			t.Errorf("process %d was granted, and the line is %q, want %q", n, now, line)
		}
		testkit.Must(t, o.lease.Release(t.Context()))
	}
}

// TestLooksInItsTurn: a process whose turn comes finds that somebody has the lease, and is
// in the queue again. It is not woken.
func TestLooksInItsTurn(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	defer i.Subscribe("it listens before", func() {})()
	testkit.Eventually(t, "notifications", i.Listening)
	acquire(t, i, "r", "holder's")
	var wakes wakes
	defer i.Subscribe("r", wakes.wake)()
	mustExec(t, pool, "SELECT pg_notify($1, $2)", pglease.Channel+"."+i.Process(), pglease.Topic("r")+" dead "+i.Process())
	testkit.Eventually(t, "its place in the queue", func() bool {
		return slices.Equal([]string{i.Process()}, leasetest.Value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"))
	})
	settle(t, pool, i)
	if wakes.woken() {
		t.Error("woken, although somebody has the lease")
	}
}

// patientIssuer is an issuer whose waiters do not ask on their own.
type patientIssuer struct{ *pglease.Issuer }

func (p patientIssuer) Limits() driver.Limits {
	limits := p.Issuer.Limits()
	limits.Poll = time.Hour
	return limits
}

// TestAbandonedWaitersLeave: a process whose waiters have given up leaves the line, so
// that the lease is not kept for it; one whose waiter comes back, or that has another,
// keeps its place. The controls are a process that died, and one that still waits.
func TestAbandonedWaitersLeave(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	holder := newIssuer(t, pool, nil)
	acquire(t, holder, "r", "holder's")
	var stays []string
	for n := range 6 {
		i := newIssuer(t, pool, nil)
		watch := func() func() {
			var got driver.Watching
			testkit.Eventually(t, "it stands in line", func() bool {
				w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: input.NewLeaseID(), Wait: testkit.Patience}, func() {})
				got = w
				return err == nil
			})
			return got.Stop
		}
		stop := watch()
		switch n {
		case 0, 3: // gives up
			stop()
			continue
		case 1: // died
			i.Close()
			stop()
		case 2: // waits
		case 4: // comes back
			stop()
			watch()
		case 5: // has another
			watch()
			stop()
		}
		stays = append(stays, i.Process())
	}
	testkit.Eventually(t, "the others have left", func() bool {
		mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s' WHERE resource = 'r'") // however slow the machine is
		return slices.Equal(stays, leasetest.Value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"))
	})
	time.Sleep(2 * pglease.StayInLine)
	if line := leasetest.Value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); !slices.Equal(stays, line) {
		t.Errorf("the line is %q, want %q", line, stays)
	}
}

// TestBackDuringUnwatch: a waiter that comes back while its process is being taken out
// of the queue finds the earlier mark, which is removed then. It is woken, and its next
// look joins the queue.
func TestBackDuringUnwatch(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	acquire(t, newIssuer(t, pool, nil), "r", "holder's")
	watch := func(wake func()) (got driver.Watching) {
		testkit.Eventually(t, "it watches", func() bool {
			w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "waiter's", Wait: testkit.Patience}, wake)
			got = w
			return err == nil && w.Held != nil
		})
		return got
	}
	first := watch(func() {})
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s' WHERE resource = 'r'") // however slow the machine is
	tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE")
	first.Stop()
	pgtest.Blocked(t, pool, "fencepost.unwatch(", 1) // it is about to be taken out
	var back wakes
	second := watch(back.wake)
	testkit.Must(t, tx.Rollback(t.Context()))
	testkit.Eventually(t, "it is woken", back.woken)
	defer watch(func() {}).Stop()
	second.Stop()
	if line := leasetest.Value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); !slices.Equal(line, []string{i.Process()}) {
		t.Errorf("the line is %q", line)
	}
}

// TestFullLine: a waiter for whom there is no place polls.
func TestFullLine(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	acquire(t, newIssuer(t, pool, nil), "r", "holder's")
	for places, full := range map[int]bool{127: false, 128: true} {
		mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s', waiters = array_fill('x'::text, ARRAY[$1::int]) WHERE resource = 'r'", places)
		testkit.Eventually(t, "it listens", func() bool { i.Subscribe("r", func() {})(); return i.Listening() })
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: input.NewLeaseID(), Wait: testkit.Patience}, func() {})
		if errors.Is(err, driver.ErrNoWatch) != full || !full && (err != nil || w.Held == nil) {
			t.Errorf("%d wait already: %+v, %v", places, w.Held, err)
		}
	}
}
