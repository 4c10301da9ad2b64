package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestMain lets the test binary be the program.
func TestMain(m *testing.M) {
	if os.Getenv("DATABASE_URL") != "" && os.Getenv("QUICKSTART") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const want = `token 1  database: <nil>
token 1  ledger:   <nil>
token 2  database: <nil>
token 2  ledger:   <nil>
token 1  database: fencepost: stale fencing token: token 1 for "acme:billing-close:2026-04", the mark is 2
token 1  ledger:   fencepost: stale fencing token: token 1 for "acme:billing-close:2026-04"
`

// The program prints what the README says that it prints.
func TestOutput(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "QUICKSTART=1", "DATABASE_URL="+pgtest.Database(t))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if string(out) != want {
		t.Errorf("got\n%s", out)
	}
}
