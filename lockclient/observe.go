package lockclient

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// Holder is who has a lease. The zero value is nobody.
type Holder struct {
	// Claim is the holder's. It is for logs and for followers that forward;
	// presenting it impersonates the holder.
	Claim guard.Claim
	// Owner and Metadata are what the holder says of itself.
	Owner, Metadata string
	// ExpiresAt is when the lease runs out unless it is renewed, by the issuer's
	// clock, as of when the holder was noticed.
	ExpiresAt time.Time
}

// Holders yields who has the lease on resource, now and whenever that changes,
// until ctx ends, the loop is left or the client is closed. It is for
// followers: it asks for no lease and joins no line. A release is seen at once
// if the issuer notifies of it; a grant, and a release without notification, is
// seen after two seconds, or after the issuer's Limits.Poll. A holder that came
// and went in between is not seen.
//
// An error (guard.ErrUnavailable, guard.ErrInvalid) means that it is not known
// who has the lease; except for invalid names and a closed client the loop may
// go on, and learns of the next change.
func (c *Client) Holders(ctx context.Context, resource string) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		full, err := c.namespace.Resource(resource)
		if err != nil {
			yield(Holder{}, err)
			return
		}
		var last guard.Claim
		for attempt, told := 0, false; ; {
			if err := c.usable(ctx); err != nil {
				if ctx.Err() == nil {
					yield(Holder{}, guard.Unavailable("watch", guard.Claim{Resource: full}, err))
				}
				return
			}
			stepped := c.steps()
			woken := make(chan struct{}, 1)
			watching, err := c.watch(ctx, driver.Watch{Resource: full}, func() {
				select {
				case woken <- struct{}{}:
				default:
				}
			})
			if err != nil {
				told = false
				if ctx.Err() == nil && !yield(Holder{}, err) {
					return
				}
				c.pause(ctx, pause.Backoff(attempt))
				attempt++
				continue
			}
			attempt = 0
			nap := pause.Jitter(cmp.Or(c.limits.Poll, waiting.Look), 5)
			var holder Holder
			if h := watching.Held; h != nil {
				holder = Holder{
					Claim: guard.Claim{Resource: full, Token: h.Token, LeaseID: h.LeaseID},
					Owner: h.Owner, Metadata: h.Metadata, ExpiresAt: h.ExpiresAt,
				}
				nap = min(nap, h.Remaining+time.Millisecond)
			}
			if !told || holder.Claim != last {
				told, last = true, holder.Claim
				if !yield(holder, nil) {
					watching.Stop()
					return
				}
			}
			timer := time.NewTimer(nap)
			select {
			case <-woken:
			case <-timer.C:
			case <-stepped:
			case <-ctx.Done():
			case <-c.open.Done():
			}
			timer.Stop()
			watching.Stop()
		}
	}
}
