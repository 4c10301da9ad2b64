package pglease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

type safeError struct{}

func (safeError) Error() string     { return "safe" }
func (safeError) SafeToRetry() bool { return true }

// TestFailure is the table of what an error proves.
func TestFailure(t *testing.T) {
	pg := func(severity, code string) error {
		return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code}
	}
	_, refused := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/none?sslmode=disable")
	var connect *pgconn.ConnectError
	if !errors.As(refused, &connect) {
		t.Fatal(refused)
	}
	for _, test := range []struct {
		name    string
		err     error
		unknown bool
	}{
		{"serialization failure", pg("ERROR", "40001"), false},
		{"deadlock", pg("ERROR", "40P01"), false},
		{"lock timeout", pg("ERROR", "55P03"), false},
		{"statement timeout", pg("ERROR", "57014"), false},
		{"out of memory", pg("ERROR", "53200"), false},
		{"read-only", pg("ERROR", "25006"), false},
		{"no table", pg("ERROR", "42P01"), false},
		{"no right", pg("ERROR", "42501"), false},
		{"localized", &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "55P03"}, false},
		{"old server", &pgconn.PgError{Severity: "ERROR", Code: "55P03"}, false},
		{"wrapped", fmt.Errorf("x: %w", pg("ERROR", "55P03")), false},
		{"connection refused", refused, false},
		{"nothing sent", safeError{}, false},
		{"waiting for a connection", Harmless(context.DeadlineExceeded), false},
		{"refused and then broken", Harmless(io.ErrUnexpectedEOF), false},

		{"administrator", pg("FATAL", "57P01"), true},
		{"crash", pg("FATAL", "57P02"), true},
		{"administrator, not fatal", pg("ERROR", "57P01"), true},
		{"idle in transaction", pg("FATAL", "25P03"), true},
		{"panic", pg("PANIC", "XX000"), true},
		{"pooler lost its server", pg("ERROR", "08006"), true},
		{"resolution unknown", pg("ERROR", "08007"), true},
		{"completion unknown", pg("ERROR", "40003"), true},
		{"system error", pg("ERROR", "58030"), true},
		{"internal error", pg("ERROR", "XX000"), true},
		{"localized fatal", &pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "55P03"}, true},
		{"closed", io.ErrUnexpectedEOF, true},
		{"no answer in time", context.DeadlineExceeded, true},
		{"unreadable answer", errors.New("cannot scan"), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := guard.ReasonUnavailable
			if test.name == "no table" || test.name == "no right" {
				want = guard.ReasonSetup
			}
			if test.unknown {
				want = guard.ReasonOutcomeUnknown
			}
			claim := guard.Claim{Resource: "r", LeaseID: "id"}
			err := Failure("acquire", claim, test.err)
			var failed *guard.FailedError
			if guard.ReasonOf(err) != want || !errors.Is(err, test.err) || !errors.As(err, &failed) || failed.Claim != claim {
				t.Errorf("got %v", err)
			}
		})
	}
	if Failure("acquire", guard.Claim{}, nil) != nil {
		t.Error("success is a failure")
	}
}
