package sqlfence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestStandby (P5): a standby's marks lag behind the primary's and its locks
// are its own, so everything except the refusal of malformed input is
// ErrUnavailable there, including reads.
func TestStandby(t *testing.T) {
	s := mortalServer(t)
	envs := make([]*env, len(openers))
	for i := range openers {
		envs[i] = newEnvOn(t, i, s)
		envs[i].createPairs()
		envs[i].exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		must(t, envs[i].db.Raise(t.Context(), claimOf("r", 5)))
	}
	must(t, s.StopFast())
	// From its own data it starts as a standby without a primary.
	standby := filepath.Join(s.Dir(), "data", "standby.signal")
	must(t, os.WriteFile(standby, nil, 0o644))
	t.Cleanup(func() {
		must(t, errors.Join(s.StopFast(), os.Remove(standby)))
		restart(t, s)
	})
	restart(t, s, envs...)
	for _, e := range envs {
		t.Run(e.driver, func(t *testing.T) {
			db, table := e.open(nil), e.table("pairs", []string{"a", "b"}, nil)
			never := func(context.Context, testTx) error { t.Error("the callback ran"); return nil }
			for what, err := range map[string]error{
				"Mark":         func() error { _, err := db.Mark(t.Context(), "r"); return err }(),
				"Admit":        func() error { _, err := db.Admit(t.Context(), claimOf("r", 5)); return err }(),
				"stale Admit":  func() error { _, err := db.Admit(t.Context(), claimOf("r", 4)); return err }(),
				"higher Admit": func() error { _, err := db.Admit(t.Context(), claimOf("r", 6)); return err }(),
				"InTx":         db.fenced(t.Context(), claimOf("r", 5), never),
				"stale InTx":   db.fenced(t.Context(), claimOf("r", 4), never),
				"Raise":        db.Raise(t.Context(), claimOf("r", 5)),
				"higher Raise": db.Raise(t.Context(), claimOf("r", 6)),
				"Retire":       func() error { _, err := db.Retire(t.Context(), time2001); return err }(),
				"Migrate":      db.Migrate(t.Context()),
				"Update":       table.Update(t.Context(), db, claimOf("r", 5), Key{1, "x"}, Set{"v": "new"}),
			} {
				if guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "standby") && !strings.Contains(err.Error(), "recovery") && !strings.Contains(err.Error(), "read-only") {
					t.Errorf("%s: got %v, want ErrUnavailable that says why", what, err)
				}
			}
			_, err := e.admin.Exec(t.Context(), "SELECT fencepost.enter('r', 5, 'lease-5', 0, 0)")
			if pgerr.State(err) != "25006" || !strings.Contains(err.Error(), "standby") {
				t.Errorf("enter by itself: %v", err)
			}
		})
	}
}
