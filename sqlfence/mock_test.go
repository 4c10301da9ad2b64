package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// mocked returns a DB on a driver with configured answers. It shows how a
// driver's errors are handled; the other tests ask PostgreSQL what it does.
func mocked(t *testing.T, expect func(m sqlmock.Sqlmock)) *DB[*sql.Tx] {
	t.Helper()
	pool, m, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	must(t, err)
	pool.SetMaxOpenConns(1) // so that a raise does not look for holders while it waits
	expect(m)
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d connections were not given back", n)
		}
		noError(t, m.ExpectationsWereMet())
		pool.Close()
	})
	db, err := Std(pool, nil)
	must(t, err)
	return db
}

func state(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "injected"}
}

var errInjected = errors.New("injected")

// TestFailureOfInTx (P5, P6): what an error means at each step of a fenced
// transaction, whether the callback ran, and that the transaction is ended.
func TestFailureOfInTx(t *testing.T) {
	ok := sqlmock.NewResult(0, 0)
	entered := func(m sqlmock.Sqlmock) { m.ExpectBegin(); m.ExpectExec(enterSQL + markSetSQL).WillReturnResult(ok) }
	marked := func(m sqlmock.Sqlmock) {
		m.ExpectQuery(markedSQL).WillReturnRows(sqlmock.NewRows([]string{""}).AddRow(true))
	}
	unmarked := func(cause error, rows *sqlmock.Rows) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			entered(m)
			if q := m.ExpectQuery(markedSQL); cause != nil {
				q.WillReturnError(cause)
			} else {
				q.WillReturnRows(rows)
			}
			m.ExpectRollback()
		}
	}
	refused := func(m sqlmock.Sqlmock, cause error) {
		m.ExpectBegin()
		m.ExpectExec(enterSQL + markSetSQL).WillReturnError(cause)
		m.ExpectRollback()
	}
	raised := func(m sqlmock.Sqlmock) {
		m.ExpectBegin()
		m.ExpectExec(raiseSQL).WillReturnResult(ok)
		m.ExpectCommit()
	}
	committing := func(cause error) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) { entered(m); marked(m); m.ExpectCommit().WillReturnError(cause) }
	}
	for what, c := range map[string]struct {
		want   guard.Reason
		ran    bool
		expect func(m sqlmock.Sqlmock)
	}{
		"committed":    {guard.ReasonNone, true, func(m sqlmock.Sqlmock) { entered(m); marked(m); m.ExpectCommit() }},
		"begin":        {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) { m.ExpectBegin().WillReturnError(errInjected) }},
		"enter":        {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) { refused(m, errInjected) }},
		"enter, 57P01": {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) { refused(m, state("57P01")) }},
		"enter, 42883": {guard.ReasonSetup, false, func(m sqlmock.Sqlmock) { refused(m, state("42883")) }},
		"enter, stale": {guard.ReasonStale, false, func(m sqlmock.Sqlmock) { refused(m, state(pgerr.Stale)) }},
		"raised first": {guard.ReasonNone, true, func(m sqlmock.Sqlmock) {
			refused(m, state(pgerr.MustRaise))
			raised(m)
			entered(m)
			marked(m)
			m.ExpectCommit()
		}},
		"raise refused": {guard.ReasonConflict, false, func(m sqlmock.Sqlmock) {
			refused(m, state(pgerr.MustRaise))
			m.ExpectBegin()
			m.ExpectExec(raiseSQL).WillReturnError(state(pgerr.Conflict))
			m.ExpectRollback()
		}},
		"the raise's commit": {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) {
			refused(m, state(pgerr.MustRaise))
			m.ExpectBegin()
			m.ExpectExec(raiseSQL).WillReturnResult(ok)
			m.ExpectCommit().WillReturnError(errInjected)
		}},
		"raised for ever": {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) {
			for range maxEnter - 1 {
				refused(m, state(pgerr.MustRaise))
				raised(m)
			}
			refused(m, state(pgerr.MustRaise)) // and raises no more
		}},
		"marker":              {guard.ReasonUnavailable, true, unmarked(errInjected, nil)}, // the COMMIT was not sent
		"marker, 57P01":       {guard.ReasonUnavailable, true, unmarked(state("57P01"), nil)},
		"marker, 25P02":       {guard.ReasonOther, true, unmarked(state("25P02"), nil)},
		"marker, ErrTxDone":   {guard.ReasonOutcomeUnknown, true, unmarked(sql.ErrTxDone, nil)},
		"marker, another":     {guard.ReasonOutcomeUnknown, true, unmarked(nil, sqlmock.NewRows([]string{""}).AddRow(false))},
		"commit":              {guard.ReasonOutcomeUnknown, true, committing(errInjected)},
		"commit, ErrBadConn":  {guard.ReasonOutcomeUnknown, true, committing(driver.ErrBadConn)},
		"commit, conn closed": {guard.ReasonOutcomeUnknown, true, committing(pgconn.ErrConnClosed)},
		"commit, 57P01":       {guard.ReasonOutcomeUnknown, true, committing(state("57P01"))},
		"commit, 40001":       {guard.ReasonUnavailable, true, committing(state("40001"))},
		"commit, 23505":       {guard.ReasonOther, true, committing(state("23505"))},
		"commit, 42P01":       {guard.ReasonOther, true, committing(state("42P01"))},
		"commit, rolled back": {guard.ReasonOther, true, committing(errors.New(commitRollbackText))},
	} {
		t.Run(what, func(t *testing.T) {
			ran := 0
			err := mocked(t, c.expect).InTx(t.Context(), claimOf("r", 5), func(context.Context, *sql.Tx) error { ran++; return nil })
			if guard.ReasonOf(err) != c.want || ran > 1 || (ran == 1) != c.ran {
				t.Errorf("got %v, want %q; the callback ran %d times", err, c.want, ran)
			}
		})
	}
}
