package admintest

import (
	"context"
	"iter"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// fault makes correct operators' calls into some with a fault.
type fault struct {
	name     string // says what is wrong with them
	caughtBy string // the case that must report it
	needs    string // the call without which there is none
	of       func(lockadmin.Admin) lockadmin.Admin
}

var faults = []fault{
	{"a force unlock leaves the lease", "force unlock", "force unlock", func(a lockadmin.Admin) lockadmin.Admin { return leaves{a} }},
	{"a force unlock cuts a successor", "force unlock of another", "force unlock", func(a lockadmin.Admin) lockadmin.Admin {
		return forgets{a, func(o *lockadmin.ForceUnlockOptions) { o.ExpectedLeaseID = "" }}
	}},
	{"a request is carried out twice", "force unlock, repeated", "force unlock", func(a lockadmin.Admin) lockadmin.Admin {
		return forgets{a, func(o *lockadmin.ForceUnlockOptions) { o.RequestID = "" }}
	}},
	{"a list forgets one", "list", "list", func(a lockadmin.Admin) lockadmin.Admin { return short{a} }},
	{"an audit has no actor", "audit", "audit", func(a lockadmin.Admin) lockadmin.Admin { return anonymous{a} }},
	{"an advance goes back", "advance", "advance", func(a lockadmin.Admin) lockadmin.Admin { return back{a} }},
}

// leaves says that it has cut a lease, which goes on.
type leaves struct{ lockadmin.Admin }

func (l leaves) ForceUnlock(ctx context.Context, resource, _, _ string, _ *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	now, err := l.Get(ctx, resource)
	return lockadmin.ForceUnlocked{Invalidated: guard.Claim{Resource: resource, Token: now.Token + 1, LeaseID: "request"}, Cut: now, AuditID: 1, At: time.Now()}, err
}

// forgets loses an option of a force unlock.
type forgets struct {
	lockadmin.Admin
	what func(*lockadmin.ForceUnlockOptions)
}

func (f forgets) ForceUnlock(ctx context.Context, resource, actor, reason string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	var less lockadmin.ForceUnlockOptions
	if opts != nil {
		less = *opts
	}
	f.what(&less)
	return f.Admin.ForceUnlock(ctx, resource, actor, reason, &less)
}

// short leaves out the last lease of a list.
type short struct{ lockadmin.Admin }

func (s short) List(ctx context.Context, pattern string, opts *lockadmin.ListOptions) iter.Seq2[lockadmin.LeaseInfo, error] {
	return func(yield func(lockadmin.LeaseInfo, error) bool) {
		rows, err := all(s.Admin.List(ctx, pattern, opts))
		for n, row := range rows {
			if n < len(rows)-1 && !yield(row, nil) {
				return
			}
		}
		if err != nil {
			yield(lockadmin.LeaseInfo{}, err)
		}
	}
}

// anonymous does not say who did it.
type anonymous struct{ lockadmin.Admin }

func (a anonymous) Audit(ctx context.Context, pattern string, opts *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	return func(yield func(lockadmin.AuditRecord, error) bool) {
		for r, err := range a.Admin.Audit(ctx, pattern, opts) {
			if r.Actor = ""; !yield(r, err) {
				return
			}
		}
	}
}

// back says of every advance that it reached just what was asked for.
type back struct{ lockadmin.Admin }

func (b back) Advance(ctx context.Context, resource string, above guard.Token) (guard.Token, error) {
	_, err := b.Admin.Advance(ctx, resource, above)
	return above, err
}
