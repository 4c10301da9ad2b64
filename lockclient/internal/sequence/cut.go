package sequence

import (
	"cmp"
	"encoding/json"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// cut is what is stored of a force unlock. The number of the write that stored it makes the
// invalidated token and the record's ID.
type cut struct {
	Version int                   `json:"v"`
	Base    int64                 `json:"base,string"`
	Record  lockadmin.AuditRecord `json:"record"`
}

// ReadCut reads what is stored of a force unlock since the write of that number. The error is
// a [Foreign].
func ReadCut(place string, text []byte, number int64) (lockadmin.AuditRecord, error) {
	var c cut
	err := json.Unmarshal(text, &c)
	token := Token(c.Base, number)
	if err != nil || c.Version != 1 || c.Base < 0 || token == guard.NoToken || c.Record.RequestID == "" {
		return lockadmin.AuditRecord{}, Foreign{place, string(text)}
	}
	c.Record.ID, c.Record.Token = number, token
	return c.Record, nil
}

// Cutting is what an engine knows before a force unlock.
type Cutting struct {
	Standing
	// Done is the record of the request, if it was carried out.
	Done *lockadmin.AuditRecord
	// Now is the resource.
	Now lockadmin.LeaseInfo
}

// ForceUnlock ends the lease of a resource and stores a record in the same write. look says
// how it stands, and write does it, unless something has changed since the look; number is
// the write's.
func ForceUnlock(resource, actor, reason string, opts *lockadmin.ForceUnlockOptions, look func(requestID string) (Cutting, error),
	write func(record []byte, requestID string) (number int64, done bool, err error)) (out lockadmin.ForceUnlocked, requestID string, err error) {
	var set lockadmin.ForceUnlockOptions
	if opts != nil {
		set = *opts
	}
	id := func(field, id string) error {
		err := guard.ValidateLeaseID(id)
		if invalid, is := errors.AsType[*guard.InvalidError](err); is {
			invalid.Field = field
		}
		return err
	}
	err = cmp.Or(guard.ValidateResource(resource), lockadmin.ValidateActor(actor), lockadmin.ValidateReason(reason),
		id("ExpectedLeaseID", set.ExpectedLeaseID), id("RequestID", set.RequestID))
	if err != nil {
		return out, "", Refusal{err}
	}
	requestID = cmp.Or(set.RequestID, input.NewLeaseID())
	for range MaxRetries {
		now, err := look(requestID)
		switch {
		case err != nil:
			return out, requestID, err
		case now.Done != nil:
			out = Unlocked(*now.Done)
			out.Repeated = true
			return out, requestID, nil
		case set.ExpectedLeaseID != "" && now.Now.LeaseID != set.ExpectedLeaseID:
			return out, requestID, Refusal{&lockadmin.LeaseChangedError{Expected: set.ExpectedLeaseID, Now: now.Now}}
		case Token(now.Base, now.Number+lostAtMost) == guard.NoToken:
			return out, requestID, Unwritten{ErrExhausted}
		}
		c := cut{1, now.Base, lockadmin.AuditRecord{At: time.Now().UTC(), Action: lockadmin.ActionForceUnlock, Resource: resource, Actor: actor,
			Reason: reason, RequestID: requestID, Cut: now.Now}}
		text, err := json.Marshal(c)
		if err != nil {
			return out, requestID, Unwritten{err}
		}
		number, done, err := write(text, requestID)
		if err != nil {
			return out, requestID, err
		}
		if done {
			c.Record.ID, c.Record.Token = number, Token(now.Base, number)
			return Unlocked(c.Record), requestID, nil
		}
	}
	return out, requestID, ErrChanged
}

// Unlocked is the force unlock of a record.
func Unlocked(r lockadmin.AuditRecord) lockadmin.ForceUnlocked {
	return lockadmin.ForceUnlocked{Invalidated: guard.Claim{Resource: r.Resource, Token: r.Token, LeaseID: r.RequestID}, Cut: r.Cut, AuditID: r.ID, At: r.At}
}

// Why is the reason of a lost lease that a record has.
func Why(r lockadmin.AuditRecord) error {
	return &driver.ForceUnlockedError{Actor: r.Actor, Reason: r.Reason, At: r.At}
}

// Selection is what a list or the audit selects, for an engine that cannot.
type Selection struct {
	Pattern pattern.Pattern
	list    lockadmin.ListOptions
	audit   lockadmin.AuditOptions
}

// Listed checks what a list is to select.
func Listed(text string, opts *lockadmin.ListOptions) (s Selection, err error) {
	if opts != nil {
		s.list = *opts
	}
	s.Pattern, err = pattern.New("pattern", text)
	return s, cmp.Or(err, s.list.Validate())
}

// Audited checks what an audit is to select.
func Audited(text string, opts *lockadmin.AuditOptions) (s Selection, err error) {
	if opts != nil {
		s.audit = *opts
	}
	s.Pattern, err = pattern.New("pattern", text)
	return s, cmp.Or(err, s.audit.Validate())
}

// From is the name from which a list goes on.
func (s Selection) From() string { return max(s.Pattern.Low, s.list.After) }

// Names reports whether a name is selected; the rest of a lease need not be read if not.
func (s Selection) Names(resource string) bool {
	return resource > s.list.After && s.Pattern.Match(resource)
}

// Lists reports whether a lease is selected.
func (s Selection) Lists(l lockadmin.LeaseInfo) bool { return s.Names(l.Resource) && s.list.Selects(l) }

// Records reports whether a record is selected.
func (s Selection) Records(r lockadmin.AuditRecord) bool {
	return s.Pattern.Match(r.Resource) && s.audit.Selects(r)
}

// Info is a lease that runs, or ran out.
func (l *Lease) Info(resource string, remaining time.Duration) lockadmin.LeaseInfo {
	info := lockadmin.LeaseInfo{Resource: resource, State: lockadmin.StateHeld, Token: l.Token, LeaseID: l.ID, Owner: l.Owner, Metadata: l.Metadata,
		CreatedAt: time.UnixMilli(l.At).UTC(), ExpiresAt: time.Now().Add(remaining).UTC(), Remaining: remaining}
	if remaining <= 0 {
		info.State, info.Remaining = lockadmin.StateExpired, 0
		return info
	}
	info.HeldFor = time.Since(info.CreatedAt)
	return info
}
