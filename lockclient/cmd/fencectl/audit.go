package main

import (
	"context"
	"iter"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) auditCommand() *cli.Command {
	moment := cli.TimestampConfig{Layouts: []string{time.RFC3339}}
	return &cli.Command{
		Name: "audit", Category: categoryLook, ArgsUsage: "[PATTERN]",
		Usage:       "list the force-unlocks: who cut which lease and why, the latest first",
		Description: "Resets of marks are listed by fencectl marks resets. What else operators do is not recorded.",
		Flags: []cli.Flag{
			&cli.TimestampFlag{Name: "from", Usage: "only from this `TIME` on, such as 2026-04-30T22:00:00Z", Config: moment},
			&cli.TimestampFlag{Name: "to", Usage: "only before this `TIME`", Config: moment},
			limitFlag(),
		},
		Action: a.on(leasesOnly, (*call).audit, "PATTERN"),
	}
}

func (c *call) audit(ctx context.Context) error {
	opts := &lockadmin.AuditOptions{From: c.cmd.Timestamp("from"), To: c.cmd.Timestamp("to")}
	records := patiently(ctx, c.session, func(ctx context.Context) iter.Seq2[lockadmin.AuditRecord, error] {
		return c.op.Audit(ctx, c.pattern, opts)
	})
	titles := []string{"AT", "ACTION", "TOKEN", "BY", "HELD BY", "RESOURCE", "REASON"}
	return printAll(c, titles, records, func(r lockadmin.AuditRecord) []string {
		by := shown(r.Actor) + orNothing(r.DatabaseUser != "" && r.DatabaseUser != r.Actor, " (as "+shown(r.DatabaseUser)+")")
		return []string{clockTime(r.At), shown(r.Action), r.Token.String(), by, holderOf(r.Cut), shown(r.Resource), shown(r.Reason)}
	}, ifNone("no record"))
}

// holderOf returns who held a lease at the moment that l describes.
func holderOf(l lockadmin.LeaseInfo) string {
	switch l.State {
	case lockadmin.StateHeld:
		return shown(l.Owner)
	case lockadmin.StateExpired:
		return "nobody; " + shown(l.Owner) + " until it expired"
	}
	return "nobody"
}
