package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestFailureOfBatch (P5, P6): what a driver's error means at each step of a
// batch on database/sql.
func TestFailureOfBatch(t *testing.T) {
	const write = "UPDATE jobs SET v = 1"
	ok := sqlmock.NewResult(0, 1)
	entered := func(m sqlmock.Sqlmock) { m.ExpectBegin(); m.ExpectExec(enterSQL + markSetSQL).WillReturnResult(ok) }
	for what, c := range map[string]struct {
		want   guard.Reason
		expect func(m sqlmock.Sqlmock)
	}{
		"committed": {guard.ReasonNone, func(m sqlmock.Sqlmock) { entered(m); m.ExpectExec(write).WillReturnResult(ok); m.ExpectCommit() }},
		"begin":     {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) { m.ExpectBegin().WillReturnError(errInjected) }},
		"enter": {guard.ReasonStale, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(enterSQL + markSetSQL).WillReturnError(state(pgerr.Stale))
			m.ExpectRollback()
		}},
		"write": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectExec(write).WillReturnError(errInjected)
			m.ExpectRollback()
		}},
		"no count": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectExec(write).WillReturnResult(sqlmock.NewErrorResult(errInjected))
			m.ExpectRollback()
		}},
		"commit": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectExec(write).WillReturnResult(ok)
			m.ExpectCommit().WillReturnError(errInjected)
		}},
		"commit, 40001": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectExec(write).WillReturnResult(ok)
			m.ExpectCommit().WillReturnError(state(pgerr.Serialization))
		}},
	} {
		t.Run(what, func(t *testing.T) {
			rows, err := mocked(t, c.expect).Batch(t.Context(), claimOf("r", 5), Raw(write))
			if guard.ReasonOf(err) != c.want || (rows != nil) != (err == nil) {
				t.Errorf("got %v, %v, want %q", rows, err, c.want)
			}
		})
	}
}

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
			m.ExpectQuery(markSQL).WithArgs("r").WillReturnRows(sqlmock.NewRows([]string{"", "", "", ""}).AddRow(false, 10, "a", nil))
		}},
		"commit": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(resetSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectCommit().WillReturnError(errInjected)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			err := mocked(t, c.expect).Admin().Reset(t.Context(), "r", guard.Mark{Token: 9}, guard.Mark{Token: 7}, 8, "op", "why")
			if guard.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestFailureOfEnter (P5, P6): Enter commits nothing, so nothing is unknown.
func TestFailureOfEnter(t *testing.T) {
	for want, causes := range map[guard.Reason][]error{
		guard.ReasonUnavailable: {errInjected, state(pgerr.Serialization), state(pgerr.Deadlock), state(pgerr.LockTimeout), state("57P01"), state("42883"), state("25006")},
		guard.ReasonStale:       {state(pgerr.Stale)},
		guard.ReasonConflict:    {state(pgerr.Conflict)},
		guard.ReasonInvalid:     {state(pgerr.Subtransaction), state(pgerr.MustRaise)},
	} {
		for _, cause := range causes {
			var db *DB[*sql.Tx]
			err := func() error {
				db = mocked(t, func(m sqlmock.Sqlmock) {
					m.ExpectBegin()
					m.ExpectExec(enterRowSQL+markSetSQL).WithArgs("r", int64(5), "lease-5", int32(5000), int32(15000), sqlmock.AnyArg()).WillReturnError(cause)
					m.ExpectRollback()
				})
				tx, err := db.backend.(stdBackend).db.BeginTx(context.Background(), nil)
				if err != nil {
					return err
				}
				defer tx.Rollback()
				return db.Enter(t.Context(), tx, claimOf("r", 5))
			}()
			if guard.ReasonOf(err) != want || !errors.Is(err, cause) {
				t.Errorf("%v: got %v, want %q with the driver's error inside", cause, err, want)
			}
		}
	}
}
