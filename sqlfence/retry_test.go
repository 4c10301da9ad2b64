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

// TestRetries: a real serialization failure and a real deadlock are passed on,
// and run again only when the caller asks, as a whole and in a transaction that
// enters again.
func TestRetries(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE v (id int PRIMARY KEY, n int NOT NULL); INSERT INTO v VALUES (1, 0)")
		for _, retries := range []int{0, 1} {
			e.exec("UPDATE v SET n = 0")
			calls := 0
			err := e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Isolation: RepeatableRead, Retries: retries}, func(ctx context.Context, tx testTx) error {
				calls++
				n, err := tx.int(ctx, "SELECT n FROM v")
				if err != nil {
					return err
				}
				if calls == 1 { // another client is faster
					e.exec("UPDATE v SET n = 10")
				}
				_, err = tx.exec(ctx, "UPDATE v SET n = $1", n+1)
				return err
			})
			if retries == 0 && (pgerr.State(err) != pgerr.Serialization || calls != 1 || e.int("SELECT n FROM v") != 10) {
				t.Errorf("not asked to: %v after %d calls", err, calls)
			}
			if retries == 1 && (err != nil || calls != 2 || e.int("SELECT n FROM v") != 11) {
				t.Errorf("asked to: %v after %d calls, %d", err, calls, e.int("SELECT n FROM v"))
			}
		}
		// The claim is presented again: it may be stale by then.
		calls := 0
		err := e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Retries: 3}, func(ctx context.Context, tx testTx) error {
			calls++
			if err := tx.end(false); err != nil {
				return err
			}
			if err := e.db.Raise(context.Background(), claimOf("r", 6)); err != nil {
				return err
			}
			return state(pgerr.Deadlock)
		})
		if guard.ReasonOf(err) != guard.ReasonStale || calls != 1 {
			t.Errorf("got %v after %d calls, want stale", err, calls)
		}
	})
}

// TestRetriesEnd: tries are bounded, the end of the context ends them, and an
// unknown outcome and other errors are never retried.
func TestRetriesEnd(t *testing.T) {
	ok := sqlmock.NewResult(0, 0)
	run := func(expect func(m sqlmock.Sqlmock), ctx context.Context, fn func(calls int) error) (int, error) {
		calls := 0
		err := mocked(t, expect).InTxAll(ctx, []guard.Claim{claimOf("r", 5)}, &TxOptions{Retries: 2}, func(context.Context, *sql.Tx) error {
			calls++
			return fn(calls)
		})
		return calls, err
	}
	attempts := func(n int) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			for range n {
				m.ExpectBegin()
				m.ExpectExec(enterSQL + markSetSQL).WillReturnResult(ok)
				m.ExpectRollback()
			}
		}
	}
	commits := func(causes ...error) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			for _, cause := range causes {
				m.ExpectBegin()
				m.ExpectExec(enterSQL + markSetSQL).WillReturnResult(ok)
				m.ExpectQuery(markedSQL).WillReturnRows(sqlmock.NewRows([]string{""}).AddRow(true))
				m.ExpectCommit().WillReturnError(cause)
			}
		}
	}
	succeed := func(int) error { return nil }
	if calls, err := run(attempts(3), t.Context(), func(int) error { return state(pgerr.Deadlock) }); calls != 3 || pgerr.State(err) != pgerr.Deadlock {
		t.Errorf("for ever: %d calls, %v", calls, err)
	}
	if calls, err := run(commits(state(pgerr.Serialization), nil), t.Context(), succeed); calls != 2 || err != nil {
		t.Errorf("at COMMIT: %d calls, %v", calls, err)
	}
	if calls, err := run(commits(errInjected), t.Context(), succeed); calls != 1 || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
		t.Errorf("unknown outcome: %d calls, %v", calls, err)
	}
	lost := &lostCommit{transactionID{}, state(pgerr.Serialization)}
	if calls, err := run(attempts(1), t.Context(), func(int) error { return guard.OutcomeUnknown("op", claimOf("r", 5), lost) }); calls != 1 || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
		t.Errorf("unknown outcome with 40001 inside: %d calls, %v", calls, err)
	}
	if calls, err := run(attempts(1), t.Context(), func(int) error { return state("23505") }); calls != 1 || pgerr.State(err) != "23505" {
		t.Errorf("another error: %d calls, %v", calls, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if calls, err := run(attempts(1), ctx, func(int) error { cancel(); return state(pgerr.Deadlock) }); calls != 1 || pgerr.State(err) != pgerr.Deadlock {
		t.Errorf("cancelled: %d calls, %v", calls, err)
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Error("the context is not cancelled")
	}
}
