package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/urfave/cli/v3"
)

func (a *app) marksResetCommand() *cli.Command {
	r := &reset{}
	return &cli.Command{
		Name: "reset", ArgsUsage: "RESOURCE", Usage: "lower a mark that was poisoned: the only way there is",
		Description: "For a mark that no issuer can be advanced above (made up by hand, out of range).\n" +
			"Stop every holder of the resource first: WHOEVER HAS A TOKEN ABOVE --to, OR --to\n" +
			"ITSELF, WRITES AGAIN. Where the issuer is behind, advance it instead. The mark must be exactly\n" +
			"--from; --to may not be above all that the issuer granted. It is recorded.",
		Flags: []cli.Flag{
			actorFlag(),
			reasonFlag(),
			tokenFlag("from", "`TOKEN` of the mark as it is (required)", true, &r.from.Token),
			tokenFlag("to", "`TOKEN` of the mark as it is to be (required)", true, &r.to.Token),
			tokenFlag("issuers-last", "highest `TOKEN` of an issuer that is not lockclient", false, &r.last),
			raiseTimeoutFlag(),
			yesFlag(),
		},
		Action: a.onDatabase(marksOnly, r.run, "RESOURCE"),
	}
}

// reset is what a reset replaces with what.
type reset struct {
	from, to guard.Mark
	last     guard.Token // of the issuer
}

func (r *reset) run(c *call, ctx context.Context) error {
	if err := r.complete(ctx, c); err != nil {
		return err
	}
	question := fmt.Sprintf("Reset the mark of %s from %s to %s. Whoever has a token above %s, or that one under lease %s, and is not stopped, WRITES AGAIN.",
		shown(c.resource), r.from.Token, r.to.Token, r.to.Token, leaseID(r.to.LeaseID))
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	ctx, cancel := c.waiting(ctx)
	defer cancel()
	if err := c.admin.Reset(ctx, sqladmin.MarkReset{Resource: c.resource, From: r.from, To: r.to, IssuersLast: r.last, Actor: c.cmd.String("actor"), Reason: c.cmd.String("reason")}); err != nil {
		var refused *guard.RejectedError
		if errors.As(err, &refused) && refused.Mark != r.from && refused.Mark.Token != guard.NoToken {
			return &commandError{Code: exitRefused, Reason: string(refused.Reason), Err: fmt.Errorf("nothing was changed: the mark of %s is token %s, lease %s, not %s as --from says",
				shown(c.resource), refused.Mark.Token, leaseID(refused.Mark.LeaseID), r.from.Token)}
		}
		return err
	}
	return c.changed(markOf(guard.Claim{Resource: c.resource, Token: r.to.Token, LeaseID: r.to.LeaseID}), "the mark of %s is %s, was %s", shown(c.resource), r.to.Token, r.from.Token)
}

// complete takes what is not given from the database: the lease IDs of the mark and
// of the lease, if those have the given tokens, and the issuer's last token. The mark
// is compared once more when it is reset.
func (r *reset) complete(ctx context.Context, c *call) error {
	mark, err := c.mark(ctx, c.resource)
	if err != nil {
		return err
	}
	if mark.Token == r.from.Token {
		r.from.LeaseID = mark.LeaseID
	}
	if r.last != guard.NoToken { // another system is the issuer
		return nil
	}
	if err := c.need(ctx, leasesComponent); err != nil {
		return err
	}
	if r.last, err = c.leases.Issued(ctx, c.resource); err != nil {
		return err
	}
	if r.last == guard.NoToken {
		return notFound("the issuer never granted %s; say --issuers-last if another system is its issuer", shown(c.resource))
	}
	lease, err := c.op.Get(ctx, c.resource)
	if err != nil && !errors.Is(err, guard.ErrNotFound) {
		return err
	}
	if lease.Token == r.to.Token {
		r.to.LeaseID = lease.LeaseID
	}
	return nil
}
