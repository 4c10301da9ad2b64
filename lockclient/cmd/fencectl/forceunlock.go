package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) forceUnlockCommand() *cli.Command {
	return &cli.Command{
		Name: "force-unlock", Category: categoryAct, ArgsUsage: "RESOURCE",
		Usage: "take a lease away from its holder",
		Description: "Invalidates a token: the next holder's is above it. The cut holder does not learn\n" +
			"of it before its next renewal, and it MAY STILL WRITE until a higher token\n" +
			"arrives at the resource. With --raise that is done at once, for what is fenced by\n" +
			"sqlfence's marks. Recorded in the audit, with --actor and --reason. It cuts the lease\n" +
			"that it shows, or that --expect names, and no successor's, with --yes too.",
		Flags: []cli.Flag{
			actorFlag(),
			reasonFlag(),
			&cli.BoolFlag{Name: "raise", Usage: "and fence the cut holder: raise the mark to the invalidated claim"},
			raiseTimeoutFlag(),
			&cli.StringFlag{Name: "expect", Usage: "`LEASE-ID` to cut, no successor's; none: nobody holds it", Validator: notBlank},
			&cli.StringFlag{Name: "request-id", Usage: "`ID` of this request: repeated under the same one it is done once", Validator: notBlank},
			yesFlag(),
		},
		Action: a.on(leasesOnly, (*call).forceUnlock, "RESOURCE"),
	}
}

// unlocked is the result for programs: the one form of a force unlock, and what became of the
// mark.
type unlocked struct {
	lockadmin.ForceUnlocked
	unlockedMark
}

type unlockedMark struct {
	// Mark is the resource's mark afterwards, if it was raised: the invalidated
	// claim or a newer holder's.
	Mark *markJSON `json:"mark,omitempty"`
	// Warning says who can still write.
	Warning string `json:"warning,omitempty"`
}

// MarshalJSON joins both.
func (u unlocked) MarshalJSON() ([]byte, error) { return wire.Join(u.ForceUnlocked, u.unlockedMark) }

func (c *call) forceUnlock(ctx context.Context) error {
	if c.cmd.Bool("raise") { // check before the lease is cut
		if c.postgres == nil {
			return usage("force-unlock: --raise raises sqlfence's mark, which is in PostgreSQL: raise the claim that is printed at the resource")
		}
		if err := c.need(ctx, marksComponent); err != nil {
			return err
		}
	}
	opts := &lockadmin.ForceUnlockOptions{ExpectedLeaseID: c.cmd.String("expect"), RequestID: c.cmd.String("request-id")}
	if err := c.confirmUnlock(ctx, opts); err != nil {
		return err
	}
	done, err := c.op.ForceUnlock(ctx, c.resource, c.cmd.String("actor"), c.cmd.String("reason"), opts)
	if err != nil {
		return withRequest(noSuchLease(err, c.resource))
	}
	result := unlocked{ForceUnlocked: done}
	var raising error
	if c.cmd.Bool("raise") {
		result.Mark, raising = c.raiseInvalidated(ctx, done.Invalidated)
		result.Raised = raising == nil // no holder below the invalidated token writes any more where the marks are compared
	}
	again := raiseCommand(done.Invalidated)
	if c.postgres == nil {
		again = fmt.Sprintf("raise token %s, lease %s at the resource", done.Invalidated.Token, shown(done.Invalidated.LeaseID))
	}
	if !result.Raised {
		result.Warning = stillWrites(done.Cut) + ": " + again
	}
	printing := c.printUnlocked(result, raising)
	switch {
	case errors.Is(raising, guard.ErrOutcomeUnknown):
		return fmt.Errorf("the token is invalidated, and it is not known whether the mark was raised: %w; go on with: %s", raising, again)
	case raising != nil:
		return &commandError{Code: exitPartial, Reason: "partial", Err: fmt.Errorf(
			"the token is invalidated and the mark was not raised, so %s: %w; go on with: %s", stillWrites(done.Cut), raising, again)}
	}
	return notPrinted(printing, "token %s of %s is invalidated%s", done.Invalidated.Token, shown(c.resource), orNothing(result.Warning != "", "; "+result.Warning))
}

// stillWrites says who may still write until the mark is raised to the invalidated claim, unless
// the resource's mark refuses it already.
func stillWrites(cut lockadmin.LeaseInfo) string {
	who := "whoever had a lower token"
	switch cut.State {
	case lockadmin.StateHeld:
		who = "the cut holder"
	case lockadmin.StateExpired:
		who = "the holder whose lease had run out"
	}
	return who + " may still write until a higher token arrives at the resource"
}

// confirmUnlock shows whose lease is cut. Only the lease that was shown, or named by --expect, is
// cut, with --yes too: a successor that comes in between is not.
func (c *call) confirmUnlock(ctx context.Context, opts *lockadmin.ForceUnlockOptions) error {
	if !c.cmd.Bool("yes") && !isTerminal(c.in) {
		return c.confirm(ctx, "")
	}
	now, err := c.op.Get(ctx, c.resource)
	if err != nil {
		return noSuchLease(err, c.resource)
	}
	if opts.ExpectedLeaseID == expectNone {
		opts.ExpectedLeaseID = ""
		if now.LeaseID != "" {
			return &lockadmin.LeaseChangedError{Expected: expectNone, Now: now}
		}
	} else if c.postgres == nil && now.State == lockadmin.StateFree && now.Token == guard.NoToken {
		// Else a typing error in the name would be recorded as done.
		if done, err := c.doneBefore(ctx, opts.RequestID); err != nil || !done {
			return cmp.Or(err, notFound("nobody holds %s, and this engine does not know whether it was ever leased: check the name; to invalidate a token there anyway, say --expect none", shown(c.resource)))
		}
	}
	question := fmt.Sprintf("Invalidate a token of %s: it is %s, nobody holds it.", shown(c.resource), now.State)
	if now.State == lockadmin.StateHeld {
		question = fmt.Sprintf("Cut the lease on %s.\n  held by %s for %s\n  token %s, lease %s",
			shown(c.resource), shown(now.Owner), span(now.HeldFor), now.Token, shown(now.LeaseID))
	}
	question += "\n" + c.whatOfTheMark(now)
	if opts.ExpectedLeaseID == "" {
		opts.ExpectedLeaseID = now.LeaseID
	}
	if err := c.confirm(ctx, question); err != nil || opts.ExpectedLeaseID != "" {
		return err
	}
	// It was free, and there is no lease ID to expect.
	later, err := c.op.Get(ctx, c.resource)
	if err == nil && later.LeaseID != "" {
		err = &lockadmin.LeaseChangedError{Now: later}
	}
	return err
}

// expectNone is what --expect says if nobody is to hold the resource. No engine grants it as a lease ID.
const expectNone = "none"

// doneBefore reports that the request was carried out before, or that only the engine can say,
// because it has no audit, or shows none to this identity.
func (c *call) doneBefore(ctx context.Context, requestID string) (bool, error) {
	records, _, err := c.records(ctx, c.resource, searchedMost)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		return true, nil
	}
	return requestID != "" && slices.ContainsFunc(records, func(r lockadmin.AuditRecord) bool { return r.RequestID == requestID }), err
}

// whatOfTheMark says who may write after the cut, and what to do about it on this engine.
func (c *call) whatOfTheMark(now lockadmin.LeaseInfo) string {
	switch {
	case c.cmd.Bool("raise"):
		return "Then raise the mark: every older claim is refused. " + c.endsSessions()
	case c.postgres != nil:
		return "Without --raise " + stillWrites(now) + "."
	case c.cmd.String("issuer") == issuerHTTP:
		return "Unless the lock server raises the mark, which the result says, " + stillWrites(now) + ":\nthen raise the claim that is printed there."
	}
	return "No mark is raised: " + stillWrites(now) + ".\nRaise the claim that is printed there."
}

// raiseInvalidated raises the mark to the invalidated claim. A mark that is already above it, a newer
// holder's, also fences the cut holder.
func (c *call) raiseInvalidated(ctx context.Context, invalidated guard.Claim) (*markJSON, error) {
	err := c.raise(ctx, invalidated)
	var refused *guard.RejectedError
	switch {
	case err == nil:
		mark := markOf(invalidated)
		return &mark, nil
	case errors.Is(err, guard.ErrStale) && errors.As(err, &refused):
		mark := markOf(guard.Claim{Resource: invalidated.Resource, Token: refused.Mark.Token, LeaseID: refused.Mark.LeaseID})
		return &mark, nil
	}
	return nil, err
}

func (c *call) printUnlocked(u unlocked, raising error) error {
	was := string(u.Cut.State)
	if u.Cut.State == lockadmin.StateHeld {
		was += " for " + span(u.At.Sub(u.Cut.CreatedAt))
	}
	mark := "not raised"
	switch {
	case u.Raised && u.Mark == nil:
		mark = "raised by the lock server: every older claim is refused"
	case u.Mark != nil:
		mark = u.Mark.Token.String() + ": every older claim is refused"
	case errors.Is(raising, guard.ErrOutcomeUnknown):
		mark = "not known"
	}
	repeated := orNothing(u.Repeated, " (done before, under the same request ID)")
	err := c.fields(u,
		"resource", shown(u.Invalidated.Resource)+repeated,
		"was", was,
		"held by", holderOf(u.Cut),
		"token then", u.Cut.Token.String(),
		"lease ID then", leaseID(u.Cut.LeaseID),
		"invalidated token", u.Invalidated.Token.String(),
		"invalidated lease ID", leaseID(u.Invalidated.LeaseID),
		"audit record", fmt.Sprint(u.AuditID),
		"mark", mark)
	if err == nil && u.Warning != "" && !c.asJSON() {
		fmt.Fprintf(c.errOut, "warning: %s\n", u.Warning)
	}
	return err
}

// withRequest adds the ID under which to repeat an unlock whose outcome is
// unknown.
func withRequest(err error) error {
	var lost *guard.FailedError
	if errors.Is(err, guard.ErrOutcomeUnknown) && errors.As(err, &lost) && lost.Claim.LeaseID != "" {
		return fmt.Errorf("%w; repeat it with --request-id %s, which does it once", err, quoted(lost.Claim.LeaseID))
	}
	return err
}

// raiseCommand returns the command that raises a claim, to be copied.
func raiseCommand(claim guard.Claim) string {
	if strings.HasPrefix(claim.Resource, "-") || strings.HasPrefix(claim.LeaseID, "-") { // else they would be flags
		return fmt.Sprintf("fencectl marks raise --lease-id=%s -- %s %s", quoted(claim.LeaseID), quoted(claim.Resource), claim.Token)
	}
	return fmt.Sprintf("fencectl marks raise %s %s --lease-id %s", quoted(claim.Resource), claim.Token, quoted(claim.LeaseID))
}
