package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"

	"github.com/urfave/cli/v3"
)

// marksCommand is the table of the commands for marks, each of which is in a file of
// its name. What they share is here.
func (a *app) marksCommand() *cli.Command {
	return &cli.Command{
		Name: "marks", Category: categoryAct,
		Usage: "look after the marks: the highest claim that each resource admitted",
		Commands: []*cli.Command{
			a.marksListCommand(),
			a.marksRaiseCommand(),
			a.marksResetCommand(),
			a.marksResetsCommand(),
			a.marksRetireCommand(),
		},
	}
}

// markJSON is a mark for programs.
type markJSON struct {
	Resource string `json:"resource"`
	wire.Twice
	LeaseID string `json:"leaseId"`
}

func markOf(claim guard.Claim) markJSON {
	return markJSON{claim.Resource, wire.TwiceOf(claim.Token), claim.LeaseID}
}

// waiting bounds what waits for older holders: by the time that the server may wait,
// plus the timeout.
func (c *call) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cmd.Duration("raise-timeout")+c.timeout)
}

// raise raises a mark. If it waited in vain, the error says for whom: a raise itself
// ends sessions of its own role, and an operator's role is seldom the application's.
func (c *call) raise(ctx context.Context, claim guard.Claim) error {
	limited, cancel := c.waiting(ctx)
	defer cancel()
	err := c.fence.Raise(limited, claim)
	const lockTimeout = "55P03"
	if sqlState(err) != lockTimeout {
		return err
	}
	looking, done := c.bounded(ctx)
	defer done()
	found, asking := c.admin.Holders(looking, claim, maxBlockers)
	if asking != nil || len(found) == 0 { // gone by now, or not known: all that is left is to try again
		return err
	}
	said := make([]string, len(found))
	for n, h := range found {
		said[n] = fmt.Sprintf("%d of role %s", h.PID, shown(h.Role)) + orNothing(h.Application != "", " ("+shown(h.Application)+")")
	}
	return fmt.Errorf("%w; it waits for the open transaction of session %s; to end it: SELECT pg_terminate_backend(%d)", err, strings.Join(said, ", "), found[0].PID)
}

// endsSessions is what a question says of a raise, since it may end work that others do.
func (c *call) endsSessions() string {
	return fmt.Sprintf("It waits up to %s for the open transactions of older holders, and ends sessions of theirs that are idle\n"+
		"for a second or at work for 15, if this role may.", span(c.cmd.Duration("raise-timeout")))
}

// maxBlockers bounds a message; after ending these, run the command again.
const maxBlockers = 5
