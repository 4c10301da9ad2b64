package opcmd

import (
	"bytes"
	"context"
	"errors"
	"flag"
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
		{"--yes advance held 1000", nil, exitRefused, "held", 0},
		{"epoch raise --yes", nil, 0, "restart the workers", 1},
		{"epoch raise --yes", failed(guard.Unavailable), exitUnavailable, "simulated", 1},
		{"epoch raise --yes", failed(guard.OutcomeUnknown), exitUnknown, "simulated", 1},
		{"epoch raise --yes", failed(guard.Setup), exitSetup, "simulated", 1},
		{"epoch raise", nil, exitUsage, "give --yes", 0},
		{"advance free 50", nil, exitUsage, "give --yes", 0},
		{"epoch", nil, exitUsage, "1 arguments, not 0", 0},
		{"epoch lower --yes", nil, exitUsage, `"epoch lower" is not a command`, 0},
		{"advance free x --yes", nil, exitUsage, `token "x"`, 0},
		{"advance free", nil, exitUsage, "2 arguments, not 1", 0},
		{"show a\x1b", nil, exitUsage, `"a\x1b"`, 0},
		{"", nil, exitUsage, `"" is not a command`, 0},
		{"--nothing", nil, exitUsage, "not defined", 0},
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
	if code := Run(t.Context(), flag.NewFlagSet("fencectl-x", flag.ContinueOnError), []string{"epoch", "raise", "--yes"}, func() (driver.Issuer, error) { return server.Issuer(), nil }, &out, &out); code != exitUsage || !strings.Contains(out.String(), "has no epoch") {
		t.Errorf("without an epoch: exit code %d, %s", code, &out)
	}
}
