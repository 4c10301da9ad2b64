package sqlfence

import (
	"context"
	"testing"
)

// TestOneConnection (P5): inside InTx on a pool of one connection, every call on the
// DB that would wait for the connection of its own caller is refused at once, and the
// error says what to do. The control is the same with two.
func TestOneConnection(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for conns := 1; conns <= 2; conns++ {
			db := e.on(e.connect(conns), nil)
			calls := e.calls(db, claimOf("s", 5), "Mark", "Admit", "Raise", "Retire", "Verify", "Marks", "Migrate")
			noError(t, db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, _ testTx) error {
				for what, call := range calls {
					if err := call(ctx); conns == 1 {
						wantInvalid(t, what, err, "connection", "")
					} else {
						noError(t, err, "%s, the control", what)
					}
				}
				return nil
			}))
			for what, call := range calls {
				noError(t, call(t.Context()), "%s outside of InTx", what)
			}
		}
	})
}
