package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/urfave/cli/v3"
)

func (a *app) marksCommand() *cli.Command {
	return &cli.Command{
		Name: "marks", Category: categoryAct,
		Usage: "look after the marks: the highest claim that each resource admitted",
		Commands: []*cli.Command{
			a.marksListCommand(),
			{
				Name: "show", ArgsUsage: "RESOURCE", Usage: "print the mark of a resource",
				Action: a.markShow,
			},
			{
				Name: "raise", ArgsUsage: "RESOURCE TOKEN", Usage: "put a claim in the place of a lower mark, and fence older holders",
				Description: "Waits for the fenced transactions of older holders. Take the claim of the\n" +
					"holder (fencectl show), or one that force-unlock burned.",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "above-issuer", Usage: "though no such token was granted: every holder is refused then"},
					raiseTimeoutFlag(),
					&cli.StringFlag{Name: "lease-id", Usage: "`ID` of the lease that the token belongs to, empty if there is none"},
					yesFlag(),
				},
				Action: a.markRaise,
			},
			a.marksResetCommand(),
			a.marksResetsCommand(),
			a.marksRetireCommand(),
		},
	}
}

// raiseTimeoutFlag bounds the wait for older holders; see connect.
func raiseTimeoutFlag() cli.Flag {
	return &cli.DurationFlag{
		Name: "raise-timeout", Value: 20 * time.Second, Local: true, Sources: cli.EnvVars("FENCECTL_RAISE_TIMEOUT"),
		Usage: "longest wait for older holders",
		Validator: func(d time.Duration) error {
			if d < time.Millisecond {
				return errors.New("must be above 0")
			}
			return nil
		},
	}
}

func (a *app) markShow(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "RESOURCE")
	if err != nil {
		return err
	}
	if err := guard.ValidateResource(given[0]); err != nil {
		return err
	}
	s, err := connect(ctx, cmd, marksComponent)
	if err != nil {
		return err
	}
	defer s.close()
	mark, err := s.mark(ctx, given[0])
	if err != nil {
		return err
	}
	if mark.Token == guard.NoToken || mark.Floor {
		if mark.Floor {
			return notFound("%s has no mark; it admits tokens above the floor of retired marks, %s", shown(given[0]), mark.Token)
		}
		return notFound("%s has no mark", shown(given[0]))
	}
	if asJSON(cmd) {
		return a.printJSON(markJSON{Resource: given[0], Token: mark.Token, LeaseID: mark.LeaseID})
	}
	return fields(a.out, "resource", shown(given[0]), "mark", mark.Token.String(), "lease ID", leaseID(mark.LeaseID))
}

func (s *session) mark(ctx context.Context, resource string) (guard.Mark, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.marks.Mark(ctx, resource)
}

// raise is given the time that the server may wait, and the timeout besides.
func (s *session) raise(ctx context.Context, cmd *cli.Command, claim guard.Claim) error {
	limited, cancel := context.WithTimeout(ctx, cmd.Duration("raise-timeout")+s.timeout)
	defer cancel()
	return s.withBlockers(ctx, claim, s.marks.Raise(limited, claim))
}

// issued is the highest token that the issuer granted on the resource, or on one
// that it has forgotten: the floor. NoToken is none.
func (s *session) issued(ctx context.Context, resource string) (guard.Token, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var token int64
	err := s.pool.QueryRow(ctx, "SELECT coalesce(max(token), 0) FROM fencepost.leases WHERE resource IN ($1::text, '')", resource).Scan(&token)
	return guard.Token(token), err
}

func leaseID(id string) string { return orDash(id != "", shown(id)) }

func (a *app) markRaise(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "RESOURCE", "TOKEN")
	if err != nil {
		return err
	}
	token, err := guard.ParseToken(given[1])
	if err != nil {
		return err
	}
	claim := guard.Claim{Resource: given[0], Token: token, LeaseID: cmd.String("lease-id")}
	if err := claim.Validate(); err != nil {
		return err
	}
	s, err := connect(ctx, cmd, marksComponent)
	if err != nil {
		return err
	}
	defer s.close()
	if !cmd.Bool("above-issuer") {
		if err := s.refuseAboveIssuer(ctx, claim); err != nil {
			return err
		}
	}
	if err := a.confirm(ctx, cmd, "Raise the mark of "+shown(claim.Resource)+" to "+token.String()+": every lower token is refused from then on."); err != nil {
		return err
	}
	if err := s.raise(ctx, cmd, claim); err != nil {
		return err
	}
	if asJSON(cmd) {
		return a.printJSON(markJSON{Resource: claim.Resource, Token: claim.Token, LeaseID: claim.LeaseID})
	}
	return a.say("the mark of %s is %s\n", shown(claim.Resource), token)
}

// refuseAboveIssuer keeps a typing error from being a mark that refuses every
// holder to come. Marks whose issuer is another system are not looked at.
func (s *session) refuseAboveIssuer(ctx context.Context, claim guard.Claim) error {
	issued, err := s.issued(ctx, claim.Resource)
	if missing(err) || err == nil && issued == guard.NoToken {
		return nil
	}
	if err != nil {
		return failed("ask the issuer", err)
	}
	if issued < claim.Token {
		return &coded{exitRefused, string(guard.ReasonMarkAhead), fmt.Errorf("token %s is above all that was granted on %s, up to %s: every holder would be refused there; "+
			"if that is meant, say --above-issuer, and lift the issuer with fencectl advance", claim.Token, shown(claim.Resource), issued)}
	}
	return nil
}

// markJSON is a mark for programs.
type markJSON struct {
	Resource string      `json:"resource"`
	Token    guard.Token `json:"token"`
	LeaseID  string      `json:"leaseId"`
}
