package lockclient

import "time"

// Delays is what a lease has to outlast; see [RecommendTTL].
type Delays struct {
	// Pause is the longest pause of the process in 99 of a hundred cases: garbage
	// collection, a busy machine, a container without processor time.
	Pause time.Duration
	// Renewal is the longest renewal in 99 of a hundred cases. The observer gets the
	// duration of each (guard.OpRenew); guardotel has a histogram of them.
	Renewal time.Duration
	// Margin is what you want to spare.
	Margin time.Duration
}

// RecommendTTL returns the TTL for a process with such delays:
//
//	TTL >= p99 of a pause + p99 of a renewal + margin, renewed every TTL/3 or sooner
//
// When a pause begins just as a renewal is due, a third of the TTL is already
// spent, so the TTL is also at least one and a half times the pause and the
// renewal. It is rounded up to a millisecond and is at least [MinTTL]. A TTL
// that is too short causes takeovers from healthy holders, one that is too long
// causes waiting after a crash; neither loses data if the writes are fenced.
// Negative delays count as zero.
func RecommendTTL(d Delays) time.Duration {
	p, r, m := capped(d.Pause), capped(d.Renewal), capped(d.Margin)
	ttl := max(p+r+m, (p+r)*3/2, MinTTL)
	return (ttl + time.Millisecond - 1).Truncate(time.Millisecond)
}

// capped keeps sums of three from overflowing; it is far above [MaxTTL].
func capped(d time.Duration) time.Duration { return min(max(d, 0), 100*MaxTTL) }
