package main

import (
	"context"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) epochCommand() *cli.Command {
	return &cli.Command{
		Name: "epoch", Category: categoryAct,
		Usage: "show or raise the issuer's epoch",
		Commands: []*cli.Command{
			{
				Name: "show", Usage: "print the epoch, the server's timeline and what it hides",
				Action: a.on(leasesOnly, (*call).showEpoch),
			},
			{
				Name:  "raise",
				Usage: "put every later token above all that were ever issued here",
				Description: "For what the server cannot see: a disk snapshot that was started in its\n" +
					"place, two standbys promoted without a common archive, rows copied without\n" +
					"the schema. Before the applications are started again. It costs nobody a\n" +
					"lease and cannot be taken back.",
				Flags:  []cli.Flag{yesFlag()},
				Action: a.on(leasesOnly, (*call).raiseEpoch),
			},
		},
	}
}

func (c *call) showEpoch(ctx context.Context) error {
	epoch, err := c.op.Epoch(ctx)
	if err != nil {
		return err
	}
	return c.printEpoch(epoch)
}

func (c *call) raiseEpoch(ctx context.Context) error {
	if err := c.confirm(ctx, "Raise the epoch: all later tokens jump by 10^11 or more. This cannot be taken back."); err != nil {
		return err
	}
	epoch, err := c.op.RaiseEpoch(ctx)
	if err != nil {
		return err
	}
	return notPrinted(c.printEpoch(epoch), "the epoch is %d", epoch.Number)
}

func (c *call) printEpoch(e lockadmin.Epoch) error {
	hidden := "none"
	if e.Hidden != "" {
		hidden = oneLine(e.Hidden) + " (run fencectl epoch raise after every failover and restore)"
	}
	return c.fields(e,
		"epoch", strconv.FormatInt(e.Number, 10),
		"stored base", strconv.FormatInt(e.Base, 10),
		"timeline", orDash(e.Timeline != 0, strconv.FormatInt(e.Timeline, 10)),
		"system identifier", orDash(e.SystemIdentifier != "", e.SystemIdentifier),
		"floor", orDash(e.Floor != guard.NoToken, e.Floor.String()),
		"undetectable failovers", hidden)
}
