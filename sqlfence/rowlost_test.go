package sqlfence

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestLostRows (P5, P6): in every exec mode of pgx, a statement on rows whose
// answer is lost is an unknown outcome and is sent once: a driver that repeats
// it would write twice, or mistake its own write for another's. The row counts the
// writes.
func TestLostRows(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec(`CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := OLD.n + 1; RETURN NEW; END';
			CREATE TRIGGER counts BEFORE UPDATE ON pairs FOR EACH ROW EXECUTE FUNCTION counts()`)
		table := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer})
		claim, key := claimOf("r", 5), Key{1, "x"}
		calls := map[string]func(q Querier) error{
			"Update":   func(q Querier) error { return table.Update(t.Context(), q, claim, key, Set{"v": "new"}) },
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
					executed = executed || message[0] == 'E' // Execute; a Sync follows
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
				e.wantInt(2, way+", "+mode.String()+": how often the statement was sent, with the control", "SELECT n FROM pairs")
			}
		}
	})
}
