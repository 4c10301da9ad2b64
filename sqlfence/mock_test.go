package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
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
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1) // so that a raise does not look for holders while it waits
	expect(m)
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d connections were not given back", n)
		}
		if err := m.ExpectationsWereMet(); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	db, err := Std(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.tables.Store(tableID{`"jobs"`, "last_fencing_token", "null"}, true)
	return db
}

func state(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "injected"}
}

var errInjected = errors.New("injected")

const (
	mockUpdate  = `UPDATE "jobs" SET "last_fencing_token" = $2::bigint, "v" = $3 WHERE ("id" = $1) AND $2::bigint OPERATOR(pg_catalog.>) "last_fencing_token"`
	mockVerdict = `SELECT "last_fencing_token", NULL::pg_catalog.text, false, true FROM "jobs" WHERE ("id" = $1)`
)

// TestFailureOfUpdate (P5, P6): what an error of the statement means.
func TestFailureOfUpdate(t *testing.T) {
	for want, causes := range map[guard.Reason][]error{
		guard.ReasonOutcomeUnknown: {errInjected, io.ErrUnexpectedEOF, driver.ErrBadConn, context.DeadlineExceeded,
			state("57P01"), state("57P02"), state("57P03"), state("57P05"), state("08006"), state("40003"), state("58030"), state("XX000"), state("25P03"), state("25P04")},
		guard.ReasonUnavailable: {state("40001"), state("40P01"), state("55P03"), state("57014"), state("53300"), state("25006"),
			state("25P02"), state("26000"), state("SF005")},
		guard.ReasonSetup:    {state("42501"), state("28P01")},
		guard.ReasonStale:    {state("SF001")},
		guard.ReasonConflict: {state("SF002")},
		guard.ReasonInvalid:  {state("42P01"), state("42703"), state("42883"), state("3F000"), state("42601")},
		guard.ReasonOther:    {state("23505"), state("22P02"), state("42P06"), state("P0001")},
		guard.ReasonMissing:  {state("SF003")},
	} {
		for _, cause := range causes {
			t.Run(string(want)+"/"+cause.Error(), func(t *testing.T) {
				db := mocked(t, func(m sqlmock.Sqlmock) {
					m.ExpectExec(mockUpdate).WithArgs(7, int64(5), "new").WillReturnError(cause)
				})
				err := mockTable(t).Update(t.Context(), db, claimOf("r", 5), Key{7}, Set{"v": "new"})
				if guard.ReasonOf(err) != want || !errors.Is(err, cause) {
					t.Errorf("got %v, want %s with the driver's error inside", err, want)
				}
			})
		}
	}
}

func mockTable(t *testing.T) *Table {
	table, err := anyTable([]string{"jobs"}, []string{"id"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestFailureAroundUpdate: the count of the rows, the verdict's read, and a
// row that is replaced between the two.
func TestFailureAroundUpdate(t *testing.T) {
	mark := func(tokens ...int64) *sqlmock.Rows {
		rows := sqlmock.NewRows([]string{"token", "lease", "deleted", "satisfied"})
		for _, token := range tokens {
			rows.AddRow(token, nil, false, true)
		}
		return rows
	}
	none, one := sqlmock.NewResult(0, 0), sqlmock.NewResult(0, 1)
	for what, c := range map[string]struct {
		want   guard.Reason
		expect func(m sqlmock.Sqlmock)
	}{
		"no count": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(sqlmock.NewErrorResult(errInjected))
		}},
		"the verdict fails": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(none)
			m.ExpectQuery(mockVerdict).WillReturnError(errInjected)
		}},
		"the verdict's row fails": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(none)
			m.ExpectQuery(mockVerdict).WillReturnRows(mark(9).RowError(0, errInjected))
		}},
		"replaced once": {guard.ReasonNone, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(none)
			m.ExpectQuery(mockVerdict).WillReturnRows(mark(4))
			m.ExpectExec(mockUpdate).WillReturnResult(one)
		}},
		"replaced, then refused": {guard.ReasonStale, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(none)
			m.ExpectQuery(mockVerdict).WillReturnRows(mark(4))
			m.ExpectExec(mockUpdate).WillReturnResult(none)
			m.ExpectQuery(mockVerdict).WillReturnRows(mark(6))
		}},
		"replaced for ever": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			for range maxReplaced {
				m.ExpectExec(mockUpdate).WillReturnResult(none)
				m.ExpectQuery(mockVerdict).WillReturnRows(mark(4))
			}
		}},
		"gone": {guard.ReasonNotFound, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(none)
			m.ExpectQuery(mockVerdict).WillReturnRows(mark())
		}},
		"two rows": {guard.ReasonOther, func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(sqlmock.NewResult(0, 2))
		}},
	} {
		t.Run(what, func(t *testing.T) {
			err := mockTable(t).Update(t.Context(), mocked(t, c.expect), claimOf("r", 5), Key{7}, Set{"v": "new"})
			if guard.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

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
			for range maxEnter {
				refused(m, state(pgerr.MustRaise))
				raised(m)
			}
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

// TestFailureOfRaise: the lost answer of a raise's COMMIT is an unknown outcome
// only for a caller whose work is the raise.
func TestFailureOfRaise(t *testing.T) {
	for what, c := range map[string]struct {
		want   guard.Reason
		expect func(m sqlmock.Sqlmock)
	}{
		"statement": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(raiseSQL).WithArgs("r", int64(5), "lease-5", sqlmock.AnyArg()).WillReturnError(errInjected)
			m.ExpectRollback()
		}},
		"commit": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(raiseSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectCommit().WillReturnError(errInjected)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			if err := mocked(t, c.expect).Raise(t.Context(), claimOf("r", 5)); guard.ReasonOf(err) != c.want || !errors.Is(err, errInjected) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
