package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"
)

// lossy is a proxy that forwards everything to the server and, once the client
// has sent a given word, nothing back to the client.
type lossy struct {
	listener net.Listener
	server   string
	word     []byte
	hang     bool // keep the connection open and say nothing

	mu   sync.Mutex
	lost int
}

func newLossy(t *testing.T, server, word string, hang bool) *lossy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &lossy{listener: listener, server: server, word: []byte(word), hang: hang}
	var over sync.WaitGroup
	over.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			over.Go(func() { p.serve(conn) })
		}
	})
	t.Cleanup(func() { listener.Close(); over.Wait() })
	return p
}

// count returns how often the word was sent.
func (p *lossy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

func (p *lossy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	var mu sync.Mutex
	silent := false
	back := make(chan struct{})
	go func() {
		defer close(back)
		b := make([]byte, 64<<10)
		for {
			n, err := server.Read(b)
			mu.Lock()
			quiet := silent
			mu.Unlock()
			if err == nil && quiet && p.hang {
				continue
			}
			if err != nil || quiet { // the server has answered: it is done
				client.Close()
				return
			}
			if _, err := client.Write(b[:n]); err != nil {
				return
			}
		}
	}()
	b := make([]byte, 64<<10)
	for {
		n, err := client.Read(b)
		if bytes.Contains(b[:n], p.word) {
			mu.Lock()
			silent = true
			mu.Unlock()
			p.mu.Lock()
			p.lost++
			p.mu.Unlock()
		}
		if _, failed := server.Write(b[:n]); failed != nil || err != nil {
			break
		}
	}
	if p.hang {
		server.Close() // the client has given up
	}
	<-back
}

// P5: a force-unlock whose answer is lost is neither success nor failure: the
// exit code says that the outcome is not known, and the message how to find out.
// Repeating it as the message says cuts nobody a second time.
func TestP5ForceUnlockOutcomeUnknown(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Hour)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	unlock := []string{"force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--yes", "-o", "json"}
	var r result
	for timeout := 1500 * time.Millisecond; ; timeout *= 4 {
		p := newLossy(t, server, "fencepost.force_unlock(", false)
		u.Host = p.listener.Addr().String()
		r = fencectl(t, u.String(), append(unlock, "--timeout", timeout.String())...)
		lost := p.count()
		if lost >= 2 {
			break
		}
		// A busy machine does not get that far in the time.
		if timeout > time.Minute {
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
	if r.code != opcmd.ExitUnknown || said.Code != opcmd.ExitUnknown || said.Reason != "outcome_unknown" || r.out != "" || id == nil {
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
	u.Host = newLossy(t, server, "no such word", false).listener.Addr().String()
	must(t, u.String(), unlock...)
}

// P5: a force-unlock that cuts and does not learn whether the mark was raised says so,
// with the exit code of an unknown outcome: it does not say that the mark was not
// raised. The command that it prints settles it. The control is a mark that cannot be
// raised (TestForceUnlockThatCannotRaise).
func TestP5RaiseOutcomeUnknown(t *testing.T) {
	t.Parallel()
	database, pool := database(t)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	for timeout := 1500 * time.Millisecond; ; timeout *= 4 {
		hold(t, pool, "worker-1", "billing", time.Hour)
		p := newLossy(t, server, "commit\x00", false)
		u.Host = p.listener.Addr().String()
		r := fencectl(t, u.String(), "force-unlock", "billing", "--actor", "ana", "--reason", "it hangs", "--raise", "--yes", "--timeout", timeout.String())
		if p.count() == 0 { // a busy machine does not get that far in the time
			if timeout > time.Minute {
				t.Fatalf("nothing was lost within %v: %+v", timeout, r)
			}
			exec1(t, pool, "UPDATE fencepost.leases SET lease_id = NULL")
			continue
		}
		_, again, found := strings.Cut(strings.TrimSpace(r.errOut), "go on with: fencectl ")
		if r.code != opcmd.ExitUnknown || strings.Contains(r.errOut, "not raised") || !found {
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
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	for word, args := range map[string][]string{
		"-- ping":                {"doctor"},
		"fencepost.migrations":   {"list"},
		"FROM fencepost.marks":   {"marks", "list"},
		"fencepost.marks m ON":   {"marks", "reset", "billing", "--from", "2", "--to", "1", "--actor", "ana", "--reason", "it hangs", "--yes"},
		"resource IN (":          {"show", "billing"},
		"clock_timestamp() - $1": {"marks", "retire", "--older-than", "1ms", "--yes"},
		"token <= $1":            {"marks", "retire", "--older-than", "1ms", "--yes"},
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			// A busy machine does not reach the statement in the shortest time.
			for timeout := 700 * time.Millisecond; ; timeout *= 4 {
				p := newLossy(t, server, word, true)
				at := *u
				at.Host = p.listener.Addr().String()
				c := refusal{args: append(slices.Clone(args), "--timeout", timeout.String()), code: opcmd.ExitUnavailable, reason: "unavailable"}
				if word == "token <= $1" { // by then the floor is raised
					fencectl(t, at.String(), c.args...)
					if p.count() > 0 {
						c.code, c.reason = opcmd.ExitPartial, "partial"
					}
				}
				c.check(t, at.String())
				if p.count() > 0 {
					return
				}
				if timeout > 30*time.Second {
					t.Fatalf("nothing was lost within %v: the control failed", timeout)
				}
			}
		})
	}
}
