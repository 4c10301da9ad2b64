package main

import (
	"bufio"
	"context"
	"io"
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
			"released: held and expired. Printed while it is read; it is no snapshot.",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "state", Usage: "only these: held, expired, free"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also the free ones, which keep the token"},
			&cli.BoolFlag{Name: "awaited", Usage: "only leases that somebody waits for"},
			limitFlag(0, "at most this many; 0 is all, or 20 with --watch"),
		}, watchFlags()...),
		Action: a.list,
	}
}

func limitFlag(value int, text string) cli.Flag {
	return &cli.IntFlag{Name: "limit", Aliases: []string{"n"}, Value: value, Usage: text, Local: true}
}

const watchedRows = 20

func (a *app) list(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "PATTERN?")
	if err != nil {
		return err
	}
	opts, err := listOptions(cmd)
	if err != nil {
		return err
	}
	limit := cmd.Int("limit")
	if limit < 0 {
		return usage("--limit must not be negative")
	}
	if limit == 0 && cmd.Bool("watch") {
		limit = watchedRows
	}
	s, err := connect(ctx, cmd, leasesComponent)
	if err != nil {
		return err
	}
	defer s.close()
	return a.watch(ctx, cmd, func(ctx context.Context, w io.Writer) error {
		return s.list(ctx, w, given[0], opts, limit, asJSON(cmd))
	})
}

func listOptions(cmd *cli.Command) (*lockadmin.ListOptions, error) {
	opts := &lockadmin.ListOptions{AwaitedOnly: cmd.Bool("awaited")}
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

// list prints as it reads: it holds one page in memory, however long the list is.
// limit 0 is none.
func (s *session) list(ctx context.Context, w io.Writer, pattern string, opts *lockadmin.ListOptions, limit int, asJSON bool) error {
	out := newLeaseTable(w, asJSON)
	printed := 0
	for lease, err := range s.op.List(ctx, pattern, opts) {
		if err != nil {
			return err
		}
		if limit > 0 && printed == limit {
			return out.end("more, see --limit")
		}
		if err := out.lease(lease); err != nil {
			return err
		}
		if printed++; printed == firstPage || printed%nextPage == 0 {
			if err := out.flush(); err != nil {
				return err
			}
		}
	}
	if printed == 0 {
		return out.end("no lease")
	}
	return out.end("")
}

// The first rows are printed at once, the others a thousand at a time.
const firstPage, nextPage = 100, 1000

// leaseTable prints leases for people or for programs.
type leaseTable struct {
	w    *bufio.Writer
	t    *table
	json bool
}

func newLeaseTable(w io.Writer, asJSON bool) *leaseTable {
	b := bufio.NewWriterSize(w, 64<<10)
	return &leaseTable{w: b, json: asJSON, t: newTable(b, "STATE", ">HELD FOR", ">LEFT", ">TOKEN", "OWNER", "RESOURCE")}
}

func (o *leaseTable) lease(l lockadmin.LeaseInfo) error {
	if o.json {
		line, err := jsonLine(l)
		if err == nil {
			_, err = o.w.Write(line)
		}
		return err
	}
	o.t.row(stateOf(l), whenHeld(l, l.HeldFor), whenHeld(l, l.Remaining), l.Token.String(), orDash(l.Owner != "", shown(l.Owner)), shown(l.Resource))
	return nil
}

// stateOf marks the leases that somebody waits for.
func stateOf(l lockadmin.LeaseInfo) string {
	if l.Awaited {
		return string(l.State) + ", awaited"
	}
	return string(l.State)
}

func whenHeld(l lockadmin.LeaseInfo, d time.Duration) string {
	return orDash(l.State == lockadmin.StateHeld, span(d))
}

func (o *leaseTable) flush() error {
	if !o.json {
		if err := o.t.flush(); err != nil {
			return err
		}
	}
	return o.w.Flush()
}

// end prints the last rows, and for people a note below.
func (o *leaseTable) end(note string) error {
	if note != "" && !o.json {
		o.t.note(note)
	}
	return o.flush()
}
