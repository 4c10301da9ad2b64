//go:build unix

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestMain lets the test binary be the first worker.
func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestRiver (P1, P2): the attempt that River's rescue has overtaken writes nothing,
// and each customer gets one invoice.
func TestRiver(t *testing.T) {
	t.Parallel()
	checkStory(t, true, `worker a, attempt 1, alice and bob: written
worker a is stopped; River rescues its job
worker b, attempt 2, carol: written
worker a continues
worker a, attempt 1, carol and dave: refused, stale
worker b is at work, the job is retryable
worker b, attempt 2, dave: written
invoices: alice, bob, carol, dave
`)
}

// TestRiverControl: without the fence both attempts write, and the first completes
// the job under the second.
func TestRiverControl(t *testing.T) {
	t.Parallel()
	checkStory(t, false, `worker a, attempt 1, alice and bob: written
worker a is stopped; River rescues its job
worker b, attempt 2, carol: written
worker a continues
worker a, attempt 1, carol and dave: written
worker b is at work, the job is completed
worker b, attempt 2, dave: written
invoices: alice, bob, carol, carol, dave, dave
`)
}

func checkStory(t *testing.T, fenced bool, want string) {
	var out strings.Builder
	if err := run(t.Context(), pgtest.Pool(t), fenced, &out); err != nil {
		t.Errorf("%v", err)
	}
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
