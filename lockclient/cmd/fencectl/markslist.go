package main

import (
	"bufio"
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) marksListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", ArgsUsage: "[PREFIX]",
		Usage: "list marks",
		Description: "Those of resources whose names begin with PREFIX. With --ahead only those\n" +
			"above everything that the issuer ever granted there: every holder is refused\n" +
			"at them, until the issuer is lifted (advance) or the mark is reset.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "ahead", Usage: "only marks that are ahead of the issuer"},
			limitFlag(0, "print at most this many; 0 is all"),
		},
		Action: a.marksList,
	}
}

// listedMark is a mark and, with --ahead, what the issuer had reached.
type listedMark struct {
	markJSON
	RaisedAt time.Time    `json:"raisedAt"`
	Issued   *guard.Token `json:"issued,omitempty"`
}

func (a *app) marksList(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "PREFIX?")
	if err != nil {
		return err
	}
	limit := cmd.Int("limit")
	if limit < 0 {
		return usage("--limit must not be negative")
	}
	if given[0] != "" {
		if guard.ValidateResource(given[0]) != nil {
			return guard.Invalid("prefix", given[0], "must be at most 512 bytes of UTF-8 without control characters")
		}
	}
	needed := []string{marksComponent}
	if cmd.Bool("ahead") {
		needed = components
	}
	s, err := connect(ctx, cmd, needed...)
	if err != nil {
		return err
	}
	defer s.close()
	out := newMarkTable(a, cmd)
	if err := s.listMarks(ctx, cmd.Bool("ahead"), given[0], limit, out); err != nil {
		return failed("list marks", err)
	}
	return out.end(cmd)
}

// Both read a range of the primary key, from the resource $2 on.
const (
	aheadSQL = `SELECT m.resource, m.token, m.lease_id, m.raised_at, greatest(coalesce(l.token, 0), f.token) AS issued
FROM fencepost.marks m
CROSS JOIN (SELECT coalesce(max(token), 0) AS token FROM fencepost.leases WHERE resource = '') f
LEFT JOIN fencepost.leases l ON l.resource = m.resource
WHERE m.resource > $2::text AND m.resource >= $1::text AND starts_with(m.resource, $1::text) AND m.token > greatest(coalesce(l.token, 0), f.token)
ORDER BY m.resource LIMIT $3::bigint`
	marksSQL = `SELECT m.resource, m.token, m.lease_id, m.raised_at, NULL::bigint AS issued
FROM fencepost.marks m
WHERE m.resource > $2::text AND m.resource >= $1::text AND starts_with(m.resource, $1::text)
ORDER BY m.resource LIMIT $3::bigint`
)

func (s *session) listMarks(ctx context.Context, ahead bool, prefix string, limit int, out *markTable) error {
	for after, page := "", firstPage; ; page = nextPage {
		if limit > 0 {
			page = min(page, limit-out.printed)
		}
		marks, err := s.marksAfter(ctx, ahead, prefix, after, page)
		if err != nil {
			return err
		}
		for _, m := range marks {
			after = m.Resource
			if err := out.mark(m); err != nil {
				return err
			}
		}
		if len(marks) < page || out.printed == limit {
			return nil
		}
		if err := out.flush(); err != nil {
			return err
		}
	}
}

func (s *session) marksAfter(ctx context.Context, ahead bool, prefix, after string, page int) (marks []listedMark, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	statement := marksSQL
	if ahead {
		statement = aheadSQL
	}
	rows, err := s.pool.Query(ctx, statement, prefix, after, page)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var m listedMark
		var token int64
		var issued *int64
		if err := rows.Scan(&m.Resource, &token, &m.LeaseID, &m.RaisedAt, &issued); err != nil {
			return nil, err
		}
		m.Token = guard.Token(token)
		if issued != nil {
			reached := guard.Token(*issued)
			m.Issued = &reached
		}
		marks = append(marks, m)
	}
	return marks, rows.Err()
}

// markTable prints marks for people or for programs.
type markTable struct {
	w       *bufio.Writer
	t       *table
	json    bool
	printed int
	highest guard.Token
}

func newMarkTable(a *app, cmd *cli.Command) *markTable {
	w := bufio.NewWriter(a.out)
	titles := []string{">MARK", "RAISED", "LEASE ID", "RESOURCE"}
	if cmd.Bool("ahead") {
		titles = []string{">MARK", ">ISSUED", "RAISED", "LEASE ID", "RESOURCE"}
	}
	return &markTable{w: w, json: asJSON(cmd), t: newTable(w, titles...)}
}

func (o *markTable) mark(m listedMark) error {
	o.printed++
	o.highest = max(o.highest, m.Token)
	if o.json {
		line, err := jsonLine(m)
		if err == nil {
			_, err = o.w.Write(line)
		}
		return err
	}
	row := []string{m.Token.String()}
	if m.Issued != nil {
		row = append(row, m.Issued.String())
	}
	o.t.row(append(row, clockTime(m.RaisedAt), leaseID(m.LeaseID), shown(m.Resource))...)
	return nil
}

func (o *markTable) flush() error {
	if !o.json {
		if err := o.t.flush(); err != nil {
			return err
		}
	}
	return o.w.Flush()
}

func (o *markTable) end(cmd *cli.Command) error {
	switch {
	case o.json:
	case o.printed == 0:
		o.t.note("no mark")
	case cmd.Bool("ahead") && o.highest > lockadmin.MaxAdvance:
		o.t.note("the highest is too high to lift the issuer over it, see fencectl help runbook")
	case cmd.Bool("ahead"):
		o.t.note("lift the issuer over all of them: fencectl advance --floor " + o.highest.String())
	}
	return o.flush()
}
