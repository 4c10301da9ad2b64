package lockadmin

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Admin is the operators' calls of one engine. It is safe for concurrent use.
//
// Every call may fail with guard.ErrUnavailable, a call that changes something also with
// guard.ErrOutcomeUnknown: look before it is repeated. A call that the engine does not have
// fails with an [*UnsupportedError]. Options may be nil.
type Admin interface {
	// List yields the leases that pattern selects, in the byte order of their names. A
	// pattern is read by components, which ":" separates:
	//
	//	""                      every lease
	//	"tenant_1"              tenant_1, and every name that begins with "tenant_1:"
	//	"tenant_1:*:2026-04"    "*" in place of a component is any one
	//	"tenant_1:bill*"        at the end "*" is any rest
	//
	// So "tenant_1" never selects tenant_12. Components are escaped as in a name; "%2A"
	// is a literal "*". It is not a snapshot; none is listed twice. An error ends the
	// sequence, such as guard.ErrInvalid (pattern, States, HeldFor, After).
	List(ctx context.Context, pattern string, opts *ListOptions) iter.Seq2[LeaseInfo, error]

	// Get returns what the engine knows about one resource.
	//
	// Errors: guard.ErrInvalid, and guard.ErrNotFound where the engine knows of
	// resources that nobody holds: it was never leased, or purged.
	Get(ctx context.Context, resource string) (LeaseInfo, error)

	// ForceUnlock ends the lease on resource, whoever has it, and invalidates a token
	// above its. The holder's next renewal finds its lease lost; waiters are woken. It
	// writes a record with actor, 1 to 128 bytes, and reason, 1 to 1000 bytes.
	//
	// It does not stop the cut holder from writing: raise ForceUnlocked.Invalidated at
	// the resource, or wait for the next holder to do so.
	//
	// Errors: guard.ErrInvalid (actor, reason, an ID; on PostgreSQL also a request ID that
	// was used for another resource); guard.ErrNotFound; [ErrLeaseChanged];
	// guard.ErrOutcomeUnknown: the [guard.FailedError]'s claim has the request ID as its
	// lease ID; call again with it.
	ForceUnlock(ctx context.Context, resource, actor, reason string, opts *ForceUnlockOptions) (ForceUnlocked, error)

	// Audit yields what operators did to the resources that pattern selects, the latest
	// first. An error ends the sequence, such as guard.ErrInvalid (pattern, From not
	// before To, Before).
	Audit(ctx context.Context, pattern string, opts *AuditOptions) iter.Seq2[AuditRecord, error]

	// Advance raises the issuer above the tokens that another system has issued for the
	// resource, and returns what every later grant there is above: the given token or
	// more. It never lowers a token; calling it again is harmless.
	//
	// Errors: guard.ErrInvalid (also above [MaxAdvance]), and lockclient.ErrHeld if
	// somebody holds the resource with a lower token.
	Advance(ctx context.Context, resource string, above guard.Token) (reached guard.Token, err error)

	// AdvanceFloor is Advance for every resource, including those that the issuer does
	// not know. Call it before guard.Store.Retire, with the highest mark that will be
	// retired.
	AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error)

	// Epoch returns from where tokens are counted.
	Epoch(ctx context.Context) (Epoch, error)

	// RaiseEpoch puts every later token, on every resource, above all that this engine
	// or one that had the same data can have issued. It is for a restore of which the
	// engine cannot know; each engine's package says when, and what to restart.
	RaiseEpoch(ctx context.Context) (Epoch, error)

	// Purge deletes what is kept of leases that have been free for long. No token is
	// lowered by it. Purged says what was deleted even if there is an error; another
	// call continues.
	Purge(ctx context.Context, opts *PurgeOptions) (Purged, error)

	// Inspect looks at the engine's settings that matter to leases, and says of each
	// whether it is as it should be. It writes nothing.
	Inspect(ctx context.Context) ([]Finding, error)
}

// ListOptions configures a list. The zero value is the default.
type ListOptions struct {
	// States are the states to list; none means all.
	States []LeaseState
	// AwaitedOnly lists only the leases that somebody waits for.
	AwaitedOnly bool
	// HeldFor lists only the leases that have been held, renewals included, for at
	// least this long by the server's clock; 0 means any.
	HeldFor time.Duration
	// After is the Resource after which the list begins; empty means at the
	// first.
	After string
}

// ForceUnlockOptions configures a force unlock. The zero value is the default.
type ForceUnlockOptions struct {
	// ExpectedLeaseID is the lease to cut, as a get showed it; cutting a successor's
	// lease is then refused. Empty cuts whatever lease there is.
	ExpectedLeaseID string
	// RequestID names this request: repeating it under the same ID returns what
	// it did, instead of cutting the next holder. At most 128 bytes without
	// control characters; empty means a new UUID.
	RequestID string
}

// AuditOptions configures the audit. The zero value is the default.
type AuditOptions struct {
	// From and To bound the time of the records: from From up to but excluding
	// To, by the server's clock. A zero time means no bound.
	From, To time.Time
	// Before is the ID that all records are below; 0 begins with the latest.
	Before int64
}

// PurgeOptions configures a purge. The zero value is the default.
type PurgeOptions struct {
	// OlderThan is how long a lease must have been free, or expired, for its row
	// to be deleted, by the server's clock; 0 means 24 h, at least a
	// millisecond. Safety does not depend on it.
	OlderThan time.Duration
	// Batch is how many rows one transaction deletes at most; 0 means 100, at
	// most 1000. Grants and renewals are blocked while it runs.
	Batch int
	// LockTimeout bounds how long a batch waits for its lock, and so how long
	// it can delay grants and renewals to no purpose; 0 means 20 ms, at most a
	// second. Raise it where a commit takes longer than that.
	LockTimeout time.Duration
}

// MaxAdvance is the highest token that Advance and AdvanceFloor accept, 2^62-1. Times in
// nanoseconds, Snowflake IDs and ZooKeeper transaction IDs are below it; the rest is left
// for epochs.
const MaxAdvance guard.Token = 1<<62 - 1

// Validate checks the options, for engines. The error is a [*guard.InvalidError].
func (o ListOptions) Validate() error {
	if o.After != "" {
		if err := guard.ValidateResource(o.After); err != nil {
			return guard.Invalid("After", o.After, "is not a resource's name")
		}
	}
	for i, state := range o.States {
		if state != StateHeld && state != StateExpired && state != StateFree {
			return guard.Invalid("States["+strconv.Itoa(i)+"]", string(state), "must be held, expired or free")
		}
	}
	if o.HeldFor < 0 {
		return guard.Invalid("HeldFor", o.HeldFor.String(), "must not be negative")
	}
	return nil
}

// Selects reports whether the options select a lease, but for After, for engines that
// cannot do it themselves.
func (o ListOptions) Selects(l LeaseInfo) bool {
	return (len(o.States) == 0 || slices.Contains(o.States, l.State)) && (!o.AwaitedOnly || l.Awaited) &&
		(o.HeldFor == 0 || l.State == StateHeld && l.HeldFor >= o.HeldFor)
}

// Validate checks the options, for engines. The error is a [*guard.InvalidError].
func (o AuditOptions) Validate() error {
	if !o.To.IsZero() && !o.From.Before(o.To) {
		return guard.Invalid("From", o.From.Format(time.RFC3339Nano), "must be before To, which is "+o.To.Format(time.RFC3339Nano))
	}
	if o.Before < 0 {
		return guard.Invalid("Before", strconv.FormatInt(o.Before, 10), "must not be negative")
	}
	return nil
}

// Selects reports whether the options select a record, for engines that cannot do it
// themselves.
func (o AuditOptions) Selects(r AuditRecord) bool {
	return (o.Before == 0 || r.ID < o.Before) && !r.At.Before(o.From) && (o.To.IsZero() || r.At.Before(o.To))
}
