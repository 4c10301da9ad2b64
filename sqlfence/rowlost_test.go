package sqlfence

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestLostRows (P5): in every exec mode of pgx, a statement on rows whose
// answer is lost is an unknown outcome and is sent once. The row counts the
// writes.
func TestLostRows(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec(`CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := OLD.n + 1; RETURN NEW; END';
			CREATE TRIGGER counts BEFORE UPDATE ON pairs FOR EACH ROW EXECUTE FUNCTION counts()`)
		table := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer})
		claim, key := claimOf("r", 5), Key{1, "x"}
		calls := map[string]func(q Querier) error{
			"Upsert":   func(q Querier) error { return table.Upsert(t.Context(), q, claim, key, Set{"v": "new"}) },
			"Takeover": func(q Querier) error { var v string; return table.Raise(t.Context(), q, claim, key, Dest{"v": &v}) },
		}
		for _, mode := range e.execModes() {
			for way, call := range calls {
				e.exec("TRUNCATE pairs; INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
				p, through := e.newProxy()
				db := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
				if err := call(db); err != nil { // the control, and the statement is prepared
					t.Fatalf("%s, %v: %v", way, mode, err)
				}
				executed, cut := false, false
				p.set(func(message string) fate {
					executed = executed || message[0] == 'E'
					last := message[0] == 'S' && executed || message[0] == 'Q' && strings.Contains(message, "pairs")
					if cut || !last {
						return forward
					}
					cut = true // a repeated statement would get through
					return cutAfter
				})
				wantReason(t, call(db), guard.ReasonOutcomeUnknown, "%s, %v", way, mode)
				p.set(nil)
				e.waitFor("the row", "SELECT n >= 2 FROM pairs")
				if n := e.int("SELECT n FROM pairs"); n != 2 {
					t.Errorf("%s, %v: the statement was sent %d times", way, mode, n-1)
				}
			}
		}
	})
}

// TestCancelledRows (P5): a context that is over before anything is sent is
// ErrUnavailable, one that ends while the statement waits is an unknown
// outcome, and none of them writes.
func TestCancelledRows(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		table := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer})
		tx := e.begin("SELECT 1 FROM pairs FOR UPDATE")
		claim, key := claimOf("r", 5), Key{1, "x"}
		for way, call := range map[string]func(ctx context.Context) error{
			"Upsert":   func(ctx context.Context) error { return table.Upsert(ctx, e.db, claim, key, Set{"v": "new"}) },
			"Takeover": func(ctx context.Context) error { return table.Raise(ctx, e.db, claim, key, nil) },
		} {
			over, cancel := context.WithCancel(t.Context())
			cancel()
			wantReason(t, call(over), guard.ReasonUnavailable, "%s under a context that is over", way)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			e.waitForBlocked(1)
			cancel()
			if err := <-done; guard.ReasonOf(err) != guard.ReasonOutcomeUnknown && pgerr.State(err) != "57014" {
				t.Errorf("%s, cancelled while it waits: %v", way, err)
			}
			e.waitFor("the end of "+way, "SELECT ("+blockedSQL+") = 0")
		}
		must(t, tx.Rollback(t.Context()))
		e.wantInt(1, "something was written", "SELECT count(*) FROM pairs WHERE v = 'old' AND last_fencing_token = 0")
	})
}
