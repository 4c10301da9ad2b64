package driver

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// What operators see and do, as package lockadmin has it and the lock server passes
// it on. It is here so that a lock server on another engine links no PostgreSQL.

// LeaseState says whether somebody has a lease.
type LeaseState string

// The states.
const (
	// StateHeld: somebody has the lease, by the server's clock.
	StateHeld LeaseState = "held"
	// StateExpired: it ran out without a release: its holder crashed, was
	// paused or could not reach the server. Anybody may acquire it.
	StateExpired LeaseState = "expired"
	// StateFree: it was released or force-unlocked, or never granted.
	StateFree LeaseState = "free"
)

// LeaseInfo is what the server knows about one resource. A free one keeps its
// row, because of the token, until a purge deletes it.
type LeaseInfo struct {
	// Resource is the whole name, which the fences and claims use.
	Resource string `json:"resource"`
	// Name is what the calls of this handle take: Resource without the
	// namespace of a handle that is confined to one.
	Name string `json:"name"`
	// State is held, expired or free, by the server's clock.
	State LeaseState `json:"state"`
	// Token is the last token granted or invalidated.
	Token guard.Token `json:"token"`
	// LeaseID is the holder's, or the last one's if the lease expired; empty if
	// the state is free.
	LeaseID string `json:"leaseId,omitempty"`
	// Owner is the owner to whom Token was granted; empty if it was granted to
	// nobody, because it was invalidated or advanced.
	Owner string `json:"owner,omitempty"`
	// AcquiredAt and ExpiresAt are by the server's clock, from the year 1 to 9999;
	// zero if there is no such moment. For a free lease, ExpiresAt is when it was
	// freed.
	AcquiredAt time.Time `json:"acquiredAt,omitzero"`
	ExpiresAt  time.Time `json:"expiresAt,omitzero"`
	// HeldFor is how long it has been held, Remaining how long it lasts unless
	// it is renewed; both zero unless it is held. HeldFor is negative if the
	// server's clock was set back since the grant, and 292 years at most.
	HeldFor   time.Duration `json:"heldForNanoseconds"`
	Remaining time.Duration `json:"remainingNanoseconds"`
	// Awaited says that somebody waits for it, or did within the last five
	// seconds. Waiters that poll, behind a pooler, are not included.
	Awaited bool `json:"awaited"`
	// Waiters is how many processes wait for it; 0 unless it is awaited.
	Waiters int `json:"waiters,omitempty"`
	// Metadata is what the holder, or the last one if the lease expired, says
	// about itself; empty if it said nothing or the state is free.
	Metadata string `json:"metadata,omitempty"`
}

// ListOptions configures a list. The zero value is the default.
type ListOptions struct {
	// States are the states to list; none means all.
	States []LeaseState
	// AwaitedOnly lists only the leases that somebody waits for.
	AwaitedOnly bool
	// HeldFor lists only the leases that have been held, renewals included, for at
	// least this long by the server's clock; 0 means any. A lease that was granted
	// before the server's clock was set back counts from the grant, by the new clock;
	// Inspect has a finding for it.
	HeldFor time.Duration
	// After is the Resource after which the list begins; empty means at the
	// first.
	After string
}

// AuditRecord is one record of fencepost.audit. No role can change or delete
// one; the table's owner would have to remove its triggers first.
type AuditRecord struct {
	// ID increases from record to record; there may be gaps.
	ID int64 `json:"id"`
	// At is when it was done, by the server's clock.
	At time.Time `json:"at"`
	// Action is what was done: "force_unlock".
	Action string `json:"action"`
	// Resource is the whole name, Name the one that the calls of this handle
	// take.
	Resource string `json:"resource"`
	Name     string `json:"name"`
	// Actor and Reason are as given; DatabaseUser is the role that the server
	// had authenticated.
	Actor        string `json:"actor"`
	Reason       string `json:"reason"`
	DatabaseUser string `json:"databaseUser"`
	// RequestID is the request's; with Token, the invalidated claim's lease ID.
	RequestID string `json:"requestId"`
	// Token is the token that was invalidated.
	Token guard.Token `json:"token"`
	// Cut is the resource as it was before; HeldFor and Remaining are as of At.
	Cut LeaseInfo `json:"cut"`
}

// Holder returns who held the lease when it was cut; held is false if nobody did:
// it was free, or had run out. If it had run out, Cut names its last owner.
func (r AuditRecord) Holder() (owner string, held bool) {
	if r.Cut.State != StateHeld {
		return "", false
	}
	return r.Cut.Owner, true
}

// AuditOptions configures the audit. The zero value is the default.
type AuditOptions struct {
	// From and To bound the time of the records: from From up to but excluding
	// To, by the server's clock. A zero time means no bound.
	From, To time.Time
	// Before is the ID that all records are below; 0 begins with the latest.
	Before int64
}

// ErrLeaseChanged: the resource's lease is not the one that
// ForceUnlockOptions.ExpectedLeaseID names. The error is a
// [*LeaseChangedError].
var ErrLeaseChanged = errors.New("lease is not the expected one")

// LeaseChangedError says what there is instead of the expected lease. It
// unwraps to [ErrLeaseChanged]. Nothing was changed.
type LeaseChangedError struct {
	// Expected is the lease ID that was expected.
	Expected string
	// Now is the resource as it is: a successor's lease, or a free one.
	Now LeaseInfo
}

// Error names the resource, the expected lease and what there is now.
func (e *LeaseChangedError) Error() string {
	s := fmt.Sprintf("fencepost: %v: %s is %s", ErrLeaseChanged, strconv.Quote(e.Now.Resource), e.Now.State)
	if e.Now.LeaseID != "" {
		s += fmt.Sprintf(" under lease %s of %s, token %s", strconv.Quote(e.Now.LeaseID), strconv.Quote(e.Now.Owner), e.Now.Token)
	}
	return s + ", expected was " + strconv.Quote(e.Expected)
}

// Unwrap returns [ErrLeaseChanged].
func (e *LeaseChangedError) Unwrap() error { return ErrLeaseChanged }

// ForceUnlockOptions configures a force unlock. The zero value is the
// default.
type ForceUnlockOptions struct {
	// ExpectedLeaseID is the lease to cut, as a get showed it; cutting
	// a successor's lease is then refused. Empty cuts whatever lease there is.
	ExpectedLeaseID string
	// RequestID names this request: repeating it under the same ID returns what
	// it did, instead of cutting the next holder. At most 128 bytes without
	// control characters; empty means a new UUID.
	RequestID string
}

// ForceUnlocked is what a force unlock did.
type ForceUnlocked struct {
	// Invalidated is a claim that nobody holds, with a token above the cut holder's.
	// Its lease ID is the request's. Raise it at the resource: until then the
	// cut holder still writes there.
	Invalidated guard.Claim `json:"invalidated"`
	// Cut is the resource as it was before; HeldFor and Remaining are as of At.
	Cut LeaseInfo `json:"cut"`
	// AuditID is the number of its record in the audit.
	AuditID int64 `json:"auditId"`
	// At is when it was done, by the server's clock.
	At time.Time `json:"at"`
	// Repeated says that the request had been carried out before.
	Repeated bool `json:"repeated"`
}
