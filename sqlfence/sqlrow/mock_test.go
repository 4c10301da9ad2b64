package sqlrow

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// mocked returns a DB on a driver with configured answers. It shows how a
// driver's errors are handled; the other tests ask PostgreSQL what it does.
func mocked(t *testing.T, expect func(m sqlmock.Sqlmock)) *DB[*sql.Tx] {
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
	db, err := Std(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.inspected.Store(tableID{`"jobs"`, "last_fencing_token", "null"}, true)
	return db
}

func state(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "injected"}
}

var errInjected = errors.New("injected")

func claimOf(resource string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: "lease-" + token.String()}
}

// anyTable is NewTable without a template, for tests that do not concern the
// names of resources.
func anyTable(name, key []string, opts *TableOptions) (*Table, error) {
	o := TableOptions{}
	if opts != nil {
		o = *opts
	}
	o.InsecureAnyResource = true
	return NewTable(name, key, nil, &o)
}

const (
	mockUpdate  = `UPDATE "jobs" SET "last_fencing_token" = $2::bigint, "v" = $3 WHERE ("id" = $1) AND $2::bigint OPERATOR(pg_catalog.>) "last_fencing_token"`
	mockVerdict = `SELECT "last_fencing_token", NULL::pg_catalog.text, true FROM "jobs" WHERE ("id" = $1)`
)

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
		rows := sqlmock.NewRows([]string{"token", "lease", "satisfied"})
		for _, token := range tokens {
			rows.AddRow(token, nil, true)
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
			for i := range maxReplaced {
				m.ExpectExec(mockUpdate).WillReturnResult(none)
				m.ExpectQuery(mockVerdict).WillReturnRows(mark(int64(i % 2)))
			}
		}},
		"held back": {guard.ReasonSetup, func(m sqlmock.Sqlmock) {
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
			err := rowCalls["Update"].call(t, mocked(t, c.expect))
			if guard.ReasonOf(err) != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

const (
	mockTake = `UPDATE "jobs" SET "last_fencing_token" = $2::bigint WHERE ("id" = $1) AND $2::bigint OPERATOR(pg_catalog.>=) "last_fencing_token"` +
		` RETURNING ` + liftCommit + `, "last_fencing_token" OPERATOR(pg_catalog.=) $2::bigint, "v"`
	mockUpsert = `INSERT INTO "jobs" ("id", "last_fencing_token", "v") VALUES ($1, $2::bigint, $3) ON CONFLICT ("id") DO UPDATE` +
		` SET "last_fencing_token" = $2::bigint, "v" = EXCLUDED."v" WHERE "jobs"."id" = $1 AND $2::bigint OPERATOR(pg_catalog.>=) "jobs"."last_fencing_token"`
)

// rowCalls are the statements on rows against a mocked driver.
var rowCalls = map[string]struct {
	sql  string
	call func(t *testing.T, q Querier) error
}{
	"Update": {mockUpdate, func(t *testing.T, q Querier) error {
		return mockTable(t).Update(t.Context(), q, claimOf("r", 5), Key{7}, Set{"v": "new"})
	}},
	"Takeover": {mockTake, func(t *testing.T, q Querier) error {
		return newer(t).Raise(t.Context(), q, claimOf("r", 5), Key{7}, Dest{"v": new(int)})
	}},
	"Upsert": {mockUpsert, func(t *testing.T, q Querier) error {
		return newer(t).Upsert(t.Context(), q, claimOf("r", 5), Key{7}, Set{"v": "new"})
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
		guard.ReasonOutcomeUnknown: {errInjected, io.ErrUnexpectedEOF, driver.ErrBadConn, context.DeadlineExceeded,
			state("57P01"), state("57P02"), state("57P03"), state("57P05"), state("08006"), state("40003"), state("58030"), state("XX000"), state("25P03"), state("25P04")},
		guard.ReasonUnavailable: {state("40001"), state("40P01"), state("55P03"), state("57014"), state("53300"), state("25006"),
			state("25P02"), state("26000"), state("SF005")},
		guard.ReasonSetup:    {state("42501"), state("28P01")},
		guard.ReasonStale:    {state("SF001")},
		guard.ReasonConflict: {state("SF002")},
		guard.ReasonInvalid: {state("42P01"), state("42703"), state("42883"), state("3F000"), state("42601"),
			state("42P10"), state("428C9"), state("42804"), state("42702")},
		guard.ReasonOther:   {state("23505"), state("22P02"), state("42P06"), state("P0001")},
		guard.ReasonMissing: {state("SF003")},
	} {
		for way, c := range rowCalls {
			for _, cause := range causes {
				db := mocked(t, func(m sqlmock.Sqlmock) {
					if way == "Takeover" {
						m.ExpectQuery(c.sql).WillReturnError(cause)
					} else {
						m.ExpectExec(c.sql).WithArgs(7, int64(5), "new").WillReturnError(cause)
					}
				})
				if err := c.call(t, db); guard.ReasonOf(err) != want || !errors.Is(err, cause) {
					t.Errorf("%s, %v: got %v, want %s with the driver's error inside", way, cause, err, want)
				}
			}
		}
	}
	db := mocked(t, func(m sqlmock.Sqlmock) {
		row := []driver.Value{nil, true, 1}
		m.ExpectQuery(mockTake).WillReturnRows(sqlmock.NewRows(make([]string, 3)).AddRow(row...).AddRow(row...).RowError(1, errInjected))
	})
	if err := rowCalls["Takeover"].call(t, db); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
		t.Errorf("an error behind the rows: got %v, want ErrOutcomeUnknown", err)
	}
}

// TestUpsertOfADeletedRow: a row that refused an upsert and was deleted before its
// mark was read is inserted by the next try.
func TestUpsertOfADeletedRow(t *testing.T) {
	db := mocked(t, func(m sqlmock.Sqlmock) {
		m.ExpectExec(mockUpsert).WillReturnResult(sqlmock.NewResult(0, 0))
		m.ExpectQuery(mockVerdict).WillReturnRows(sqlmock.NewRows(make([]string, 3)))
		m.ExpectExec(mockUpsert).WillReturnResult(sqlmock.NewResult(0, 1))
	})
	if err := rowCalls["Upsert"].call(t, db); err != nil {
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
			m.ExpectQuery(LookSQL).WithArgs(`"fresh"`, "null", "last_fencing_token").WillReturnError(cause)
		})
		err := table.Update(t.Context(), db, claimOf("r", 5), Key{7}, Set{"v": 1})
		if guard.ReasonOf(err) != want || !errors.Is(err, cause) || !strings.Contains(err.Error(), "look at fresh") {
			t.Errorf("%v: got %v, want %s", cause, err, want)
		}
	}
}

// TestWayOut: the error of a missing object names the fix of its most likely
// cause, and that of another one does not.
func TestWayOut(t *testing.T) {
	const parts, column = `; each part of the name is an element: []string{"billing", "closes"}`, "must be bigint NOT NULL DEFAULT 0"
	for _, c := range []struct{ table, code, message, parts, column string }{
		{"billing.closes", "42P01", "no table", "says", ""},
		{"closes", "42P01", "no table", "", ""},
		{"billing.closes", "42P10", "no table", "", ""},
		{"closes", "42703", `column "last_fencing_token" does not exist`, "", "says"},
		{"closes", "42703", `column "v" does not exist`, "", ""},
		{"closes", "42883", "operator does not exist: text = bigint", "", "says"},
		{"closes", "42883", "function f(integer) does not exist", "", ""},
		{"closes", "42704", `type "last_fencing_token" or bigint does not exist`, "", ""},
	} {
		table, err := anyTable([]string{c.table}, []string{"id"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		cause := &pgconn.PgError{Severity: "ERROR", Code: c.code, Message: c.message}
		err = table.failure("update", claimOf("r", 5), cause, true)
		if !errors.Is(err, guard.ErrInvalid) || !errors.Is(err, cause) || strings.HasSuffix(err.Error(), parts) != (c.parts != "") ||
			strings.HasSuffix(err.Error(), column) != (c.column != "") || strings.Contains(err.Error(), "; ") != (c.parts+c.column != "") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestKeyValueErrors: the error of a key's value that has no text says why.
func TestKeyValueErrors(t *testing.T) {
	table, err := NewTable([]string{"jobs"}, []string{"id"}, guard.Must(guard.NewTemplate("job:{id}")), nil)
	if err != nil {
		t.Fatal(err)
	}
	db := mocked(t, func(sqlmock.Sqlmock) {})
	for why, v := range map[string]any{"injected": unvalued{}, "is not a type whose text": [16]byte{1}} {
		err := table.Update(t.Context(), db, claimOf("job:x", 5), Key{v}, Set{"v": 1})
		if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "key column id") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// unvalued is a value that the driver cannot get.
type unvalued struct{}

func (unvalued) Value() (driver.Value, error) { return nil, errInjected }

// BenchmarkUpdateSQL: what building the statement costs, beside some tens of
// microseconds for sending it.
func BenchmarkUpdateSQL(b *testing.B) {
	table, err := anyTable([]string{"billing", "closes"}, []string{"tenant", "period"}, &TableOptions{LeaseColumn: "last_lease_id"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s, err := table.statement(updates, claimOf("r", 5), Key{1, "2026-04"}, Set{"total": 12, "closed_by": "x", "version": Raw("version + $1", 1)}, nil)
		if err != nil || !strings.HasPrefix(s.sql, "UPDATE") {
			b.Fatal(err)
		}
	}
}
