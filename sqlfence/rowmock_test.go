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
		` SET "last_fencing_token" = $2::bigint, "v" = EXCLUDED."v" WHERE $2::bigint OPERATOR(pg_catalog.>=) "jobs"."last_fencing_token"`
	mockMany = `WITH "fence in" ("fence n", "fence k0", "fence token", "fence v0") AS (VALUES (0, (NULL::"jobs")."id", NULL::bigint, (NULL::"jobs")."v"), (1, $1, $2, $3))` +
		`, "fence twice" AS (SELECT pg_catalog.min("fence n") AS "fence n", pg_catalog.max("fence n") AS "fence other" FROM "fence in" WHERE "fence token" IS NOT NULL GROUP BY "fence k0" HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1), "fence row" AS MATERIALIZED (SELECT "fence in".*, "last_fencing_token" AS "fence mark", NULL::pg_catalog.text AS "fence whose", false AS "fence deleted", true AS "fence satisfied", false AS "fence again"` +
		` FROM "fence in" JOIN "jobs" ON "jobs"."id" = "fence k0" WHERE NOT EXISTS (SELECT FROM "fence twice") ORDER BY "jobs"."id" FOR NO KEY UPDATE OF "jobs")` +
		`, "fence out" AS (UPDATE "jobs" SET "last_fencing_token" = "fence token", "v" = "fence v0" FROM "fence row" WHERE "jobs"."id" = "fence k0" AND "fence token" OPERATOR(pg_catalog.>=) "last_fencing_token" AND NOT "fence again" RETURNING "fence n")` +
		` SELECT 0 AS "fence n", pg_catalog.count(*)::int AS "fence other", false AS "fence there", false AS "fence found", NULL::bigint AS "fence mark", NULL::pg_catalog.text AS "fence whose", false AS "fence deleted", false AS "fence satisfied" FROM "fence out"` +
		` UNION ALL SELECT "fence i"."fence n", 0, EXISTS (SELECT FROM "jobs" WHERE "jobs"."id" = "fence i"."fence k0"), "fence r"."fence n" IS NOT NULL, "fence mark", "fence whose", coalesce("fence deleted", false), coalesce("fence satisfied", false)` +
		` FROM "fence in" AS "fence i" LEFT JOIN "fence out" AS "fence o" ON "fence o"."fence n" OPERATOR(pg_catalog.=) "fence i"."fence n" LEFT JOIN "fence row" AS "fence r" ON "fence r"."fence n" OPERATOR(pg_catalog.=) "fence i"."fence n" WHERE "fence o"."fence n" IS NULL AND "fence i"."fence token" IS NOT NULL` +
		` UNION ALL SELECT "fence n", "fence other", false, false, NULL, NULL, false, false FROM "fence twice"`
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
	"UpdateMany": {mockMany, func(table *Table, q Querier) error {
		verdicts, err := table.UpdateMany(context.Background(), q, []RowUpdate{{claimOf("r", 5), Key{7}, Set{"v": 1}}})
		return errors.Join(append(verdicts, err)...)
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
		guard.ReasonUnavailable:    {state("40001"), state("40P01"), state("55P03"), state("25006"), state("42501"), state("SF005")},
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
		"Takeover":   func(m sqlmock.Sqlmock) { late(m, mockTake, 4, nil, true, false, 1) },
		"UpdateMany": func(m sqlmock.Sqlmock) { late(m, mockMany, 8, 0, 1, false, false, nil, nil, false, false) },
	} {
		if err := rowCalls[way].call(newer(t), mocked(t, expect)); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
			t.Errorf("%s, an error behind the rows: got %v, want ErrOutcomeUnknown", way, err)
		}
	}
}

// TestFailureAroundMany: what an error means after the statement has left rows
// open, and a row that is replaced every time.
func TestFailureAroundMany(t *testing.T) {
	missing := func(m sqlmock.Sqlmock, there bool) {
		m.ExpectQuery(mockMany).WillReturnRows(sqlmock.NewRows(make([]string, 8)).
			AddRow(0, 0, false, false, nil, nil, false, false).AddRow(1, 0, there, false, nil, nil, false, false))
	}
	for what, c := range map[string]struct {
		want   guard.Reason
		expect func(m sqlmock.Sqlmock)
	}{
		"not there": {guard.ReasonNotFound, func(m sqlmock.Sqlmock) { missing(m, false) }},
		"sending again fails": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			missing(m, true)
			m.ExpectQuery(mockMany).WillReturnError(errInjected)
		}},
		"replaced once": {guard.ReasonNone, func(m sqlmock.Sqlmock) {
			missing(m, true)
			m.ExpectQuery(mockMany).WillReturnRows(sqlmock.NewRows(make([]string, 8)).AddRow(0, 1, false, false, nil, nil, false, false))
		}},
		"unreadable": {guard.ReasonOutcomeUnknown, func(m sqlmock.Sqlmock) {
			m.ExpectQuery(mockMany).WillReturnRows(sqlmock.NewRows(make([]string, 8)).AddRow("no number", 1, false, false, nil, nil, false, false))
		}},
		"gone at last": {guard.ReasonNotFound, func(m sqlmock.Sqlmock) {
			missing(m, true)
			missing(m, false)
		}},
		"replaced for ever": {guard.ReasonUnavailable, func(m sqlmock.Sqlmock) {
			for range maxReplaced {
				missing(m, true)
			}
		}},
	} {
		if err := rowCalls["UpdateMany"].call(newer(t), mocked(t, c.expect)); guard.ReasonOf(err) != c.want {
			t.Errorf("%s: got %v, want %q", what, err, c.want)
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

// TestTooManyParameters: a write that alone has more parameters than a statement
// may have is refused before anything is sent; one that has exactly as many is
// sent.
func TestTooManyParameters(t *testing.T) {
	write := func(others int) error {
		var text strings.Builder
		args := make([]any, others)
		for i := range args {
			args[i] = i
			text.WriteString("+" + placeholder(i+1))
		}
		_, err := mockTable(t).UpdateMany(t.Context(), mocked(t, func(sqlmock.Sqlmock) {}), []RowUpdate{{claimOf("r", 5), Key{7}, Set{"v": Raw(text.String(), args...)}}})
		return err
	}
	wantInvalid(t, "one too many", write(maxParameters-1), "writes[0]", "65536")
	if err := write(maxParameters - 2); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown { // the mock's refusal
		t.Errorf("the most: %v, want it sent", err)
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
