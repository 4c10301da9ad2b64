package lockclient

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
)

// maxNap bounds how long a timer is trusted. Timers stop while a machine is
// suspended and the clock does not, so the keeper looks at the clock at least
// this often.
const maxNap = time.Second

// togetherShare is the part of the renewal interval by which a renewal may be
// sent early, together with others that are due.
const togetherShare = 25

// keeper watches the leases of a client: it ends those whose deadline has passed,
// and renews those that are kept alive, many at once. A timer starts it, which is
// set while there are leases, and for a second more: most callers lease again soon.
// So it has no goroutine while nothing is due.
type keeper struct {
	c *Client

	mu      sync.Mutex
	leases  leaseHeap
	running bool          // the timer is set, or run is under way
	rests   time.Duration // until when the timer is set
	timer   *time.Timer   // calls run
	closed  bool
	wg      sync.WaitGroup
}

// rest sets the timer; k.mu is held.
func (k *keeper) rest(now, nap time.Duration) {
	k.rests = now + nap
	if k.timer == nil {
		k.timer = time.AfterFunc(nap, k.run)
	} else {
		k.timer.Reset(nap)
	}
}

// watch makes the keeper look at a lease at next instead of when it would. A lease that
// has ended is not looked at again: whoever ends it forgets it afterwards.
func (k *keeper) watch(l *Lease, next time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.ended() {
		return
	}
	if l.next = next; l.place >= 0 {
		heap.Fix(&k.leases, l.place)
	} else {
		heap.Push(&k.leases, l)
	}
	if !k.running {
		k.running = true
		now := k.c.clock()
		k.rest(now, min(maxNap, max(0, next-now)))
	} else if next < k.rests {
		k.rest(next, 0)
	}
}

// forget ends the watch over a lease.
func (k *keeper) forget(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.place >= 0 {
		heap.Remove(&k.leases, l.place)
	}
}

// close ends the renewals. Leases are still ended at their deadlines.
func (k *keeper) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.wg.Wait()
}

// run looks at the leases that are due, and sets the timer for the next.
func (k *keeper) run() {
	k.mu.Lock()
	if !k.closed {
		k.wg.Add(1)
		defer k.wg.Done()
	}
	due, over := k.take()
	k.mu.Unlock()
	for _, l := range over {
		l.Err() // ends it
	}
	k.renew(due)
}

// take returns the leases that are to be renewed now, and those that are over; k.mu
// is held.
func (k *keeper) take() (due, over []*Lease) {
	var seen []*Lease
	now := k.c.clock()
	until := now
	for len(k.leases) > 0 && k.leases[0].next <= until {
		l := heap.Pop(&k.leases).(*Lease)
		renew, deadline, look := l.dueBy(until, k.closed)
		switch {
		case deadline <= now:
			over = append(over, l) // it is not looked at again
			continue
		case renew:
			if until == now { // the first: what is nearly due is sent along
				until = now + l.kept()/togetherShare
			}
			due = append(due, l)
		}
		l.next = look // unless a renewal says otherwise
		seen = append(seen, l)
	}
	for _, l := range seen {
		heap.Push(&k.leases, l)
	}
	if k.running = len(k.leases) > 0 || len(due) > 0; k.running {
		nap := maxNap
		if len(k.leases) > 0 {
			nap = min(nap, max(0, k.leases[0].next-now))
		}
		k.rest(now, nap)
	}
	return due, over
}

// renew sends renewals, earliest deadline first, and those that failed before in
// batches of their own: they may fail again.
func (k *keeper) renew(due []*Lease) {
	slices.SortFunc(due, func(a, b *Lease) int {
		return cmp.Or(cmp.Compare(a.urgency(), b.urgency()), cmp.Compare(a.currentDeadline(), b.currentDeadline()))
	})
	size := max(1, k.c.limits.Batch)
	for len(due) > 0 {
		n, in := 0, map[guard.Claim]bool{} // an acquire that was repeated makes two leases of one claim
		for n < len(due) && n < size && due[n].urgency() == due[0].urgency() && !in[due[n].claim] {
			in[due[n].claim] = true
			n++
		}
		batch := due[:n]
		due = due[n:]
		k.wg.Go(func() { k.send(batch) })
	}
}

// send renews one batch. It takes at most half the time left to the first
// deadline in it, and the issuer's grace, so that another attempt fits.
func (k *keeper) send(batch []*Lease) {
	began, timeout := k.c.clock(), k.c.set.OpTimeout
	batch = slices.DeleteFunc(batch, func(l *Lease) (ended bool) {
		t := l.renewTimeout()
		if t > 0 {
			timeout = min(timeout, t)
		}
		return t <= 0
	})
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, func(a, b *Lease) int { return cmp.Compare(a.claim.Resource, b.claim.Resource) })
	renewals, results := make([]driver.Renewal, len(batch)), make([]driver.Renewed, len(batch))
	for n, l := range batch {
		renewals[n] = driver.Renewal{Claim: l.claim, TTL: l.ttl}
	}
	ctx, cancel := context.WithTimeout(batch[0].values, timeout) // which a pool's hooks may need
	stop := context.AfterFunc(k.c.patience, cancel)
	k.c.issuer.Renew(ctx, renewals, results)
	stop()
	cancel()
	for n, l := range batch {
		r := results[n]
		if r.State == driver.Over {
			k.wg.Go(func() { l.renewed(r, began) }) // it asks why
			continue
		}
		k.watch(l, l.renewed(r, began))
	}
}

// renewed applies a renewal's result, returns when to look next, and reports it
// afterwards.
func (l *Lease) renewed(r driver.Renewed, began time.Duration) (next time.Duration) {
	c, err := l.client, r.Err
	answered := c.clock()
	low, left := l.lowMargin(answered, r.State == driver.Extended)
	switch {
	case r.State == driver.Extended:
		l.extend(deadline(r.From, cmp.Or(r.TTL, l.ttl)))
		err = l.Err()
	case r.State == driver.Over:
		l.end(&LostError{Claim: l.claim, Cause: c.why(context.Background(), l.claim, l.Remaining()/2)})
		err = l.Err()
	case err == nil:
		err = guard.OutcomeUnknown("renew", l.claim, errors.New("the issuer sent no response for this lease"))
	}
	l.mu.Lock()
	l.renewing = false
	if err == nil {
		l.failures = 0
		l.renewAt = answered + pause.Jitter(l.every, 5)
	} else {
		// Soon enough for several tries before the deadline, and jittered:
		// everybody's renewals fail together when the server restarts.
		l.failed = err
		l.failures++
		l.renewAt = answered + min(pause.Backoff(l.failures+2, maxBackoff), pause.Jitter(max((l.deadline-answered)/4, time.Millisecond), 2))
	}
	next = l.nextLook()
	failures := l.failures
	l.mu.Unlock()
	if low {
		c.marginLow(l, answered-began, left)
	}
	c.renewed(l, err, answered-began, failures)
	return next
}

// maxBackoff is the longest pause between two attempts that nobody waits for. Against a
// server that is coming up, thousands of processes repeat theirs.
const maxBackoff = 10 * time.Second

// lowMarginShare is the part of the TTL below which lock_margin_low warns: with less
// than a third left when a renewal gets its response, one more renewal interval would
// have lost the lease.
const lowMarginShare = 3

// lowMargin returns whether to warn that little was left when a renewal got its
// response, before its new deadline is set. It warns once until the margin is back, and
// only about leases that are renewed in the background: a caller that renews by hand may
// be late on purpose.
func (l *Lease) lowMargin(answered time.Duration, extended bool) (warn bool, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left = l.deadline - answered
	low := left < l.ttl/lowMarginShare
	warn = low && !l.warned && l.every > 0 && l.err == nil
	l.warned = l.warned && !(extended && !low) || warn
	return warn, max(0, left)
}

// leaseHeap has at its top the lease to look at first.
type leaseHeap []*Lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is heap.Interface's.
func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
	l.place = len(*h)
	*h = append(*h, l)
}

// Pop is heap.Interface's.
func (h *leaseHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h, l.place = (*h)[:last], -1
	return l
}
