package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"

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
			olderThanFlag(30, "how long not raised"),
			&cli.DurationFlag{Name: "wait", Value: time.Minute, Usage: "how long to wait for leases that were granted before", Validator: atLeast(time.Duration(0))},
			yesFlag(),
		},
		Action: a.on(components, (*call).marksRetire),
	}
}

func (c *call) marksRetire(ctx context.Context) error {
	// The marks are stamped by the server's clock. The moment is fixed here, so
	// that the marks before it can only become fewer.
	var before time.Time
	var old int64
	var top guard.Token
	err := c.row(ctx, "look for marks to retire", retirableSQL, []any{c.cmd.Duration("older-than").Microseconds()}, &before, &old, (*int64)(&top))
	if err != nil {
		return err
	}
	if old == 0 {
		return c.print(object{"retired": 0, "floor": guard.NoToken}, "no mark is that old\n")
	}
	question := fmt.Sprintf("Retire %s raised before %s. Every later token, on any resource, will be above %s.", count(old, "mark"), clockTime(before), top)
	if err := c.confirm(ctx, question); err != nil {
		return err
	}
	floor, err := c.op.AdvanceFloor(ctx, top)
	if err != nil {
		return err
	}
	if err := c.outwait(ctx, floor, c.cmd.Duration("wait")); err != nil {
		return partial(ctx, err, "the issuer's floor is %s, no mark was retired", floor)
	}
	retiring, cancel := c.bounded(ctx)
	defer cancel()
	retired, err := c.fence.Retire(retiring, before)
	if errors.Is(err, guard.ErrOutcomeUnknown) {
		return err
	}
	if err != nil {
		return partial(ctx, err, "the issuer's floor is %s, no mark was retired", floor)
	}
	return c.changed(object{"retired": retired.Count, "floor": retired.Floor}, "%s retired, the floor is %s", count(retired.Count, "mark"), retired.Floor)
}

const retirableSQL = `SELECT b.before, count(m.resource), coalesce(max(m.token), 0)
FROM (SELECT clock_timestamp() - $1::bigint * interval '1 microsecond' AS before) b
LEFT JOIN fencepost.marks m ON m.raised_at < b.before AND m.resource <> ''
GROUP BY b.before`

const lowerHeldSQL = `SELECT count(*), coalesce(min(resource), '') FROM fencepost.leases
WHERE lease_id IS NOT NULL AND expires_at > clock_timestamp() AND token <= $1::bigint`

// outwait waits until no lease at or below the floor is held: its holder may
// not have written yet, and would be refused at a resource whose mark is gone.
func (c *call) outwait(ctx context.Context, floor guard.Token, wait time.Duration) error {
	said := int64(0)
	for end := time.Now().Add(wait); ; {
		var held int64
		var one string
		err := c.row(ctx, "look for leases from before", lowerHeldSQL, []any{int64(floor)}, &held, &one)
		switch {
		case ctx.Err() != nil: // between two looks or during one
			return &opcmd.Error{Code: opcmd.ExitInterrupted, Reason: "interrupted", Err: errors.New("interrupted")}
		case err != nil:
			return err
		case held == 0:
			return nil
		case !time.Now().Before(end):
			return fmt.Errorf("still held from before: %s, one on %s; try again later", count(held, "lease"), shown(one))
		}
		if held != said && !c.asJSON() { // programs get only errors on standard error
			fmt.Fprintf(c.errOut, "waiting for %s granted before, one on %s\n", count(held, "lease"), shown(one))
			said = held
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
