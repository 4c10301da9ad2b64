package lockclient

import (
	"context"
	"time"
)

// bell is an issuer that can tell a waiter of a release. Without one, waiters
// poll.
//
// No wake-up is lost, in whatever order a release, the setting of the wake mark
// and the start of listening come, because a waiter sleeps only after these two
// steps in this order:
//
//  1. It listens: subscribed, and the connection's LISTEN has committed.
//  2. It has set the wake mark on a lease that was still held then, or has
//     found one that lasts: watch.
//
// A release and a mark take the same row's lock, so one is before the other. If
// the mark is first, the release sees it and notifies, and that comes to step
// 1's connection. If the release is first, the mark finds nothing held, and the
// waiter asks instead of sleeping. A mark that is found, not set, was there
// before the row's version that watch read; a release after that version saw it.
// If the connection breaks after step 1, down is closed and the waiter polls
// until both steps are done again. A mark that ran out unnoticed, or a
// connection that is dead without having said so, costs the waiter at most the
// time until it looks again by itself: [lookAgain].
type bell interface {
	// watch sets the wake mark unless one lasts, and says who has the lease.
	// held is nil if it is free by now. marked is false if the holder changed
	// meanwhile; then the waiter must not sleep.
	watch(ctx context.Context, r request) (held *HeldError, marked bool, err error)
	// subscribe begins to listen for releases of resource.
	subscribe(resource string) *subscription
	// listening returns a channel that is closed when notifications may be
	// missed from then on; nil if they are missed now.
	listening() <-chan struct{}
	// unsubscribe ends it.
	unsubscribe(*subscription)
}

// subscription is one waiter's interest in the releases of one resource.
type subscription struct {
	topic string
	rung  chan struct{} // holds one: a second release before the waiter looked is no news
	// cancel is for an issuer to keep what ends it.
	cancel func()
}

func (s *subscription) ring() {
	select {
	case s.rung <- struct{}{}:
	default:
	}
}

const (
	// wakeFor is how long a wake mark lasts. It outlives its waiter by that, and
	// costs the releases meanwhile a notification.
	wakeFor = 5 * time.Second
	// lookAgain is after how long a waiter looks by itself and sets the mark
	// anew. watch lets a mark be that has half of wakeFor left, so this is less.
	lookAgain = 2 * time.Second
)
