package lockclient

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// issuer is the server as the timing logic sees it: one call is one attempt, on
// one connection. It is apart from the timing so that the timing can be tested
// against a simulated server. [postgres] is the one that ships.
//
// Errors are guard.ErrUnavailable (nothing was written) and
// guard.ErrOutcomeUnknown. The context's end does not abandon a statement at
// once, see [lingering].
type issuer interface {
	// acquire asks for the lease. An answer that is neither granted nor held
	// means that the lease was taken and freed again in between.
	acquire(ctx context.Context, r request) (answer, error)
	// renew extends the lease by ttl; false means that the server no longer
	// has it. sent was read before the request left.
	renew(ctx context.Context, claim guard.Claim, ttl, timeout time.Duration) (sent time.Duration, held bool, err error)
	// release frees the lease, of whatever token if the claim has none; false
	// means that it was not the claim's.
	release(ctx context.Context, claim guard.Claim, timeout time.Duration) (freed bool, err error)
	// close frees the issuer's own connections.
	close()
}

// explainer is an issuer that can say why it no longer has a lease.
type explainer interface {
	// why returns a [*ForceUnlockedError], or nil if it does not know.
	why(ctx context.Context, claim guard.Claim) error
}

// whyTimeout bounds the question why a lease is gone: to end the lease soon is
// worth more than the answer.
const whyTimeout = time.Second

// gone says why the issuer does not have the lease, if that is told in time.
func (c *Client) gone(ctx context.Context, claim guard.Claim, within time.Duration) error {
	if e, ok := c.issuer.(explainer); ok {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(within, whyTimeout))
		defer cancel()
		if err := e.why(ctx, claim); err != nil {
			return err
		}
	}
	return errGone
}

// request is one TryAcquire or Acquire with everything but the context.
type request struct {
	resource, owner, leaseID string
	// given says that the caller chose the lease ID and may present it again.
	given        bool
	ttl, timeout time.Duration
}

// claim is what an acquire may have left behind as far as its caller can know:
// no token.
func (r request) claim() guard.Claim { return guard.Claim{Resource: r.resource, LeaseID: r.leaseID} }

type answer struct {
	granted    bool
	token      guard.Token
	acquiredAt time.Time     // by the server's clock
	sent       time.Duration // read before the request left
	held       *HeldError    // who has it, if not granted
	reclaimed  bool          // the lease before had run out
}
