package sqladmin

import (
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/jackc/pgx/v5/pgconn"
)

// mocked returns an Admin on a driver with configured answers.
func mocked(t *testing.T, expect func(m sqlmock.Sqlmock)) *Admin {
	t.Helper()
	pool, m, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	if err != nil {
		t.Fatal(err)
	}
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
	return Std(pool)
}

func state(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "injected"}
}

var errInjected = errors.New("injected")

// TestFailureOfReset (P5, P6): the same for a reset.
func TestFailureOfReset(t *testing.T) {
	for what, c := range map[string]struct {
		want   guard.Reason
		expect func(m sqlmock.Sqlmock)
	}{
		"statement": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(resetSQL).WithArgs("r", int64(9), "", int64(7), "", int64(8), "op", "why", int32(20000)).WillReturnError(errInjected)
			m.ExpectRollback()
		}},
		"another mark, without its facts": {guard.ReasonStale, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(resetSQL).WillReturnError(state(pgerr.NotTheMark))
			m.ExpectRollback()
			m.ExpectBegin()
			m.ExpectExec(pinSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectQuery(oneMarkSQL).WithArgs("r").WillReturnRows(sqlmock.NewRows([]string{"", ""}).AddRow(10, "a"))
			m.ExpectRollback()
		}},
		"another mark, which cannot be read": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(resetSQL).WillReturnError(state(pgerr.NotTheMark))
			m.ExpectRollback()
			m.ExpectBegin()
			m.ExpectExec(pinSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectQuery(oneMarkSQL).WithArgs("r").WillReturnError(errInjected)
			m.ExpectRollback()
		}},
		"commit": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(resetSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectCommit().WillReturnError(errInjected)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			err := mocked(t, c.expect).Reset(t.Context(), "r", guard.Mark{Token: 9}, guard.Mark{Token: 7}, 8, "op", "why")
			if guard.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
