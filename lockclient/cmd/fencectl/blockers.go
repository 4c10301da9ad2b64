package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

const stateLockTimeout = "55P03"

// maxBlockers bounds a message; who ends these looks again.
const maxBlockers = 5

// Of another role's session pg_stat_activity shows no more than this.
const blockersSQL = `SELECT h.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, '')
FROM fencepost.holders($1::text, $2::bigint, $3::text) AS h(pid) LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid
ORDER BY a.xact_start NULLS LAST, h.pid LIMIT $4`

// blocker is a session whose fenced transaction a raise waits for.
type blocker struct {
	pid               int32
	role, application string
}

// withBlockers says of a raise that waited in vain whom it waited for. It ends
// sessions of its own role by itself; an operator's is seldom the application's.
func (s *session) withBlockers(ctx context.Context, claim guard.Claim, err error) error {
	if sqlState(err) != stateLockTimeout {
		return err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, asking := s.pool.Query(ctx, blockersSQL, claim.Resource, int64(claim.Token), claim.LeaseID, maxBlockers)
	if asking != nil {
		return err
	}
	all, asking := pgx.CollectRows(found, func(row pgx.CollectableRow) (b blocker, err error) {
		return b, row.Scan(&b.pid, &b.role, &b.application)
	})
	if asking != nil || len(all) == 0 { // gone meanwhile, or not to be known: trying again is all there is
		return err
	}
	said := make([]string, len(all))
	for i, b := range all {
		said[i] = fmt.Sprintf("%d of role %s", b.pid, shown(b.role)) + orNothing(b.application != "", " ("+shown(b.application)+")")
	}
	return fmt.Errorf("%w; it waits for the open transaction of session %s; to end it: SELECT pg_terminate_backend(%d)", err, strings.Join(said, ", "), all[0].pid)
}
