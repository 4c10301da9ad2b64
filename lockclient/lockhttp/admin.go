package lockhttp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// Admin is the operators' calls of a lock server. Make one with [NewAdmin]. It is safe for
// concurrent use.
type Admin struct{ issuer *Issuer }

var _ lockadmin.Admin = (*Admin)(nil)

// NewAdmin returns the operators' calls of the lock server at baseURL; the arguments are
// [NewIssuer]'s. It sees and does what the identity may: without Identity.Operator no token
// and no lease ID, and it changes nothing. It sends nothing.
//
// The error is a [*guard.InvalidError].
func NewAdmin(baseURL string, httpClient *http.Client) (*Admin, error) {
	issuer, err := NewIssuer(baseURL, httpClient)
	return &Admin{issuer}, err
}

// Get returns what the server says of one resource.
func (a *Admin) Get(ctx context.Context, resource string) (info lockadmin.LeaseInfo, err error) {
	claim := guard.Claim{Resource: resource}
	if err = guard.ValidateResource(resource); err == nil {
		err = a.do(ctx, "get", claim, http.MethodGet, "/v1/resources/"+url.PathEscape(resource), nil, &info)
	}
	if err == nil && info.Resource != resource {
		err = foreign("get", claim)
	}
	return info, readOnly(err)
}

// do sends one request.
func (a *Admin) do(ctx context.Context, op string, claim guard.Claim, method, path string, in, out any) error {
	err := a.issuer.do(ctx, op, claim, method, path, in, out)
	if refused, is := errors.AsType[*refusedError](err); is {
		switch refused.kind {
		case &kindUnsupported:
			return &lockadmin.UnsupportedError{Op: op, Engine: "the lock server", Why: "it has no operators' API, or its issuer cannot do this"}
		case &kindNotFound:
			return &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: claim, Cause: refused}
		case &kindChanged:
			return lockadmin.ErrLeaseChanged
		}
	}
	return err
}

// listed reads pages until there are no more. next has the query of the next one; it is
// nil after the last.
func listed[T any](next url.Values, page func(url.Values) (rows []T, next url.Values, err error), selects func(T) bool) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for next != nil {
			var rows []T
			var err error
			if rows, next, err = page(next); err != nil {
				var none T
				yield(none, readOnly(err))
				return
			}
			for _, row := range rows {
				if selects(row) && !yield(row, nil) {
					return
				}
			}
		}
	}
}

// query is what a pattern's list begins with: its components before the first "*", since the
// server knows no other pattern. The rest is selected here.
func query(text string) url.Values {
	var whole []string
	for component := range strings.SplitSeq(text, ":") {
		if strings.Contains(component, "*") {
			break
		}
		whole = append(whole, strings.ReplaceAll(component, "%2A", "*"))
	}
	q := url.Values{"limit": {strconv.Itoa(pageMost)}}
	if prefix := strings.Join(whole, ":"); prefix != "" {
		q.Set("prefix", prefix)
	}
	return q
}

// List yields the resources that the identity may name.
func (a *Admin) List(ctx context.Context, text string, opts *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	var set lockadmin.ListOptions
	if opts != nil {
		set = *opts
	}
	selected, err := pattern.New("pattern", text)
	if err = cmp.Or(err, set.Validate()); err != nil {
		return lockadmin.Failed[lockadmin.LeaseInfo](err)
	}
	first := query(text)
	if set.After != "" {
		first.Set("after", set.After)
	}
	if len(set.States) == 1 {
		first.Set("state", string(set.States[0]))
	}
	return listed(first, func(q url.Values) ([]lockadmin.LeaseInfo, url.Values, error) {
		var body listBody
		err := a.do(ctx, "list", guard.Claim{}, http.MethodGet, "/v1/locks?"+q.Encode(), nil, &body)
		if body.Next == "" {
			return body.Locks, nil, err
		}
		q.Set("after", body.Next)
		return body.Locks, q, err
	}, func(l lockadmin.LeaseInfo) bool { return selected.Match(l.Resource) && set.Selects(l) })
}

// Audit yields the records of the resources that the identity may name.
func (a *Admin) Audit(ctx context.Context, text string, opts *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	var set lockadmin.AuditOptions
	if opts != nil {
		set = *opts
	}
	selected, err := pattern.New("pattern", text)
	if err = cmp.Or(err, set.Validate()); err != nil {
		return lockadmin.Failed[lockadmin.AuditRecord](err)
	}
	first := query(text)
	if set.Before != 0 {
		first.Set("before", strconv.FormatInt(set.Before, 10))
	}
	return listed(first, func(q url.Values) ([]lockadmin.AuditRecord, url.Values, error) {
		var body auditBody
		err := a.do(ctx, "audit", guard.Claim{}, http.MethodGet, "/v1/audit?"+q.Encode(), nil, &body)
		if body.Next == 0 {
			return body.Records, nil, err
		}
		q.Set("before", strconv.FormatInt(body.Next, 10))
		return body.Records, q, err
	}, func(r lockadmin.AuditRecord) bool { return selected.Match(r.Resource) && set.Selects(r) })
}

// ForceUnlock asks the server to cut the lease. The record has the identity's subject as its
// actor; actor is kept beside it. Raised says whether the server has raised the mark.
func (a *Admin) ForceUnlock(ctx context.Context, resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (done lockadmin.ForceUnlocked, err error) {
	var set lockadmin.ForceUnlockOptions
	if opts != nil {
		set = *opts
	}
	claim := guard.Claim{Resource: resource, LeaseID: cmp.Or(set.RequestID, input.NewLeaseID())}
	err = cmp.Or(guard.ValidateResource(resource), lockadmin.ValidateActor(actor), lockadmin.ValidateReason(reason),
		renamed(guard.ValidateLeaseID(set.ExpectedLeaseID), "ExpectedLeaseID"), renamed(guard.ValidateLeaseID(claim.LeaseID), "RequestID"))
	if err != nil {
		return done, err
	}
	in := map[string]any{"actorId": actor, "reason": reason, "requestId": claim.LeaseID}
	if set.ExpectedLeaseID != "" {
		in["leaseId"] = set.ExpectedLeaseID
	}
	err = a.do(ctx, "force unlock", claim, http.MethodPost, "/v1/resources/"+url.PathEscape(resource)+"/force-unlock", in, &done)
	if err == nil && (done.Invalidated.Resource != resource || done.Invalidated.LeaseID != claim.LeaseID || !done.Invalidated.Token.Valid()) {
		err = foreign("force unlock", claim)
	}
	if errors.Is(err, lockadmin.ErrLeaseChanged) {
		changed := &lockadmin.LeaseChangedError{Expected: set.ExpectedLeaseID}
		if now, asking := a.Get(ctx, resource); asking == nil {
			changed.Now = now
			err = changed
		}
	}
	return done, err
}

// Advance asks the server to raise its issuer above a token of the resource. It does not say
// whose lease is in the way: the error's facts are what the server shows of it afterwards.
func (a *Admin) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	claim := guard.Claim{Resource: resource, Token: above}
	if err := cmp.Or(guard.ValidateResource(resource), advanceable(above)); err != nil {
		return guard.NoToken, err
	}
	reached, err := a.reach(ctx, "advance", claim, "/v1/resources/"+url.PathEscape(resource)+"/advance")
	if held, is := errors.AsType[*driver.HeldError](err); is {
		if now, asking := a.Get(ctx, resource); asking == nil && now.State == lockadmin.StateHeld {
			held.Token, held.LeaseID, held.Owner, held.Metadata = now.Token, now.LeaseID, now.Owner, now.Metadata
			held.ExpiresAt, held.Remaining = now.ExpiresAt, now.Remaining
		}
	}
	return reached, err
}

// AdvanceFloor is Advance for every resource. It needs Identity.AllResources, as Epoch,
// RaiseEpoch and Purge do.
func (a *Admin) AdvanceFloor(ctx context.Context, above guard.Token) (guard.Token, error) {
	if err := advanceable(above); err != nil {
		return guard.NoToken, err
	}
	return a.reach(ctx, "advance floor", guard.Claim{Token: above}, "/v1/advance")
}

func advanceable(above guard.Token) error {
	if above > lockadmin.MaxAdvance {
		return guard.Invalid("token", above.String(), "must be at most "+lockadmin.MaxAdvance.String())
	}
	return above.Validate()
}

// reach sends an advance.
func (a *Admin) reach(ctx context.Context, op string, claim guard.Claim, path string) (guard.Token, error) {
	var done reachedBody
	err := a.do(ctx, op, claim, http.MethodPost, path, map[string]any{"fencingToken": claim.Token}, &done)
	reached := done.Above.Either()
	if err == nil && (done.Resource != claim.Resource || reached < claim.Token) {
		return guard.NoToken, foreign(op, claim)
	}
	return reached, renamed(err, "token")
}

// Epoch asks for the epoch of the server's issuer.
func (a *Admin) Epoch(ctx context.Context) (epoch lockadmin.Epoch, err error) {
	err = a.do(ctx, "epoch", guard.Claim{}, http.MethodGet, "/v1/epoch", nil, &epoch)
	return epoch, readOnly(err)
}

// RaiseEpoch asks the server to raise its issuer's epoch.
func (a *Admin) RaiseEpoch(ctx context.Context) (epoch lockadmin.Epoch, err error) {
	err = a.do(ctx, "raise epoch", guard.Claim{}, http.MethodPost, "/v1/epoch/raise", map[string]any{}, &epoch)
	return epoch, err
}

// Purge asks the server to purge, again as long as it deletes something and is not through:
// one request lasts as long as the server's MaxWait at most.
func (a *Admin) Purge(ctx context.Context, opts *lockadmin.PurgeOptions) (total lockadmin.Purged, err error) {
	in := map[string]any{}
	if opts != nil {
		if opts.OlderThan != 0 {
			in["olderThanSeconds"] = opts.OlderThan.Seconds()
		}
		if opts.Batch != 0 {
			in["batch"] = opts.Batch
		}
		if opts.LockTimeout != 0 {
			in["lockTimeoutSeconds"] = opts.LockTimeout.Seconds()
		}
	}
	for {
		var done struct {
			lockadmin.Purged
			more purgeBody
		}
		var text json.RawMessage
		if err = a.do(ctx, "purge", guard.Claim{}, http.MethodPost, "/v1/purge", in, &text); err == nil {
			err = errors.Join(json.Unmarshal(text, &done.Purged), json.Unmarshal(text, &done.more))
		}
		total.Count, total.Blocked, total.Floor = total.Count+done.Count, total.Blocked+done.Blocked, max(total.Floor, done.Floor)
		if err != nil || !done.more.More || done.Count == 0 {
			return total, err
		}
	}
}

// Inspect asks whether the server can issue leases.
func (a *Admin) Inspect(ctx context.Context) ([]lockadmin.Finding, error) {
	var body map[string]any
	err := readOnly(a.issuer.do(ctx, "inspect", guard.Claim{}, http.MethodGet, "/readyz", nil, &body))
	if err != nil {
		return nil, err
	}
	return []lockadmin.Finding{{Severity: lockadmin.SeverityOK, Setting: "lock server", Detail: "it can issue leases"}}, nil
}
