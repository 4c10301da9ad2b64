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

func (a *app) auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Category: categoryLook, ArgsUsage: "[PATTERN]",
		Usage: "list what operators did, the latest first",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "since", Usage: "only the last `DURATION`, such as 24h"},
			&cli.StringFlag{Name: "from", Usage: "only from this `TIME` on, such as 2026-04-30T22:00:00Z"},
			&cli.StringFlag{Name: "to", Usage: "only before this `TIME`"},
			limitFlag(0, "print at most this many; 0 is all"),
		},
		Action: a.audit,
	}
}

func (a *app) audit(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "PATTERN?")
	if err != nil {
		return err
	}
	from, to, err := period(cmd)
	if err != nil {
		return err
	}
	limit := cmd.Int("limit")
	if limit < 0 {
		return usage("--limit must not be negative")
	}
	s, err := connect(ctx, cmd, leasesComponent)
	if err != nil {
		return err
	}
	defer s.close()
	w := bufio.NewWriter(a.out)
	t := newAuditTable(w)
	printed := 0
	for r, err := range s.op.Audit(ctx, given[0], &lockadmin.AuditOptions{From: from, To: to}) {
		if err != nil {
			return err
		}
		if limit > 0 && printed == limit {
			break
		}
		if !asJSON(cmd) {
			auditRow(t, r)
		} else if line, err := jsonLine(r); err != nil {
			return err
		} else if _, err := w.Write(line); err != nil {
			return err
		}
		if printed++; printed == firstPage || printed%nextPage == 0 {
			if err := t.flushTo(w, asJSON(cmd)); err != nil {
				return err
			}
		}
	}
	if printed == 0 {
		t.note("no record")
	}
	return t.flushTo(w, asJSON(cmd))
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
				return from, to, usage("--%s: %s is no time as in 2026-04-30T22:00:00Z", bound.flag, shown(value))
			}
		}
	}
	return from, to, nil
}

func newAuditTable(w io.Writer) *table {
	return newTable(w, "AT", "ACTION", ">TOKEN", "BY", "CUT HOLDER", "RESOURCE", "REASON")
}

func auditRow(t *table, r lockadmin.AuditRecord) {
	by := shown(r.Actor)
	if r.DatabaseUser != "" && r.DatabaseUser != r.Actor {
		by += " (as " + shown(r.DatabaseUser) + ")"
	}
	t.row(clockTime(r.At), shown(r.Action), r.Token.String(), by, orDash(r.Cut.Owner != "", shown(r.Cut.Owner)), shown(r.Resource), shown(r.Reason))
}
