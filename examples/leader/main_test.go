package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

func TestStory(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), &out, true); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, line := range []string{
		"worker-1 leads with token 1", "worker-2 leads with token 2", "worker-3 leads with token 4", // 3 was invalidated
		"worker-2 writes the schedule under token 2: fencepost: stale fencing token",
		"FENCED: 3 leaders, the stale write was refused, the schedule is by worker-3",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the story does not say %q:\n%s", line, &out)
		}
	}
}

// The control: without the fence the stale write is applied.
func TestUnfenced(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), &out, false); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if want := "UNFENCED: 3 leaders, the stale write was applied, the schedule is by worker-2"; !strings.Contains(out.String(), want) {
		t.Errorf("the story does not say %q:\n%s", want, &out)
	}
}
