package sqlfence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// unreadable marks an error of reading a row that the server has sent.
type unreadable struct{ error }

func (e unreadable) Unwrap() error { return e.error }

func (d *DB[Tx]) query(ctx context.Context, sql string, args []any, each eachRow) error {
	return d.backend.query(ctx, sql, args, each)
}

func (d pgxDriver) query(ctx context.Context, sql string, args []any, each eachRow) error {
	c, release, err := d.idle(ctx)
	if err != nil {
		return err
	}
	defer release()
	return pgxQuerySent(c, pgxQuery(ctx, c, sql, args, each))
}

func (q pgxQuerier) query(ctx context.Context, sql string, args []any, each eachRow) error {
	return pgxQuerySent(q.tx.Conn(), pgxQuery(ctx, q.tx, sql, args, each))
}

// pgxQuerySent is pgxSent for a query.
func pgxQuerySent(c *pgx.Conn, err error) error {
	if c == nil || errors.As(err, new(unreadable)) {
		return err
	}
	return pgxSent(c, err)
}

type pgxRowser interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func pgxQuery(ctx context.Context, q pgxRowser, sql string, args []any, each eachRow) error {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readRows(rows, each)
}

// query is never repeated, as exec.
func (d stdDriver) query(ctx context.Context, query string, args []any, each eachRow) error {
	c, release, err := d.idle(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err = stdQuery(ctx, c, query, args, each); err == nil {
		return nil
	}
	return pgxQuerySent(stdPgx(c), err)
}

func (q stdQuerier) query(ctx context.Context, query string, args []any, each eachRow) error {
	return stdQuery(ctx, q.tx, query, args, each)
}

type stdRowser interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func stdQuery(ctx context.Context, q stdRowser, query string, args []any, each eachRow) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	return readRows(rows, each)
}

// readRows reads the rows of either driver.
func readRows(rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}, each eachRow) error {
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return unreadable{err}
		}
	}
	return rows.Err()
}
