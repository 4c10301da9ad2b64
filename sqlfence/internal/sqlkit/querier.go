package sqlkit

import (
	"context"
	"encoding/json"
)

// Querier runs statements. Errors are the driver's own, possibly wrapped in a
// pgerr.NotSent, an Unsendable or an Unreadable.
type Querier interface {
	Exec(ctx context.Context, sql string, args []any) (rows int64, err error)
	// Query calls each for each row that a statement returns. An error from
	// each ends the reading and is returned as an Unreadable.
	Query(ctx context.Context, sql string, args []any, each EachRow) error
}

// EachRow is given a row's Scan.
type EachRow func(scan func(dest ...any) error) error

// Unreadable marks an error of reading a row that the server has sent.
type Unreadable struct{ Cause error }

func (e Unreadable) Error() string { return e.Cause.Error() }
func (e Unreadable) Unwrap() error { return e.Cause }

// readRows reads the rows of both drivers.
func readRows(rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}, each EachRow) error {
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return Unreadable{err}
		}
	}
	return rows.Err()
}

// Row reads the one row that a statement returns, if there is one.
func Row(ctx context.Context, q Querier, sql string, args []any, dest ...any) (found bool, err error) {
	err = q.Query(ctx, sql, args, func(scan func(dest ...any) error) error { found = true; return scan(dest...) })
	return found && err == nil, err
}

// Unsendable marks an argument that the driver could not encode: the
// connection was not used and is as good as before.
type Unsendable struct{ Cause error }

func (e Unsendable) Error() string { return e.Cause.Error() }
func (e Unsendable) Unwrap() error { return e.Cause }

// JSON encodes a value that cannot fail to encode. JSON is used because drivers
// differ in how they take arrays.
func JSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}
