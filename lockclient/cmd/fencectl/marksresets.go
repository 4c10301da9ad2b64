package main

import (
	"context"
	"iter"

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

func (c *call) marksResets(ctx context.Context) error {
	resets := patiently(ctx, c.session, func(ctx context.Context) iter.Seq2[sqladmin.Reset, error] { return c.admin.Resets(ctx, 0) })
	titles := []string{"AT", "FROM", "TO", "BY", "RESOURCE", "REASON"}
	return printAll(c, titles, resets, func(r sqladmin.Reset) []string {
		return []string{clockTime(r.At), r.FromToken.String(), r.ToToken.String(), shown(r.Actor) + " (as " + shown(r.Role) + ")", shown(r.Resource), shown(r.Reason)}
	}, ifNone("no reset"))
}
