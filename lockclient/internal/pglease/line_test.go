package pglease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
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
		eventually(t, "it listens", issuers[n].Listening)
		if dead(n) {
			if _, err := issuers[n].Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "dead"}, func() {}); err != nil {
				t.Fatal(err)
			}
			issuers[n].Close()
		} else {
			client, err := lockclient.New(patientIssuer{issuers[n]}, fmt.Sprint("process ", n), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close(context.Background())
			crew[n], got[n] = client, make(chan outcome, 1)
			go func() {
				lease, err := client.Acquire(context.Background(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
				got[n] <- outcome{lease, err}
			}()
		}
		eventually(t, "it stands in line", func() bool {
			return n+1 == value[int](t, pool, "SELECT coalesce(array_length(waiters, 1), 0) FROM fencepost.leases WHERE resource = 'r'")
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
		if now := value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); !slices.Equal(now, line) {
			t.Errorf("process %d was granted, and the line is %q, want %q", n, now, line)
		}
		if err := o.lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTurnInLine: a process that is not named first looks after the lease has
// been kept for those before it, and is woken if it is still free then and nobody
// has come. The controls are not woken.
func TestTurnInLine(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	defer i.Subscribe("it listens before", func() {})()
	eventually(t, "it listens", i.Listening)
	me, r := i.Process(), pglease.Topic("r")
	notify := func(payload string) {
		mustExec(t, pool, "SELECT pg_notify($1, $2)", pglease.Channel+"."+me, payload)
	}
	for _, test := range []struct {
		name     string
		payloads []string
		held     bool
		turn     int // 0 is at once, -1 never
	}{
		{"nobody is named", []string{r + " "}, false, 0},
		{"named first", []string{r + " " + me + " other"}, false, 0},
		{"second", []string{r + " dead " + me}, false, 1},
		{"third", []string{r + " dead gone " + me}, false, 2},
		{"control: the lease was taken", []string{r + " dead " + me}, true, -1},
		{"control: released again, and later in line", []string{r + " dead " + me, r + " one two three four five " + me}, false, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.held {
				defer release(t, i, acquire(t, i, "r", input.NewLeaseID()))
			}
			if test.turn < 0 {
				settle(t, pool, i) // earlier notifications have been handled
				var wakes wakes
				defer i.Subscribe("r", wakes.wake)()
				mustExec(t, pool, "SELECT pg_notify($1, payload) FROM unnest($2::text[]) AS u(payload)", pglease.Channel+"."+me, test.payloads)
				settle(t, pool, i)
				time.Sleep(3 * pglease.KeepFor)
				if wakes.woken() {
					t.Error("woken")
				}
				// The process that took it removed those before it; those alive
				// are in line again.
				if line := value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); test.held && !slices.Equal(line, []string{me}) {
					t.Errorf("the line is %q", line)
				}
				return
			}
			// A busy machine may be late; one round in time shows when it looks.
			least, best := time.Duration(test.turn)*pglease.KeepFor, time.Hour
			for round := 0; round < 20 && best > least+pglease.KeepFor/2; round++ {
				woken := make(chan struct{})
				stop := i.Subscribe("r", sync.OnceFunc(func() { close(woken) }))
				began := time.Now()
				notify(test.payloads[0])
				<-woken
				stop()
				best = min(best, time.Since(began))
			}
			if best < least || best > least+pglease.KeepFor/2 {
				t.Errorf("woken after %v at best, want %v", best, least)
			}
		})
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
			eventually(t, "it stands in line", func() bool {
				w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: input.NewLeaseID(), Wait: patience}, func() {})
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
	eventually(t, "the others have left", func() bool {
		mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s' WHERE resource = 'r'") // however slow the machine is
		return slices.Equal(stays, value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"))
	})
	time.Sleep(2 * pglease.StayInLine)
	if line := value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); !slices.Equal(stays, line) {
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
		eventually(t, "it watches", func() bool {
			w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "waiter's", Wait: patience}, wake)
			got = w
			return err == nil && w.Held != nil
		})
		return got
	}
	first := watch(func() {})
	mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s' WHERE resource = 'r'") // however slow the machine is
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	first.Stop()
	locked(t, pool, 1) // it is about to be taken out
	var back wakes
	second := watch(back.wake)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is woken", back.woken)
	defer watch(func() {}).Stop()
	second.Stop()
	if line := value[[]string](t, pool, "SELECT waiters FROM fencepost.leases WHERE resource = 'r'"); !slices.Equal(line, []string{i.Process()}) {
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
		eventually(t, "it listens", func() bool { i.Subscribe("r", func() {})(); return i.Listening() })
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: input.NewLeaseID(), Wait: patience}, func() {})
		if errors.Is(err, driver.ErrNoWatch) != full || !full && (err != nil || w.Held == nil) {
			t.Errorf("%d wait already: %+v, %v", places, w.Held, err)
		}
	}
}
