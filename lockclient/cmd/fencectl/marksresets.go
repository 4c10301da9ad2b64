package main

import (
	"context"

	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/urfave/cli/v3"
)

func (a *app) marksResetsCommand() *cli.Command {
	return &cli.Command{
		Name: "resets", Usage: "list the resets, the oldest first",
		Flags:  []cli.Flag{limitFlag()},
		Action: a.on(marksOnly, (*call).marksResets),
	}
}

func (c *call) marksResets(ctx context.Context) error {
	resets := pglease.Paged(0, nil, func(after int64, limit int) (page []sqladmin.Reset, last int64, more bool, err error) {
		ctx, cancel := c.bounded(ctx)
		defer cancel()
		for r, err := range c.admin.Resets(ctx, after) {
			if err != nil {
				return nil, after, false, err
			}
			if page, last = append(page, r), r.ID; len(page) == limit {
				return page, last, true, nil
			}
		}
		return page, last, false, nil
	})
	titles := []string{"AT", "FROM", "TO", "BY", "RESOURCE", "REASON"}
	return printAll(c, titles, resets, func(r sqladmin.Reset) []string {
		return []string{clockTime(r.At), r.FromToken.String(), r.ToToken.String(), shown(r.Actor) + " (as " + shown(r.Role) + ")", shown(r.Resource), shown(r.Reason)}
	}, ifNone("no reset"))
}
