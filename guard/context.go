package guard

import "context"

// Lease is what a fence needs to know about a held lease: its claim, and
// whether it is still valid by the holder's own clock. lockclient's leases are
// Leases. Implementations are safe for concurrent use.
type Lease interface {
	// Claim returns the claim that the lease entitles its holder to.
	Claim() Claim
	// Valid reports whether the lease is still held by the holder's clock. It
	// is an optimization that saves a request: a paused process learns of the
	// loss late, and only the resource's comparison is safe.
	Valid() bool
}

// claimContext carries a claim in one allocation; context.WithValue would box
// it in a second one.
type claimContext struct {
	context.Context
	claim   Claim
	lease   Lease
	current func() (Claim, bool) // in place of claim, unless nil
}

type claimKey struct{}

func (c *claimContext) Value(key any) any {
	if key == (claimKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// WithClaim returns a context that carries claim, for writers further down the
// call stack to present. The claim is not checked here: every fence checks what
// it is given.
func WithClaim(ctx context.Context, claim Claim) context.Context {
	return &claimContext{Context: ctx, claim: claim}
}

// WithCurrentClaim returns a context whose claim is what current returns at each call
// of [ClaimFrom]: for a stream, whose messages may come under one claim after the other.
func WithCurrentClaim(ctx context.Context, current func() (Claim, bool)) context.Context {
	return &claimContext{Context: ctx, current: current}
}

// WithLease returns a context that carries lease and its claim.
func WithLease(ctx context.Context, lease Lease) context.Context {
	return &claimContext{Context: ctx, claim: lease.Claim(), lease: lease}
}

// ClaimFrom returns the claim of the innermost [WithClaim] or [WithLease], and
// whether there is one.
func ClaimFrom(ctx context.Context) (Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(*claimContext)
	switch {
	case !ok:
		return Claim{}, false
	case c.current != nil:
		return c.current()
	}
	return c.claim, true
}

// LeaseFrom returns the lease of the innermost [WithLease], and whether there
// is one. A [WithClaim] further in hides it, because its claim may be another.
func LeaseFrom(ctx context.Context) (Lease, bool) {
	if c, ok := ctx.Value(claimKey{}).(*claimContext); ok && c.lease != nil {
		return c.lease, true
	}
	return nil, false
}
