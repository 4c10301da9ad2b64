package main

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
)

func (a *app) advanceCommand() *cli.Command {
	one, all := a.on(leasesOnly, (*call).advance, "RESOURCE", "TOKEN"), a.on(leasesOnly, (*call).advanceFloor, "TOKEN")
	return &cli.Command{
		Name: "advance", Category: categoryAct, ArgsUsage: "RESOURCE TOKEN | --floor TOKEN",
		Usage: "advance the issuer: every later token is above the given one",
		Description: "For resources whose tokens another system has issued before, and for an\n" +
			"issuer that is behind its marks. Never lowers, and cannot be taken back.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "floor", Usage: "for every resource, also those that the issuer does not know"},
			yesFlag(),
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if cmd.Bool("floor") {
				return all(ctx, cmd)
			}
			return one(ctx, cmd)
		},
	}
}

func (c *call) advance(ctx context.Context) error {
	if err := c.confirm(ctx, "Raise "+shown(c.resource)+" above token "+c.token.String()+". This cannot be taken back."); err != nil {
		return err
	}
	reached, err := c.op.Advance(ctx, c.resource, c.token)
	if err != nil {
		return err
	}
	return c.printAdvanced(object{"resource": c.resource, "above": wire.TwiceOf(reached)}, reached)
}

func (c *call) advanceFloor(ctx context.Context) error {
	if err := c.confirm(ctx, "Raise every resource above token "+c.token.String()+". This cannot be taken back."); err != nil {
		return err
	}
	reached, err := c.op.AdvanceFloor(ctx, c.token)
	if err != nil {
		return err
	}
	return c.printAdvanced(object{"above": wire.TwiceOf(reached)}, reached)
}

func (c *call) printAdvanced(v object, reached guard.Token) error {
	return c.changed(v, "every later token is above %s", reached)
}
