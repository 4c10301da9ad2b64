package lockclient

import (
	"context"
	"time"
)

// trySince notes when a renewal was first tried; repeated attempts are part of
// the same one.
func (l *Lease) trySince(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trying == 0 {
		l.trying = max(1, now)
	}
}

// checkMargin measures a renewal that was answered, before its new deadline is
// set, and warns when little was left of the old one. It warns once until the
// margin is back, and only of leases that Hold renews: who renews by hand may
// have meant to come late.
func (l *Lease) checkMargin(ctx context.Context, answered time.Duration, renewed bool) {
	l.mu.Lock()
	took, left := answered-l.trying, l.deadline-answered
	if renewed {
		l.trying = 0
	}
	gone := left < l.ttl/lowMargin
	warn := gone && !l.low && l.kept && l.err == nil
	l.low = l.low && !(renewed && !gone) || warn
	l.mu.Unlock()
	if renewed {
		l.renewals.add(took)
		l.client.renewal.add(took)
	}
	if warn {
		l.client.events.marginLow(ctx, l, took, max(0, left))
	}
}
