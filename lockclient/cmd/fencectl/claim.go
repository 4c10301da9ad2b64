package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// explanation is what a fence would decide about a claim.
type explanation struct {
	Claim guard.Claim `json:"claim"`
	// Issued is the highest token granted for the resource, or the floor that
	// every grant is above.
	Issued   guard.Token  `json:"issued"`
	Mark     *guard.Mark  `json:"mark"`
	Decision guard.Reason `json:"decision"` // empty if it is admitted
	Why      string       `json:"why"`
}

// explain reads the mark first, as look does.
func (s *session) explain(ctx context.Context, claim guard.Claim, exact bool) (*explanation, error) {
	mark, err := s.mark(ctx, claim.Resource)
	if err != nil {
		return nil, failed("read the mark", err)
	}
	lease, err := s.op.Get(ctx, claim.Resource)
	if err != nil && !errors.Is(err, guard.ErrNotFound) {
		return nil, err
	}
	e := &explanation{}
	if e.Issued, err = s.issued(ctx, claim.Resource); err != nil {
		return nil, failed("read what was issued", err)
	}
	given := lease.Token == claim.Token && lease.State != lockadmin.StateFree
	if !exact {
		switch {
		case given:
			claim.LeaseID = lease.LeaseID
		case mark.Token == claim.Token && !mark.Floor:
			claim.LeaseID = mark.LeaseID
		}
	}
	e.Claim = claim
	if mark.Token != guard.NoToken {
		e.Mark = &mark
	}
	refused := guard.Decide(guard.SameOrNewer, mark, claim)
	e.Decision = guard.ReasonOf(refused)
	e.Why = e.why(mark, lease, given)
	return e, nil
}

// why returns one sentence. Each is tested by presenting the claim to a fence.
// given says that a lease with this token was not released.
func (e *explanation) why(mark guard.Mark, lease lockadmin.LeaseInfo, given bool) string {
	token, held := e.Claim.Token, given && lease.LeaseID == e.Claim.LeaseID
	over, above := "no lease has its token", "it is above the mark"
	if lease.Token == token && lease.Owner != "" {
		over = "its lease is over"
	}
	switch {
	case mark.Token == guard.NoToken:
		above = "the resource has no mark"
	case mark.Floor:
		above = "it is above the floor of retired marks"
	}
	switch {
	case e.Decision == guard.ReasonStale && mark.Floor:
		return fmt.Sprintf("the resource has no mark, and the floor of retired marks is %v: tokens up to it are refused", mark.Token)
	case e.Decision == guard.ReasonStale:
		return fmt.Sprintf("the mark is %v: a newer holder has written or raised it; whoever has token %v must stop", mark.Token, token)
	case e.Decision == guard.ReasonConflict:
		return fmt.Sprintf("the mark has this token under lease %s: two holders have one token; see fencectl help runbook", shown(mark.LeaseID))
	case e.Decision != guard.ReasonNone:
		return "the rule refuses it"
	case token > e.Issued:
		return fmt.Sprintf("ADMITTED, ALTHOUGH IT WAS NEVER ISSUED: the highest is %v; a fence does not ask who issued a token, see httpfence.Options.Verify", e.Issued)
	case given && !held:
		return fmt.Sprintf("ADMITTED, ALTHOUGH LEASE %s HAS THIS TOKEN, whose holder is refused from then on", shown(lease.LeaseID))
	case mark.Token == token && held && lease.State == lockadmin.StateExpired:
		return "the mark is this claim: its lease has expired, and no higher token has reached the resource yet"
	case mark.Token == token && !held:
		return "the mark is this claim: " + over + ", and no higher token has reached the resource yet"
	case mark.Token == token:
		return "the mark is this claim, and its holder has the lease"
	case held && lease.State == lockadmin.StateHeld:
		return above + ", and its holder has the lease: its first write sets the mark"
	case mark.Token == guard.NoToken:
		return "the resource has no mark, so the first claim is admitted, whichever it is; " + over
	default:
		return above + ", although " + over + ": until a higher token arrives there, it is admitted"
	}
}

func (e *explanation) print(w io.Writer) error {
	decision := "admitted"
	if e.Decision != guard.ReasonNone {
		decision = "refused: " + string(e.Decision)
	}
	mark := "-"
	if e.Mark != nil {
		mark = e.Mark.Token.String() + orNothing(e.Mark.LeaseID != "", ", lease "+shown(e.Mark.LeaseID)) + orNothing(e.Mark.Floor, ", the floor of retired marks")
	}
	return fields(w,
		"resource", shown(e.Claim.Resource),
		"claim", "token "+e.Claim.Token.String()+", lease "+leaseID(e.Claim.LeaseID),
		"issued", "up to "+e.Issued.String(),
		"mark", mark,
		"decision", decision,
		"because", e.Why,
		"as of", clockTime(time.Now()))
}
