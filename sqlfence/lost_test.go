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
		for what, c := range map[string]struct {
			message, call string
			want          guard.Reason
		}{
			"begin":                         {"begin", "InTx", guard.ReasonUnavailable},
			"enter":                         {"fencepost.enter", "InTx", guard.ReasonUnavailable},
			"raise":                         {"fencepost.raise", "Raise", guard.ReasonUnavailable},
			"the commit of a raise":         {"commit\x00", "Raise", guard.ReasonOutcomeUnknown},
			"the commit of a raise in InTx": {"commit\x00", "InTx", guard.ReasonUnavailable},
			"mark":                          {"fencepost.marks", "Mark", guard.ReasonUnavailable},
			"retire":                        {"fencepost.retire", "Retire", guard.ReasonUnavailable},
			"the commit of a retirement":    {"commit\x00", "Retire", guard.ReasonOutcomeUnknown},
			"update":                        {"update", "Update", guard.ReasonOutcomeUnknown},
		} {
			p, through := e.newProxy()
			p.set(on(c.message, cutBefore))
			wantReason(t, e.calls(e.open(nil, through), claimOf("r", 5))[c.call](t.Context()), c.want, what)
			p.set(nil)
		}
		p, through := e.newProxy()
		p.set(on("select", cutBefore))
		gone := e.table("pairs", []string{"a", "b"}, nil).Update(t.Context(), e.open(nil, through), claimOf("r", 5), Key{1, "gone"}, Set{"v": "new"})
		wantReason(t, gone, guard.ReasonUnavailable, "the verdict of an update")
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
		e.createWritten()
		var held [2]func() error
		e.db = e.on(e.connect(len(held)), nil)
		for i := range held {
			held[i] = e.holding(claimOf("r", 5))
		}
		for what, call := range e.calls(e.db, claimOf("r", 5), "InTx", "Raise", "Update") {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			wantReason(t, call(ctx), guard.ReasonUnavailable, what)
			cancel()
		}
		for _, end := range held {
			noError(t, end())
		}
	})
}
