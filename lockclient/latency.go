package lockclient

import (
	"slices"
	"sync"
	"time"
)

// Latency is how long renewals took, from the first attempt to the answer that
// made the lease last: the time for a connection and failed attempts count. It
// is what the renewal's part of [RecommendTTL] is to be taken from.
type Latency struct {
	// Count is how many renewals were measured in all. The rest is about the
	// last 256 of them, and zero if there was none.
	Count int `json:"count"`
	// Last is the latest, Max the longest.
	Last time.Duration `json:"lastNanoseconds"`
	Max  time.Duration `json:"maxNanoseconds"`
	// P50 and P99 are the longest of the fastest half and of the fastest 99 in
	// a hundred. Of fewer than a hundred, P99 is Max.
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

// RenewalLatency returns how long this lease's renewals took.
func (l *Lease) RenewalLatency() Latency { return l.renewals.read() }
