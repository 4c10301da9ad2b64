package main

import (
	"context"
	"iter"

	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/urfave/cli/v3"
)

func (a *app) marksResetsCommand() *cli.Command {
	return &cli.Command{
		Name: "resets", Usage: "list the resets, the oldest first",
		Flags:  []cli.Flag{limitFlag()},
		Action: a.onDatabase(marksOnly, (*call).marksResets),
	}
}

// listedReset is a reset whose tokens are written as every token is.
type listedReset struct {
	sqladmin.Reset
	From        wire.Twice `json:"fromToken"`
	To          wire.Twice `json:"toToken"`
	IssuersLast wire.Twice `json:"issuersLast,omitzero"`
}

func (c *call) marksResets(ctx context.Context) error {
	resets := patiently(ctx, c.session, func(ctx context.Context) iter.Seq2[sqladmin.Reset, error] { return c.admin.Resets(ctx, 0) })
	titles := []string{"AT", "FROM", "TO", "BY", "RESOURCE", "REASON"}
	listed := func(yield func(listedReset, error) bool) {
		for r, err := range resets {
			if !yield(listedReset{r, wire.TwiceOf(r.FromToken), wire.TwiceOf(r.ToToken), wire.TwiceOf(r.IssuersLast)}, err) {
				return
			}
		}
	}
	return printAll(c, titles, listed, func(r listedReset) []string {
		return []string{clockTime(r.At), r.FromToken.String(), r.ToToken.String(), shown(r.Actor) + " (as " + shown(r.Role) + ")", shown(r.Resource), shown(r.Reason)}
	}, ifNone("no reset"))
}
