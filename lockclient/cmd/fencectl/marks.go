package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"
)

func (a *app) marksCommand() *cli.Command {
	return &cli.Command{
		Name: "marks", Category: categoryAct,
		Usage: "look after the marks: the highest claim that each resource admitted",
		Commands: []*cli.Command{
			a.marksListCommand(),
			{
				Name: "show", ArgsUsage: "RESOURCE", Usage: "print the mark of a resource",
				Action: on(marksOnly, a.markShow, "RESOURCE"),
			},
			{
				Name: "raise", ArgsUsage: "RESOURCE TOKEN", Usage: "put a claim in the place of a lower mark, and fence older holders",
				Description: "Waits for the fenced transactions of older holders. Take the claim of the\n" +
					"holder (fencectl show), or one that force-unlock invalidated.",
				Flags: []cli.Flag{
					&cli.BoolFlag{Name: "above-issuer", Usage: "though no such token was granted: every holder is refused then"},
					raiseTimeoutFlag(),
					&cli.StringFlag{Name: "lease-id", Usage: "`ID` of the lease that has the token; by default what the issuer says"},
					yesFlag(),
				},
				Action: a.markRaise,
			},
			a.marksResetCommand(),
			a.marksResetsCommand(),
			a.marksRetireCommand(),
		},
	}
}

// raiseTimeoutFlag bounds the wait for older holders; see connect.
func raiseTimeoutFlag() cli.Flag {
	return &cli.DurationFlag{
		Name: "raise-timeout", Value: 20 * time.Second, Local: true, Sources: cli.EnvVars("FENCECTL_RAISE_TIMEOUT"),
		Usage: "longest wait for older holders", Validator: atLeast(time.Millisecond),
	}
}

func (a *app) markShow(ctx context.Context, cmd *cli.Command, s *session, given []string) error {
	mark, err := s.mark(ctx, given[0])
	if err != nil {
		return err
	}
	if mark.Token == guard.NoToken || mark.Floor {
		if mark.Floor {
			return notFound("%s has no mark; it admits tokens above the floor of retired marks, %s", shown(given[0]), mark.Token)
		}
		return notFound("%s has no mark", shown(given[0]))
	}
	if asJSON(cmd) {
		return a.printJSON(markJSON{given[0], mark.Token, mark.LeaseID})
	}
	return fields(a.out, "resource", shown(given[0]), "mark", mark.Token.String(), "lease ID", leaseID(mark.LeaseID))
}

func (s *session) mark(ctx context.Context, resource string) (guard.Mark, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.marks.Mark(ctx, resource)
}

// raise has the time that the server may wait, plus the timeout.
func (s *session) raise(ctx context.Context, cmd *cli.Command, claim guard.Claim) error {
	limited, cancel := context.WithTimeout(ctx, cmd.Duration("raise-timeout")+s.timeout)
	defer cancel()
	return s.withBlockers(ctx, claim, s.marks.Raise(limited, claim))
}

// issued returns the highest token that the issuer granted on the resource, or
// on one that it has forgotten: the floor. NoToken means none.
func (s *session) issued(ctx context.Context, resource string) (guard.Token, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var token int64
	err := s.pool.QueryRow(ctx, "SELECT coalesce(max(token), 0) FROM fencepost.leases WHERE resource IN ($1::text, '')", resource).Scan(&token)
	return guard.Token(token), err
}

func leaseID(id string) string { return orDash(id != "", shown(id)) }

func (a *app) markRaise(ctx context.Context, cmd *cli.Command) error {
	claim, err := claimArguments(cmd)
	if err != nil {
		return err
	}
	s, err := connect(ctx, cmd, marksComponent)
	if err != nil {
		return err
	}
	defer s.close()
	if !cmd.Bool("above-issuer") {
		if err := s.refuseAboveIssuer(ctx, claim); err != nil {
			return err
		}
	}
	if !cmd.IsSet("lease-id") {
		if claim.LeaseID, err = s.leaseOf(ctx, claim); err != nil {
			return err
		}
	}
	if err := a.confirm(ctx, cmd, "Raise the mark of "+shown(claim.Resource)+" to "+claim.Token.String()+": every lower token is refused from then on."); err != nil {
		return err
	}
	if err := s.raise(ctx, cmd, claim); err != nil {
		return err
	}
	return a.print(cmd, markJSON(claim), "the mark of %s is %s\n", shown(claim.Resource), claim.Token)
}

// leaseOf returns the lease ID of the claim's token, if the issuer or its audit has
// it: a mark with another one would lock out the healthy holder.
func (s *session) leaseOf(ctx context.Context, claim guard.Claim) (string, error) {
	v, err := s.look(ctx, claim.Resource)
	if code, _ := classify(err); code == exitNotFound || missing(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if v.Lease.Token == claim.Token && v.Lease.LeaseID != "" {
		return v.Lease.LeaseID, nil
	}
	for _, r := range v.Audit {
		switch claim.Token {
		case r.Token:
			return r.RequestID, nil
		case r.Cut.Token:
			return r.Cut.LeaseID, nil
		}
	}
	return "", nil
}

// refuseAboveIssuer prevents a typing error from becoming a mark that refuses
// every later holder. It does not check marks whose issuer is another system.
func (s *session) refuseAboveIssuer(ctx context.Context, claim guard.Claim) error {
	issued, err := s.issued(ctx, claim.Resource)
	if missing(err) || err == nil && issued == guard.NoToken {
		return nil
	}
	if err != nil {
		return failed("ask the issuer", err)
	}
	if issued < claim.Token {
		return &coded{exitRefused, string(guard.ReasonMarkAhead), fmt.Errorf("token %s is above all that was granted on %s, up to %s: every holder would be refused there; "+
			"if that is meant, say --above-issuer, and advance the issuer with fencectl advance", claim.Token, shown(claim.Resource), issued)}
	}
	return nil
}

// markJSON is a mark for programs.
type markJSON struct {
	Resource string      `json:"resource"`
	Token    guard.Token `json:"token"`
	LeaseID  string      `json:"leaseId"`
}

func (a *app) marksListCommand() *cli.Command {
	return &cli.Command{
		Name: "list", ArgsUsage: "[PATTERN]",
		Usage: "list marks",
		Description: "Those of the resources that PATTERN chooses, as in fencectl list. With --ahead\n" +
			"only those above everything that the issuer ever granted there: every holder is refused\n" +
			"at them, until the issuer is advanced above it (advance) or the mark is reset.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "ahead", Usage: "only marks that are ahead of the issuer"},
			limitFlag("print at most this many; 0 is all"),
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
	given, err := arguments(cmd, "PATTERN?")
	if err != nil {
		return err
	}
	pattern, err := pglease.NewPattern("", "pattern", given[0])
	if err != nil {
		return err
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
	titles := []string{">MARK", "RAISED", "LEASE ID", "RESOURCE"}
	if cmd.Bool("ahead") {
		titles = slices.Insert(titles, 1, ">ISSUED")
	}
	out := newListing(a.out, cmd, titles...)
	highest := guard.NoToken
	err = addAll(out, s.listMarks(ctx, cmd.Bool("ahead"), pattern), func(m listedMark) []string {
		highest = max(highest, m.Token)
		cells := []string{m.Token.String(), clockTime(m.RaisedAt), leaseID(m.LeaseID), shown(m.Resource)}
		if m.Issued != nil {
			cells = slices.Insert(cells, 1, m.Issued.String())
		}
		return cells
	})
	if err != nil {
		return err
	}
	switch {
	case !cmd.Bool("ahead") || highest == guard.NoToken:
	case highest > lockadmin.MaxAdvance:
		out.t.note("the highest is too high to advance the issuer beyond it, see fencectl help runbook")
	default:
		out.t.note("to advance the issuer beyond all of these: fencectl advance --floor " + highest.String())
	}
	return out.end("no mark")
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
	return pglease.Paged("", nil, func(after string, limit int) ([]listedMark, string, bool, error) {
		ctx, cancel := s.bounded(ctx)
		defer cancel()
		rows, _ := s.pool.Query(ctx, pattern.Bounded(statement, marksEnd), pattern.Low, pattern.High, after, limit, pattern.Expression)
		marks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m listedMark, err error) {
			var issued *int64
			err = row.Scan(&m.Resource, (*int64)(&m.Token), &m.LeaseID, &m.RaisedAt, &issued)
			m.Issued = (*guard.Token)(issued)
			return m, err
		})
		if len(marks) > 0 {
			after = marks[len(marks)-1].Resource
		}
		return marks, after, len(marks) == limit, failed("list marks", err)
	})
}

func (a *app) marksResetCommand() *cli.Command {
	return &cli.Command{
		Name: "reset", ArgsUsage: "RESOURCE", Usage: "lower a mark that was poisoned: the only way there is",
		Description: "For a mark that no issuer can be advanced above (made up by hand, out of range).\n" +
			"Stop every holder of the resource first: WHOEVER HAS A TOKEN ABOVE --to, OR --to\n" +
			"ITSELF, WRITES AGAIN. Where the issuer is behind, advance it instead. The mark must be exactly\n" +
			"--from; --to may not be above all that the issuer granted. It is recorded.",
		Flags: append(accountFlags(),
			&cli.StringFlag{Name: "from", Usage: "`TOKEN` of the mark as it is (required)"},
			&cli.StringFlag{Name: "from-lease-id", Usage: "and its lease `ID`, if not the one that the mark has now"},
			&cli.StringFlag{Name: "to", Usage: "`TOKEN` of the mark as it is to be (required)"},
			&cli.StringFlag{Name: "to-lease-id", Usage: "and its lease `ID`, if not that of the lease with this token"},
			&cli.StringFlag{Name: "issuers-last", Usage: "highest `TOKEN` of an issuer that is not lockclient"},
			raiseTimeoutFlag(),
			yesFlag(),
		),
		Action: a.marksReset,
	}
}

func (a *app) marksReset(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "RESOURCE")
	if err != nil {
		return err
	}
	resource, actor, reason := given[0], cmd.String("actor"), cmd.String("reason")
	if err := accountable("marks reset", actor, reason); err != nil {
		return err
	}
	if err := guard.ValidateResource(resource); err != nil {
		return err
	}
	from := guard.Mark{LeaseID: cmd.String("from-lease-id")}
	to := guard.Mark{LeaseID: cmd.String("to-lease-id")}
	for _, t := range []struct {
		flag  string
		token *guard.Token
	}{{"from", &from.Token}, {"to", &to.Token}} {
		if cmd.String(t.flag) == "" {
			return usage("marks reset needs --%s", t.flag)
		}
		if *t.token, err = guard.ParseToken(cmd.String(t.flag)); err != nil {
			return err
		}
	}
	needed := []string{marksComponent}
	var last guard.Token
	if cmd.String("issuers-last") == "" {
		needed = components
	} else if last, err = guard.ParseToken(cmd.String("issuers-last")); err != nil {
		return err
	}
	s, err := connect(ctx, cmd, needed...)
	if err != nil {
		return err
	}
	defer s.close()
	if last == guard.NoToken {
		if last, err = s.issued(ctx, resource); err != nil {
			return failed("ask the issuer", err)
		}
		if last == guard.NoToken {
			return notFound("the issuer never granted %s; say --issuers-last if another system is its issuer", shown(resource))
		}
	}
	if err := s.completeReset(ctx, cmd, resource, &from, &to); err != nil {
		return err
	}
	question := fmt.Sprintf("Reset the mark of %s from %s to %s. Whoever has a token above %s, or that one under lease %s, and is not stopped, WRITES AGAIN.",
		shown(resource), from.Token, to.Token, to.Token, leaseID(to.LeaseID))
	if err := a.confirm(ctx, cmd, question); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cmd.Duration("raise-timeout")+s.timeout)
	defer cancel()
	if err := s.admin.Reset(ctx, resource, from, to, last, actor, reason); err != nil {
		var refused *guard.RejectedError
		if errors.As(err, &refused) && refused.Mark != from && refused.Mark.Token != guard.NoToken {
			return fmt.Errorf("nothing was changed, the mark is not what --from and --from-lease-id say: %w", err)
		}
		return err
	}
	return a.print(cmd, markJSON{resource, to.Token, to.LeaseID}, "the mark of %s is %s, was %s\n", shown(resource), to.Token, from.Token)
}

// completeReset takes the lease IDs that were not given from the mark and from the
// lease, if those have the given tokens. The mark is still compared when it is
// reset.
func (s *session) completeReset(ctx context.Context, cmd *cli.Command, resource string, from, to *guard.Mark) error {
	if !cmd.IsSet("from-lease-id") {
		mark, err := s.mark(ctx, resource)
		if err != nil {
			return err
		}
		if mark.Token == from.Token {
			from.LeaseID = mark.LeaseID
		}
	}
	if !cmd.IsSet("to-lease-id") && cmd.String("issuers-last") == "" {
		lease, err := s.op.Get(ctx, resource)
		if err != nil && !errors.Is(err, guard.ErrNotFound) {
			return err
		}
		if lease.Token == to.Token {
			to.LeaseID = lease.LeaseID
		}
	}
	return nil
}

func (a *app) marksResetsCommand() *cli.Command {
	return &cli.Command{
		Name: "resets", Usage: "list the resets, the oldest first",
		Flags:  []cli.Flag{limitFlag("at most this many; 0 is all")},
		Action: on(marksOnly, a.marksResets),
	}
}

func (a *app) marksResets(ctx context.Context, cmd *cli.Command, s *session, _ []string) error {
	out := newListing(a.out, cmd, "AT", ">FROM", ">TO", "BY", "RESOURCE", "REASON")
	resets := pglease.Paged(0, nil, func(after int64, limit int) (page []sqladmin.Reset, last int64, more bool, err error) {
		ctx, cancel := s.bounded(ctx)
		defer cancel()
		for r, err := range s.admin.Resets(ctx, after) {
			if err != nil {
				return nil, after, false, err
			}
			if page, last = append(page, r), r.ID; len(page) == limit {
				return page, last, true, nil
			}
		}
		return page, last, false, nil
	})
	return printAll(out, resets, "no reset", func(r sqladmin.Reset) []string {
		return []string{clockTime(r.At), r.FromToken.String(), r.ToToken.String(), shown(r.Actor) + " (as " + shown(r.Role) + ")", shown(r.Resource), shown(r.Reason)}
	})
}

// withBlockers adds whom a raise waited for until it timed out. A raise itself
// ends sessions of its own role; an operator's role is seldom the application's.
func (s *session) withBlockers(ctx context.Context, claim guard.Claim, err error) error {
	if sqlState(err) != stateLockTimeout {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, _ := s.pool.Query(ctx, blockersSQL, claim.Resource, int64(claim.Token), claim.LeaseID, maxBlockers)
	var pid, first int32
	var role, application string
	var said []string
	_, asking := pgx.ForEachRow(found, []any{&pid, &role, &application}, func() error {
		first = cmp.Or(first, pid)
		said = append(said, fmt.Sprintf("%d of role %s", pid, shown(role))+orNothing(application != "", " ("+shown(application)+")"))
		return nil
	})
	if asking != nil || len(said) == 0 { // gone by now, or not known: all that is left is to try again
		return err
	}
	return fmt.Errorf("%w; it waits for the open transaction of session %s; to end it: SELECT pg_terminate_backend(%d)", err, strings.Join(said, ", "), first)
}
