package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
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

// entersSQL is the first statement of a transaction under one claim.
var entersSQL = (&DB[*sql.Tx]{}).enterStatements([]guard.Claim{{}}, ReadCommitted, true, new(transactionID))[0].sql

// TestFailureOfInTx (P5, P6): what a driver's error means at the steps of a fenced
// transaction, and that the transaction is ended. What a server makes of them is in
// TestLostAnswers, TestLostCommit, TestMarksDecide and TestCommitAnsweredWithRollback.
func TestFailureOfInTx(t *testing.T) {
	ok := sqlmock.NewResult(0, 0)
	entered := func(m sqlmock.Sqlmock) {
		m.ExpectBegin()
		m.ExpectQuery(entersSQL).WillReturnRows(sqlmock.NewRows(make([]string, 6)).AddRow("", "", "", "7", "00000001/1", ""))
	}
	refused := func(m sqlmock.Sqlmock) {
		m.ExpectBegin()
		m.ExpectQuery(entersSQL).WillReturnError(state(pgerr.MustRaise))
		m.ExpectRollback()
	}
	says := func(m sqlmock.Sqlmock, status string) {
		m.ExpectQuery(resolveSQL).WithArgs("7", "00000001/1").WillReturnRows(sqlmock.NewRows(make([]string, 4)).AddRow(false, true, status, false))
	}
	marking := func(cause error, status string) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectExec(markerSQL).WillReturnError(cause)
			m.ExpectRollback()
			says(m, status)
		}
	}
	committing := func(cause error, status string) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectExec(markerSQL).WillReturnResult(ok)
			m.ExpectCommit().WillReturnError(cause)
			says(m, status)
		}
	}
	for what, c := range map[string]struct {
		want   guard.Reason
		ran    bool
		expect func(m sqlmock.Sqlmock)
	}{
		"raised for ever": {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) {
			for range maxEnter - 1 {
				refused(m)
				m.ExpectBegin()
				m.ExpectExec(raiseSQL).WillReturnResult(ok)
				m.ExpectCommit()
			}
			refused(m) // and raises no more
		}},
		"marker":                   {guard.ReasonInvalid, true, marking(errInjected, "aborted")}, // the session lives: rows are open
		"marker, committed":        {guard.ReasonOutcomeUnknown, true, marking(errInjected, "committed")},
		"marker, 25P02":            {guard.ReasonOther, true, marking(state("25P02"), "aborted")},
		"marker, 25P02, committed": {guard.ReasonOutcomeUnknown, true, marking(state("25P02"), "committed")},
		"marker, ErrTxDone": {guard.ReasonOutcomeUnknown, true, func(m sqlmock.Sqlmock) { // nothing is asked: what it did afterwards is not known
			entered(m)
			m.ExpectExec(markerSQL).WillReturnError(sql.ErrTxDone)
			m.ExpectRollback()
		}},
		"commit":                   {guard.ReasonUnavailable, true, committing(errInjected, "aborted")},
		"commit, committed":        {guard.ReasonNone, true, committing(errInjected, "committed")},
		"commit, conn closed":      {guard.ReasonUnavailable, true, committing(pgconn.ErrConnClosed, "aborted")},
		"commit, 57P01, committed": {guard.ReasonOutcomeUnknown, true, committing(state("57P01"), "committed")},
		"commit, 42P01":            {guard.ReasonOther, true, committing(state("42P01"), "aborted")},
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

// TestFailureOfLook: what a raise does when it may not look for the sessions
// that it waits for, and when the look shows that the claim is stale.
func TestFailureOfLook(t *testing.T) {
	privilege := state(pgerr.Privilege)
	for what, c := range map[string]struct {
		look   error
		again  func(m sqlmock.Sqlmock) // the raise after the look
		want   guard.Reason
		inside []error
	}{
		"stale": {state(pgerr.Stale), func(sqlmock.Sqlmock) {}, guard.ReasonStale, nil},
		"raised without a look": {privilege, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(unhurriedSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectExec(raiseSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectCommit()
		}, guard.ReasonNone, nil},
		"not raised": {privilege, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(unhurriedSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectExec(raiseSQL).WillReturnError(errInjected)
			m.ExpectRollback()
		}, guard.ReasonUnavailable, []error{privilege, errInjected}},
	} {
		t.Run(what, func(t *testing.T) {
			db := mocked(t, func(m sqlmock.Sqlmock) {
				m.ExpectBegin()
				m.ExpectExec(raiseSQL).WillReturnError(state(pgerr.LockTimeout))
				m.ExpectRollback()
				m.ExpectBegin()
				m.ExpectExec(unhurriedSQL).WillReturnResult(sqlmock.NewResult(0, 0))
				m.ExpectQuery(holdersSQL).WillReturnError(c.look)
				m.ExpectRollback()
				c.again(m)
			})
			err := db.Raise(t.Context(), claimOf("r", 5))
			if guard.ReasonOf(err) != c.want || c.want == guard.ReasonStale && errors.Is(err, guard.ErrUnavailable) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			for _, inside := range c.inside {
				if !errors.Is(err, inside) {
					t.Errorf("%v has not %v inside", err, inside)
				}
			}
		})
	}
}

// TestFailureOfResolve (P5): what a server's answer about a lost COMMIT means that is a
// standby, or has forgotten the transaction.
func TestFailureOfResolve(t *testing.T) {
	lost := guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{transactionID{"7", "00000001/1"}, errInjected})
	for _, c := range []struct {
		standby, same bool
		status        string
		want          guard.Reason
		says          string
	}{
		{true, false, "", guard.ReasonUnavailable, sqlkit.ErrStandby.Error()},
		{false, true, "forgotten", guard.ReasonOutcomeUnknown, "the transaction is forgotten"},
		{false, false, "aborted", guard.ReasonOutcomeUnknown, "replaced"},
	} {
		db := mocked(t, func(m sqlmock.Sqlmock) {
			m.ExpectQuery(resolveSQL).WithArgs("7", "00000001/1").WillReturnRows(sqlmock.NewRows(make([]string, 4)).AddRow(c.standby, c.same, c.status, false))
		})
		if committed, err := db.Resolve(t.Context(), lost); committed || guard.ReasonOf(err) != c.want || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, %v, want %s that says %q", committed, err, c.want, c.says)
		}
	}
}

// deadServer gives connections that turn out to be dead, and counts them.
type deadServer struct{ begins int }

func (d *deadServer) Connect(context.Context) (driver.Conn, error) { return deadConn{d}, nil }

func (d *deadServer) Driver() driver.Driver { return nil }

type deadConn struct{ of *deadServer }

func (c deadConn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrBadConn }

func (c deadConn) Close() error { return nil }

func (c deadConn) Begin() (driver.Tx, error) { return nil, driver.ErrBadConn }

func (c deadConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	c.of.begins++
	return nil, driver.ErrBadConn
}

// TestDeadConnections: two dead connections are replaced, as in database/sql; the
// third ends the call.
func TestDeadConnections(t *testing.T) {
	server := &deadServer{}
	pool := sql.OpenDB(server)
	pool.SetMaxOpenConns(1) // so that the raise does not look beside
	defer pool.Close()
	db, err := Std(pool, nil)
	must(t, err)
	if err := db.Raise(t.Context(), claimOf("r", 5)); guard.ReasonOf(err) != guard.ReasonUnavailable || server.begins != 3 {
		t.Errorf("got %v after %d connections", err, server.begins)
	}
}
