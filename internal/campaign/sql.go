package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

const (
	readSQL    = "SELECT write_id, base, n FROM campaign.docs WHERE resource = $1"
	writeSQL   = "UPDATE campaign.docs SET write_id = $2, base = $3, n = $4, token = $5 WHERE resource = $1"
	compareSQL = "UPDATE campaign.docs SET write_id = $2, base = $3, n = $4, token = $5, last_fencing_token = $5 WHERE resource = $1 AND last_fencing_token <= $5"
)

// fenceOptions keep a stopped holder's transaction from blocking for long.
func fenceOptions() *sqlfence.Options {
	return &sqlfence.Options{LockTimeout: time.Second, IdleTimeout: 600 * time.Millisecond, RaiseTimeout: 2 * time.Second, CommitTimeout: 2 * time.Second}
}

func newDB(pool *pgxpool.Pool) (*sqlfence.DB[pgx.Tx], error) {
	return sqlfence.Pgx(pool, fenceOptions())
}

type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func readDoc(ctx context.Context, q rowQuerier, resource string) (doc, error) {
	var d doc
	err := q.QueryRow(ctx, readSQL, resource).Scan(&d.Write, &d.Base, &d.N)
	return d, err
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// writeDoc writes without comparing anything.
func writeDoc(ctx context.Context, q execer, claim guard.Claim, d doc) error {
	_, err := q.Exec(ctx, writeSQL, claim.Resource, d.Write, d.Base, d.N, int64(claim.Token))
	return err
}

// compareDoc is the naive guard: it compares, but only when it writes.
func compareDoc(ctx context.Context, q execer, claim guard.Claim, d doc) error {
	tag, err := q.Exec(ctx, compareSQL, claim.Resource, d.Write, d.Base, d.N, int64(claim.Token))
	if err == nil && tag.RowsAffected() == 0 {
		return &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim}
	}
	return err
}

// row is the single statement: the row is the resource.
type row struct {
	guards string
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	table  *sqlfence.Table
}

func newRow(guards string, pool *pgxpool.Pool) (*row, error) {
	db, err := newDB(pool)
	if err != nil {
		return nil, err
	}
	table, err := sqlfence.NewTable([]string{"campaign", "docs"}, []string{"resource"}, nil,
		&sqlfence.TableOptions{InsecureAnyResource: true, LeaseColumn: "lease_id", Rule: guard.SameOrNewer})
	return &row{guards, pool, db, table}, err
}

// raise is the takeover's raise alone; half of the sessions read along with it.
func (s *row) raise(ctx context.Context, claim guard.Claim) error {
	if s.guards != guardsOn {
		return nil
	}
	return s.table.Takeover(ctx, s.db, claim, sqlfence.Key{claim.Resource}, nil)
}

// takeover raises and reads in one statement.
func (s *row) takeover(ctx context.Context, claim guard.Claim) (doc, error) {
	if s.guards != guardsOn {
		return s.read(ctx, claim.Resource)
	}
	var d doc
	err := s.table.Takeover(ctx, s.db, claim, sqlfence.Key{claim.Resource}, sqlfence.Dest{"write_id": &d.Write, "base": &d.Base, "n": &d.N})
	return d, err
}

func (s *row) read(ctx context.Context, resource string) (doc, error) {
	return readDoc(ctx, s.pool, resource)
}

func (s *row) write(ctx context.Context, claim guard.Claim, next doc) error {
	switch s.guards {
	case guardsOff:
		return writeDoc(ctx, s.pool, claim, next)
	case guardsNaive:
		return compareDoc(ctx, s.pool, claim, next)
	}
	return s.table.Update(ctx, s.db, claim, sqlfence.Key{claim.Resource},
		sqlfence.Set{"write_id": next.Write, "base": next.Base, "n": next.N, "token": int64(claim.Token)})
}

// transaction is InTx, and Enter in a transaction of the application's own.
type transaction struct {
	guards string
	rng    *rand.Rand
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
}

func newTransaction(w *worker, pool *pgxpool.Pool) (*transaction, error) {
	db, err := newDB(pool)
	return &transaction{w.Guards, w.rng, pool, db}, err
}

func (s *transaction) raise(ctx context.Context, claim guard.Claim) error {
	if s.guards != guardsOn {
		return nil
	}
	return s.db.Raise(ctx, claim)
}

func (s *transaction) read(ctx context.Context, resource string) (doc, error) {
	return readDoc(ctx, s.pool, resource)
}

func (s *transaction) write(ctx context.Context, claim guard.Claim, next doc) error {
	return s.in(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return s.put(ctx, tx, claim, next) })
}

func (s *transaction) swap(ctx context.Context, claim guard.Claim, next func(doc) doc, commit func()) error {
	return s.in(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
		now, err := readDoc(ctx, tx, claim.Resource)
		if err != nil {
			return failed(claim, err)
		}
		if err = s.put(ctx, tx, claim, next(now)); err == nil {
			commit()
		}
		return err
	})
}

func (s *transaction) raises() bool { return true }

func (s *transaction) in(ctx context.Context, claim guard.Claim, fn func(context.Context, pgx.Tx) error) error {
	switch {
	case s.guards != guardsOn:
	case s.rng.IntN(2) == 0:
		return s.db.InTx(ctx, claim, fn)
	default: // a transaction begun elsewhere
		return ownTx(ctx, s.pool, claim, func(tx pgx.Tx) error { return s.db.Enter(ctx, tx, claim) },
			func(tx pgx.Tx) error { return fn(ctx, tx) })
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return fn(ctx, tx) })
}

func (s *transaction) put(ctx context.Context, tx pgx.Tx, claim guard.Claim, next doc) error {
	if s.guards == guardsNaive {
		return compareDoc(ctx, tx, claim, next)
	}
	return failed(claim, writeDoc(ctx, tx, claim, next))
}

// failed is what a callback returns for a statement that failed: its
// transaction is rolled back, so nothing was written, which is what the oracle
// is then told to expect.
func failed(claim guard.Claim, err error) error {
	if err == nil || errors.Is(err, guard.ErrStale) {
		return err
	}
	return guard.Unavailable("write", claim, err)
}
