package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestBackfill: a batch of a worker that was taken over is refused. The control: without
// the fence entries are copied twice.
func TestBackfill(t *testing.T) {
	for fenced, want := range map[bool]string{true: "\n100 entries of 100", false: "\n170 entries of 100"} {
		testkit.CaptureDefault(t)
		t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
		var out bytes.Buffer
		if err := run(t.Context(), &out, fenced); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("fenced %v: %v\n%s", fenced, err, &out)
		}
	}
}
