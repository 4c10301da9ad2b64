package main

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) purgeCommand() *cli.Command {
	return &cli.Command{
		Name: "purge", Category: categoryAct,
		Usage: "delete the rows of leases that have been free for long",
		Description: "No token is lowered: every later one, on any resource, is above those that\n" +
			"were deleted. Works in small batches beside running holders.",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "older-than", Value: 7 * 24 * time.Hour, DefaultText: "7 days", Usage: "how long it has been free", Sources: cli.EnvVars("FENCECTL_PURGE_OLDER_THAN")},
			&cli.IntFlag{Name: "batch", Value: 100, Usage: "rows per transaction, at most 1000"},
			yesFlag(),
		},
		Action: a.purge,
	}
}

func (a *app) purge(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	older := cmd.Duration("older-than")
	if older <= 0 { // 0 would be lockclient's default
		return usage("--older-than must be above 0")
	}
	if cmd.Int("batch") <= 0 {
		return usage("--batch must be 1 to 1000")
	}
	s, err := connect(ctx, cmd, leasesComponent)
	if err != nil {
		return err
	}
	defer s.close()
	question := fmt.Sprintf("Delete the rows of all leases on %s that have been free for %s.", target(s.pool.Config().ConnConfig), span(older))
	if err := a.confirm(ctx, cmd, question); err != nil {
		return err
	}
	purged, err := s.op.Purge(ctx, &lockadmin.PurgeOptions{OlderThan: older, Batch: cmd.Int("batch")})
	if err != nil {
		if purged.Count > 0 {
			err = fmt.Errorf("%w (%d rows were deleted before)", err, purged.Count)
		}
		return err
	}
	if asJSON(cmd) {
		return a.printJSON(struct {
			Purged  int64       `json:"purged"`
			Floor   guard.Token `json:"floor"`
			Blocked int         `json:"blocked"`
		}{purged.Count, purged.Floor, purged.Blocked})
	}
	if purged.Floor == guard.NoToken {
		return a.say("%s deleted\n", count(purged.Count, "row"))
	}
	return a.say("%s deleted, every later token is above %s\n", count(purged.Count, "row"), purged.Floor)
}
