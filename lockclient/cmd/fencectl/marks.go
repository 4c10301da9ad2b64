package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"
)

// marksCommand is the table of the commands for marks, each of which is in a file of
// its name. What they share is here.
func (a *app) marksCommand() *cli.Command {
	return &cli.Command{
		Name: "marks", Category: categoryAct,
		Usage: "look after the marks: the highest claim that each resource admitted",
		Commands: []*cli.Command{
			a.marksListCommand(),
			a.marksRaiseCommand(),
			a.marksResetCommand(),
			a.marksResetsCommand(),
			a.marksRetireCommand(),
		},
	}
}

// markJSON is a mark for programs.
type markJSON struct {
	Resource string      `json:"resource"`
	Token    guard.Token `json:"token"`
	LeaseID  string      `json:"leaseId"`
}

func (s *session) mark(ctx context.Context, resource string) (guard.Mark, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.fence.Mark(ctx, resource)
}

// issued returns the highest token that the issuer granted on the resource, or
// on one that it has forgotten: the floor. NoToken means none.
func (s *session) issued(ctx context.Context, resource string) (token guard.Token, err error) {
	const sql = "SELECT coalesce(max(token), 0) FROM fencepost.leases WHERE resource IN ($1::text, '')"
	err = s.row(ctx, "ask the issuer", sql, []any{resource}, (*int64)(&token))
	return token, err
}

// waiting bounds what waits for older holders: by the time that the server may wait,
// plus the timeout.
func (c *call) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.cmd.Duration("raise-timeout")+c.timeout)
}

// raise raises a mark. If it waited in vain, the error says for whom: a raise itself
// ends sessions of its own role, and an operator's role is seldom the application's.
func (c *call) raise(ctx context.Context, claim guard.Claim) error {
	limited, cancel := c.waiting(ctx)
	defer cancel()
	err := c.fence.Raise(limited, claim)
	const lockTimeout = "55P03"
	if sqlState(err) != lockTimeout {
		return err
	}
	var first int32
	said, asking := rows(ctx, c.session, "look for holders", blockersSQL, []any{claim.Resource, int64(claim.Token), claim.LeaseID, maxBlockers},
		func(row pgx.CollectableRow) (string, error) {
			var pid int32
			var role, application string
			err := row.Scan(&pid, &role, &application)
			first = cmp.Or(first, pid)
			return fmt.Sprintf("%d of role %s", pid, shown(role)) + orNothing(application != "", " ("+shown(application)+")"), err
		})
	if asking != nil || len(said) == 0 { // gone by now, or not known: all that is left is to try again
		return err
	}
	return fmt.Errorf("%w; it waits for the open transaction of session %s; to end it: SELECT pg_terminate_backend(%d)", err, strings.Join(said, ", "), first)
}

// maxBlockers bounds a message; after ending these, run the command again.
const maxBlockers = 5

// pg_stat_activity shows no more than this of another role's session.
const blockersSQL = `SELECT h.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, '')
FROM fencepost.holders($1::text, $2::bigint, $3::text) h LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid WHERE h.pid IS NOT NULL
ORDER BY a.xact_start NULLS LAST, h.pid LIMIT $4`
