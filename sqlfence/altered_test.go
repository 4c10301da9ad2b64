package sqlfence

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// Querier is where a test sends statements of a Table, and its own.
type Querier interface {
	sqlrow.Querier
	sqlkit.Querier
}

// rowQuerier is a Table's place and the same place for other statements.
type rowQuerier struct {
	sqlrow.Querier
	other sqlkit.Querier
}

func (q rowQuerier) Exec(ctx context.Context, sql string, args []any) (int64, error) {
	return q.other.Exec(ctx, sql, args)
}

func (q rowQuerier) Query(ctx context.Context, sql string, args []any, each sqlkit.EachRow) error {
	return q.other.Query(ctx, sql, args, each)
}

// altered sends what mutate makes of each statement to the administrator's
// sessions, one by one, and calls then after it.
func (e *env) altered(mutate func(sql string) string, then func()) Querier {
	e.Helper()
	rows, err := sqlrow.Pgx(e.admin, nil)
	must(e, err)
	tx := alteredTx{pool: e.admin, mutate: mutate, then: then}
	return rowQuerier{rows.In(tx), sqlkit.Pgx{On: tx}}
}

func same(sql string) string { return sql }

// alteredTx has of a transaction what a Table uses. It is none: its statements
// commit by themselves.
type alteredTx struct {
	pgx.Tx
	pool   *pgxpool.Pool
	mutate func(string) string
	then   func()
}

func (t alteredTx) Conn() *pgx.Conn { return nil }

func (t alteredTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	defer t.then()
	return t.pool.Exec(ctx, t.mutate(sql), args...)
}

func (t alteredTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := t.pool.Query(ctx, t.mutate(sql), args...)
	if strings.HasPrefix(sql, "WITH RECURSIVE") { // the first look at a table
		return rows, err
	}
	return alteredRows{rows, t.then}, err
}

type alteredRows struct {
	pgx.Rows
	then func()
}

func (r alteredRows) Close() { r.Rows.Close(); r.then() }
