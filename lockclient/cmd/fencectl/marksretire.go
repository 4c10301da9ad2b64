package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/urfave/cli/v3"
)

func (a *app) marksRetireCommand() *cli.Command {
	return &cli.Command{
		Name:  "retire",
		Usage: "forget the marks of resources that nobody wrote to for long",
		Description: "In the order in which no new holder is refused: it raises the issuer's floor\n" +
			"above the marks, waits for leases from before to end, and then retires the\n" +
			"marks. No stale token is admitted by it, whatever fails.",
		Flags: []cli.Flag{
			olderThanFlag(30, "how long not raised", "FENCECTL_RETIRE_OLDER_THAN"),
			&cli.DurationFlag{Name: "wait", Value: time.Minute, Usage: "how long to wait for leases that were granted before", Validator: atLeast(time.Duration(0))},
			yesFlag(),
		},
		Action: on(components, a.marksRetire),
	}
}

func (a *app) marksRetire(ctx context.Context, cmd *cli.Command, s *session, _ []string) error {
	// The marks are stamped by the server's clock. The moment is fixed here, so
	// that the marks before it can only become fewer.
	before, old, top, err := s.retirable(ctx, cmd.Duration("older-than"))
	if err != nil {
		return failed("look for marks to retire", err)
	}
	if old == 0 {
		return a.printRetired(cmd, guard.Retired{})
	}
	question := fmt.Sprintf("Retire %s raised before %s. Every later token, on any resource, will be above %s.", count(old, "mark"), clockTime(before), top)
	if err := a.confirm(ctx, cmd, question); err != nil {
		return err
	}
	floor, err := s.op.AdvanceFloor(ctx, top)
	if err != nil {
		return err
	}
	if err := a.outwait(ctx, cmd, s, floor, cmd.Duration("wait")); err != nil {
		return partial(ctx, err, "the issuer's floor is %s, no mark was retired", floor)
	}
	retiring, cancel := s.bounded(ctx)
	defer cancel()
	retired, err := s.marks.Retire(retiring, before)
	if errors.Is(err, guard.ErrOutcomeUnknown) {
		return err
	}
	if err != nil {
		return partial(ctx, err, "the issuer's floor is %s, no mark was retired", floor)
	}
	return a.printRetired(cmd, retired)
}

const retirableSQL = `SELECT b.before, count(m.resource), coalesce(max(m.token), 0)
FROM (SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before) b
LEFT JOIN fencepost.marks m ON m.raised_at < b.before AND m.resource <> ''
GROUP BY b.before`

func (s *session) retirable(ctx context.Context, older time.Duration) (before time.Time, count int64, top guard.Token, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var token int64
	err = s.pool.QueryRow(ctx, retirableSQL, older.Microseconds()).Scan(&before, &count, &token)
	return before, count, guard.Token(token), err
}

const lowerHeldSQL = `SELECT count(*), coalesce(min(resource), '') FROM fencepost.leases
WHERE lease_id IS NOT NULL AND expires_at > clock_timestamp() AND token <= $1::bigint`

func (s *session) lowerHeld(ctx context.Context, floor guard.Token) (held int64, one string, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.pool.QueryRow(ctx, lowerHeldSQL, int64(floor)).Scan(&held, &one)
	return held, one, err
}

// outwait waits until no lease at or below the floor is held: its holder may
// not have written yet, and would be refused at a resource whose mark is gone.
func (a *app) outwait(ctx context.Context, cmd *cli.Command, s *session, floor guard.Token, wait time.Duration) error {
	told := int64(0)
	for end := time.Now().Add(wait); ; {
		held, one, err := s.lowerHeld(ctx, floor)
		if ctx.Err() != nil { // between two looks or during one
			return &coded{exitInterrupted, "interrupted", errors.New("interrupted")}
		}
		if err != nil {
			return failed("look for leases from before", err)
		}
		if held == 0 {
			return nil
		}
		if !time.Now().Before(end) {
			return fmt.Errorf("still held from before: %s, one on %s; try again later", count(held, "lease"), shown(one))
		}
		if held != told && !asJSON(cmd) { // programs get only errors on standard error
			fmt.Fprintf(a.errOut, "waiting for %s granted before, one on %s\n", count(held, "lease"), shown(one))
			told = held
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (a *app) printRetired(cmd *cli.Command, r guard.Retired) error {
	said := "no mark is that old"
	if r.Count > 0 {
		said = fmt.Sprintf("%s retired, the floor is %s", count(r.Count, "mark"), r.Floor)
	}
	return a.print(cmd, object{"retired": r.Count, "floor": r.Floor}, "%s\n", said)
}

const stateLockTimeout = "55P03"

// maxBlockers bounds a message; after ending these, run the command again.
const maxBlockers = 5

// pg_stat_activity shows no more than this of another role's session.
const blockersSQL = `SELECT h.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, '')
FROM fencepost.holders($1::text, $2::bigint, $3::text) h LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid WHERE h.pid IS NOT NULL
ORDER BY a.xact_start NULLS LAST, h.pid LIMIT $4`
