package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

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
				Action: on(leasesOnly, a.epochShow),
			},
			{
				Name:  "raise",
				Usage: "put every later token above all that were ever issued here",
				Description: "For what the server cannot see: a disk snapshot that was started in its\n" +
					"place, two standbys promoted without a common archive, rows copied without\n" +
					"the schema. Before the applications are started again. It costs nobody a\n" +
					"lease and cannot be taken back.",
				Flags:  []cli.Flag{yesFlag()},
				Action: on(leasesOnly, a.epochRaise),
			},
		},
	}
}

func (a *app) epochShow(ctx context.Context, cmd *cli.Command, s *session, _ []string) error {
	epoch, err := s.op.Epoch(ctx)
	if err != nil {
		return err
	}
	return a.printEpoch(cmd, epoch)
}

func (a *app) epochRaise(ctx context.Context, cmd *cli.Command, s *session, _ []string) error {
	if err := a.confirm(ctx, cmd, "Raise the epoch of "+target(s.pool.Config().ConnConfig)+": all later tokens jump by about 10^12. This cannot be taken back."); err != nil {
		return err
	}
	epoch, err := s.op.RaiseEpoch(ctx)
	if err != nil {
		return err
	}
	return a.printEpoch(cmd, epoch)
}

func (a *app) printEpoch(cmd *cli.Command, e lockadmin.Epoch) error {
	if asJSON(cmd) {
		return a.printJSON(e)
	}
	hidden := "none"
	if e.Hidden != "" {
		hidden = oneLine(e.Hidden) + " (run fencectl epoch raise after every failover and restore)"
	}
	return fields(a.out,
		"epoch", strconv.FormatInt(e.Number, 10),
		"stored base", strconv.FormatInt(e.Base, 10),
		"timeline", orDash(e.Timeline != 0, strconv.FormatInt(e.Timeline, 10)),
		"system identifier", orDash(e.SystemIdentifier != "", e.SystemIdentifier),
		"floor", orDash(e.Floor != guard.NoToken, e.Floor.String()),
		"undetectable failovers", hidden)
}

func orDash(ok bool, s string) string {
	if ok {
		return s
	}
	return "-"
}

func (a *app) advanceCommand() *cli.Command {
	return &cli.Command{
		Name: "advance", Category: categoryAct, ArgsUsage: "RESOURCE TOKEN | --floor TOKEN",
		Usage: "advance the issuer: every later token is above the given one",
		Description: "For resources whose tokens another system has issued before, and for an\n" +
			"issuer that is behind its marks. Never lowers, and cannot be taken back.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "floor", Usage: "for every resource, also those that the issuer does not know"},
			yesFlag(),
		},
		Action: a.advance,
	}
}

func (a *app) advance(ctx context.Context, cmd *cli.Command) error {
	names := []string{"RESOURCE", "TOKEN"}
	if cmd.Bool("floor") {
		names = names[1:]
	}
	given, err := arguments(cmd, names...)
	if err != nil {
		return err
	}
	token, err := guard.ParseToken(given[len(given)-1])
	if err != nil {
		return err
	}
	resource, question := "", "Raise every resource above token "+token.String()+"."
	if !cmd.Bool("floor") {
		resource = given[0]
		if err := guard.ValidateResource(resource); err != nil {
			return err
		}
		question = "Raise " + shown(resource) + " above token " + token.String() + "."
	}
	s, err := connect(ctx, cmd, leasesComponent)
	if err != nil {
		return err
	}
	defer s.close()
	if err := a.confirm(ctx, cmd, question+" This cannot be taken back."); err != nil {
		return err
	}
	var reached guard.Token
	if cmd.Bool("floor") {
		reached, err = s.op.AdvanceFloor(ctx, token)
	} else {
		reached, err = s.op.Advance(ctx, resource, token)
	}
	if err != nil {
		return err
	}
	result := object{"above": reached}
	if resource != "" {
		result["resource"] = resource
	}
	return a.print(cmd, result, "every later token is above %s\n", reached)
}

func (a *app) purgeCommand() *cli.Command {
	return &cli.Command{
		Name: "purge", Category: categoryAct,
		Usage: "delete the rows of leases that have been free for long",
		Description: "No token is lowered: every later one, on any resource, is above those that\n" +
			"were deleted. Works in small batches while holders run.",
		Flags: []cli.Flag{
			olderThanFlag(7, "how long it has been free", "FENCECTL_PURGE_OLDER_THAN"),
			&cli.IntFlag{Name: "batch", Value: 100, Usage: "rows per transaction, at most 1000", Validator: atLeast(1)},
			yesFlag(),
		},
		Action: on(leasesOnly, a.purge),
	}
}

func (a *app) purge(ctx context.Context, cmd *cli.Command, s *session, _ []string) error {
	older := cmd.Duration("older-than")
	question := fmt.Sprintf("Delete the rows of all leases on %s that have been free for %s.", target(s.pool.Config().ConnConfig), span(older))
	if err := a.confirm(ctx, cmd, question); err != nil {
		return err
	}
	purged, err := s.op.Purge(ctx, &lockadmin.PurgeOptions{OlderThan: older, Batch: cmd.Int("batch")})
	if err != nil {
		if purged.Count > 0 {
			err = partial(ctx, err, "%s deleted, run the command again for the rest", count(purged.Count, "row"))
		}
		return err
	}
	result := object{"purged": purged.Count, "floor": purged.Floor, "blocked": purged.Blocked}
	above := orNothing(purged.Floor != guard.NoToken, ", every later token is above "+purged.Floor.String())
	return a.print(cmd, result, "%s deleted%s\n", count(purged.Count, "row"), above)
}

// olderThanFlag has no zero, which would be the library's default.
func olderThanFlag(days int, text, env string) cli.Flag {
	return &cli.DurationFlag{
		Name: "older-than", Value: time.Duration(days) * 24 * time.Hour, DefaultText: fmt.Sprintf("%d days", days), Usage: text,
		Sources: cli.EnvVars(env), Validator: atLeast(time.Nanosecond),
	}
}

// atLeast is what a flag's value has to be.
func atLeast[T int | time.Duration](least T) func(T) error {
	return func(value T) error {
		if value < least {
			return fmt.Errorf("must be at least %v", least)
		}
		return nil
	}
}
