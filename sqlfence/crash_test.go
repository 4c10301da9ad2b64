package sqlfence

import (
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestServerKilled (P5): a server that dies in the middle of an update, an
// enter, a raise and a COMMIT: never a success, an unknown outcome where
// something may have been committed, and the marks are there after it.
func TestServerKilled(t *testing.T) {
	s := mortalServer(t)
	for i := range openers {
		t.Run(openers[i].driver, func(t *testing.T) {
			e := newEnvOn(t, i, s)
			e.createPairs()
			e.createWritten()
			// A slow COMMIT, and a locked row and a locked resource.
			e.exec(`INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old');
				CREATE TABLE slow (id int);
				CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NULL; END';
				CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleep()`)
			for _, resource := range []string{"committing", "survives"} {
				must(t, e.db.Raise(t.Context(), claimOf(resource, 5)))
			}
			e.begin("SELECT fencepost.raise('locked', 5, 'other', 1000), (SELECT 1 FROM pairs FOR UPDATE)")
			table := e.table("pairs", []string{"a", "b"}, nil)
			calls := map[string]struct {
				call func(ctx context.Context) error
				want guard.Reason
			}{
				"update": {func(ctx context.Context) error {
					return table.Update(ctx, e.db, claimOf("r", 5), Key{1, "x"}, Set{"v": "new"})
				}, guard.ReasonOutcomeUnknown},
				"enter": {func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("locked", 5), nil) }, guard.ReasonUnavailable},
				"raise": {func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("locked", 6)) }, guard.ReasonUnavailable},
				"commit": {func(ctx context.Context) error {
					return e.db.fenced(ctx, claimOf("committing", 5), running("INSERT INTO slow VALUES (1)"))
				}, guard.ReasonOutcomeUnknown},
			}
			type result struct {
				what string
				err  error
			}
			results := make(chan result, len(calls))
			for what, c := range calls {
				go func() { results <- result{what, c.call(context.Background())} }()
			}
			e.waitFor("the calls", `SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')`, len(calls))
			must(t, s.Kill())
			for range calls {
				select {
				case r := <-results:
					if guard.ReasonOf(r.err) != calls[r.what].want {
						t.Errorf("%s: got %v, want %s", r.what, r.err, calls[r.what].want)
					}
				case <-time.After(patience):
					t.Fatal("a call hangs")
				}
			}
			for what, call := range e.calls(e.db, claimOf("r", 5), "InTx", "Raise", "Update") {
				wantReason(t, call(t.Context()), guard.ReasonUnavailable, "%s on a server that is down", what)
			}
			restart(t, s, e)
			e.wantInt(0, "writes are there", "SELECT (SELECT count(*) FROM slow) + (SELECT count(*) FROM pairs WHERE v <> 'old')")
			if mark, err := e.open(nil).Mark(t.Context(), "survives"); err != nil || mark.Token != 5 {
				t.Errorf("the mark is %+v, %v", mark, err)
			}
		})
	}
}

// TestLockTimeout: a statement of the callback that waits too long for a row
// is the callback's error; an update by itself is ErrUnavailable.
func TestLockTimeout(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		e.begin("SELECT 1 FROM pairs FOR UPDATE")
		table := e.table("pairs", []string{"a", "b"}, nil)
		db := e.open(&Options{LockTimeout: 30 * time.Millisecond})
		err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			return table.Update(ctx, tx.in(), claimOf("r", 5), Key{1, "x"}, Set{"v": "new"})
		})
		if guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != "55P03" {
			t.Errorf("got %v, want ErrUnavailable with SQLSTATE 55P03", err)
		}
	})
}
