package lockhttp

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
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
// and no lease ID, and no force unlock. It sends nothing.
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

func noRequest(op string) error {
	return &lockadmin.UnsupportedError{Op: op, Engine: "the lock server", Why: "it has no request for it; ask its issuer"}
}

// Advance is not supported.
func (a *Admin) Advance(context.Context, string, guard.Token) (guard.Token, error) {
	return guard.NoToken, noRequest("advance")
}

// AdvanceFloor is not supported.
func (a *Admin) AdvanceFloor(context.Context, guard.Token) (guard.Token, error) {
	return guard.NoToken, noRequest("advance floor")
}

// Epoch is not supported.
func (a *Admin) Epoch(context.Context) (lockadmin.Epoch, error) {
	return lockadmin.Epoch{}, noRequest("epoch")
}

// RaiseEpoch is not supported.
func (a *Admin) RaiseEpoch(context.Context) (lockadmin.Epoch, error) {
	return lockadmin.Epoch{}, noRequest("raise epoch")
}

// Purge is not supported.
func (a *Admin) Purge(context.Context, *lockadmin.PurgeOptions) (lockadmin.Purged, error) {
	return lockadmin.Purged{}, noRequest("purge")
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
