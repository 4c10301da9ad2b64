package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestEffects: run fails unless each way pays as often as it should. The controls are the
// plain request and the one that was on its way, which pay twice.
func TestEffects(t *testing.T) {
	testkit.CaptureDefault(t)
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil || strings.Count(out.String(), "paid 2 times") != 2 {
		t.Errorf("%v\n%s", err, &out)
	}
}
