package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/urfave/cli/v3"
)

func (a *app) marksRaiseCommand() *cli.Command {
	return &cli.Command{
		Name: "raise", ArgsUsage: "RESOURCE TOKEN", Usage: "put a claim in the place of a lower mark, and fence older holders",
		Description: "Waits for the fenced transactions of older holders. Take the claim of the\n" +
			"holder (fencectl show), or one that force-unlock invalidated. A token that was never\n" +
			"granted, or under another lease ID, locks the holder out: it needs --above-issuer.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "lease-id", Usage: "`ID` of the lease that has the token; '' if it has none (required)", Required: true},
			&cli.BoolFlag{Name: "above-issuer", Usage: "though that lease was not granted that token: holders are refused then"},
			raiseTimeoutFlag(),
			yesFlag(),
		},
		Action: a.onDatabase(marksOnly, (*call).marksRaise, "RESOURCE", "TOKEN"),
	}
}

func (c *call) marksRaise(ctx context.Context) error {
	claim := guard.Claim{Resource: c.resource, Token: c.token, LeaseID: c.cmd.String("lease-id")}
	if err := claim.Validate(); err != nil {
		return err
	}
	unknown := ""
	if !c.cmd.Bool("above-issuer") {
		known, err := c.refuseUngranted(ctx, claim)
		if err != nil {
			return err
		}
		unknown = orNothing(!known, "\nWhich lease was granted that token is not known here: compare the lease ID with the holder's.")
	}
	question := fmt.Sprintf("Raise the mark of %s to token %s, lease %s.\nFrom then on every lower token is refused, and so is token %s under any other lease ID.\n%s%s",
		shown(claim.Resource), claim.Token, leaseID(claim.LeaseID), claim.Token, c.endsSessions(), unknown)
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	if err := c.raise(ctx, claim); err != nil {
		return err
	}
	return c.changed(markOf(claim), "the mark of %s is %s", shown(claim.Resource), claim.Token)
}

// refuseUngranted prevents a typing error from becoming a mark that refuses the holder, or
// every later one: of the token, of the lease ID or of the name. known says that the claim
// was found as it is. A database without leases has its issuer elsewhere, and is not checked.
func (s *session) refuseUngranted(ctx context.Context, claim guard.Claim) (known bool, err error) {
	issued, err := s.leases.Issued(ctx, claim.Resource)
	switch {
	case missing(err):
		return false, nil
	case err != nil:
		return false, err
	case issued == guard.NoToken:
		return false, ungranted(guard.ReasonMarkAhead, "this issuer never granted a token on %s: check the name; "+
			"if another system is its issuer, say --above-issuer", shown(claim.Resource))
	case issued < claim.Token:
		return false, ungranted(guard.ReasonMarkAhead, "token %s is above all that was granted on %s, up to %s: every holder would be refused there; "+
			"if that is meant, say --above-issuer, and advance the issuer with fencectl advance", claim.Token, shown(claim.Resource), issued)
	}
	granted, err := s.granted(ctx, claim.Resource)
	if err != nil {
		return false, err
	}
	for _, g := range granted {
		switch {
		case g.Token == claim.Token && g.LeaseID == claim.LeaseID:
			return true, nil
		case g.Token == claim.Token:
			return false, ungranted(guard.ReasonConflict, "token %s belongs to lease %s, not to lease %s: its holder would be refused; to raise its claim: %s; if the other lease is meant, say --above-issuer",
				claim.Token, shown(g.LeaseID), leaseID(claim.LeaseID), raiseCommand(g))
		case g.LeaseID == claim.LeaseID:
			return false, ungranted(guard.ReasonConflict, "lease %s has token %s, not token %s: to raise its claim: %s; if the other token is meant, say --above-issuer",
				shown(g.LeaseID), g.Token, claim.Token, raiseCommand(g))
		}
	}
	return false, nil
}

func ungranted(reason guard.Reason, format string, args ...any) error {
	return &commandError{Code: exitRefused, Reason: string(reason), Err: fmt.Errorf(format, args...)}
}

// granted returns the claims of a resource that are known: of the lease, of those that were
// force-unlocked, and those that a force-unlock invalidated. The leases that were given back
// left no lease ID.
func (s *session) granted(ctx context.Context, resource string) (claims []guard.Claim, err error) {
	add := func(token guard.Token, leaseID string) {
		if leaseID != "" {
			claims = append(claims, guard.Claim{Resource: resource, Token: token, LeaseID: leaseID})
		}
	}
	lease, err := s.op.Get(ctx, resource)
	if err != nil && !errors.Is(err, guard.ErrNotFound) { // below the floor its row may have been purged
		return nil, err
	}
	add(lease.Token, lease.LeaseID)
	records, _, err := s.records(ctx, resource, searchedMost)
	for _, r := range records {
		add(r.Token, r.RequestID)
		add(r.Cut.Token, r.Cut.LeaseID)
	}
	return claims, err
}
