package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

const triggerSurface = "sql-trigger"

// guardedTable is what the triggers guard.
var guardedTable = sqladmin.Trigger{
	Table: []string{"campaign", "guarded"}, Resource: guard.Must(guard.NewTemplate("{surface}:{id}")), Columns: map[string]string{"surface": "surface", "id": "id"},
}

// fenceOptions keep a stopped holder's transaction from blocking for long, and give
// up on nothing that a slow machine may still do.
func fenceOptions() *sqlfence.Options {
	return &sqlfence.Options{LockTimeout: 5 * time.Second, IdleTimeout: 1500 * time.Millisecond, RaiseTimeout: 20 * time.Second, CommitTimeout: 20 * time.Second}
}

func newDB(pool *pgxpool.Pool) (*sqlfence.DB[pgx.Tx], error) {
	return sqlfence.Pgx(pool, fenceOptions())
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// tableOf returns the table in which a surface or resource is.
func tableOf(resource string) string {
	if strings.HasPrefix(resource, triggerSurface) {
		return "campaign.guarded"
	}
	return "campaign.docs"
}

func readDoc(ctx context.Context, q querier, resource string) (doc, error) {
	var d doc
	err := q.QueryRow(ctx, "SELECT write_id, base, n FROM "+tableOf(resource)+" WHERE resource = $1", resource).Scan(&d.Write, &d.Base, &d.N)
	return d, err
}

// writeDoc writes. Only with the naive guard does it compare the token.
func writeDoc(ctx context.Context, q querier, guards string, claim guard.Claim, d doc) error {
	set, condition := " SET write_id = $2, base = $3, n = $4, token = $5", " WHERE resource = $1"
	if guards == guardsNaive {
		set += ", last_fencing_token = $5"
		condition += " AND last_fencing_token <= $5"
	}
	tag, err := q.Exec(ctx, "UPDATE "+tableOf(claim.Resource)+set+condition, claim.Resource, d.Write, d.Base, d.N, int64(claim.Token))
	if err == nil && tag.RowsAffected() == 0 {
		return &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim}
	}
	return err
}

// row is the single statement: the row is the resource.
type row struct {
	guards string
	pool   *pgxpool.Pool
	rows   sqlrow.Executor
	table  *sqlrow.Table
}

func newRow(guards string, pool *pgxpool.Pool) (*row, error) {
	rows := sqlrow.Pgx(pool)
	table, err := sqlrow.NewTable([]string{"campaign", "docs"}, []string{"resource"}, nil,
		&sqlrow.TableOptions{InsecureAnyResource: true, LeaseColumn: "lease_id", Rule: guard.SameOrNewer})
	return &row{guards, pool, rows, table}, err
}

// raise is only the takeover's raise; half of the sessions also read in it.
func (s *row) raise(ctx context.Context, claim guard.Claim) error {
	if s.guards != guardsOn {
		return nil
	}
	return s.table.Raise(ctx, s.rows, claim, sqlrow.Key{claim.Resource}, nil)
}

// takeover raises and reads in one statement.
func (s *row) takeover(ctx context.Context, claim guard.Claim) (doc, error) {
	if s.guards != guardsOn {
		return s.read(ctx, claim)
	}
	var d doc
	err := s.table.Raise(ctx, s.rows, claim, sqlrow.Key{claim.Resource}, sqlrow.Dest{"write_id": &d.Write, "base": &d.Base, "n": &d.N})
	return d, err
}

func (s *row) read(ctx context.Context, claim guard.Claim) (doc, error) {
	return readDoc(ctx, s.pool, claim.Resource)
}

func (s *row) write(ctx context.Context, claim guard.Claim, next doc) error {
	if s.guards != guardsOn {
		return writeDoc(ctx, s.pool, s.guards, claim, next)
	}
	return s.table.Update(ctx, s.rows, claim, sqlrow.Key{claim.Resource},
		sqlrow.Set{"write_id": next.Write, "base": next.Base, "n": next.N, "token": int64(claim.Token)})
}

// transaction is InTx, and Enter in a transaction of the application's own; or,
// enforced by triggers, a plain transaction that presents its claim.
type transaction struct {
	guards   string
	enforced bool
	rng      *rand.Rand
	pool     *pgxpool.Pool
	db       *sqlfence.DB[pgx.Tx]
}

func newTransaction(w *worker, pool *pgxpool.Pool) (*transaction, error) {
	db, err := newDB(pool)
	return &transaction{w.Guards, w.Surface == triggerSurface, w.rng, pool, db}, err
}

func (s *transaction) raise(ctx context.Context, claim guard.Claim) error {
	if s.guards != guardsOn {
		return nil
	}
	return s.db.Raise(ctx, claim)
}

// raises: triggers compare, and leave raising to the application.
func (s *transaction) raises() bool { return !s.enforced }

func (s *transaction) read(ctx context.Context, claim guard.Claim) (doc, error) {
	return readDoc(ctx, s.pool, claim.Resource)
}

func (s *transaction) write(ctx context.Context, claim guard.Claim, next doc) error {
	return s.in(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		return failed(claim, writeDoc(ctx, tx, s.guards, claim, next))
	})
}

func (s *transaction) swap(ctx context.Context, claim guard.Claim, next func(doc) doc, commit func()) error {
	return s.in(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		now, err := readDoc(ctx, tx, claim.Resource)
		if err == nil {
			err = writeDoc(ctx, tx, s.guards, claim, next(now))
		}
		if err == nil {
			commit()
		}
		return failed(claim, err)
	})
}

func (s *transaction) in(ctx context.Context, claim guard.Claim, fn func(context.Context, pgx.Tx) error) error {
	switch {
	case s.guards != guardsOn:
		return s.own(ctx, claim, func(context.Context, pgx.Tx, ...guard.Claim) error { return nil }, fn)
	case s.enforced:
		return s.own(ctx, claim, s.db.Present, fn)
	case s.rng.IntN(2) == 0:
		return s.own(ctx, claim, s.db.Enter, fn)
	}
	return s.db.InTx(ctx, claim, fn)
}

// own is an application's own transaction, fenced by calling fence in it. If
// the response to COMMIT was lost its effect is unknown, and own returns an error
// without a reason; a failure before COMMIT was sent has written nothing.
func (s *transaction) own(ctx context.Context, claim guard.Claim, fence func(context.Context, pgx.Tx, ...guard.Claim) error, fn func(context.Context, pgx.Tx) error) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return failed(claim, err)
	}
	if s.guards == guardsOn { // a stopped holder must not keep its successor waiting forever
		_, err = tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', '1500', true), set_config('lock_timeout', '5000', true)")
	}
	if err == nil {
		err = fence(ctx, tx, claim)
	}
	if err == nil {
		err = fn(ctx, tx)
	}
	if err == nil {
		return tx.Commit(ctx)
	}
	_ = tx.Rollback(ctx) // a connection that cannot roll back is closed, and the server does it
	return failed(claim, err)
}

// failed is what a callback returns for a statement that failed: its
// transaction is rolled back, so nothing was written, and the oracle expects
// that.
func failed(claim guard.Claim, err error) error {
	if err = sqlfence.ErrorFrom(err); err == nil || guard.ReasonOf(err) != guard.ReasonOther {
		return err
	}
	return guard.Unavailable("write", claim, err)
}
