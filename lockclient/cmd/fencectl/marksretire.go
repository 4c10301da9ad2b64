package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

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
		Action: a.onDatabase(components, (*call).marksRetire),
	}
}

func (c *call) marksRetire(ctx context.Context) error {
	// The moment is fixed here, so that the marks before it can only become fewer.
	before := time.Now().Add(-c.cmd.Duration("older-than"))
	var old int64
	var top guard.Token
	all := func(ctx context.Context) iter.Seq2[sqladmin.ResourceMark, error] { return c.admin.Marks(ctx, "") }
	for m, err := range patiently(ctx, c.session, all) {
		if err != nil {
			return err
		}
		if m.RaisedAt.Before(before) {
			old, top = old+1, max(top, m.Token)
		}
	}
	if old == 0 {
		return c.print(object{"retired": 0}, "no mark is that old\n")
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
	retiring, done := c.bounded(ctx)
	defer done()
	retired, err := c.fence.Retire(retiring, before)
	if errors.Is(err, guard.ErrOutcomeUnknown) {
		return err
	}
	if err != nil {
		return partial(ctx, err, "the issuer's floor is %s, no mark was retired", floor)
	}
	return c.changed(object{"retired": retired.Count, "floor": wire.TwiceOf(retired.Floor)}, "%s retired, the floor is %s", count(retired.Count, "mark"), retired.Floor)
}

// outwait waits until no lease at or below the floor is held: its holder may
// not have written yet, and would be refused at a resource whose mark is gone.
func (c *call) outwait(ctx context.Context, floor guard.Token, wait time.Duration) error {
	said := int64(0)
	for end := time.Now().Add(wait); ; {
		held, one, err := c.heldUpTo(ctx, floor)
		switch {
		case ctx.Err() != nil: // between two looks or during one
			return &commandError{Code: exitInterrupted, Reason: "interrupted", Err: errors.New("interrupted")}
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

// heldUpTo counts the held leases at or below a token, and names one.
func (c *call) heldUpTo(ctx context.Context, floor guard.Token) (held int64, one string, err error) {
	for l, err := range c.op.List(ctx, "", &lockadmin.ListOptions{States: []lockadmin.LeaseState{lockadmin.StateHeld}}) {
		if err != nil {
			return 0, "", err
		}
		if l.Token <= floor {
			held, one = held+1, cmp.Or(one, l.Resource)
		}
	}
	return held, one, nil
}
