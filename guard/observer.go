package guard

import (
	"context"
	"time"
)

// Observer receives events from the guards and the lease client, for metrics
// and audit. It is called synchronously, so it must be quick, must not block
// and must be safe for concurrent use. A nil Observer is none.
type Observer interface {
	Observe(ctx context.Context, e Event)
}

// ObserverFunc adapts a function to [Observer].
type ObserverFunc func(ctx context.Context, e Event)

// Observe calls f.
func (f ObserverFunc) Observe(ctx context.Context, e Event) { f(ctx, e) }

// Op names what was attempted.
type Op string

// What is observed. The fences report OpCheck to OpReject; the lease
// client reports the rest.
const (
	OpCheck       Op = "check"       // a mark was compared, nothing written
	OpAdmit       Op = "admit"       // a claim was admitted or refused before any write
	OpRaise       Op = "raise"       // a mark was raised ahead of reading
	OpWrite       Op = "write"       // a fenced write
	OpTransaction Op = "transaction" // a fenced transaction
	OpReject      Op = "reject"      // an HTTP handler refused a request itself
	OpAcquire     Op = "acquire"
	OpRenew       Op = "renew"
	OpRelease     Op = "release"
	OpLost        Op = "lost"    // a held lease ended before its holder released it
	OpContend     Op = "contend" // an acquire found the lease held, or a raise an older holder at work; once per call
	OpReclaim     Op = "reclaim" // a grant replaced a lease that had expired unreleased
	OpForceUnlock Op = "force_unlock"
)

// Surface names the package that reports an [Event].
type Surface string

// The surfaces of this module.
const (
	SurfaceHTTP Surface = "http"
	SurfaceSQL  Surface = "sql"
	SurfaceS3   Surface = "s3"
	SurfaceLock Surface = "lock" // the lease client and the operators' calls
)

// Event is one observation. It is passed by value; observing allocates nothing.
type Event struct {
	// Op is what was attempted.
	Op Op
	// Surface is the package that reports.
	Surface Surface
	// Claim is what was presented; Token is NoToken for an acquire that was
	// not granted.
	Claim Claim
	// Mark is what the claim was compared with, where that is known.
	Mark Mark
	// Reason is ReasonNone for success.
	Reason Reason
	// Duration is how long the operation took; for OpLost and OpRelease it is
	// how long the lease had been held.
	Duration time.Duration
	// Err is the error that the caller gets; nil for success, and where
	// a handler behind httpfence has responded with an error of its own.
	Err error
	// Route is the pattern of the route or the method of the RPC; "" elsewhere.
	Route string
	// ReportOnly says that the request proceeded although it was refused.
	ReportOnly bool
}
