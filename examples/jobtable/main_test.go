package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestJobTable: an attempt that was taken over writes nothing. The control: without the
// fence it writes an invoice twice.
func TestJobTable(t *testing.T) {
	for fenced, want := range map[bool]string{true: "\n2 invoices for 2 customers", false: "\n3 invoices for 2 customers"} {
		testkit.CaptureDefault(t)
		t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
		var out bytes.Buffer
		if err := run(t.Context(), &out, fenced); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("fenced %v: %v\n%s", fenced, err, &out)
		}
	}
}
