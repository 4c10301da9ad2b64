// Package bridge lets the packages below lockclient run a lockclient.Client on
// another server than PostgreSQL, without an exported way to do so. Package
// lockclient fills in New.
package bridge

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Issuer is the server as a client sees it: one call is one attempt. Errors are
// guard.ErrUnavailable (nothing was written) and guard.ErrOutcomeUnknown.
type Issuer interface {
	// Acquire asks for the lease. An answer that is neither granted nor held
	// means that the lease was taken and freed again in between.
	Acquire(ctx context.Context, r Request) (Answer, error)
	// Renew extends the lease; false means that the server no longer has it.
	// sent was read from the client's clock before the request left.
	Renew(ctx context.Context, claim guard.Claim, ttl time.Duration) (sent time.Duration, held bool, err error)
	// Release frees the lease, of whatever token if the claim has none; false
	// means that it was not the claim's.
	Release(ctx context.Context, claim guard.Claim) (freed bool, err error)
	// Holder says who but leaseID has the lease; nil if nobody.
	Holder(resource, leaseID string) *Held
	// Subscribe has ring called at every release of resource, until cancel.
	Subscribe(resource string, ring func()) (cancel func())
}

// Request is one acquire.
type Request struct {
	Resource, Owner, LeaseID string
	TTL                      time.Duration
}

// Answer is what became of it.
type Answer struct {
	Granted    bool
	Token      guard.Token
	AcquiredAt time.Time
	Sent       time.Duration // by the client's clock, before the request left
	Held       *Held
	Reclaimed  bool // the lease before had run out
}

// Held is who has a lease.
type Held struct {
	Owner     string
	Token     guard.Token
	LeaseID   string
	ExpiresAt time.Time
	Remaining time.Duration
}

// New makes a *lockclient.Client of an issuer. options is a
// *lockclient.Options. moved must be called after clock was moved by hand.
var New func(i Issuer, owner string, options any, clock func() time.Duration) (client any, moved func(), err error)
