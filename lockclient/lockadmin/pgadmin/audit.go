package pgadmin

import (
	"context"
	"iter"
	"strings"

	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// Audit is explained with [lockadmin.Admin]. It is read page by page.
func (o *Operator) Audit(ctx context.Context, pattern string, opts *lockadmin.AuditOptions) iter.Seq2[lockadmin.AuditRecord, error] {
	q, err := o.auditQuery(pattern, opts)
	return paged(q.Before, err, func(before int64, limit int) ([]lockadmin.AuditRecord, int64, bool, error) {
		q.Before = before
		page, err := o.records(ctx, q, limit)
		if len(page) > 0 {
			before = page[len(page)-1].ID
		}
		return page, before, len(page) == limit, err
	})
}

type auditQuery struct {
	pattern.Pattern
	lockadmin.AuditOptions
}

func (o *Operator) auditQuery(selected string, opts *lockadmin.AuditOptions) (q auditQuery, err error) {
	q.AuditOptions = pglease.Of(opts)
	if q.Pattern, err = pattern.New("pattern", selected); err != nil {
		return q, err
	}
	return q, q.Validate()
}

const auditEnd = "a.resource < $2::text"

// auditSQL reads the latest records first. $1 low, $2 high, $3 from, $4 to, $5 the
// ID to be below, $6 how many, $7 expression.
var auditSQL = `SELECT a.resource, a.cut_token, coalesce(a.cut_lease_id, ''), a.cut_owner, a.cut_state,
  ` + moment("a.cut_acquired_at", "a.cut_state") + `, ` + moment("a.cut_expires_at", "a.cut_state") + `, a.at,
  a.id, a.at, a.action, a.actor, a.reason, a.database_user, a.request_id, a.token
FROM fencepost.audit a
WHERE a.resource >= $1::text AND ` + auditEnd + `
  AND ($7::text IS NULL OR a.resource ~ $7::text)
  AND ($3::timestamptz IS NULL OR a.at >= $3::timestamptz) AND ($4::timestamptz IS NULL OR a.at < $4::timestamptz)
  AND ($5::bigint IS NULL OR a.id < $5::bigint)
ORDER BY a.id DESC LIMIT $6::bigint`

func (o *Operator) records(ctx context.Context, q auditQuery, limit int) ([]lockadmin.AuditRecord, error) {
	return query(ctx, o, "audit", o.scanRecord, q.Bounded(auditSQL, auditEnd), q.Low, q.High,
		zeronull.Timestamptz(q.From), zeronull.Timestamptz(q.To), zeronull.Int8(q.Before), int64(limit), q.Expression)
}

func (o *Operator) scanRecord(row pgx.Row, r *lockadmin.AuditRecord) error {
	err := o.scanCut(row, &r.Cut, &r.ID, &r.At, &r.Action, &r.Actor, &r.Reason, &r.DatabaseUser, &r.RequestID, (*int64)(&r.Token))
	r.Resource, r.Action = r.Cut.Resource, strings.ToUpper(r.Action)
	return err
}
