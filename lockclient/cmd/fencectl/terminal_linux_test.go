package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

var unlockBilling = []string{"force-unlock", "billing", "--actor", "ana", "--reason", "it hangs"}

// On a terminal the destructive commands ask, say whose lease they cut, and do
// nothing without a yes.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	audited := func() int64 { return value[int64](t, pool, "SELECT count(*) FROM fencepost.audit") }
	for _, c := range []struct {
		answer string
		code   int
	}{{"no\n", exitCancelled}, {"\n", exitCancelled}, {"y\n", exitCancelled}, {"\x04", exitCancelled}, {"\x03", exitCancelled}} {
		term := onTerminal(t, url, unlockBilling...)
		term.sees("held by worker-1")
		term.sees(lease.ID())
		term.sees("Without --raise the cut holder may still write")
		term.sees(`Type "yes" to go on: `)
		term.keys(c.answer)
		if code := term.ends(); code != c.code || audited() != 0 {
			t.Errorf("answer %q: exit code %d, %d records\n%s", c.answer, code, audited(), term.screen())
		}
	}
	term := onTerminal(t, url, append(unlockBilling, "--raise")...)
	term.sees(`Type "yes" to go on: `)
	if strings.Contains(term.screen(), "Without --raise") {
		t.Error("the warning is not about --raise")
	}
	for _, part := range []string{"Then raise the mark", "ends sessions of theirs"} {
		if !strings.Contains(term.screen(), part) {
			t.Errorf("the question does not say %q:\n%s", part, term.screen())
		}
	}
	term.keys("yes\n")
	term.sees("invalidated token")
	if code := term.ends(); code != exitOK || audited() != 1 {
		t.Errorf("exit code %d, %d records\n%s", code, audited(), term.screen())
	}
	c := pool.Config().ConnConfig
	for _, args := range [][]string{{"epoch", "raise"}, {"purge"}, {"advance", "billing", "100"}, {"advance", "--floor", "100"}, {"marks", "raise", "billing", "2", "--lease-id", "x", "--above-issuer"}, {"migrate", "--repair"}} {
		term := onTerminal(t, url, args...)
		term.sees(`Type "yes" to go on: `)
		if raise := args[0] == "marks"; raise != (strings.Contains(term.screen(), "lease x") && strings.Contains(term.screen(), "under any other lease ID") && strings.Contains(term.screen(), "ends sessions")) {
			t.Errorf("the question of %q:\n%s", args, term.screen())
		}
		if screen := term.screen(); !strings.Contains(screen, "On "+c.User+"@"+c.Host) || !strings.Contains(screen, "/"+c.Database+":") ||
			args[0] == "migrate" && (!strings.Contains(screen, "Leave sqlfence at version") || !strings.Contains(screen, "Make again each")) {
			t.Errorf("the question of %q:\n%s", args, screen)
		}
		term.keys("no\n")
		if code := term.ends(); code != exitCancelled {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

// Only the lease that the operator has seen is cut: not that of a successor
// that came while the question was open.
func TestConfirmationIsAboutTheLeaseShown(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	seen := hold(t, pool, "worker-1", "billing", time.Hour)
	term := onTerminal(t, url, unlockBilling...)
	term.sees(`Type "yes" to go on: `)
	if err := seen.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	successor := hold(t, pool, "worker-2", "billing", time.Hour)
	term.keys("yes\n")
	term.sees("worker-2")
	if code := term.ends(); code != exitRefused {
		t.Errorf("exit code %d\n%s", code, term.screen())
	}
	if err := successor.Renew(t.Context()); err != nil {
		t.Errorf("the successor lost its lease: %v", err)
	}
}

// On a lock server the question neither advises --raise, which is refused there, nor says what the
// server's own raise may make untrue.
func TestConfirmationOnALockServer(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Hour)
	op := guard.Must(pgadmin.New(pool, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: testkit.Logger(t)}))
	issuer := leasetest.Patient(guard.Must(pglock.New(pool, nil)))
	t.Cleanup(func() { issuer.Close() })
	operator := func(*http.Request) (*lockhttp.Identity, error) {
		return &lockhttp.Identity{Subject: "ada", AllResources: true, Operator: true}, nil
	}
	handler := guard.Must(lockhttp.New(issuer, operator, &lockhttp.Options{Admin: op, Timeout: testkit.Patience, Logger: testkit.Logger(t)}))
	server := httptest.NewServer(handler)
	t.Cleanup(func() { server.Close(); handler.Close(t.Context()) })
	term := onTerminal(t, "", append([]string{"--issuer", "http", "--address", server.URL}, unlockBilling...)...)
	term.sees(`Type "yes" to go on: `)
	if screen := term.screen(); !strings.Contains(screen, "Unless the lock server raises the mark") || strings.Contains(screen, "--raise") {
		t.Errorf("the question:\n%s", screen)
	}
	term.keys("no\n")
	if code := term.ends(); code != exitCancelled {
		t.Errorf("exit code %d", code)
	}
}
