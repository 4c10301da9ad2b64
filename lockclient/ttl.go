package lockclient

import (
	"context"
	"slices"
	"sync"
	"time"
)

// RecommendTTL returns the TTL for a process whose pauses (garbage collection,
// a busy machine, a container without processor time) are at most pauseP99 in
// 99 of a hundred cases, whose renewals take at most renewalP99 as often
// ([Client.RenewalLatency] measures them), and that then wants margin to spare.
// The rule is
//
//	TTL >= p99 of a pause + p99 of a renewal + margin, renewed every TTL/3 or sooner
//
// When a pause begins just as a renewal is due, a third of the TTL is already
// spent, so the TTL is also at least one and a half times the pause and the
// renewal. It is rounded up to a millisecond and is at least [MinTTL]. A TTL
// that is too short causes takeovers from healthy holders, one that is too long
// causes waiting after a crash; neither loses data if the writes are fenced.
// Negative arguments count as zero.
func RecommendTTL(pauseP99, renewalP99, margin time.Duration) time.Duration {
	p, r, m := capped(pauseP99), capped(renewalP99), capped(margin)
	ttl := max(p+r+m, (p+r)*3/2, MinTTL)
	return (ttl + time.Millisecond - 1).Truncate(time.Millisecond)
}

// capped keeps sums of three from overflowing; it is far above [MaxTTL].
func capped(d time.Duration) time.Duration { return min(max(d, 0), 100*MaxTTL) }

// lowMargin is the part of the TTL below which lock_margin_low warns: with less
// than a third left when a renewal gets its response, one more renewal interval would
// have lost the lease.
const lowMargin = 3

// trySince records when a renewal was first tried; retries belong to it.
func (l *Lease) trySince(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trying == 0 {
		l.trying = max(1, now)
	}
}

// checkMargin measures a renewal that got its response, before its new deadline is
// set, and warns when little was left of the old one. It warns once until the
// margin is back, and only about leases that Hold renews: a caller that renews
// by hand may be late on purpose.
func (l *Lease) checkMargin(ctx context.Context, answered time.Duration, renewed bool) {
	l.mu.Lock()
	took, left := answered-l.trying, l.deadline-answered
	if renewed {
		l.trying = 0
	}
	low := left < l.ttl/lowMargin
	warn := low && !l.warned && l.every > 0 && l.err == nil
	l.warned = l.warned && !(renewed && !low) || warn
	l.mu.Unlock()
	if renewed {
		l.client.renewal.add(took)
	}
	if warn {
		l.client.marginLow(ctx, l, took, max(0, left))
	}
}

// Latency is how long renewals took, from the first attempt to the response that
// extended the lease, including the wait for a connection and failed attempts.
// Use it for renewalP99 of [RecommendTTL].
type Latency struct {
	// Count is how many renewals were measured in all. The rest is about the
	// last 256 of them, and zero if there was none.
	Count int `json:"count"`
	// Last is the latest, Max the longest.
	Last time.Duration `json:"lastNanoseconds"`
	Max  time.Duration `json:"maxNanoseconds"`
	// P50 and P99 are the longest of the fastest half and of the fastest 99 in
	// a hundred. With fewer than a hundred measured, P99 is Max.
	P50 time.Duration `json:"p50Nanoseconds"`
	P99 time.Duration `json:"p99Nanoseconds"`
}

const keptLatencies = 256

// latencies keeps the last ones.
type latencies struct {
	mu    sync.Mutex
	kept  []time.Duration // grows to keptLatencies, then a ring
	count int
}

func (s *latencies) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) < keptLatencies {
		s.kept = append(s.kept, d)
	} else {
		s.kept[s.count%keptLatencies] = d
	}
	s.count++
}

func (s *latencies) read() Latency {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.kept)
	if n == 0 {
		return Latency{}
	}
	l := Latency{Count: s.count, Last: s.kept[(s.count-1)%keptLatencies]}
	sorted := slices.Sorted(slices.Values(s.kept))
	l.Max = sorted[n-1]
	l.P50 = sorted[(n*50+99)/100-1]
	l.P99 = sorted[(n*99+99)/100-1]
	return l
}

// RenewalLatency returns how long the renewals of this client's leases took.
func (c *Client) RenewalLatency() Latency { return c.renewal.read() }
