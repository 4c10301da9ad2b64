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

// TestEnterSetsTimeouts: a transaction that is fenced by Enter has the timeouts
// of one that InTx fences, and none after it.
func TestEnterSetsTimeouts(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		const both = "SELECT current_setting('lock_timeout') <> '0' AND current_setting('idle_in_transaction_session_timeout') <> '0'"
		for what, in := range map[string]func(func(context.Context, testTx) error) error{
			"InTx": func(fn func(context.Context, testTx) error) error {
				return e.db.fenced(t.Context(), claimOf("r", 5), fn)
			},
			"snapshot": func(fn func(context.Context, testTx) error) error {
				return e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Isolation: RepeatableRead}, fn)
			},
			"Enter": func(fn func(context.Context, testTx) error) error {
				return entering(e.db)(t.Context(), claimOf("r", 5), fn)
			},
		} {
			err := in(func(ctx context.Context, tx testTx) error {
				if n, err := tx.int(ctx, "SELECT ("+both+")::int"); err != nil || n != 1 {
					t.Errorf("%s: the timeouts are not set, %v", what, err)
				}
				return nil
			})
			if err != nil {
				t.Error(what, err)
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

// TestTimeoutsOfAMillisecond: the shortest timeouts reach the server, and 0 leaves
// the session's own, in each way to enter.
func TestTimeoutsOfAMillisecond(t *testing.T) {
	e := newEnvOf(t, "pgx")
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	conn, err := e.admin.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for function, level := range map[string]string{"enter": "READ COMMITTED", "enter_row": "READ COMMITTED", "enter_snapshot": "REPEATABLE READ"} {
		for ms, want := range map[string]string{"1": "1ms 1ms", "0": "20s 30s"} {
			results, err := conn.Conn().PgConn().Exec(t.Context(), "BEGIN ISOLATION LEVEL "+level+"; SET LOCAL lock_timeout = '20s'; SET LOCAL idle_in_transaction_session_timeout = '30s'; "+
				"SELECT fencepost."+function+"('r', 5, 'lease-5', "+ms+", "+ms+"); SELECT concat(current_setting('lock_timeout'), ' ', current_setting('idle_in_transaction_session_timeout')); ROLLBACK").ReadAll()
			if err != nil || string(results[4].Rows[0][0]) != want {
				t.Errorf("%s, %s ms: %v, %v, want %s", function, ms, results, err, want)
			}
		}
	}
}
