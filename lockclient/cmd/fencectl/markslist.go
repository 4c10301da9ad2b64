package main

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/urfave/cli/v3"
)

func (a *app) marksListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", ArgsUsage: "[PATTERN]",
		Usage: "list marks",
		Description: "Those of the resources that PATTERN chooses, as in fencectl list. With --ahead\n" +
			"only those above everything that the issuer ever granted there: every holder is refused\n" +
			"at them, until the issuer is advanced above it (advance) or the mark is reset.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "ahead", Usage: "only marks that are ahead of the issuer"},
			limitFlag(),
		},
		Action: a.onDatabase(marksOnly, (*call).marksList, "PATTERN"),
	}
}

// listedMark is a mark and, with --ahead, what the issuer had reached.
type listedMark struct {
	markJSON
	RaisedAt time.Time `json:"raisedAt"`
	// Issued is left out if nothing was ever granted there.
	Issued wire.Twice `json:"issued,omitzero"`
}

func (c *call) marksList(ctx context.Context) error {
	ahead := c.cmd.Bool("ahead")
	selected, err := pattern.New("pattern", c.pattern)
	if err != nil {
		return err
	}
	titles := []string{"MARK", "RAISED", "LEASE ID", "RESOURCE"}
	marks := c.allMarks(ctx, selected)
	if ahead {
		if err := c.need(ctx, leasesComponent); err != nil {
			return err
		}
		titles, marks = slices.Insert(titles, 1, "ISSUED"), c.aheadMarks(ctx)
	}
	highest := guard.NoToken
	return printAll(c, titles, marks, func(m listedMark) []string {
		highest = max(highest, m.Token)
		cells := []string{m.Token.String(), clockTime(m.RaisedAt), leaseID(m.LeaseID), shown(m.Resource)}
		if ahead {
			cells = slices.Insert(cells, 1, m.Issued.Token.String())
		}
		return cells
	}, func(printed int) string {
		switch {
		case printed == 0:
			return "no mark"
		case !ahead:
			return ""
		case highest > lockadmin.MaxAdvance:
			return "the highest is too high to advance the issuer beyond it, see fencectl help runbook"
		}
		return "to advance the issuer beyond all of these: fencectl advance --floor " + highest.String()
	})
}

func listed(m sqladmin.ResourceMark) listedMark {
	return listedMark{markJSON: markOf(guard.Claim{Resource: m.Resource, Token: m.Token, LeaseID: m.LeaseID}), RaisedAt: m.RaisedAt}
}

// allMarks are those of the resources that begin as the pattern does and match it.
func (c *call) allMarks(ctx context.Context, selected pattern.Pattern) iter.Seq2[listedMark, error] {
	return func(yield func(listedMark, error) bool) {
		all := func(ctx context.Context) iter.Seq2[sqladmin.ResourceMark, error] {
			return c.admin.Marks(ctx, selected.Low)
		}
		for m, err := range patiently(ctx, c.session, all) {
			if err != nil || selected.Match(m.Resource) {
				if !yield(listed(m), err) {
					return
				}
			}
		}
	}
}

func (c *call) aheadMarks(ctx context.Context) iter.Seq2[listedMark, error] {
	return func(yield func(listedMark, error) bool) {
		for m, err := range c.leases.MarksAhead(ctx, c.pattern) {
			out := listed(m.ResourceMark)
			out.Issued = wire.TwiceOf(m.Issued)
			if !yield(out, err) {
				return
			}
		}
	}
}
