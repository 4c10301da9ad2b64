package main

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
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
		Action: a.on(marksOnly, (*call).marksList, "PATTERN"),
	}
}

// listedMark is a mark and, with --ahead, what the issuer had reached.
type listedMark struct {
	markJSON
	RaisedAt time.Time    `json:"raisedAt"`
	Issued   *guard.Token `json:"issued,omitempty"`
}

func (c *call) marksList(ctx context.Context) error {
	ahead := c.cmd.Bool("ahead")
	pattern, err := pglease.NewPattern("", "pattern", c.pattern)
	if err != nil {
		return err
	}
	titles := []string{"MARK", "RAISED", "LEASE ID", "RESOURCE"}
	if ahead {
		if err := c.need(ctx, leasesComponent); err != nil {
			return err
		}
		titles = slices.Insert(titles, 1, "ISSUED")
	}
	highest := guard.NoToken
	return printAll(c, titles, c.listMarks(ctx, ahead, pattern), func(m listedMark) []string {
		highest = max(highest, m.Token)
		cells := []string{m.Token.String(), clockTime(m.RaisedAt), leaseID(m.LeaseID), shown(m.Resource)}
		if m.Issued != nil {
			cells = slices.Insert(cells, 1, m.Issued.String())
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

// Both read a range of the primary key. $1 low, $2 high, $3 the resource before
// the first, $4 how many, $5 expression.
const (
	aheadSQL = `SELECT m.resource, m.token, m.lease_id, m.raised_at, greatest(coalesce(l.token, 0), f.token) AS issued
FROM fencepost.marks m
CROSS JOIN (SELECT coalesce(max(token), 0) AS token FROM fencepost.leases WHERE resource = '') f
LEFT JOIN fencepost.leases l ON l.resource = m.resource
WHERE ` + marksRange + ` AND m.token > greatest(coalesce(l.token, 0), f.token)
ORDER BY m.resource LIMIT $4::bigint`
	marksSQL = `SELECT m.resource, m.token, m.lease_id, m.raised_at, NULL::bigint AS issued
FROM fencepost.marks m
WHERE ` + marksRange + `
ORDER BY m.resource LIMIT $4::bigint`

	marksRange = `m.resource > $3::text AND m.resource >= $1::text AND ` + marksEnd + ` AND ($5::text IS NULL OR m.resource ~ $5::text)`
	marksEnd   = `m.resource < $2::text`
)

func (s *session) listMarks(ctx context.Context, ahead bool, pattern pglease.Pattern) iter.Seq2[listedMark, error] {
	statement := marksSQL
	if ahead {
		statement = aheadSQL
	}
	statement = pattern.Bounded(statement, marksEnd)
	return pglease.Paged("", nil, func(after string, limit int) ([]listedMark, string, bool, error) {
		marks, err := rows(ctx, s, "list marks", statement, []any{pattern.Low, pattern.High, after, limit, pattern.Expression}, scanMark)
		if len(marks) > 0 {
			after = marks[len(marks)-1].Resource
		}
		return marks, after, len(marks) == limit, err
	})
}

func scanMark(row pgx.CollectableRow) (m listedMark, err error) {
	var issued *int64
	err = row.Scan(&m.Resource, (*int64)(&m.Token), &m.LeaseID, &m.RaisedAt, &issued)
	m.Issued = (*guard.Token)(issued)
	return m, err
}
