package sqlrow

import (
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// mocked returns a DB on a driver with configured answers. It shows how a
// driver's errors are handled; the other tests ask PostgreSQL what it does.
func mocked(t *testing.T, expect func(m sqlmock.Sqlmock)) Executor {
	t.Helper()
	pool, m, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	testkit.Must(t, err)
	expect(m)
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d connections were not given back", n)
		}
		testkit.Check(t, m.ExpectationsWereMet())
		pool.Close()
	})
	return Std(pool)
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
	mockUpdate  = `UPDATE "jobs" SET "last_fencing_token" = $2::bigint, "v" = $3 WHERE ("id" = $1) AND $2::bigint OPERATOR(pg_catalog.>) "last_fencing_token" AND ` + sessionSQL + boundedSQL
	mockVerdict = `SELECT "last_fencing_token", NULL::pg_catalog.text, true FROM "jobs" WHERE ("id" = $1) AND ` + sessionSQL
)

func mockTable(t *testing.T, rule guard.Rule) *Table {
	table, err := anyTable([]string{"jobs"}, []string{"id"}, &TableOptions{Rule: rule})
	testkit.Must(t, err)
	table.looked.Store(true)
	return table
}

// TestFailureAroundUpdate: a driver that cannot say how many rows were written, the row of
// the verdict that cannot be read, and triggers that cannot be looked for.
func TestFailureAroundUpdate(t *testing.T) {
	for want, expect := range map[guard.Reason]func(m sqlmock.Sqlmock){
		guard.ReasonOutcomeUnknown: func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(sqlmock.NewErrorResult(errInjected))
		},
		guard.ReasonUnavailable: func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectQuery(mockVerdict).WillReturnRows(sqlmock.NewRows(make([]string, 3)).AddRow(9, nil, true).RowError(0, errInjected))
		},
		guard.ReasonSetup: func(m sqlmock.Sqlmock) {
			m.ExpectExec(mockUpdate).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectQuery(mockVerdict).WillReturnRows(sqlmock.NewRows(make([]string, 3)).AddRow(4, nil, true))
			m.ExpectQuery(leavesOutSQL).WithArgs(`"jobs"`).WillReturnError(state("42501"))
		},
	} {
		err := mockTable(t, guard.OncePerToken).Update(t.Context(), mocked(t, expect), claimOf("r", 5), Key{7}, Set{"v": "new"})
		if guard.ReasonOf(err) != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestFailureOfRows (P5, P6): what is the caller's fault is no error of the store. The
// other reasons are those of package pgerr, whose tests have all of them.
func TestFailureOfRows(t *testing.T) {
	for want, states := range map[guard.Reason]string{
		guard.ReasonInvalid: "42P01 42703 42883 3F000 42601 42P10 428C9 42804 42702", guard.ReasonSetup: "42501 28P01",
		guard.ReasonOther: "23505 22P02 42P06 P0001", guard.ReasonUnavailable: "40001", guard.ReasonOutcomeUnknown: "57P01",
	} {
		for _, code := range strings.Fields(states) {
			cause := state(code)
			if err := mockTable(t, guard.SameOrNewer).failure("update", claimOf("r", 5), cause, true); guard.ReasonOf(err) != want || !errors.Is(err, cause) {
				t.Errorf("%s: got %v, want %s with the driver's error inside", code, err, want)
			}
		}
	}
}

// TestErrorBehindRows (P5): the error of a driver after the rows came when the statement
// was committed.
func TestErrorBehindRows(t *testing.T) {
	const take = `UPDATE "jobs" SET "last_fencing_token" = $2::bigint WHERE ("id" = $1) AND $2::bigint OPERATOR(pg_catalog.>=) "last_fencing_token" AND ` + sessionSQL + boundedSQL +
		` RETURNING ` + liftCommit + `, "last_fencing_token" OPERATOR(pg_catalog.=) $2::bigint, "v"`
	db := mocked(t, func(m sqlmock.Sqlmock) {
		row := []driver.Value{nil, true, 1}
		m.ExpectQuery(take).WillReturnRows(sqlmock.NewRows(make([]string, 3)).AddRow(row...).AddRow(row...).RowError(1, errInjected))
	})
	if err := mockTable(t, guard.SameOrNewer).Raise(t.Context(), db, claimOf("r", 5), Key{7}, Dest{"v": new(int)}); guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
		t.Errorf("got %v, want ErrOutcomeUnknown", err)
	}
}

// TestFailureOfTheFirstLook (P5): a table that cannot be looked at when it is first
// used is not written.
func TestFailureOfTheFirstLook(t *testing.T) {
	table, err := anyTable([]string{"fresh"}, []string{"id"}, nil)
	testkit.Must(t, err)
	for want, cause := range map[guard.Reason]error{guard.ReasonUnavailable: errInjected, guard.ReasonInvalid: state("42P01")} {
		db := mocked(t, func(m sqlmock.Sqlmock) {
			m.ExpectQuery(sqlkit.LookSQL).WithArgs(`"fresh"`, "null", "last_fencing_token").WillReturnError(cause)
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
		testkit.Must(t, err)
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
	testkit.Must(t, err)
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
	testkit.Must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		s, err := table.statement(updates, claimOf("r", 5), Key{1, "2026-04"}, Set{"total": 12, "closed_by": "x", "version": Raw("version + $1", 1)}, nil, true)
		if err != nil || !strings.HasPrefix(s.sql, "UPDATE") {
			b.Fatal(err)
		}
	}
}
