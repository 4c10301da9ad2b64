package main

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

const (
	guardedReadSQL    = "SELECT write_id, base, n FROM campaign.guarded WHERE id = $1"
	guardedWriteSQL   = "UPDATE campaign.guarded SET write_id = $2, base = $3, n = $4, token = $5 WHERE id = $1"
	guardedCompareSQL = "UPDATE campaign.guarded SET write_id = $2, base = $3, n = $4, token = $5, last_fencing_token = $5 WHERE id = $1 AND last_fencing_token <= $5"
)

// guardedTable is what the triggers guard: a row's resource is the surface and
// the row's ID.
var guardedTable = sqlfence.Trigger{
	Table: []string{"campaign", "guarded"}, Resource: guard.Must(guard.NewTemplate(triggerSurface + ":{id}")), Columns: map[string]string{"id": "id"},
}

const triggerSurface = "sql-trigger"

// enforced is a table whose triggers enforce the claim: the application's
// transactions and statements are plain ones, and only say what they present.
type enforced struct {
	guards string
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
}

func newEnforced(guards string, pool *pgxpool.Pool) (*enforced, error) {
	db, err := newDB(pool)
	return &enforced{guards, pool, db}, err
}

// rowID is the ID of a resource's row.
func rowID(resource string) string { return strings.TrimPrefix(resource, triggerSurface+":") }

func (s *enforced) raise(ctx context.Context, claim guard.Claim) error {
	if s.guards != guardsOn {
		return nil
	}
	return s.db.Raise(ctx, claim)
}

func (s *enforced) read(ctx context.Context, resource string) (doc, error) {
	return s.readBy(ctx, s.pool, resource)
}

func (s *enforced) readBy(ctx context.Context, q rowQuerier, resource string) (doc, error) {
	var d doc
	err := q.QueryRow(ctx, guardedReadSQL, rowID(resource)).Scan(&d.Write, &d.Base, &d.N)
	return d, err
}

func (s *enforced) write(ctx context.Context, claim guard.Claim, next doc) error {
	return s.in(ctx, claim, func(tx pgx.Tx) error { return s.put(ctx, tx, claim, next) })
}

func (s *enforced) swap(ctx context.Context, claim guard.Claim, next func(doc) doc, commit func()) error {
	return s.in(ctx, claim, func(tx pgx.Tx) error {
		now, err := s.readBy(ctx, tx, claim.Resource)
		if err != nil {
			return err
		}
		if err = s.put(ctx, tx, claim, next(now)); err == nil {
			commit()
		}
		return err
	})
}

func (s *enforced) in(ctx context.Context, claim guard.Claim, fn func(tx pgx.Tx) error) error {
	return ownTx(ctx, s.pool, claim, func(tx pgx.Tx) error {
		if s.guards != guardsOn {
			return nil
		}
		return s.db.Present(ctx, tx, claim)
	}, fn)
}

// raises: the triggers compare, and leave raising to the application.
func (s *enforced) raises() bool { return false }

func (s *enforced) put(ctx context.Context, tx pgx.Tx, claim guard.Claim, next doc) error {
	sql := guardedWriteSQL
	if s.guards == guardsNaive {
		sql = guardedCompareSQL
	}
	tag, err := tx.Exec(ctx, sql, rowID(claim.Resource), next.Write, next.Base, next.N, int64(claim.Token))
	if err == nil && tag.RowsAffected() == 0 {
		return &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim}
	}
	return err
}
