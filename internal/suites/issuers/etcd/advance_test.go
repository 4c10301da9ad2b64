package etcd_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestP3AdvanceNearTheHighestToken: Advance leaves room for the revisions to come.
// A base that has none is never lowered, and nothing
// is granted above it.
func TestP3AdvanceNearTheHighestToken(t *testing.T) {
	const most = guard.Token(1<<62 - 1)
	addr, _ := startNode(t, t.TempDir())
	i, c := issuer(t, addr), connect(t, addr)
	for _, above := range []guard.Token{most + 1, guard.MaxToken, guard.MaxToken + 1, 0, -1} {
		if reached, err := i.Advance(t.Context(), "r", above); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Advance(%v) = %v, %v; want ErrInvalid", above, reached, err)
		}
	}
	if reached, err := i.Advance(t.Context(), "r", most); err != nil || reached != most {
		t.Errorf("Advance(%v) = %v, %v", most, reached, err)
	}
	if got := acquire(t, i, "r", "a"); got.Token <= most {
		t.Errorf("token %v after Advance to %v", got.Token, most)
	}
	top := (guard.MaxToken - 1).String()
	if _, err := c.Put(t.Context(), "fencepost/base", top); err != nil {
		t.Fatal(err)
	}
	if reached, err := i.Advance(t.Context(), "full", 1000); err != nil || reached != guard.MaxToken {
		t.Errorf("Advance(1000) at the top = %v, %v; want %v", reached, err, guard.MaxToken)
	}
	if got, err := c.Get(t.Context(), "fencepost/base"); err != nil || string(got.Kvs[0].Value) != top {
		t.Errorf("the base was %s and is %v", top, got)
	}
	i = issuer(t, addr) // another process, which reads the base
	for range 2 {       // also under an ID that has been refused before
		if g, err := i.Acquire(t.Context(), ask("full", "a")); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "exhausted") {
			t.Errorf("above the highest token: %v, %v", g.Token, err)
		}
	}
	if _, err := i.Acquire(t.Context(), ask("full", "b")); !strings.Contains(err.Error(), "exhausted") {
		t.Errorf("a refused acquire left a lease: %v", err)
	}
}
