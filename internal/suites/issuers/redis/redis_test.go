package redis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/issuertest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
	"github.com/fencepost-go/fencepost/lockclient/redislock"
)

// server is a redis-server of the test's own.
type server struct {
	t    testing.TB
	addr string
	args []string
	cmd  *exec.Cmd
}

// startServer runs redis-server on a free port of loopback. Without persistence
// a restart forgets everything.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal("redis-server is not installed; run .ci/setup servers to install it")
	}
	for {
		addr := process.FreeAddr(t) // below the ports of outgoing connections, one of which could take it
		_, port, _ := net.SplitHostPort(addr)
		s := &server{t: t, addr: addr, args: append([]string{path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir()}, args...)}
		ready, said := s.run()
		switch {
		case ready:
			t.Cleanup(func() { s.kill() })
			return s
		case !strings.Contains(said, "in use"): // another process's server took the port in between
			t.Fatalf("redis-server ended before it was ready:\n%s", said)
		}
	}
}

// start returns when the server accepts connections.
func (s *server) start() {
	s.t.Helper()
	if ready, said := s.run(); !ready {
		s.t.Fatalf("redis-server ended before it was ready:\n%s", said)
	}
}

// run returns whether the server accepts connections, and what it said if it ended before.
func (s *server) run() (ready bool, said string) {
	s.t.Helper()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	began := make(chan string, 1) // "" once it is ready
	go func() {
		lines, all := bufio.NewScanner(out), ""
		for lines.Scan() {
			if all += lines.Text() + "\n"; strings.Contains(lines.Text(), "Ready to accept connections") {
				began <- ""
				io.Copy(io.Discard, out)
				return
			}
		}
		began <- "it said:\n" + all
	}()
	said = testkit.Receive(s.t, "redis-server", began)
	if said != "" {
		s.cmd.Wait()
	}
	return said == "", said
}

func (s *server) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

func (s *server) client(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1, PoolSize: 20, ContextTimeoutEnabled: true,
		ReadTimeout: testkit.Patience, WriteTimeout: testkit.Patience})
	t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) issuer(t testing.TB, addr string) *redislock.Issuer {
	t.Helper()
	c := s.client(t, addr)
	i, err := redislock.New(doOf(c), &redislock.Options{Subscribe: subscribeOf(c)})
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}

// doOf and subscribeOf are what users of go-redis write.
func doOf(c redis.UniversalClient) redislock.Do {
	return func(ctx context.Context, args ...any) (any, error) { return c.Do(ctx, args...).Result() }
}

func subscribeOf(c redis.UniversalClient) func(context.Context, string, func(string)) (func(), error) {
	return func(ctx context.Context, channel string, message func(string)) (func(), error) {
		sub := c.Subscribe(ctx, channel)
		if _, err := sub.Receive(ctx); err != nil { // until the server has confirmed
			sub.Close()
			return nil, err
		}
		go func() {
			for m := range sub.Channel() {
				message(m.Payload)
			}
		}()
		return func() { sub.Close() }, nil
	}
}

var (
	ask     = issuertest.Ask
	acquire = issuertest.Acquire
	release = issuertest.Release
)

func TestMain(m *testing.M) { issuertest.Main(m) }

// TestAdmin runs the suite of the operators' calls on a real Redis.
func TestAdmin(t *testing.T) {
	s := startServer(t)
	i := s.issuer(t, s.addr)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"advance floor", "epoch", "raise epoch", "purge"}})
}

// TestConformance runs the suite, and the suite on broken issuers.
func TestConformance(t *testing.T) {
	conformance(t, startServer(t).addr, (&server{}).issuer)
}

func conformance(t *testing.T, addr string, issuer func(testing.TB, string) *redislock.Issuer) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Issuer: func(t testing.TB) driver.Issuer { return issuer(t, addr) },
			Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
				proxy := drivertest.NewProxy(t, "tcp", addr)
				return issuer(t, proxy.Addr()), proxy
			},
			TTL:      8 * time.Second,
			Parallel: true,
			Purge:    func(testing.TB) {},
		}
	})
}

// TestP3TokensSurviveLostData: the data is lost, by a restart without
// persistence and by FLUSHALL; the tokens grow. A plain INCR repeats them.
func TestP3TokensSurviveLostData(t *testing.T) {
	s := startServer(t)
	i, c := s.issuer(t, s.addr), s.client(t, s.addr)
	plain := func() int64 {
		n, err := c.Incr(t.Context(), "plain").Result()
		testkit.Must(t, err)
		return n
	}
	last, lastPlain := acquire(t, i, "r", "0"), plain()
	for n, lose := range []func(){
		func() { s.kill(); s.start() },
		func() {
			testkit.Must(t, c.FlushAll(t.Context()).Err())
		},
	} {
		lose()
		again := s.issuer(t, s.addr) // a process that knows nothing
		next := acquire(t, again, "r", fmt.Sprint(n+1))
		if next.Token <= last.Token {
			t.Errorf("loss %d: token %v after %v", n, next.Token, last.Token)
		}
		if p := plain(); p > lastPlain {
			t.Errorf("control: a plain counter grew from %d to %d over a loss of data", lastPlain, p)
		}
		last = next
		c = s.client(t, s.addr)
	}
}

// TestTokensAbove53Bits: counters above 2^53 are exact, and the highest grants
// nothing more and leaves no lease.
func TestTokensAbove53Bits(t *testing.T) {
	s := startServer(t)
	i := s.issuer(t, s.addr)
	for _, above := range []guard.Token{1 << 53, 1<<53 + 1, 1 << 60, guard.MaxToken - 1} {
		r := "r" + above.String()
		if above > lockadmin.MaxAdvance { // which Advance refuses
			s.client(t, s.addr).Set(t.Context(), "fencepost:{"+r+"}:counter", above.String(), 0)
		} else if reached, err := i.Advance(t.Context(), r, above); err != nil || reached != above {
			t.Fatalf("Advance(%v) = %v, %v", above, reached, err)
		}
		if got := acquire(t, i, r, "a"); got.Token != above+1 {
			t.Errorf("after %v: token %v", above, got.Token)
		}
		if ttl := s.client(t, s.addr).TTL(t.Context(), "fencepost:{"+r+"}:counter").Val(); ttl != -1 {
			t.Errorf("the counter at %v, which the clock does not reach in a week, ends in %v", above, ttl)
		}
	}
	testkit.Must(t, s.client(t, s.addr).Set(t.Context(), "fencepost:{full}:counter", guard.MaxToken.String(), 0).Err())
	if _, err := i.Acquire(t.Context(), ask("full", "a")); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "exhausted") {
		t.Errorf("at the highest token: %v", err)
	}
	if n := s.client(t, s.addr).Exists(t.Context(), "fencepost:{full}:lease").Val(); n != 0 {
		t.Error("a refused acquire left a lease")
	}
}

// TestAdvance raises and never lowers, and not under a holder.
func TestAdvance(t *testing.T) {
	s := startServer(t)
	i := s.issuer(t, s.addr)
	held := acquire(t, i, "r", "a")
	if reached, err := i.Advance(t.Context(), "r", held.Token-1); err != nil || reached != held.Token {
		t.Errorf("Advance below: %v, %v; want %v", reached, err, held.Token)
	}
	if _, err := i.Advance(t.Context(), "r", held.Token+5); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Advance above a holder: %v; want ErrHeld", err)
	}
	// What ISSUERS.md tells operators to do with redis-cli.
	const above = guard.Token(1 << 60)
	testkit.Must(t, s.client(t, s.addr).Set(t.Context(), "fencepost:{r}:counter", above.String(), 0).Err())
	release(t, i, held)
	if got := acquire(t, i, "r", "b"); got.Token != above+1 {
		t.Errorf("with a counter set by hand: token %v, want %v", got.Token, above+1)
	}
}

// TestForeignValues: a foreign value under a key, and a counter that is used up, is what
// no retry cures, and nothing is granted or changed.
func TestForeignValues(t *testing.T) {
	s := startServer(t)
	i, c := s.issuer(t, s.addr), s.client(t, s.addr)
	for name, set := range map[string]func(r string) error{
		"a text under the lease":             func(r string) error { return c.Set(t.Context(), r+":lease", "x", 0).Err() },
		"a hash of somebody else's":          func(r string) error { return c.HSet(t.Context(), r+":lease", "owner", "x").Err() },
		"a lease of another version":         func(r string) error { return c.HSet(t.Context(), r+":lease", "v", "2", "id", "x", "token", "7").Err() },
		"a word under the counter":           func(r string) error { return c.Set(t.Context(), r+":counter", "seven", 0).Err() },
		"a negative counter":                 func(r string) error { return c.Set(t.Context(), r+":counter", "-7", 0).Err() },
		"a list under the counter":           func(r string) error { return c.LPush(t.Context(), r+":counter", "7").Err() },
		"a fraction under the counter":       func(r string) error { return c.Set(t.Context(), r+":counter", "7.5", 0).Err() },
		"a counter of twenty digits":         func(r string) error { return c.Set(t.Context(), r+":counter", "92233720368547758070", 0).Err() },
		"a counter at the highest int64":     func(r string) error { return c.Set(t.Context(), r+":counter", "9223372036854775807", 0).Err() },
		"a counter at the highest of tokens": func(r string) error { return c.Set(t.Context(), r+":counter", "9223372036854775806", 0).Err() },
	} {
		testkit.Must(t, set("fencepost:{"+name+"}"))
		if g, err := i.Acquire(t.Context(), ask(name, "a")); !errors.Is(err, guard.ErrSetup) || g.Token != guard.NoToken {
			t.Errorf("%s: %+v, %v; want a setup error", name, g, err)
		}
		if !strings.Contains(name, "lease") && !strings.Contains(name, "hash") {
			if n := c.Exists(t.Context(), "fencepost:{"+name+"}:lease").Val(); n != 0 {
				t.Errorf("%s: a refused acquire left a lease", name)
			}
		}
	}
}

// TestNoRights: what the server refuses is unavailable, with the server's
// message.
func TestNoRights(t *testing.T) {
	s := startServer(t, "--requirepass", "secret")
	i := s.issuer(t, s.addr)
	if _, err := i.Acquire(t.Context(), ask("r", "a")); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without a password: %v", err)
	}
	s.kill()
	if _, err := i.Acquire(t.Context(), ask("r", "a")); err == nil {
		t.Error("granted by no server")
	}
}

// TestServerWentBack: the data is gone and the clock is behind what this issuer
// has seen: it refuses. The control is an issuer that has seen nothing.
func TestServerWentBack(t *testing.T) {
	s := startServer(t)
	c := s.client(t, s.addr)
	ahead := int64(0) // how far the clock is moved that TIME tells
	i, err := redislock.New(func(ctx context.Context, args ...any) (any, error) {
		answer, err := c.Do(ctx, args...).Result()
		if list, ok := answer.([]any); ok && args[0] == "TIME" {
			var seconds int64
			fmt.Sscan(list[0].(string), &seconds)
			list[0] = fmt.Sprint(seconds + ahead)
		}
		return answer, err
	}, nil)
	testkit.Must(t, err)
	ahead = 3600 // the server that is asked first is an hour ahead of the next
	if _, err := i.Acquire(t.Context(), ask("r", "a")); !errors.Is(err, guard.ErrMarkAhead) || !strings.Contains(err.Error(), "Advance") {
		t.Errorf("the clock went back an hour and there is no counter: %v; want ErrMarkAhead and the way out", err)
	}
	acquire(t, s.issuer(t, s.addr), "r", "b")
	// With a counter the tokens grow, whatever the clock says.
	testkit.Must(t, c.Del(t.Context(), "fencepost:{r}:lease").Err())
	acquire(t, i, "r", "c")
}

// TestAdvanceIsLostWithTheData: a token that Advance raised above the clock is in
// the counter alone, which the package's documentation says. Once more with the
// mark, and the tokens grow.
func TestAdvanceIsLostWithTheData(t *testing.T) {
	s := startServer(t)
	i := s.issuer(t, s.addr)
	above := guard.Token(time.Now().Add(time.Hour).UnixMilli() << 10)
	if _, err := i.Advance(t.Context(), "r", above); err != nil {
		t.Fatal(err)
	}
	mark := acquire(t, i, "r", "a")
	lose := func() {
		t.Helper()
		testkit.Must(t, s.client(t, s.addr).FlushAll(t.Context()).Err())
	}
	lose()
	if fallen := acquire(t, i, "r", "b"); fallen.Token >= mark.Token {
		t.Errorf("token %v after %v: the documentation says that it falls", fallen.Token, mark.Token)
	}
	lose()
	if _, err := i.Advance(t.Context(), "r", mark.Token); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, i, "r", "c"); next.Token <= mark.Token {
		t.Errorf("token %v after %v and Advance", next.Token, mark.Token)
	}
}

// TestOneCommandForAnAcquire: acquire and release are one EVALSHA each once the
// server knows the scripts and its time is known, and the counter lasts for six
// days or more.
func TestOneCommandForAnAcquire(t *testing.T) {
	s := startServer(t)
	c := s.client(t, s.addr)
	var sent []string
	i, err := redislock.New(func(ctx context.Context, args ...any) (any, error) {
		sent = append(sent, fmt.Sprint(args[0]))
		return c.Do(ctx, args...).Result()
	}, nil)
	testkit.Must(t, err)
	pair := func(id string) guard.Claim {
		t.Helper()
		held := acquire(t, i, "r", id)
		release(t, i, held)
		return held
	}
	last := pair("a")
	for n, left := range []time.Duration{7 * 24 * time.Hour, 6*24*time.Hour + time.Hour, 5 * 24 * time.Hour} {
		testkit.Must(t, c.PExpire(t.Context(), "fencepost:{r}:counter", left).Err())
		sent = nil
		next := pair(fmt.Sprint(n))
		if next.Token <= last.Token {
			t.Errorf("token %v after %v", next.Token, last.Token)
		}
		last = next
		if fmt.Sprint(sent) != "[EVALSHA EVALSHA]" {
			t.Errorf("sent %v", sent)
		}
		if ttl := c.PTTL(t.Context(), "fencepost:{r}:counter").Val(); ttl < 6*24*time.Hour-time.Minute {
			t.Errorf("the counter that had %v left ends in %v", left, ttl)
		}
	}
}

// TestWakeOne: a release wakes the longest waiting process alone.
func TestWakeOne(t *testing.T) {
	s := startServer(t)
	a := s.issuer(t, s.addr)
	held := acquire(t, a, "r", "a")
	woken := make(chan int, 10)
	for n := range 3 {
		i := s.issuer(t, s.addr)
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: fmt.Sprint("w", n)}, func() { woken <- n })
		if err != nil || w.Held == nil || w.Held.Token != held.Token {
			t.Fatalf("%+v, %v", w, err)
		}
		t.Cleanup(w.Stop)
		time.Sleep(2 * time.Millisecond) // the queue is ordered by milliseconds
	}
	onlooker, err := s.issuer(t, s.addr).Watch(t.Context(), driver.Watch{Resource: "r"}, func() { woken <- 99 })
	testkit.Must(t, err)
	t.Cleanup(onlooker.Stop)
	release(t, a, held)
	got := map[int]bool{<-woken: true, <-woken: true}
	if !got[0] || !got[99] {
		t.Errorf("woken: %v; want the longest waiting and the onlooker", got)
	}
	// Kept for the first for a moment: another waiter is put off, though the
	// lease is free.
	other := ask("r", "other")
	other.Waiting = true
	if g, err := s.issuer(t, s.addr).Acquire(t.Context(), other); err == nil {
		t.Logf("the reservation was over: token %v", g.Token)
	} else if !errors.Is(err, driver.ErrHeld) {
		t.Error(err)
	}
	select {
	case n := <-woken:
		t.Errorf("process %d was woken as well", n)
	case <-time.After(300 * time.Millisecond):
	}
}

// TestNothingIsWrittenBeforeARefusal: a foreign value under any key of a resource
// is noticed before the first write, because guard.ErrSetup says that
// nothing was written.
func TestNothingIsWrittenBeforeARefusal(t *testing.T) {
	s := startServer(t)
	i, c := s.issuer(t, s.addr), s.client(t, s.addr)
	for _, kind := range []string{"queue", "until"} {
		key := "fencepost:{" + kind + "}:"
		testkit.Must(t, c.Set(t.Context(), key+kind, "x", 0).Err())
		if _, err := i.Acquire(t.Context(), ask(kind, "a")); !errors.Is(err, guard.ErrSetup) {
			t.Errorf("%s: acquire: %v", kind, err)
		}
		if n := c.Exists(t.Context(), key+"lease", key+"counter").Val(); n != 0 {
			t.Errorf("%s: the refused acquire left a lease", kind)
		}
		testkit.Must(t, c.Del(t.Context(), key+kind).Err())
		held := acquire(t, i, kind, "b")
		testkit.Must(t, c.Set(t.Context(), key+kind, "x", 0).Err())
		for _, claim := range []guard.Claim{held, {Resource: kind, LeaseID: "b"}} {
			if _, err := i.Release(t.Context(), claim); !errors.Is(err, guard.ErrSetup) {
				t.Errorf("%s: release: %v", kind, err)
			}
		}
		if n := c.Exists(t.Context(), key+"lease").Val(); n != 1 {
			t.Errorf("%s: the refused release freed the lease", kind)
		}
		if n := c.Exists(t.Context(), key+"spent:b").Val(); n != 0 {
			t.Errorf("%s: the refused release spent the lease ID", kind)
		}
	}
}

// TestNoRightToPublish: a user without rights to channels, as new users are,
// acquires and releases; but nobody is woken.
func TestNoRightToPublish(t *testing.T) {
	s := startServer(t)
	testkit.Must(t, s.client(t, s.addr).Do(t.Context(), "ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels").Err())
	c := redis.NewClient(&redis.Options{Addr: s.addr, Username: "mute", Password: "secret", MaxRetries: -1})
	t.Cleanup(func() { c.Close() })
	i, err := redislock.New(doOf(c), nil)
	testkit.Must(t, err)
	held := acquire(t, i, "r", "a")
	if freed, err := i.Release(t.Context(), held); !freed || err != nil {
		t.Errorf("released %v, %v", freed, err)
	}
}

// TestSubscribingHangs: a server that does not confirm a subscription keeps
// watches waiting, each for as long as its context lasts, and nothing else.
func TestSubscribingHangs(t *testing.T) {
	s := startServer(t)
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	began := make(chan struct{}, 2)
	i, err := redislock.New(doOf(s.client(t, s.addr)), &redislock.Options{
		Subscribe: func(context.Context, string, func(string)) (func(), error) {
			began <- struct{}{}
			<-hang
			return func() {}, nil
		},
	})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 2)
	for _, id := range []string{"w", "x"} {
		go func() {
			_, err := i.Watch(ctx, driver.Watch{Resource: "r", LeaseID: id}, func() {})
			watched <- err
		}()
	}
	<-began
	done := make(chan error, 1)
	go func() {
		_, err := i.Acquire(context.WithoutCancel(ctx), ask("r", "a"))
		done <- err
	}()
	testkit.Check(t, testkit.Receive(t, "an acquire beside the subscription", done))
	cancel()
	for range 2 {
		if err := testkit.Receive(t, "the end of a watch whose context has ended", watched); !errors.Is(err, driver.ErrNoWatch) {
			t.Errorf("the watch: %v; want ErrNoWatch", err)
		}
	}
}
