package lockclient

import (
	"context"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/bridge"
)

var (
	_ overseer  = (*bridged)(nil)
	_ explainer = (*bridged)(nil)
)

func leaseInfo(r bridge.Row) LeaseInfo {
	return LeaseInfo{
		Resource: r.Resource, State: LeaseState(r.State), Token: r.Token, LeaseID: r.LeaseID, Owner: r.Owner,
		AcquiredAt: r.AcquiredAt, ExpiresAt: r.ExpiresAt, HeldFor: r.HeldFor, Remaining: r.Remaining, Awaited: r.Awaited,
	}
}

func (s span) contains(resource string) bool {
	return resource >= s.low && (s.high == "" || resource < s.high)
}

func (b *bridged) list(_ context.Context, q listQuery) (rows []LeaseInfo, last string, more bool, err error) {
	rows = []LeaseInfo{}
	for _, r := range b.Rows() {
		if !q.contains(r.Resource) || r.Resource <= q.after || q.states != nil && !slices.Contains(q.states, r.State) || q.awaited && !r.Awaited {
			continue
		}
		if len(rows) == q.limit {
			return rows, last, true, nil
		}
		rows, last = append(rows, leaseInfo(r)), r.Resource
	}
	return rows, last, false, nil
}

func (b *bridged) get(_ context.Context, resource string) (info LeaseInfo, found bool, err error) {
	for _, r := range b.Rows() {
		if r.Resource == resource {
			return leaseInfo(r), true, nil
		}
	}
	return info, false, nil
}

func (b *bridged) longHeld(_ context.Context, q longHeldQuery) ([]LeaseInfo, error) {
	rows := []LeaseInfo{}
	for _, r := range b.Rows() {
		if q.contains(r.Resource) && r.State == string(StateHeld) && r.HeldFor > q.threshold {
			rows = append(rows, leaseInfo(r))
		}
	}
	slices.SortStableFunc(rows, func(a, b LeaseInfo) int { return a.AcquiredAt.Compare(b.AcquiredAt) })
	return rows[:min(len(rows), q.limit)], nil
}

func (b *bridged) forceUnlock(_ context.Context, r unlockRequest) (unlockAnswer, error) {
	record, verdict := b.ForceUnlock(bridge.Unlock{
		Resource: r.resource, Actor: r.actor, Reason: r.reason, Expected: r.expected, RequestID: r.requestID,
	})
	return unlockAnswer{unlockStatus(verdict), ForceUnlocked{
		Burned: guard.Claim{Resource: r.resource, Token: record.Token, LeaseID: record.RequestID},
		Cut:    leaseInfo(record.Cut), AuditID: record.ID, At: record.At,
	}}, nil
}

func (b *bridged) audit(_ context.Context, q auditQuery) ([]AuditRecord, error) {
	records := []AuditRecord{}
	for _, r := range slices.Backward(b.Records()) {
		if len(records) > q.limit {
			break
		}
		if q.contains(r.Resource) && !r.At.Before(of(q.from)) && (q.to == nil || r.At.Before(*q.to)) && (q.before == nil || r.ID < *q.before) {
			records = append(records, AuditRecord{
				ID: r.ID, At: r.At, Action: "force_unlock", Resource: r.Resource, Actor: r.Actor, Reason: r.Reason,
				DatabaseUser: "locktest", RequestID: r.RequestID, Token: r.Token, Cut: leaseInfo(r.Cut),
			})
		}
	}
	return records, nil
}

func (b *bridged) why(_ context.Context, claim guard.Claim) error {
	for _, r := range b.Records() {
		if r.Cut.LeaseID == claim.LeaseID && r.Resource == claim.Resource && r.Cut.Token == claim.Token {
			return &ForceUnlockedError{Actor: r.Actor, Reason: r.Reason, At: r.At}
		}
	}
	return nil
}

// inspect: such a server has no settings.
func (b *bridged) inspect(context.Context) (Inspection, error) {
	return Inspection{}, guard.Unavailable("inspect", guard.Claim{}, errNoOperator)
}
