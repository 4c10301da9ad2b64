package opcmd

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
)

// broken is an issuer with an epoch that fails as it is told to.
type broken struct {
	*memory.Issuer
	err    error
	raised int
}

func (b *broken) RaiseEpoch(context.Context) error { b.raised++; return b.err }

// TestRun: each command does what it says, or nothing at all, and the exit code says
// which.
func TestRun(t *testing.T) {
	t.Parallel()
	server := memory.NewServer()
	held := server.Steal("held", "ada", time.Hour)
	issuer := &broken{Issuer: server.Issuer()}
	failed := func(wrap func(string, guard.Claim, error) error) error {
		return wrap("raise epoch", guard.Claim{}, errors.New("simulated"))
	}
	for _, test := range []struct {
		line   string
		err    error // of RaiseEpoch
		code   int
		says   string
		raised int
	}{
		{"show held", nil, 0, "token     " + held.Token.String(), 0},
		{"show free", nil, 0, `"free" is free`, 0},
		{"advance free 41 --yes", nil, 0, `every later token of "free" is above 41`, 0},
		{"--yes advance held 1000", nil, ExitRefused, "held", 0},
		{"epoch raise --yes", nil, 0, "restart the workers", 1},
		{"epoch raise --yes", failed(guard.Unavailable), ExitUnavailable, "simulated", 1},
		{"epoch raise --yes", failed(guard.OutcomeUnknown), ExitUnknown, "simulated", 1},
		{"epoch raise --yes", failed(guard.Setup), ExitSetup, "simulated", 1},
		{"epoch raise", nil, ExitUsage, "give --yes", 0},
		{"advance free 50", nil, ExitUsage, "give --yes", 0},
		{"epoch", nil, ExitUsage, "1 arguments, not 0", 0},
		{"epoch lower --yes", nil, ExitUsage, `"epoch lower" is not a command`, 0},
		{"advance free x --yes", nil, ExitUsage, `token "x"`, 0},
		{"advance free", nil, ExitUsage, "2 arguments, not 1", 0},
		{"show a\x1b", nil, ExitUsage, `"a\x1b"`, 0},
		{"", nil, ExitUsage, `"" is not a command`, 0},
		{"--nothing", nil, ExitUsage, "not defined", 0},
		{"--help", nil, 0, "advance RESOURCE TOKEN", 0},
	} {
		issuer.err, issuer.raised = test.err, 0
		var out bytes.Buffer
		code := Run(t.Context(), flag.NewFlagSet("fencectl-x", flag.ContinueOnError), strings.Fields(test.line), func() (driver.Issuer, error) { return issuer, nil }, &out, &out)
		if code != test.code || !strings.Contains(out.String(), test.says) || issuer.raised != test.raised {
			t.Errorf("%q: exit code %d, raised %d times, %s", test.line, code, issuer.raised, &out)
		}
	}
	if last := server.Last("free"); last < 41 || last > 49 {
		t.Errorf("the last token is %v", last)
	}
	var out bytes.Buffer
	if code := Run(t.Context(), flag.NewFlagSet("fencectl-x", flag.ContinueOnError), []string{"epoch", "raise", "--yes"}, func() (driver.Issuer, error) { return server.Issuer(), nil }, &out, &out); code != ExitUsage || !strings.Contains(out.String(), "has no epoch") {
		t.Errorf("without an epoch: exit code %d, %s", code, &out)
	}
}

// coded is an error of a PostgreSQL driver.
type coded string

func (c coded) Error() string    { return "SQLSTATE " + string(c) }
func (c coded) SQLState() string { return string(c) }

// TestExit: every reason has its exit code, the one that promises least comes first,
// and each code that is used is in the table that operators read.
func TestExit(t *testing.T) {
	t.Parallel()
	for _, reason := range append(guard.Reasons(), guard.ReasonOther) {
		if _, there := byReason[reason]; !there {
			t.Errorf("%s has no exit code", reason)
		}
	}
	claim := guard.Claim{}
	cause := errors.New("simulated")
	for _, test := range []struct {
		err    error
		code   int
		reason string
	}{
		{cause, ExitOther, "other"},
		{context.DeadlineExceeded, ExitUnavailable, "unavailable"},
		{guard.Unavailable("op", claim, cause), ExitUnavailable, "unavailable"},
		{guard.Unavailable("op", claim, coded("28P01")), ExitNoRights, "no_rights"},
		{guard.Setup("op", claim, cause), ExitSetup, "setup"},
		{guard.Setup("op", claim, coded("42501")), ExitNoRights, "no_rights"},
		{coded("42501"), ExitNoRights, "no_rights"},
		{guard.OutcomeUnknown("op", claim, coded("42501")), ExitUnknown, "outcome_unknown"},
		{errors.Join(driver.ErrHeld, guard.OutcomeUnknown("op", claim, cause)), ExitUnknown, "outcome_unknown"},
		{guard.Invalid("field", "value", "is wrong"), ExitUsage, "invalid"},
		{&guard.RejectedError{Reason: guard.ReasonMissing}, ExitUsage, "invalid"},
		{&guard.RejectedError{Reason: guard.ReasonNotFound}, ExitNotFound, "not_found"},
		{&guard.RejectedError{Reason: guard.ReasonStale}, ExitRefused, "stale"},
		{&driver.HeldError{}, ExitRefused, "held"},
		{&driver.LeaseChangedError{}, ExitRefused, "lease_changed"},
		{&Error{ExitPartial, "partial", guard.Unavailable("op", claim, cause)}, ExitPartial, "partial"},
		{Usage("no %s", "command"), ExitUsage, "usage"},
	} {
		code, reason := Exit(test.err)
		if code != test.code || reason != test.reason {
			t.Errorf("%v: %d, %s; want %d, %s", test.err, code, reason, test.code, test.reason)
		}
		listed := func(e ExitCode) bool {
			return e.Code == code && slices.Contains(e.Reasons, reason)
		}
		if !slices.ContainsFunc(ExitCodes, listed) {
			t.Errorf("%d, %s is not in the table", code, reason)
		}
	}
}
