package main

import (
	"context"
	"fmt"
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
			"the order of the names. Without --all or --state only leases that were not\n" +
			"released: held and expired. Printed while it is read; not a snapshot.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "state", Usage: "only these: held, expired, free"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also the free ones, which keep the token"},
			&cli.BoolFlag{Name: "awaited", Usage: "only leases that somebody waits for"},
			&cli.DurationFlag{Name: "held-for", DefaultText: "any", Usage: "only leases held for this `LONG`, such as 1h", Validator: atLeast(time.Duration(0))},
			limitFlag("at most this many; 0 is all"),
		},
		Action: a.list,
	}
}

func limitFlag(text string) cli.Flag {
	return &cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Usage: text, Local: true, Validator: atLeast(0)}
}

func (a *app) list(ctx context.Context, cmd *cli.Command) error {
	opts, err := listOptions(cmd)
	if err != nil {
		return err
	}
	return on(leasesOnly, func(ctx context.Context, cmd *cli.Command, s *session, given []string) error {
		out := newListing(a.out, cmd, "STATE", ">HELD FOR", ">LEFT", ">TOKEN", "OWNER", "RESOURCE", "METADATA")
		return printAll(out, s.op.List(ctx, given[0], opts), "no lease", leaseCells)
	}, "PATTERN?")(ctx, cmd)
}

func listOptions(cmd *cli.Command) (*lockadmin.ListOptions, error) {
	opts := &lockadmin.ListOptions{AwaitedOnly: cmd.Bool("awaited"), HeldFor: cmd.Duration("held-for")}
	for _, given := range cmd.StringSlice("state") {
		state := lockadmin.LeaseState(given)
		if state != lockadmin.StateHeld && state != lockadmin.StateExpired && state != lockadmin.StateFree {
			return nil, usage("--state is held, expired or free, not %s", shown(given))
		}
		opts.States = append(opts.States, state)
	}
	switch {
	case cmd.Bool("all") && len(opts.States) > 0:
		return nil, usage("--all and --state exclude each other")
	case !cmd.Bool("all") && len(opts.States) == 0:
		opts.States = []lockadmin.LeaseState{lockadmin.StateHeld, lockadmin.StateExpired}
	}
	return opts, nil
}

func leaseCells(l lockadmin.LeaseInfo) []string {
	return []string{stateOf(l), whenHeld(l, l.HeldFor), whenHeld(l, l.Remaining), l.Token.String(), orDash(l.Owner != "", shown(l.Owner)),
		shown(l.Resource), orNothing(l.Metadata != "", shown(l.Metadata))}
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

func whenHeld(l lockadmin.LeaseInfo, d time.Duration) string {
	return orDash(l.State == lockadmin.StateHeld, span(d))
}

func (a *app) auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Category: categoryLook, ArgsUsage: "[PATTERN]",
		Usage: "list what operators did, the latest first",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "since", Usage: "only the last `DURATION`, such as 24h"},
			&cli.StringFlag{Name: "from", Usage: "only from this `TIME` on, such as 2026-04-30T22:00:00Z"},
			&cli.StringFlag{Name: "to", Usage: "only before this `TIME`"},
			limitFlag("print at most this many; 0 is all"),
		},
		Action: a.audit,
	}
}

func (a *app) audit(ctx context.Context, cmd *cli.Command) error {
	from, to, err := period(cmd)
	if err != nil {
		return err
	}
	return on(leasesOnly, func(ctx context.Context, cmd *cli.Command, s *session, given []string) error {
		out := newListing(a.out, cmd, "AT", "ACTION", ">TOKEN", "BY", "HELD BY", "RESOURCE", "REASON")
		records := s.op.Audit(ctx, given[0], &lockadmin.AuditOptions{From: from, To: to})
		return printAll(out, records, "no record", func(r lockadmin.AuditRecord) []string {
			by := shown(r.Actor) + orNothing(r.DatabaseUser != "" && r.DatabaseUser != r.Actor, " (as "+shown(r.DatabaseUser)+")")
			return []string{clockTime(r.At), shown(r.Action), r.Token.String(), by, holderOf(r.Cut), shown(r.Resource), shown(r.Reason)}
		})
	}, "PATTERN?")(ctx, cmd)
}

// holderOf returns who held a lease at the moment that l describes.
func holderOf(l lockadmin.LeaseInfo) string {
	switch {
	case l.State == lockadmin.StateHeld:
		return shown(l.Owner)
	case l.State == lockadmin.StateExpired:
		return "nobody; " + shown(l.Owner) + " until it expired"
	}
	return "nobody"
}

func period(cmd *cli.Command) (from, to time.Time, err error) {
	since := cmd.Duration("since")
	if since < 0 || since > 0 && cmd.String("from") != "" {
		return from, to, usage("--since must be above 0, and without --from")
	}
	if since > 0 {
		from = time.Now().Add(-since)
	}
	for _, bound := range []struct {
		flag string
		t    *time.Time
	}{{"from", &from}, {"to", &to}} {
		if value := cmd.String(bound.flag); value != "" {
			if *bound.t, err = time.Parse(time.RFC3339, value); err != nil {
				return from, to, usage("--%s: %s is not a time such as 2026-04-30T22:00:00Z", bound.flag, shown(value))
			}
		}
	}
	return from, to, nil
}
