package sqlfence

import (
	"context"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestOneConnection (P5): inside InTx on a pool of one connection, every call on the
// DB that would wait for the connection of its own caller is refused at once, and the
// error says what to do. The control is the same with two.
func TestOneConnection(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		claim := claimOf("r", 5)
		calls := map[string]func(ctx context.Context, db fence) error{
			"Mark":    func(ctx context.Context, db fence) error { _, err := db.Mark(ctx, "s"); return err },
			"Admit":   func(ctx context.Context, db fence) error { _, err := db.Admit(ctx, claimOf("s", 1)); return err },
			"Raise":   func(ctx context.Context, db fence) error { return db.Raise(ctx, claimOf("s", 1)) },
			"Retire":  func(ctx context.Context, db fence) error { _, err := db.Retire(ctx, time2001); return err },
			"Verify":  func(ctx context.Context, db fence) error { _, err := db.Verify(ctx, Verification{}); return err },
			"Marks":   func(ctx context.Context, db fence) error { _, err := collect(db.Marks(ctx, "")); return err },
			"Migrate": func(ctx context.Context, db fence) error { return db.Migrate(ctx) },
		}
		for conns := 1; conns <= 2; conns++ {
			db := e.on(e.connect(conns), nil)
			noError(t, db.fenced(t.Context(), claim, func(ctx context.Context, _ testTx) error {
				for what, call := range calls {
					if err := call(ctx, db); conns == 1 {
						wantInvalid(t, what, err, "connection", "")
					} else if err != nil {
						t.Errorf("%s, the control: %v", what, err)
					}
				}
				return nil
			}))
			for what, call := range calls {
				if err := call(t.Context(), db); err != nil && guard.ReasonOf(err) != guard.ReasonStale {
					t.Errorf("%s outside of InTx: %v", what, err)
				}
			}
		}
	})
}
