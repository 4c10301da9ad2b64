package pgerr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// states has every SQLSTATE of PostgreSQL 15 (appendix A), those added later,
// this module's own, and some unassigned ones.
var states = strings.Fields(`
00000 01000 01003 01004 01006 01007 01008 0100C 01P01 02000 02001 03000 08000 08001 08003 08004 
08006 08007 08P01 09000 0A000 0B000 0F000 0F001 0L000 0LP01 0P000 0Z000 0Z002 20000 21000 22000 
22001 22002 22003 22004 22005 22007 22008 22009 2200B 2200C 2200D 2200F 2200G 2200H 2200L 2200M 
2200N 2200S 2200T 22010 22011 22012 22013 22014 22015 22016 22018 22019 2201B 2201E 2201F 2201G 
2201W 2201X 22021 22022 22023 22024 22025 22026 22027 2202E 2202G 2202H 22030 22031 22032 22033 
22034 22035 22036 22037 22038 22039 2203A 2203B 2203C 2203D 2203E 2203F 2203G 22P01 22P02 22P03 
22P04 22P05 22P06 23000 23001 23502 23503 23505 23514 23P01 24000 25000 25001 25002 25003 25004 
25005 25006 25007 25008 25P01 25P02 25P03 26000 27000 28000 28P01 2B000 2BP01 2D000 2F000 2F002 
2F003 2F004 2F005 34000 38000 38001 38002 38003 38004 39000 39001 39004 39P01 39P02 39P03 3B000 
3B001 3D000 3F000 40000 40001 40002 40003 40P01 42000 42501 42601 42602 42611 42622 42701 42702 
42703 42704 42710 42712 42723 42725 42803 42804 42809 42830 42846 42883 428C9 42939 42P01 42P02 
42P03 42P04 42P05 42P06 42P07 42P08 42P09 42P10 42P11 42P12 42P13 42P14 42P15 42P16 42P17 42P18 
42P19 42P20 42P21 42P22 44000 53000 53100 53200 53300 53400 54000 54001 54011 54023 55000 55006 
55P02 55P03 55P04 57000 57014 57P01 57P02 57P03 57P04 57P05 58000 58030 58P01 58P02 72000 F0000 
F0001 HV000 HV001 HV002 HV004 HV005 HV006 HV007 HV008 HV009 HV00A HV00B HV00C HV00D HV00J HV00K 
HV00L HV00M HV00N HV00P HV00Q HV00R HV010 HV014 HV021 HV024 HV090 HV091 P0000 P0001 P0002 P0003 
P0004 XX000 XX001 XX002 
25P04 SF001 SF002 SF003 SF004 SF005 SF006 SF007 08S01 57P06 58999 XXZZZ 99999`)

var severities = []string{"", "ERROR", "FATAL", "PANIC"}

// TestReasonIsTheStricter goes through the whole table and compares it with
// what two packages of this module once said separately. One of them went by
// SQLSTATE, the other by severity; if either called an outcome unknown, it
// counts as unknown.
func TestReasonIsTheStricter(t *testing.T) {
	byState := func(state string) bool {
		switch state {
		case "57P03", "57P04", "57P05":
			return false
		case "25P04":
			return true
		}
		return state == "" || strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "58") || strings.HasPrefix(state, "XX")
	}
	bySeverity := func(severity, state string) bool {
		return severity != "ERROR" || strings.HasPrefix(state, "08") || state == "40003" || state == "57P01" || state == "57P02"
	}
	// Stricter than both: an ERROR that says so may come from a pooler.
	stricter := map[string]bool{"57P03": true, "57P04": true, "57P05": true, "57P06": true, "25P03": true}
	for _, state := range append(states, "") {
		for _, severity := range severities {
			said := byState(state) || severity != "" && bySeverity(severity, state) || state == "40003" || stricter[state]
			got := judged(state, severity).at(Commit)
			if (got == guard.ReasonOutcomeUnknown) != said {
				t.Errorf("%s %s at COMMIT: %s", severity, state, got)
			}
			if got := judged(state, severity).at(Work); got == guard.ReasonOutcomeUnknown || got == guard.ReasonNone {
				t.Errorf("%s %s where nothing was to be committed: %q", severity, state, got)
			}
		}
	}
}

// TestReason is the table of answers by what is to be done about them. If a
// COMMIT could have been done, only an ERROR is definite.
func TestReason(t *testing.T) {
	want := map[guard.Reason]string{
		guard.ReasonStale:    "SF001",
		guard.ReasonConflict: "SF002",
		guard.ReasonMissing:  "SF003",
		guard.ReasonSetup:    "28000 28P01 3D000 42501",
		guard.ReasonUnavailable: `25006 25P02 26000 40000 40001 40002 40P01 53000 53100 53200 53300 53400
			55P03 57014 SF004 SF005`,
		guard.ReasonOutcomeUnknown: `08000 08001 08003 08004 08006 08007 08P01 08S01 25P03 25P04 40003 57P01 57P02 57P03 57P04 57P05
			57P06 58000 58030 58999 58P01 58P02 XX000 XX001 XX002 XXZZZ`,
	}
	reasons := map[string]guard.Reason{}
	for reason, of := range want {
		for _, state := range strings.Fields(of) {
			reasons[state] = reason
		}
	}
	for _, state := range states {
		want, listed := reasons[state]
		if !listed {
			want = guard.ReasonOther
		}
		if got := judged(state, "ERROR").at(Commit); got != want {
			t.Errorf("%s at COMMIT: %s, want %s", state, got, want)
		}
		if want == guard.ReasonOutcomeUnknown {
			want = guard.ReasonUnavailable
		}
		if got := judged(state, "ERROR").at(Work); got != want {
			t.Errorf("%s before COMMIT: %s, want %s", state, got, want)
		}
		for _, severity := range []string{"FATAL", "PANIC", "a pooler's own"} {
			if got := judged(state, severity).at(Commit); got != guard.ReasonOutcomeUnknown {
				t.Errorf("%s %s at COMMIT: %s", severity, state, got)
			}
		}
	}
}

type safeError struct{}

func (safeError) Error() string     { return "safe" }
func (safeError) SafeToRetry() bool { return true }

// pqError has the methods of lib/pq's errors.
type pqError map[byte]string

func (e pqError) Error() string         { return e['M'] }
func (e pqError) SQLState() string      { return e['C'] }
func (e pqError) Get(field byte) string { return e[field] }

// TestReasonOfErrors is about the errors that the drivers return.
func TestReasonOfErrors(t *testing.T) {
	_, refused := pgx.Connect(t.Context(), "postgres://127.0.0.1:1/none?sslmode=disable")
	if !errors.As(refused, new(*pgconn.ConnectError)) {
		t.Fatal(refused)
	}
	replan := &pgconn.PgError{Severity: "ERROR", Code: "0A000", Routine: "RevalidateCachedQuery"}
	for _, test := range []struct {
		name         string
		err          error
		commit, work guard.Reason
	}{
		{"nil", nil, guard.ReasonNone, guard.ReasonNone},
		{"connection refused", refused, guard.ReasonUnavailable, guard.ReasonUnavailable},
		{"not sent", fmt.Errorf("x: %w", NotSent(io.EOF)), guard.ReasonUnavailable, guard.ReasonUnavailable},
		{"safe to retry", safeError{}, guard.ReasonUnavailable, guard.ReasonUnavailable},
		{"closed while waiting", pgconn.ErrConnClosed, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{"lost", io.ErrUnexpectedEOF, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{"given up", context.DeadlineExceeded, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{"translated", &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "23505"}, guard.ReasonOther, guard.ReasonOther},
		{"translated FATAL", &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "FATAL", Code: "23505"}, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{"before 9.6", &pgconn.PgError{Severity: "ERROR", Code: "55P03"}, guard.ReasonUnavailable, guard.ReasonUnavailable},
		{"replanned", replan, guard.ReasonUnavailable, guard.ReasonUnavailable},
		{"not supported", &pgconn.PgError{Severity: "ERROR", Code: "0A000"}, guard.ReasonOther, guard.ReasonOther},
		{"too few arguments", &pgconn.PgError{Severity: "ERROR", Code: "08P01", File: "postgres.c"}, guard.ReasonOther, guard.ReasonOther},
		{"a broken protocol", &pgconn.PgError{Severity: "FATAL", Code: "08P01", File: "pqcomm.c"}, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{"no such database in the pooler", NotSent(&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "no such database: gone"}), guard.ReasonSetup, guard.ReasonSetup},
		{"lib/pq", pqError{'C': "23505", 'S': "ERROR"}, guard.ReasonOther, guard.ReasonOther},
		{"lib/pq FATAL", pqError{'C': "23505", 'S': "FEHLER", 'V': "FATAL"}, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
	} {
		if got := Reason(test.err, Commit); got != test.commit {
			t.Errorf("%s at COMMIT: %q, want %q", test.name, got, test.commit)
		}
		if got := Reason(test.err, Work); got != test.work {
			t.Errorf("%s before COMMIT: %q, want %q", test.name, got, test.work)
		}
	}
	if Standby(replan) || !Standby(&pgconn.PgError{Code: "0A000"}) || Contention(io.EOF) || !Contention(&pgconn.PgError{Code: "55P03"}) ||
		Undefined(replan) || !Undefined(&pgconn.PgError{Code: "3F000"}) {
		t.Error("a predicate is wrong")
	}
}

// TestQueuedInPgBouncer: what PgBouncer says to a client that waited for a connection was
// not passed on. Any other error of that class, and the server's own with those words,
// leaves the outcome unknown.
func TestQueuedInPgBouncer(t *testing.T) {
	for _, c := range []struct {
		message, file string
		want          guard.Reason
	}{
		{"server login has been failing, cached error: connect failed (server_login_retry)", "", guard.ReasonUnavailable},
		{"server login has been failing, try again later (server_login_retry)", "", guard.ReasonUnavailable},
		{"query_wait_timeout", "", guard.ReasonUnavailable},
		{"server login has been failing, try again later", "postgres.c", guard.ReasonOutcomeUnknown},
		{"transaction blocks not allowed in statement pooling mode", "", guard.ReasonSetup},
		{"no such database: gone", "", guard.ReasonSetup},
		{"server conn crashed?", "", guard.ReasonOutcomeUnknown},
	} {
		err := &pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: c.message, File: c.file}
		if got := Reason(err, Commit); got != c.want {
			t.Errorf("%q: %s, want %s", c.message, got, c.want)
		}
	}
}
