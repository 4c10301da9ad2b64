package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// proxied returns the database's URL through a proxy.
func proxied(t *testing.T, database string) (string, *faultproxy.Proxy) {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New("tcp", u.Host, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	u.Host = proxy.Addr()
	return u.String(), proxy
}

// lossy returns the database's URL through a proxy that forwards everything to the
// server and, on a connection on which the client has sent a given word, gives every
// response the fate. lost is how often the word was sent.
func lossy(t *testing.T, database, word string, fate faultproxy.Fate) (at string, lost *atomic.Int64) {
	t.Helper()
	at, proxy := proxied(t, database)
	lost = &atomic.Int64{}
	var silent sync.Map // the connections
	proxy.Set(func(m *faultproxy.Message) {
		if _, quiet := silent.Load(m.Conn); m.Answer && quiet {
			m.Fate = fate
		} else if !m.Answer && bytes.Contains(m.Data, []byte(word)) {
			silent.Store(m.Conn, true)
			lost.Add(1)
		}
	})
	return at, lost
}

// P5: a force-unlock whose answer is lost is neither success nor failure: the
// exit code says that the outcome is not known, and the message how to find out.
// Repeating it as the message says cuts nobody a second time.
func TestP5ForceUnlockOutcomeUnknown(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Hour)
	unlock := []string{"force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--yes", "-o", "json"}
	var r result
	for timeout := 1500 * time.Millisecond; ; timeout *= 4 {
		at, count := lossy(t, database, "fencepost.force_unlock(", faultproxy.Cut)
		r = fencectl(t, at, append(unlock, "--timeout", timeout.String())...)
		lost := count.Load()
		if lost >= 2 {
			break
		}
		// A busy machine does not get that far in the time.
		if timeout > testkit.Patience {
			t.Fatalf("%d answers were lost within %v: nothing was repeated", lost, timeout)
		}
		exec1(t, pool, "DELETE FROM fencepost.leases")
		exec1(t, pool, "ALTER TABLE fencepost.audit DISABLE TRIGGER USER")
		exec1(t, pool, "TRUNCATE fencepost.audit")
		exec1(t, pool, "ALTER TABLE fencepost.audit ENABLE TRIGGER USER")
		hold(t, pool, "worker-1", "billing", time.Hour)
	}
	var said struct {
		Code            int
		Reason, Message string
	}
	if err := json.Unmarshal([]byte(r.errOut), &said); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	id := regexp.MustCompile(`--request-id (\S+),`).FindStringSubmatch(said.Message)
	if r.code != exitUnknown || said.Code != exitUnknown || said.Reason != "outcome_unknown" || r.out != "" || id == nil {
		t.Fatalf("%+v", r)
	}
	out := must(t, database, append(unlock, "--request-id", id[1])...)
	var done unlocked
	if err := json.Unmarshal([]byte(out), &done); err != nil || !done.Repeated || done.Invalidated.LeaseID != id[1] {
		t.Errorf("%v: %s", err, out)
	}
	if n := value[int64](t, pool, "SELECT count(*) FROM fencepost.audit"); n != 1 {
		t.Errorf("%d records", n)
	}
	// The control: with a proxy that loses nothing the command succeeds.
	hold(t, pool, "worker-2", "billing", time.Hour)
	at, _ := lossy(t, database, "no such word", faultproxy.Cut)
	must(t, at, unlock...)
}

// P5: a force-unlock that cuts and does not learn whether the mark was raised says so,
// with the exit code of an unknown outcome: it does not say that the mark was not
// raised. The command that it prints settles it. The control is a mark that cannot be
// raised (TestForceUnlockThatCannotRaise).
func TestP5RaiseOutcomeUnknown(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	for timeout := 1500 * time.Millisecond; ; timeout *= 4 {
		hold(t, pool, "worker-1", "billing", time.Hour)
		at, lost := lossy(t, database, "commit\x00", faultproxy.Cut)
		r := fencectl(t, at, "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--yes", "--timeout", timeout.String())
		if lost.Load() == 0 { // a busy machine does not get that far in the time
			if timeout > testkit.Patience {
				t.Fatalf("nothing was lost within %v: %+v", timeout, r)
			}
			exec1(t, pool, "UPDATE fencepost.leases SET lease_id = NULL")
			continue
		}
		_, again, found := strings.Cut(strings.TrimSpace(r.errOut), "go on with: fencectl ")
		if r.code != exitUnknown || strings.Contains(r.errOut, "not raised") || !found {
			t.Fatalf("%+v", r)
		}
		must(t, database, append(strings.Fields(again), "--yes")...)
		return
	}
}

// The program gives up after --timeout if the server stops answering, at
// whatever statement.
func TestServerThatStopsAnswering(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Hour)
	if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: "old", Token: 1}); err != nil {
		t.Fatal(err)
	}
	for word, args := range map[string][]string{
		"-- ping":              {"doctor"},
		"fencepost.migrations": {"list"},
		"FROM fencepost.marks": {"marks", "list"},
		"marks":                {"marks", "retire", "--older-than", "1ms", "--yes"},
		"fencepost.mark(":      {"marks", "reset", "billing", "--from", "2", "--to", "1", "--actor", "ana", "--reason", "it hangs", "--yes"},
		"l.resource IN (":      {"show", "billing"},
		"row_number() OVER":    {"marks", "retire", "--older-than", "1ms", "--yes"},
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			// A busy machine does not reach the statement in the shortest time.
			for timeout := 700 * time.Millisecond; ; timeout *= 4 {
				at, lost := lossy(t, database, word, faultproxy.Drop)
				c := refusal{args: append(slices.Clone(args), "--timeout", timeout.String()), code: exitUnavailable, reason: "unavailable"}
				if word == "row_number() OVER" { // by then the floor is raised
					fencectl(t, at, c.args...)
					if lost.Load() > 0 {
						c.code, c.reason = exitPartial, "partial"
					}
				}
				c.check(t, at)
				if lost.Load() > 0 {
					return
				}
				if timeout > testkit.Patience {
					t.Fatalf("nothing was lost within %v: the control failed", timeout)
				}
			}
		})
	}
}
