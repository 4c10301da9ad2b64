package main

import (
	"context"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) purgeCommand() *cli.Command {
	return &cli.Command{
		Name: "purge", Category: categoryAct,
		Usage: "delete the rows of leases that have been free for long",
		Description: "No token is lowered: every later one, on any resource, is above those that\n" +
			"were deleted. Works in small batches while holders run.",
		Flags: []cli.Flag{
			olderThanFlag(7, "how long it has been free"),
			&cli.IntFlag{Name: "batch", Value: 100, Usage: "rows per transaction, at most 1000", Validator: atLeast(1)},
			yesFlag(),
		},
		Action: a.on(leasesOnly, (*call).purge),
	}
}

func (c *call) purge(ctx context.Context) error {
	older := c.cmd.Duration("older-than")
	question := fmt.Sprintf("Delete the rows of all leases that have been free for %s.", span(older))
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	purged, err := c.op.Purge(ctx, &lockadmin.PurgeOptions{OlderThan: older, Batch: c.cmd.Int("batch")})
	if err != nil {
		if purged.Count > 0 {
			err = partial(ctx, err, "%s deleted, run the command again for the rest", count(purged.Count, "row"))
		}
		return err
	}
	above := orNothing(purged.Floor != guard.NoToken, ", every later token is above "+purged.Floor.String())
	return c.changed(purged, "%s deleted%s", count(purged.Count, "row"), above)
}
