package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// TestSessionLost: each way in which a driver says that a session has ended.
func TestSessionLost(t *testing.T) {
	for _, err := range []error{
		state("57P01"), state("25P03"), pgconn.ErrConnClosed, driver.ErrBadConn, sql.ErrConnDone, io.ErrUnexpectedEOF, io.EOF,
		&net.OpError{Op: "read", Err: errInjected},
	} {
		if !sessionLost(fmt.Errorf("wrapped: %w", err)) {
			t.Errorf("%v is not of a lost session", err)
		}
	}
	for _, err := range []error{nil, errInjected, state("57014"), state("40001"), context.Canceled} {
		if sessionLost(err) {
			t.Errorf("%v is of a lost session", err)
		}
	}
}

// TestFailureSaysToRaise: a claim above the mark, where nothing raises it, is
// unavailable, and the error names the way out; no other error does.
func TestFailureSaysToRaise(t *testing.T) {
	const way = "raise the mark first"
	if err := sqlkit.Failure("enter", claimOf("r", 5), state(pgerr.MustRaise), false); !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), way) {
		t.Error(err)
	}
	if err := sqlkit.Failure("enter", claimOf("r", 5), state("53300"), false); !errors.Is(err, guard.ErrUnavailable) || strings.Contains(err.Error(), way) {
		t.Error(err)
	}
}

// TestPgxBegin: a transaction that may run on a standby is read only, no other is.
func TestPgxBegin(t *testing.T) {
	for readOnly, want := range map[bool]string{true: "read only", false: "read write"} {
		b := pgxBegin(txMode{level: sql.LevelReadCommitted, readOnly: readOnly})
		if text := b.QueuedQueries[0].SQL; !strings.Contains(text, want) {
			t.Errorf("%q is not %s", text, want)
		}
	}
}

// TestTimeoutsOfATransaction: a transaction that is fenced, in whatever way, has the
// timeouts of the options, and with negative ones those of its session.
func TestTimeoutsOfATransaction(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for timeout, want := range map[time.Duration]string{7 * time.Second: "7s 7s", -1: "20s 30s"} {
			db := e.open(&Options{LockTimeout: timeout, IdleTimeout: timeout}, func(c *pgx.ConnConfig) {
				c.RuntimeParams["lock_timeout"], c.RuntimeParams["idle_in_transaction_session_timeout"] = "20s", "30s"
			})
			for what, in := range map[string]work{
				"InTx": db.fenced, "snapshot": atLevel(db, RepeatableRead), "Enter": entering(db),
			} {
				noError(t, in(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					n, err := tx.int(ctx, "SELECT count(*) FROM (VALUES (concat(current_setting('lock_timeout'), ' ', current_setting('idle_in_transaction_session_timeout')))) s(timeouts) WHERE timeouts = $1", want)
					if n != 1 {
						t.Errorf("%s: the timeouts are not %s", what, want)
					}
					return err
				}), what)
			}
		}
	})
}

// TestInlined: literals mean the same whatever standard_conforming_strings is.
func TestInlined(t *testing.T) {
	for value, want := range map[any]string{
		int64(5): "SELECT f(5, $)", "a": "SELECT f('a', $)", "it's $1": "SELECT f('it''s $1', $)", `a\'b`: `SELECT f( E'a\\''b', $)`,
	} {
		if got := inlined(statement{sql: "SELECT f($1, $2)", args: []any{value, "$"}}); got != strings.Replace(want, "$)", "'$')", 1) {
			t.Errorf("%v: %s", value, got)
		}
	}
}

// TestHolderTimes: the first sight of a transaction is kept from one raise to the
// next, and so is since when it has been idle, which ends when it works; the number
// of those that are kept is bounded.
func TestHolderTimes(t *testing.T) {
	var times holderTimes
	times.see("0", -1)
	times.known["0"] = holderTime{first: time.Now().Add(-time.Hour), idle: time.Now().Add(-time.Minute)}
	if working, idle := times.see("0", 0); working < time.Hour || idle < time.Minute || idle > time.Hour {
		t.Errorf("working for %v, idle for %v", working, idle)
	}
	if _, idle := times.see("0", 30*time.Minute); idle < 30*time.Minute {
		t.Errorf("idle for %v, which is less than the server says", idle)
	}
	// It works between two looks, and is idle at each.
	if _, idle := times.see("0", 20*time.Millisecond); idle > time.Minute {
		t.Errorf("idle for %v, which is more than the server says", idle)
	}
	if working, idle := times.see("0", -1); working < time.Hour || idle != 0 {
		t.Errorf("working again: for %v, idle for %v", working, idle)
	}
	for i := range maxHolders {
		times.see(fmt.Sprint(i), -1)
	}
	if working, _ := times.see("0", -1); working < time.Hour || len(times.known) != maxHolders {
		t.Errorf("working for %v, of %d", working, len(times.known))
	}
	times.see("one more", -1)
	if working, _ := times.see("0", -1); working > time.Minute || len(times.known) != 2 {
		t.Errorf("%d are kept beyond the bound", len(times.known))
	}
}

// TestJSONTextPanics: a value that cannot be encoded is a mistake in this package,
// not an empty text.
func TestJSONTextPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a channel was encoded")
		}
	}()
	t.Errorf("encoded as %q", sqlkit.JSON(make(chan int)))
}

// TestSessionText: what the log and the error of a raise say of a session.
func TestSessionText(t *testing.T) {
	for _, c := range []struct {
		session
		want string
	}{
		{session{pid: 7, application: "a b", state: "idle", open: 1500, entered: true}, `pid 7, application "a b", idle, its transaction open for 1.5s`},
		{session{pid: 7, state: "active", open: 0, entered: true}, `pid 7, application "", active, its transaction open for 0s`},
		{session{pid: 7, state: "not visible", open: -1, entered: true}, `pid 7, application "", not visible`},
		{session{pid: 7, state: "idle", open: -1}, `pid 7, application "", idle, which took the advisory lock without entering`},
	} {
		if got := c.String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestFactsOfAnotherVersion: a detail that is not as expected gives no facts at
// all, and not half of them.
func TestFactsOfAnotherVersion(t *testing.T) {
	for detail, want := range map[string]sqlkit.Facts{
		`{"resource": "r", "mark": {"token": "5", "leaseId": "a"}}`: {Resource: "r", Mark: guard.Mark{Token: 5, LeaseID: "a"}},
		`{"resource": "r", "mark": 5}`:                              {},
		"no JSON":                                                   {},
	} {
		if got := sqlkit.FactsOf(&pgconn.PgError{Code: pgerr.Stale, Detail: detail}); got != want {
			t.Errorf("%s: %+v, want %+v", detail, got, want)
		}
	}
	if got := sqlkit.OfferedIn(&pgconn.PgError{Code: pgerr.Stale, Detail: `{"resource": "r", "token": {}}`}); got != (guard.Claim{}) {
		t.Errorf("half a claim: %+v", got)
	}
}

// TestTimeoutsInSQL: the shortest timeouts reach the server, and 0 leaves the
// session's own, in each way to enter; a guarded write leaves them alone at each level.
func TestTimeoutsInSQL(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.exec("CREATE TABLE kept (tenant text NOT NULL)")
	e.guardBy("kept", "{tenant}")
	must(t, e.db.Raise(t.Context(), claimOf("a", 5)))
	conn, err := e.admin.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	const write = "SELECT fencepost.present('a', 5, 'lease-5'); INSERT INTO kept VALUES ('a')"
	for _, c := range []struct{ level, sql, want string }{
		{"READ COMMITTED", "SELECT fencepost.enter('a', 5, 'lease-5', 1, 1)", "1ms 1ms"},
		{"READ COMMITTED", "SELECT fencepost.enter('a', 5, 'lease-5', 0, 0)", "20s 30s"},
		{"READ COMMITTED", "SELECT fencepost.enter_row('a', 5, 'lease-5', 1, 1)", "1ms 1ms"},
		{"READ COMMITTED", "SELECT fencepost.enter_row('a', 5, 'lease-5', 0, 0)", "20s 30s"},
		{"REPEATABLE READ", "SELECT fencepost.enter_snapshot('a', 5, 'lease-5', 1, 1)", "1ms 1ms"},
		{"REPEATABLE READ", "SELECT fencepost.enter_snapshot('a', 5, 'lease-5', 0, 0)", "20s 30s"},
		{"READ COMMITTED", write, "20s 30s"},
		{"REPEATABLE READ", write, "20s 30s"},
		{"SERIALIZABLE", write, "20s 30s"},
	} {
		results, err := conn.Conn().PgConn().Exec(t.Context(), "BEGIN ISOLATION LEVEL "+c.level+"; SET LOCAL lock_timeout = '20s'; SET LOCAL idle_in_transaction_session_timeout = '30s'; "+
			c.sql+"; SELECT concat(current_setting('lock_timeout'), ' ', current_setting('idle_in_transaction_session_timeout')); ROLLBACK").ReadAll()
		if err != nil || string(results[len(results)-2].Rows[0][0]) != c.want {
			t.Errorf("%s, %s: %v, %v, want %s", c.level, c.sql, results, err, c.want)
		}
	}
}
