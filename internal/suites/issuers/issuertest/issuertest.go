// Package issuertest has what the suites of etcd, ZooKeeper and Redis share: their helpers,
// and the tests of the engines whose tokens are a base and a revision of the server.
package issuertest

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// Main runs the tests, more cases in parallel than there are cores: most of a case is waiting.
func Main(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "16")
	os.Exit(m.Run())
}

// Ask is a request for a lease that is longer than a slow machine needs.
func Ask(resource, id string) driver.Request {
	return driver.Request{Resource: resource, LeaseID: id, Owner: "o", TTL: time.Minute, Timeout: time.Minute}
}

// Acquire returns the claim that an issuer grants.
func Acquire(t testing.TB, i driver.Issuer, resource, id string) guard.Claim {
	t.Helper()
	g, err := i.Acquire(t.Context(), Ask(resource, id))
	testkit.Must(t, err)
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: id}
}

// Release ends a lease that runs.
func Release(t testing.TB, i driver.Issuer, claim guard.Claim) {
	t.Helper()
	if freed, err := i.Release(t.Context(), claim); !freed || err != nil {
		t.Fatalf("the release of %+v: %v, %v", claim, freed, err)
	}
}

// Renew renews one lease.
func Renew(t testing.TB, i driver.Issuer, claim guard.Claim) driver.Renewed {
	t.Helper()
	results := make([]driver.Renewed, 1)
	i.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Minute}}, results)
	return results[0]
}

// Watch begins a watch of a lease that held has, or of a free one, until the test ends.
func Watch(t testing.TB, i driver.Issuer, w driver.Watch, held guard.Token, wake func()) {
	t.Helper()
	got, err := i.Watch(t.Context(), w, wake)
	testkit.Must(t, err)
	t.Cleanup(got.Stop)
	if held == guard.NoToken && got.Held != nil || held != guard.NoToken && (got.Held == nil || got.Held.Token != held) {
		t.Fatalf("the watch says %+v, want the holder with token %v", got.Held, held)
	}
}

// WantsTLS returns the address of a server that responds to what is not TLS with an alert.
func WantsTLS(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("\x15\x03\x03\x00\x02\x02\x46")) // protocol version
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// Issuer is an issuer that also has the operators' calls.
type Issuer interface {
	driver.Issuer
	lockadmin.Admin
}

// Engine is a running engine whose tokens are the sum of a base, which it stores, and of a
// number that grows with each change.
type Engine struct {
	// Name and Addr are what the operators' command calls it.
	Name, Addr string
	// Issuer returns the issuer of another process.
	Issuer func() Issuer
	// Base is the base, and SetBase replaces it, by any text.
	Base    func() string
	SetBase func(string)
	// Places counts who waits in line for a resource, and keeps their places from running out.
	Places func(resource string) int
	// Lost is how far a restore can set back the number that grows.
	Lost guard.Token
}

// Run runs the tests, each on an engine of its own.
func Run(t *testing.T, start func(t *testing.T) *Engine) {
	for name, test := range map[string]func(*testing.T, *Engine){
		"Command": command, "P3AdvanceNearTheHighestToken": advanceNearTheHighestToken, "AdvanceAndRaiseEpoch": advanceAndRaiseEpoch,
		"RaiseEpochBehindTheBase": raiseEpochBehindTheBase, "WakeOne": wakeOne, "GrantedBeforeItsTurn": grantedBeforeItsTurn,
	} {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

// The operators' command shows a holder, advances a resource, raises the epoch and cuts a
// lease, and an issuer grants above both.
func command(t *testing.T, e *Engine) {
	fencectl := servers.Fencectl(t)
	run := func(code int, says string, args ...string) {
		t.Helper()
		out, got := fencectl(append([]string{"--issuer", e.Name, "--address", e.Addr, "--timeout", "1m"}, args...)...)
		if got != code || !strings.Contains(strings.ToLower(out), strings.ToLower(says)) {
			t.Errorf("%q ends with %d, want %d, and says no %q:\n%s", args, got, code, says, out)
		}
	}
	held := Acquire(t, e.Issuer(), "r", "a")
	run(0, held.Token.String(), "show", "r")
	run(4, "", "advance", "r", (held.Token + 1000).String(), "--yes") // above a holder
	run(0, "", "advance", "free", "4000000000000000000", "--yes")
	if next := Acquire(t, e.Issuer(), "free", "b"); next.Token <= 4_000_000_000_000_000_000 {
		t.Errorf("token %v after the advance", next.Token)
	}
	before := Acquire(t, e.Issuer(), "raised", "a")
	run(0, "", "epoch", "raise", "--yes")
	// As much as a restore can set back.
	if after := Acquire(t, e.Issuer(), "after", "a"); after.Token < before.Token+1<<30 {
		t.Errorf("token %v before the epoch was raised, %v after it", before.Token, after.Token)
	}
	run(4, "", "force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--expect", "another", "--yes")
	run(0, "may still write", "force-unlock", "r", "--actor", "ada", "--reason", "it hangs", "--yes")
	// A name that nobody holds is not cut by a typing error, and nothing is recorded.
	run(3, "--expect none", "force-unlock", "nope", "--actor", "ada", "--reason", "a typing error", "--yes")
	run(0, "never leased: check the name", "show", "nope")
	run(0, "no record", "audit", "nope")
	expected := []string{"force-unlock", "nope", "--actor", "ada", "--reason", "its holder crashed", "--yes", "--request-id", "INC-1"}
	run(0, "on "+e.Name+" "+e.Addr, append(expected, "--expect", "none")...)
	run(0, "done before", expected...)
	run(0, "it hangs", "audit")
	run(0, "acquire", "doctor")
	run(2, "does not have this", "purge", "--yes")
	run(2, "PostgreSQL", "migrate")
	e.Addr = "127.0.0.1:1" // where no server is
	run(6, "on "+e.Name+" 127.0.0.1:1", "--timeout", "1s", "show", "r")
}

// Advance leaves room for the changes to come. A base that has none is never lowered, and
// nothing is granted above it.
func advanceNearTheHighestToken(t *testing.T, e *Engine) {
	const most = guard.Token(1<<62 - 1)
	i := e.Issuer()
	for _, above := range []guard.Token{most + 1, guard.MaxToken, guard.MaxToken + 1, 0, -1} {
		if reached, err := i.Advance(t.Context(), "r", above); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Advance(%v) = %v, %v; want ErrInvalid", above, reached, err)
		}
	}
	if reached, err := i.Advance(t.Context(), "r", most); err != nil || reached != most {
		t.Errorf("Advance(%v) = %v, %v", most, reached, err)
	}
	if got := Acquire(t, i, "r", "a"); got.Token <= most {
		t.Errorf("token %v after Advance to %v", got.Token, most)
	}
	top := (guard.MaxToken - 1).String()
	e.SetBase(top)
	if reached, err := i.Advance(t.Context(), "full", 1000); err != nil || reached != guard.MaxToken {
		t.Errorf("Advance(1000) at the top = %v, %v; want %v", reached, err, guard.MaxToken)
	}
	if is := e.Base(); is != top {
		t.Errorf("the base was %s and is %s", top, is)
	}
	i = e.Issuer() // which reads the base
	for range 2 {  // also under an ID that has been refused before
		if g, err := i.Acquire(t.Context(), Ask("full", "a")); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "exhausted") {
			t.Errorf("above the highest token: %v, %v", g.Token, err)
		}
	}
	if _, err := i.Acquire(t.Context(), Ask("full", "b")); err == nil || !strings.Contains(err.Error(), "exhausted") {
		t.Errorf("a refused acquire left a lease: %v", err)
	}
}

// Advance and RaiseEpoch raise tokens and never lower them, and a running lease keeps its token.
func advanceAndRaiseEpoch(t *testing.T, e *Engine) {
	i, running := e.Issuer(), e.Issuer()
	held := Acquire(t, i, "r", "a")
	Acquire(t, running, "warm", "a")
	if _, err := i.Advance(t.Context(), "r", held.Token+1_000_000); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Advance above a holder: %v; want ErrHeld", err)
	}
	if _, err := i.RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if renewed := Renew(t, i, held); renewed.State != driver.Extended {
		t.Errorf("a lease that runs through RaiseEpoch: %+v", renewed)
	}
	Release(t, i, held)
	above := held.Token + 1<<40
	if reached, err := i.Advance(t.Context(), "r", above); err != nil || reached != above {
		t.Errorf("Advance: %v, %v", reached, err)
	}
	if reached, err := i.Advance(t.Context(), "r", above-5); err != nil || reached < above {
		t.Errorf("Advance below: %v, %v; want at least %v", reached, err, above)
	}
	// A process that runs has the old base in memory, another one none; the base counts for all
	// resources.
	for _, c := range []struct {
		from     Issuer
		resource string
	}{{running, "running"}, {e.Issuer(), "r"}, {e.Issuer(), "other"}} {
		if got := Acquire(t, c.from, c.resource, "b"); got.Token <= above {
			t.Errorf("%s: token %v after Advance to %v", c.resource, got.Token, above)
		}
	}
}

// The base was set by a process whose clock was ahead; RaiseEpoch raises it anyway.
func raiseEpochBehindTheBase(t *testing.T, e *Engine) {
	Acquire(t, e.Issuer(), "warm", "a")
	e.SetBase(fmt.Sprint(time.Now().Add(time.Hour).UnixMilli() << 20))
	before := Acquire(t, e.Issuer(), "r", "a")
	if _, err := e.Issuer().RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := Acquire(t, e.Issuer(), "other", "a"); after.Token < before.Token+e.Lost {
		t.Errorf("token %v after %v and RaiseEpoch, which said that it raised them", after.Token, before.Token)
	}
}

// A release wakes the longest waiting process alone, and its release at the next.
func wakeOne(t *testing.T, e *Engine) {
	a := e.Issuer()
	held := Acquire(t, a, "r", "a")
	woken := make(chan int, 10)
	var waiting []driver.Issuer
	for n := range 3 {
		waiting = append(waiting, e.Issuer())
		Watch(t, waiting[n], driver.Watch{Resource: "r", LeaseID: fmt.Sprint("w", n)}, held.Token, func() { woken <- n })
	}
	changed := make(chan bool, 1)
	Watch(t, e.Issuer(), driver.Watch{Resource: "r"}, held.Token, func() { changed <- true })
	for n := range 3 {
		Release(t, a, held) // also those of others
		if got := testkit.Receive(t, "the wake", woken); got != n {
			t.Fatalf("process %d was woken, process %d waits longest", got, n)
		}
		held = Acquire(t, waiting[n], "r", fmt.Sprint("w", n))
	}
	testkit.Receive(t, "the onlooker's wake", changed)
	select { // can only miss a wake that comes late
	case n := <-woken:
		t.Errorf("process %d was woken while the lease was held", n)
	case <-time.After(time.Second):
	}
}

// A waiter that is granted the lease before its turn came leaves the line. Otherwise those
// behind it would wait for its place to run out.
func grantedBeforeItsTurn(t *testing.T, e *Engine) {
	i := e.Issuer()
	w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "a"}, func() {})
	if err != nil || w.Held != nil {
		t.Fatalf("%+v, %v", w, err)
	}
	defer w.Stop() // until then the place does not run out
	if n := e.Places("r"); n != 1 {
		t.Fatalf("%d places", n)
	}
	r := Ask("r", "a")
	r.Waiting = true
	_, err = i.Acquire(t.Context(), r)
	testkit.Must(t, err)
	testkit.Eventually(t, "the end of the place", func() bool { return e.Places("r") == 0 })
}
