package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	mockTake = `UPDATE "jobs" SET "last_fencing_token" = $2::bigint WHERE ("id" = $1) AND $2::bigint OPERATOR(pg_catalog.>=) "last_fencing_token"` +
		` RETURNING ` + liftCommit + `, "last_fencing_token" OPERATOR(pg_catalog.=) $2::bigint, false, "v"`
	mockUpsert = `INSERT INTO "jobs" ("id", "last_fencing_token", "v") VALUES ($1, $2::bigint, $3) ON CONFLICT ("id") DO UPDATE` +
		` SET "last_fencing_token" = $2::bigint, "v" = EXCLUDED."v" WHERE "jobs"."id" = $1 AND $2::bigint OPERATOR(pg_catalog.>=) "jobs"."last_fencing_token"`
)

// rowCalls are the statements on rows against a mocked driver.
var rowCalls = map[string]struct {
	sql  string
	call func(table *Table, q Querier) error
}{
	"Takeover": {mockTake, func(table *Table, q Querier) error {
		var v int
		return table.Takeover(context.Background(), q, claimOf("r", 5), Key{7}, Dest{"v": &v})
	}},
	"Upsert": {mockUpsert, func(table *Table, q Querier) error {
		return table.Upsert(context.Background(), q, claimOf("r", 5), Key{7}, Set{"v": 1})
	}},
}

func newer(t *testing.T) *Table {
	table, err := anyTable([]string{"jobs"}, []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestFailureOfRows (P5, P6): what an error of each statement means, including
// one after rows, when the statement is committed.
func TestFailureOfRows(t *testing.T) {
	for want, causes := range map[guard.Reason][]error{
		guard.ReasonOutcomeUnknown: {errInjected, io.ErrUnexpectedEOF, driver.ErrBadConn, context.DeadlineExceeded, state("57P01"), state("XX000"), state("25P04")},
		guard.ReasonUnavailable:    {state("40001"), state("40P01"), state("55P03"), state("25006"), state("SF005")},
		guard.ReasonSetup:          {state("42501")},
		guard.ReasonStale:          {state("SF001")},
		guard.ReasonInvalid:        {state("42P01"), state("42703"), state("42P10"), state("428C9"), state("42601"), state("42804"), state("42702")},
		guard.ReasonOther:          {state("23505"), state("22P02")},
	} {
		for way, c := range rowCalls {
			for _, cause := range causes {
				db := mocked(t, func(m sqlmock.Sqlmock) {
					if way == "Upsert" {
						m.ExpectExec(c.sql).WithArgs(7, int64(5), 1).WillReturnError(cause)
					} else {
						m.ExpectQuery(c.sql).WillReturnError(cause)
					}
				})
				if err := c.call(newer(t), db); guard.ReasonOf(err) != want || !errors.Is(err, cause) {
					t.Errorf("%s, %v: got %v, want %s with the driver's error inside", way, cause, err, want)
				}
			}
		}
	}
	late := func(m sqlmock.Sqlmock, sql string, columns int, values ...driver.Value) {
		names := make([]string, columns)
		m.ExpectQuery(sql).WillReturnRows(sqlmock.NewRows(names).AddRow(values...).AddRow(values...).RowError(1, errInjected))
	}
	for way, expect := range map[string]func(m sqlmock.Sqlmock){
		"Takeover": func(m sqlmock.Sqlmock) { late(m, mockTake, 4, nil, true, false, 1) },
	} {
		if err := rowCalls[way].call(newer(t), mocked(t, expect)); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
			t.Errorf("%s, an error behind the rows: got %v, want ErrOutcomeUnknown", way, err)
		}
	}
}

// TestUpsertOfADeletedRow: a row that refused an upsert and was deleted before its
// mark was read is inserted by the next try.
func TestUpsertOfADeletedRow(t *testing.T) {
	db := mocked(t, func(m sqlmock.Sqlmock) {
		m.ExpectExec(mockUpsert).WillReturnResult(sqlmock.NewResult(0, 0))
		m.ExpectQuery(mockVerdict).WillReturnRows(sqlmock.NewRows(make([]string, 4)))
		m.ExpectExec(mockUpsert).WillReturnResult(sqlmock.NewResult(0, 1))
	})
	if err := rowCalls["Upsert"].call(newer(t), db); err != nil {
		t.Error(err)
	}
}

// TestFailureOfTheFirstLook (P5): a table that cannot be looked at when it is first
// used is not written.
func TestFailureOfTheFirstLook(t *testing.T) {
	table, err := anyTable([]string{"fresh"}, []string{"id"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, cause := range map[guard.Reason]error{guard.ReasonUnavailable: errInjected, guard.ReasonInvalid: state("42P01")} {
		db := mocked(t, func(m sqlmock.Sqlmock) {
			m.ExpectQuery(kindSQL).WithArgs(`"fresh"`, "null", "last_fencing_token").WillReturnError(cause)
		})
		err := table.Update(t.Context(), db, claimOf("r", 5), Key{7}, Set{"v": 1})
		if guard.ReasonOf(err) != want || !errors.Is(err, cause) || !strings.Contains(err.Error(), "look at fresh") {
			t.Errorf("%v: got %v, want %s", cause, err, want)
		}
	}
}
