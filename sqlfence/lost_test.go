package sqlfence

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestLostCommit (P5): a COMMIT whose answer is lost is an unknown outcome,
// whether it took effect or not; the test makes both happen.
func TestLostCommit(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		for what, c := range map[string]struct {
			fate fate
			rows int64
		}{"not forwarded": {cutBefore, 0}, "answer cut": {cutAfter, 1}, "answer withheld": {mute, 1}} {
			e.exec("DROP TABLE IF EXISTS written")
			e.createWritten()
			p, through := e.newProxy()
			db := e.open(&Options{CommitTimeout: 300 * time.Millisecond}, through)
			must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
			p.set(onCommit(c.fate))
			start := time.Now()
			wantReason(t, db.fenced(t.Context(), claimOf("r", 5), write5), guard.ReasonOutcomeUnknown, "%s", what)
			if took := time.Since(start); took > patience/2 { // that of the others
				t.Errorf("%s: it took %v", what, took)
			}
			p.set(nil)
			p.CutAll() // a driver waits for a silent connection before it gives up
			// Once the server is done with the transaction, a successor sees it.
			must(t, e.db.Raise(t.Context(), claimOf("r", 6)))
			if n := e.written(); n != c.rows {
				t.Errorf("%s: %d rows, want %d: the test is not what it says", what, n, c.rows)
			}
			e.exec("DELETE FROM fencepost.marks")
		}
	})
}

// TestLostAnswers: an answer lost before any COMMIT was sent means that nothing
// was written, and is ErrUnavailable; a single statement commits by itself, so
// its lost answer is an unknown outcome.
func TestLostAnswers(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		table := e.table("pairs", []string{"a", "b"}, nil)
		calls := map[string]struct {
			message string
			call    func(ctx context.Context, db fence) error
			want    guard.Reason
		}{
			"begin": {"begin", func(ctx context.Context, db fence) error { return db.fenced(ctx, claimOf("r", 5), nil) }, guard.ReasonUnavailable},
			"enter": {"fencepost.enter", func(ctx context.Context, db fence) error { return db.fenced(ctx, claimOf("r", 5), nil) }, guard.ReasonUnavailable},
			"raise": {"fencepost.raise", func(ctx context.Context, db fence) error { return db.Raise(ctx, claimOf("r", 5)) }, guard.ReasonUnavailable},
			"the commit of a raise": {"commit\x00", func(ctx context.Context, db fence) error { return db.Raise(ctx, claimOf("raised", 5)) },
				guard.ReasonOutcomeUnknown},
			"the commit of a raise in InTx": {"commit\x00", func(ctx context.Context, db fence) error { return db.fenced(ctx, claimOf("r", 5), nil) },
				guard.ReasonUnavailable},
			"mark": {"fencepost.marks", func(ctx context.Context, db fence) error { _, err := db.Mark(ctx, "r"); return err }, guard.ReasonUnavailable},
			"retire": {"fencepost.retire", func(ctx context.Context, db fence) error { _, err := db.Retire(ctx, time2001); return err },
				guard.ReasonUnavailable},
			"the commit of a retirement": {"commit\x00", func(ctx context.Context, db fence) error { _, err := db.Retire(ctx, time2001); return err },
				guard.ReasonOutcomeUnknown},
			"update": {"update", func(ctx context.Context, db fence) error {
				return table.Update(ctx, db, claimOf("r", 5), Key{1, "x"}, Set{"v": "new"})
			}, guard.ReasonOutcomeUnknown},
			"the verdict of an update": {"select", func(ctx context.Context, db fence) error {
				return table.Update(ctx, db, claimOf("r", 5), Key{1, "gone"}, Set{"v": "new"})
			}, guard.ReasonUnavailable},
		}
		for what, c := range calls {
			p, through := e.newProxy()
			db := e.open(nil, through)
			p.set(on(c.message, cutBefore))
			wantReason(t, c.call(t.Context(), db), c.want, "%s", what)
			p.set(nil)
		}
		e.wantText("old0", "the row", "SELECT v || last_fencing_token FROM pairs")
	})
}

// TestCommitIgnoresCancel: a context that ends while the COMMIT is in flight
// does not turn a commit into an unknown outcome.
func TestCommitIgnoresCancel(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		p, through := e.newProxy()
		db := e.open(nil, through)
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		ctx, cancel := context.WithCancel(t.Context())
		commits := onCommit(cutBefore)
		p.set(func(message string) fate {
			if commits(message) != forward {
				cancel()
				time.Sleep(50 * time.Millisecond) // the client has time to give up
			}
			return forward
		})
		if err := db.fenced(ctx, claimOf("r", 5), write5); err != nil || ctx.Err() == nil || e.written() != 1 {
			t.Errorf("%v, %d rows", err, e.written())
		}
	})
}

// TestCancelledWaiting (P5): a context that ends while a call waits for a lock gives
// the connection back, leaves no transaction behind and writes nothing. A single
// statement commits by itself, so that its outcome is unknown, unless the server
// says that it cancelled it.
func TestCancelledWaiting(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		e.begin("SELECT fencepost.raise('r', 6, '', 1000), (SELECT 1 FROM pairs FOR UPDATE)")
		table, claim, key := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer}), claimOf("r", 5), Key{1, "x"}
		for what, c := range map[string]struct {
			call func(ctx context.Context) error
			want guard.Reason
		}{
			"InTx":     {func(ctx context.Context) error { return e.db.fenced(ctx, claim, nil) }, guard.ReasonUnavailable},
			"Raise":    {func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("r", 7)) }, guard.ReasonUnavailable},
			"Update":   {func(ctx context.Context) error { return table.Update(ctx, e.db, claim, key, Set{"v": "new"}) }, guard.ReasonOutcomeUnknown},
			"Upsert":   {func(ctx context.Context) error { return table.Upsert(ctx, e.db, claim, key, Set{"v": "new"}) }, guard.ReasonOutcomeUnknown},
			"Takeover": {func(ctx context.Context) error { return table.Raise(ctx, e.db, claim, key, nil) }, guard.ReasonOutcomeUnknown},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			called := e.start(func(func()) error { return c.call(ctx) })
			if len(called) > 0 {
				t.Errorf("%s does not wait for the lock", what)
			}
			cancel()
			if err := <-called; guard.ReasonOf(err) != c.want && pgerr.State(err) != pgerr.Canceled {
				t.Errorf("%s: got %v, want %s", what, err, c.want)
			}
			e.waitFor("the end of "+what, "SELECT ("+blockedSQL+") = 0")
		}
		e.wantText("old0", "the row", "SELECT v || last_fencing_token FROM pairs")
	})
}

// TestPoolExhausted: no connection in time is ErrUnavailable, nothing sent.
func TestPoolExhausted(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		table := e.table("pairs", []string{"a", "b"}, nil)
		var held [2]func() error
		e.db = e.on(e.connect(len(held)), nil)
		e.createWritten()
		for i := range held {
			held[i] = e.holding(claimOf("r", 5))
		}
		for what, call := range map[string]func(ctx context.Context) error{
			"InTx":  func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("r", 5), nil) },
			"Raise": func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("s", 5)) },
			"Update": func(ctx context.Context) error {
				return table.Update(ctx, e.db, claimOf("r", 5), Key{1, "x"}, Set{"v": "new"})
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			wantReason(t, call(ctx), guard.ReasonUnavailable, "%s", what)
			cancel()
		}
		for _, end := range held {
			noError(t, end())
		}
	})
}
