package main

import (
	"bufio"
	"context"
	"io"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

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
