package zk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestP3BaseOfARestoredSnapshot: a base is lost with a restored snapshot, and RaiseEpoch
// replaces it by another. A process that has the lost one in memory grants nothing from it,
// though as many changes were made as before: it refuses, or grants above what others were
// granted since.
func TestP3BaseOfARestoredSnapshot(t *testing.T) {
	for name, above := range map[string]guard.Token{
		"raised above the lost one": 1 << 36,
		"raised below the lost one": 1 << 50,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			z := startServers(t, 1)
			running, other := issuer(t, nil, z.Addrs()...), issuer(t, nil, z.Addrs()...)
			held := acquire(t, other, "held", "a")
			free(t, running, acquire(t, running, "r", "a"))
			saved := filepath.Join(t.TempDir(), "saved")
			z.Nodes[0].Kill()
			if err := os.CopyFS(saved, os.DirFS(z.Dirs[0])); err != nil {
				t.Fatal(err)
			}
			z.Nodes[0].Start()
			// repeat calls f while there is no connection.
			repeat := func(f func() error) error {
				for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
					err := f()
					if !errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, guard.ErrOutcomeUnknown) || time.Since(began) > testkit.Patience {
						return err
					}
				}
			}
			ask := func(resource, id string) (g driver.Grant, err error) {
				err = repeat(func() error { g, err = running.Acquire(t.Context(), ask(resource, id)); return err })
				return g, err
			}
			if err := repeat(func() error { _, err := other.Advance(t.Context(), "other", held.Token+above); return err }); err != nil {
				t.Fatal(err)
			}
			if g, err := ask("held", "b"); !errors.Is(err, driver.ErrHeld) { // it learns the base
				t.Fatal(g, err)
			}
			z.Nodes[0].Kill()
			if err := errors.Join(os.RemoveAll(z.Dirs[0]), os.CopyFS(z.Dirs[0], os.DirFS(saved))); err != nil {
				t.Fatal(err)
			}
			z.Nodes[0].Start()
			fresh := issuer(t, nil, z.Addrs()...)
			if err := repeat(func() error { _, err := fresh.RaiseEpoch(t.Context()); return err }); err != nil {
				t.Fatal(err)
			}
			last := acquire(t, fresh, "r", "b")
			free(t, fresh, last)
			g, err := ask("r", "c")
			if err == nil && g.Token <= last.Token || err != nil && !errors.Is(err, guard.ErrMarkAhead) {
				t.Errorf("the running process: token %v after %v, %v", g.Token, last.Token, err)
			}
			if lost := above > 1<<40; lost && err == nil {
				t.Errorf("the base went back, and the running process is granted token %v", g.Token)
			}
		})
	}
}
