package sqlfence

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestRaiseUnderStatementTimeout: a session whose statement_timeout is shorter
// than the wait for an older holder, and than the look for it, still raises, once
// that holder has been ended. The control is the statement alone, which is
// cancelled.
func TestRaiseUnderStatementTimeout(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		hurried := func(c *pgx.ConnConfig) { c.RuntimeParams["statement_timeout"] = "100" }
		db := e.open(&Options{TerminateAfter: 300 * time.Millisecond, RaiseTimeout: patience / 2}, hurried) // the holder idles for less than the server allows
		e.mutate("holders", "RETURN QUERY WITH", "PERFORM pg_sleep(0.2); RETURN QUERY WITH")                // as on a busy server
		err := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			control := context.WithoutCancel(ctx)
			wantState(t, db.unfenced(control, raiseSQL, "r", 6, "lease-6", 5000), pgerr.Canceled, "the statement alone")
			noError(t, db.Raise(control, claimOf("r", 6)), "the raise")
			return nil
		})
		if reason := guard.ReasonOf(err); reason != guard.ReasonStale && reason != guard.ReasonOutcomeUnknown { // at COMMIT, which on pgx says no more
			t.Errorf("the holder that was ended: got %v", err)
		}
		wantMark(t, e.db, "r", 6)
		if timeout := e.settingOf(db); timeout != 100 {
			t.Errorf("statement_timeout of the session is %d ms afterwards", timeout)
		}
	})
}

// settingOf returns the statement_timeout of one of the DB's sessions.
func (e *env) settingOf(db fence) (ms int64) {
	e.Helper()
	noError(e, db.plain(e.Context(), func(ctx context.Context, tx testTx) (err error) {
		ms, err = tx.int(ctx, "SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout'")
		return err
	}))
	return ms
}
