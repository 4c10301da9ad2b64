package main

import (
	"context"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/urfave/cli/v3"
)

func (a *app) marksRaiseCommand() *cli.Command {
	return &cli.Command{
		Name: "raise", ArgsUsage: "RESOURCE TOKEN", Usage: "put a claim in the place of a lower mark, and fence older holders",
		Description: "Waits for the fenced transactions of older holders. Take the claim of the\n" +
			"holder (fencectl show), or one that force-unlock invalidated. A mark with another\n" +
			"lease ID than the holder's locks the holder out.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "lease-id", Usage: "`ID` of the lease that has the token; '' if it has none (required)", Required: true},
			&cli.BoolFlag{Name: "above-issuer", Usage: "though no such token was granted: every holder is refused then"},
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
	if !c.cmd.Bool("above-issuer") {
		if err := c.refuseAboveIssuer(ctx, claim); err != nil {
			return err
		}
	}
	question := "Raise the mark of " + shown(claim.Resource) + " to " + claim.Token.String() + ": every lower token is refused from then on."
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	if err := c.raise(ctx, claim); err != nil {
		return err
	}
	return c.changed(markOf(claim), "the mark of %s is %s", shown(claim.Resource), claim.Token)
}

// refuseAboveIssuer prevents a typing error from becoming a mark that refuses
// every later holder. It does not check marks whose issuer is another system.
func (s *session) refuseAboveIssuer(ctx context.Context, claim guard.Claim) error {
	issued, err := s.leases.Issued(ctx, claim.Resource)
	switch {
	case missing(err):
		return nil
	case err != nil:
		return err
	case issued != guard.NoToken && issued < claim.Token:
		return &commandError{Code: exitRefused, Reason: string(guard.ReasonMarkAhead), Err: fmt.Errorf(
			"token %s is above all that was granted on %s, up to %s: every holder would be refused there; "+
				"if that is meant, say --above-issuer, and advance the issuer with fencectl advance", claim.Token, shown(claim.Resource), issued)}
	}
	return nil
}
