package main

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) listCommand() *cli.Command {
	return &cli.Command{
		Name: "list", Category: categoryLook, ArgsUsage: "[PATTERN]",
		Usage: "list leases: who holds what, since when",
		Description: "PATTERN is read by components: tenant_1 is that name and what begins with\n" +
			"tenant_1: (never tenant_12); * is any component, and at the end any rest. In\n" +
			"the order of the names. Printed while it is read; not a snapshot. A free lease\n" +
			"keeps its token.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{
				Name: "state", Usage: "only these: held, expired, free", Validator: validStates,
				Value: []string{string(lockadmin.StateHeld), string(lockadmin.StateExpired)},
			},
			&cli.BoolFlag{Name: "awaited", Usage: "only leases that somebody waits for"},
			&cli.DurationFlag{Name: "held-for", DefaultText: "any", Usage: "only leases held for this `LONG`, such as 1h", Validator: atLeast(time.Duration(0))},
			limitFlag(),
		},
		Action: a.on(leasesOnly, (*call).list, "PATTERN"),
	}
}

func validStates(given []string) error {
	for _, state := range given {
		switch lockadmin.LeaseState(state) {
		case lockadmin.StateHeld, lockadmin.StateExpired, lockadmin.StateFree:
		default:
			return fmt.Errorf("must be held, expired or free, not %s", shown(state))
		}
	}
	return nil
}

func (c *call) list(ctx context.Context) error {
	opts := &lockadmin.ListOptions{AwaitedOnly: c.cmd.Bool("awaited"), HeldFor: c.cmd.Duration("held-for")}
	for _, state := range c.cmd.StringSlice("state") {
		opts.States = append(opts.States, lockadmin.LeaseState(state))
	}
	leases := patiently(ctx, c.session, func(ctx context.Context) iter.Seq2[lockadmin.LeaseInfo, error] {
		return c.op.List(ctx, c.pattern, opts)
	})
	titles := []string{"STATE", "HELD FOR", "LEFT", "TOKEN", "OWNER", "RESOURCE", "METADATA"}
	return printAll(c, titles, leases, func(l lockadmin.LeaseInfo) []string {
		held := l.State == lockadmin.StateHeld
		return []string{
			stateOf(l), orDash(held, span(l.HeldFor)), orDash(held, span(l.Remaining)), l.Token.String(),
			orDash(l.Owner != "", shown(l.Owner)), shown(l.Resource), orNothing(l.Metadata != "", shown(l.Metadata)),
		}
	}, ifNone("no lease"))
}

// stateOf marks the leases that somebody waits for, and says how many processes
// do if they are in the queue.
func stateOf(l lockadmin.LeaseInfo) string {
	switch {
	case l.Waiters > 0:
		return fmt.Sprintf("%s, %d waiting", l.State, l.Waiters)
	case l.Awaited:
		return string(l.State) + ", awaited"
	}
	return string(l.State)
}
