package sqladmin

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// HolderSession is a session that keeps a claim from being raised.
type HolderSession struct {
	// PID is the server's process, for pg_terminate_backend.
	PID int32 `json:"pid"`
	// Role and Application are the session's, as far as this role may see them.
	Role        string `json:"role"`
	Application string `json:"application"`
}

// pg_stat_activity shows no more than this of another role's session.
const holdersSQL = `SELECT coalesce(json_agg(s), '[]')::text FROM (
	SELECT h.pid, coalesce(a.usename, '')::text AS role, coalesce(a.application_name, '') AS application
	FROM fencepost.holders($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text) h LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid
	WHERE h.pid IS NOT NULL ORDER BY a.xact_start NULLS LAST, h.pid LIMIT $4::int
) AS s`

// Holders returns the sessions whose open transactions a raise of the claim waits for, the
// oldest first, at most limit. A raise ends sessions of its own role by itself; for others a
// person needs their numbers. The errors are those of [Admin.Triggers].
func (a *Admin) Holders(ctx context.Context, claim guard.Claim, limit int) (found []HolderSession, err error) {
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	const op = "look for holders"
	err = a.inspect(ctx, op, nothing, func(q sqlkit.Querier) error {
		return readJSON(ctx, q, op, &found, holdersSQL, claim.Resource, int64(claim.Token), claim.LeaseID, limit)
	})
	return found, err
}
