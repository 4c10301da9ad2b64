package main

import (
	"context"
	"io"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) longHeldCommand() *cli.Command {
	return &cli.Command{
		Name: "long-held", Category: categoryLook, ArgsUsage: "[PATTERN]",
		Usage: "list leases that have been held for long, the longest first",
		Flags: append([]cli.Flag{
			&cli.DurationFlag{Name: "threshold", Value: time.Hour, Usage: "how long at least", Sources: cli.EnvVars("FENCECTL_LONG_HELD_THRESHOLD")},
			limitFlag(watchedRows, "print at most this many, at most 1000"),
		}, watchFlags()...),
		Action: a.longHeld,
	}
}

func (a *app) longHeld(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "PATTERN?")
	if err != nil {
		return err
	}
	limit, threshold := cmd.Int("limit"), cmd.Duration("threshold")
	if limit <= 0 {
		return usage("--limit must be 1 to 1000")
	}
	s, err := connect(ctx, cmd, leasesComponent)
	if err != nil {
		return err
	}
	defer s.close()
	return a.watch(ctx, cmd, func(ctx context.Context, w io.Writer) error {
		leases, err := s.op.LongHeld(ctx, threshold, &lockadmin.LongHeldOptions{Pattern: given[0], Limit: limit})
		if err != nil {
			return err
		}
		out := newLeaseTable(w, asJSON(cmd))
		for _, lease := range leases {
			if err := out.lease(lease); err != nil {
				return err
			}
		}
		if len(leases) == 0 {
			return out.end("no lease is held for " + span(threshold))
		}
		return out.end("")
	})
}
