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

// The program prints what the README says that it prints.
func TestOutput(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "QUICKSTART=1", "DATABASE_URL="+pgtest.Database(t))
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, err := os.ReadFile("output.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != string(want) {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}
