package lockadmin

import (
	"encoding/json"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
)

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

// LeaseInfo is what an engine knows about one resource. PostgreSQL keeps the row of a
// free one, because of the token, until a purge deletes it; the others forget it.
type LeaseInfo struct {
	// Resource is the whole name, which the fences and claims use.
	Resource string
	// State is held, expired or free, by the server's clock.
	State LeaseState
	// Token is the last token granted or invalidated; guard.NoToken if that is not
	// known, or not shown to the reader.
	Token guard.Token
	// LeaseID is the holder's, or the last one's if the lease expired; empty if
	// the state is free, or if it is not shown to the reader.
	LeaseID string
	// Owner is the owner to whom Token was granted; empty if it was granted to
	// nobody, because it was invalidated or advanced.
	Owner string
	// CreatedAt, when it was granted, and ExpiresAt are by the server's clock, from the
	// year 1 to 9999; zero if there is no such moment. For a free lease, ExpiresAt is
	// when it was freed.
	CreatedAt, ExpiresAt time.Time
	// HeldFor is how long it has been held, Remaining how long it lasts unless
	// it is renewed; both zero unless it is held. HeldFor is negative if the
	// server's clock was set back since the grant, and 292 years at most.
	HeldFor, Remaining time.Duration
	// Awaited says that somebody waits for it, or did within the last five
	// seconds. Waiters that poll are not included.
	Awaited bool
	// Waiters is how many processes wait for it; 0 unless it is awaited.
	Waiters int
	// Metadata is what the holder, or the last one if the lease expired, says
	// about itself; empty if it said nothing or the state is free.
	Metadata string
}

// leaseJSON is the JSON form of a LeaseInfo.
type leaseJSON struct {
	Resource string     `json:"resource"`
	State    LeaseState `json:"state"`
	Owner    string     `json:"ownerId"`
	Metadata string     `json:"metadata,omitempty"`
	LeaseID  string     `json:"leaseId,omitempty"`
	wire.Twice
	CreatedAt time.Time    `json:"createdAt,omitzero"`
	ExpiresAt time.Time    `json:"expiresAt,omitzero"`
	HeldFor   wire.Seconds `json:"heldForSeconds"`
	Remaining wire.Seconds `json:"remainingSeconds"`
	Awaited   bool         `json:"awaited,omitempty"`
	Waiting   int          `json:"waiting"`
}

// MarshalJSON writes the one form. Durations are from 0 to a billion seconds, and that
// which remains of a held lease is not 0.
func (l LeaseInfo) MarshalJSON() ([]byte, error) {
	out := leaseJSON{
		Resource: l.Resource, State: l.State, Owner: l.Owner, Metadata: l.Metadata, LeaseID: l.LeaseID, Twice: wire.TwiceOf(l.Token),
		CreatedAt: l.CreatedAt, ExpiresAt: l.ExpiresAt, HeldFor: wire.Bounded(l.HeldFor), Remaining: wire.Bounded(l.Remaining),
		Awaited: l.Awaited, Waiting: l.Waiters,
	}
	if l.Remaining > 0 {
		out.Remaining = max(out.Remaining, wire.Seconds(time.Microsecond))
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads the one form.
func (l *LeaseInfo) UnmarshalJSON(text []byte) error {
	var in leaseJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*l = LeaseInfo{
		Resource: in.Resource, State: in.State, Owner: in.Owner, Metadata: in.Metadata, LeaseID: in.LeaseID, Token: in.Twice.Either(),
		CreatedAt: in.CreatedAt, ExpiresAt: in.ExpiresAt, HeldFor: time.Duration(in.HeldFor), Remaining: time.Duration(in.Remaining),
		Awaited: in.Awaited, Waiters: in.Waiting,
	}
	return nil
}

// ActionForceUnlock is the Action of a force unlock.
const ActionForceUnlock = "FORCE_UNLOCK"

// AuditRecord is one record of the audit. In PostgreSQL no role can change or delete
// one; the table's owner would have to remove its triggers first.
type AuditRecord struct {
	// ID increases from record to record; there may be gaps.
	ID int64
	// At is when it was done, by the server's clock.
	At time.Time
	// Action is what was done: [ActionForceUnlock].
	Action string
	// Resource is the whole name.
	Resource string
	// Actor and Reason are as given. DatabaseUser is the role that the server
	// had authenticated; empty where the engine has none.
	Actor, Reason, DatabaseUser string
	// RequestID is the request's; with Token, the invalidated claim's lease ID.
	RequestID string
	// Token is the token that was invalidated.
	Token guard.Token
	// Cut is the resource as it was before; HeldFor and Remaining are as of At.
	Cut LeaseInfo
}

// Holder returns who held the lease when it was cut; held is false if nobody did:
// it was free, or had run out. If it had run out, Cut names its last owner.
func (r AuditRecord) Holder() (owner string, held bool) {
	if r.Cut.State != StateHeld {
		return "", false
	}
	return r.Cut.Owner, true
}

// auditJSON is the JSON form of an AuditRecord.
type auditJSON struct {
	ID           int64     `json:"id"`
	At           time.Time `json:"createdAt"`
	Action       string    `json:"action"`
	Resource     string    `json:"resource"`
	Actor        string    `json:"actorId"`
	Reason       string    `json:"reason"`
	DatabaseUser string    `json:"databaseUser,omitempty"`
	RequestID    string    `json:"requestId"`
	wire.Twice
	Cut LeaseInfo `json:"cut"`
}

// MarshalJSON writes the one form.
func (r AuditRecord) MarshalJSON() ([]byte, error) {
	return json.Marshal(auditJSON{
		ID: r.ID, At: r.At, Action: r.Action, Resource: r.Resource, Actor: r.Actor, Reason: r.Reason, DatabaseUser: r.DatabaseUser,
		RequestID: r.RequestID, Twice: wire.TwiceOf(r.Token), Cut: r.Cut,
	})
}

// UnmarshalJSON reads the one form.
func (r *AuditRecord) UnmarshalJSON(text []byte) error {
	var in auditJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*r = AuditRecord{
		ID: in.ID, At: in.At, Action: in.Action, Resource: in.Resource, Actor: in.Actor, Reason: in.Reason, DatabaseUser: in.DatabaseUser,
		RequestID: in.RequestID, Token: in.Twice.Either(), Cut: in.Cut,
	}
	return nil
}

// ForceUnlocked is what a force unlock did.
type ForceUnlocked struct {
	// Invalidated is a claim that nobody holds, with a token above the cut holder's.
	// Its lease ID is the request's. Raise it at the resource: until then the
	// cut holder still writes there.
	Invalidated guard.Claim
	// Raised says that the lock server has raised it; the other engines raise nothing.
	Raised bool
	// Cut is the resource as it was before; HeldFor and Remaining are as of At.
	Cut LeaseInfo
	// AuditID is the number of its record in the audit.
	AuditID int64
	// At is when it was done, by the server's clock.
	At time.Time
	// Repeated says that the request had been carried out before.
	Repeated bool
}

// unlockedJSON is the JSON form of a ForceUnlocked. leaseId is the lease that was cut, as
// everywhere; the claim to raise is an object of its own, so that nobody mixes the two.
type unlockedJSON struct {
	Resource    string    `json:"resource"`
	LeaseID     string    `json:"leaseId,omitempty"`
	Invalidated claimJSON `json:"invalidated"`
	Raised      bool      `json:"raised"`
	Cut         LeaseInfo `json:"cut"`
	AuditID     int64     `json:"auditId"`
	At          time.Time `json:"createdAt"`
	Repeated    bool      `json:"repeated,omitempty"`
}

// claimJSON is the JSON form of a claim.
type claimJSON struct {
	Resource string `json:"resource"`
	wire.Twice
	LeaseID string `json:"leaseId"`
}

// MarshalJSON writes the one form.
func (u ForceUnlocked) MarshalJSON() ([]byte, error) {
	return json.Marshal(unlockedJSON{
		Resource: u.Invalidated.Resource, LeaseID: u.Cut.LeaseID,
		Invalidated: claimJSON{u.Invalidated.Resource, wire.TwiceOf(u.Invalidated.Token), u.Invalidated.LeaseID},
		Raised:      u.Raised, Cut: u.Cut, AuditID: u.AuditID, At: u.At, Repeated: u.Repeated,
	})
}

// UnmarshalJSON reads the one form.
func (u *ForceUnlocked) UnmarshalJSON(text []byte) error {
	var in unlockedJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	claim := in.Invalidated
	*u = ForceUnlocked{
		Invalidated: guard.Claim{Resource: claim.Resource, Token: claim.Twice.Either(), LeaseID: claim.LeaseID},
		Raised:      in.Raised, Cut: in.Cut, AuditID: in.AuditID, At: in.At, Repeated: in.Repeated,
	}
	return nil
}

// Epoch says from where an engine counts its tokens.
type Epoch struct {
	// Number is the epoch: on PostgreSQL 0 to 8,388,607, Base + Timeline - 1, so that it is
	// 0, and tokens are small numbers, on a server that never failed over and was never
	// restored; a token's bits from 40 up are the epoch under which it was granted, or
	// a higher one. On etcd and ZooKeeper it is Base.
	Number int64 `json:"epoch"`
	// Base is the part of it that is stored.
	Base int64 `json:"base"`
	// Timeline is PostgreSQL's WAL timeline, 1 unless the server was promoted or
	// restored to a point in time; 0 if it cannot be read.
	Timeline int64 `json:"timeline,omitempty"`
	// SystemIdentifier names the database cluster or etcd's; empty if it cannot be read.
	SystemIdentifier string `json:"systemIdentifier,omitempty"`
	// Floor is the token that every later grant is above, on any resource;
	// [guard.NoToken] if there is none.
	Floor guard.Token `json:"floor"`
	// Hidden says what the server does not show, in its own words; empty if
	// everything can be read. If the timeline is hidden, a failover is not
	// noticed; if the identifier is, a copy is recognised only by its object
	// numbers; if the server's start time is, another server is noticed on new
	// connections only, not behind a pooler. Then call RaiseEpoch after
	// every failover and restore.
	Hidden string `json:"hidden,omitempty"`
}

type plainEpoch Epoch

// epochJSON is the JSON form of an Epoch: its Floor is written as every token is.
type epochJSON struct {
	plainEpoch
	Floor wire.Twice `json:"floor,omitzero"`
}

// MarshalJSON writes the one form.
func (e Epoch) MarshalJSON() ([]byte, error) {
	return json.Marshal(epochJSON{plainEpoch(e), wire.TwiceOf(e.Floor)})
}

// UnmarshalJSON reads the one form.
func (e *Epoch) UnmarshalJSON(text []byte) error {
	var in epochJSON
	err := json.Unmarshal(text, &in)
	*e = Epoch(in.plainEpoch)
	e.Floor = in.Floor.Either()
	return err
}

// Purged is what a purge did.
type Purged struct {
	// Count is how many rows were deleted.
	Count int64 `json:"purged"`
	// Floor is the token that every later grant is above, on any resource;
	// [guard.NoToken] if nothing was ever purged or advanced.
	Floor guard.Token `json:"floor"`
	// Blocked is how often a batch was postponed because a lock was in the way.
	Blocked int `json:"blocked"`
}

type plainPurged Purged

// purgedJSON is the JSON form of a Purged: its Floor is written as every token is.
type purgedJSON struct {
	plainPurged
	Floor wire.Twice `json:"floor,omitzero"`
}

// MarshalJSON writes the one form.
func (p Purged) MarshalJSON() ([]byte, error) {
	return json.Marshal(purgedJSON{plainPurged(p), wire.TwiceOf(p.Floor)})
}

// UnmarshalJSON reads the one form.
func (p *Purged) UnmarshalJSON(text []byte) error {
	var in purgedJSON
	err := json.Unmarshal(text, &in)
	*p = Purged(in.plainPurged)
	p.Floor = in.Floor.Either()
	return err
}

// Severity says how bad a [Finding] is.
type Severity string

// The severities.
const (
	// SeverityError: leases cannot be granted, or a promise does not hold.
	SeverityError Severity = "error"
	// SeverityWarning: it works, but with surprising behaviour.
	SeverityWarning Severity = "warning"
	// SeverityOK: it is as it should be.
	SeverityOK Severity = "ok"
)

// SettingSchema is the [Finding] about PostgreSQL's schema of leases: if it is an error,
// this build cannot use the database.
const SettingSchema = "schema lockclient"

// Finding is one thing that Inspect looked at.
type Finding struct {
	Severity Severity `json:"severity"`
	// Setting is its short, stable name, such as [SettingSchema] or
	// "default_transaction_isolation".
	Setting string `json:"setting"`
	// Detail is what was found. Remedy says what to do about it; empty if it is as it
	// should be.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}
