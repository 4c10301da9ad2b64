package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestKubernetes: the late write of a leader that was cut off is refused. The control: without
// the fence it replaces the newer balance.
func TestKubernetes(t *testing.T) {
	for fenced, want := range map[bool]string{true: "the balance is 150", false: "the balance is 100, the payments are 150"} {
		testkit.CaptureDefault(t)
		t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
		var out bytes.Buffer
		if err := run(t.Context(), &out, fenced); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("fenced %v: %v\n%s", fenced, err, &out)
		}
	}
}
