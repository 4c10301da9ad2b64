package sqlfence

import (
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
			db := e.open(nil)
			refused := func(claim guard.Claim, names ...string) {
				for what, call := range e.calls(db, claim, names...) {
					err := call(t.Context())
					if guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "standby") && !strings.Contains(err.Error(), "recovery") && !strings.Contains(err.Error(), "read-only") {
						t.Errorf("%s under token %d: got %v, want ErrUnavailable that says why", what, claim.Token, err)
					}
				}
			}
			refused(claimOf("r", 5), "Mark", "Admit", "InTx", "Raise", "Retire", "Migrate", "Update")
			refused(claimOf("r", 4), "Admit", "InTx")
			refused(claimOf("r", 6), "Admit", "Raise")
			_, err := e.admin.Exec(t.Context(), "SELECT fencepost.enter('r', 5, 'lease-5', 0, 0)")
			if pgerr.State(err) != "25006" || !strings.Contains(err.Error(), "standby") {
				t.Errorf("enter by itself: %v", err)
			}
		})
	}
}
