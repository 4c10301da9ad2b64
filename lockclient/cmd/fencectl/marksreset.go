package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/urfave/cli/v3"
)

func (a *app) marksResetCommand() *cli.Command {
	return &cli.Command{
		Name: "reset", ArgsUsage: "RESOURCE", Usage: "lower a mark that was poisoned: the only way there is",
		Description: "For a mark that no issuer can be lifted over (made up by hand, out of range).\n" +
			"Stop every holder of the resource first: WHOEVER HAS A TOKEN ABOVE --to WRITES\n" +
			"AGAIN. Where the issuer is behind, advance it instead. The mark must be exactly\n" +
			"--from; --to may not be above all that the issuer granted. It is recorded.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "from", Usage: "`TOKEN` of the mark as it is (required)"},
			&cli.StringFlag{Name: "from-lease-id", Usage: "and its lease `ID`, as fencectl marks show prints it"},
			&cli.StringFlag{Name: "to", Usage: "`TOKEN` of the mark as it is to be (required)"},
			&cli.StringFlag{Name: "to-lease-id", Usage: "and its lease `ID`; without it the lease that holds --to is refused"},
			&cli.StringFlag{Name: "issuers-last", Usage: "highest `TOKEN` of an issuer that is not lockclient"},
			&cli.StringFlag{Name: "actor", Usage: "`WHO` does it (required)", Sources: cli.EnvVars("FENCECTL_ACTOR")},
			&cli.StringFlag{Name: "reason", Usage: "`WHY` (required)"},
			raiseTimeoutFlag(),
			yesFlag(),
		},
		Action: a.marksReset,
	}
}

func (a *app) marksReset(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "RESOURCE")
	if err != nil {
		return err
	}
	resource, actor, reason := given[0], cmd.String("actor"), cmd.String("reason")
	if err := accountable("marks reset", actor, reason); err != nil {
		return err
	}
	if err := guard.ValidateResource(resource); err != nil {
		return err
	}
	from := guard.Mark{LeaseID: cmd.String("from-lease-id")}
	to := guard.Mark{LeaseID: cmd.String("to-lease-id")}
	for _, t := range []struct {
		flag  string
		token *guard.Token
	}{{"from", &from.Token}, {"to", &to.Token}} {
		if cmd.String(t.flag) == "" {
			return usage("marks reset needs --%s", t.flag)
		}
		if *t.token, err = guard.ParseToken(cmd.String(t.flag)); err != nil {
			return err
		}
	}
	needed := []string{marksComponent}
	var last guard.Token
	if cmd.String("issuers-last") == "" {
		needed = components
	} else if last, err = guard.ParseToken(cmd.String("issuers-last")); err != nil {
		return err
	}
	s, err := connect(ctx, cmd, needed...)
	if err != nil {
		return err
	}
	defer s.close()
	if last == guard.NoToken {
		if last, err = s.issued(ctx, resource); err != nil {
			return failed("ask the issuer", err)
		}
		if last == guard.NoToken {
			return notFound("the issuer never granted %s; say --issuers-last if another system is its issuer", shown(resource))
		}
	}
	question := fmt.Sprintf("Reset the mark of %s from %s to %s. Whoever has a token of %s or above, and is not stopped, WRITES AGAIN.",
		shown(resource), from.Token, to.Token, to.Token)
	if err := a.confirm(ctx, cmd, question); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cmd.Duration("raise-timeout")+s.timeout)
	defer cancel()
	if err := s.marks.Reset(ctx, resource, from, to, last, actor, reason); err != nil {
		var refused *guard.RejectedError
		if errors.As(err, &refused) && refused.Mark != from && refused.Mark.Token != guard.NoToken {
			return fmt.Errorf("nothing was changed, the mark is not what --from and --from-lease-id say: %w", err)
		}
		return err
	}
	if asJSON(cmd) {
		return a.printJSON(markJSON{Resource: resource, Token: to.Token, LeaseID: to.LeaseID})
	}
	return a.say("the mark of %s is %s, was %s\n", shown(resource), to.Token, from.Token)
}

func (a *app) marksResetsCommand() *cli.Command {
	return &cli.Command{
		Name: "resets", Usage: "list the resets, the oldest first",
		Flags:  []cli.Flag{limitFlag(0, "at most this many; 0 is all")},
		Action: a.marksResets,
	}
}

func (a *app) marksResets(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	limit := cmd.Int("limit")
	if limit < 0 {
		return usage("--limit must not be negative")
	}
	s, err := connect(ctx, cmd, marksComponent)
	if err != nil {
		return err
	}
	defer s.close()
	t := newTable(a.out, "AT", ">FROM", ">TO", "BY", "RESOURCE", "REASON")
	printed, after := 0, int64(0)
	for {
		size := sqlfence.MaxPage
		if limit > 0 {
			size = min(size, limit-printed)
		}
		page, err := s.resetsAfter(ctx, after, size)
		if err != nil {
			return err
		}
		for _, r := range page {
			after, printed = r.ID, printed+1
			if !asJSON(cmd) {
				t.row(clockTime(r.At), r.FromToken.String(), r.ToToken.String(), shown(r.Actor)+" (as "+shown(r.Role)+")", shown(r.Resource), shown(r.Reason))
			} else if err := a.printJSON(r); err != nil {
				return err
			}
		}
		last := len(page) < size || printed == limit
		if !asJSON(cmd) {
			if last && printed == 0 {
				t.note("no reset")
			}
			if err := t.flush(); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
	}
}

func (s *session) resetsAfter(ctx context.Context, after int64, page int) ([]sqlfence.Reset, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.marks.Resets(ctx, after, page)
}
