package zk_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/issuertest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
	"github.com/fencepost-go/fencepost/lockclient/zklock"
)

// ttl is long enough for a slow machine.
const ttl = 20 * time.Second

func startServers(t testing.TB, n int) *servers.ZooKeeper {
	t.Helper()
	return servers.StartZooKeeper(t, n)
}

func issuer(t testing.TB, opts *zklock.Options, addrs ...string) *zklock.Issuer {
	t.Helper()
	i, err := zklock.New(addrs, opts)
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}

func conformance(t *testing.T, z *servers.ZooKeeper) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Issuer: func(t testing.TB) driver.Issuer { return issuer(t, nil, z.Addrs()...) },
			Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
				proxy := drivertest.NewProxy(t, "tcp", z.Nodes[0].Addr)
				return issuer(t, nil, proxy.Addr()), proxy
			},
			TTL: ttl,
			// See "What a late request does" in the documentation.
			Slack:        10*time.Second + 3*servers.ZooKeeperTick,
			SessionBound: true,
			Parallel:     true,
		}
	})
}

var (
	ask     = issuertest.Ask
	acquire = issuertest.Acquire
	free    = issuertest.Release
	renew   = issuertest.Renew
)

func TestMain(m *testing.M) { issuertest.Main(m) }

// TestOperators runs the operators' calls, and what ZooKeeper shares with etcd.
func TestOperators(t *testing.T) {
	i := issuer(t, nil, startServers(t, 1).Addrs()...)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"purge", "inspect"}})
	issuertest.Run(t, func(t *testing.T) *issuertest.Engine {
		z := startServers(t, 1)
		c := client(t, z.Addrs()...)
		return &issuertest.Engine{
			Name: "zookeeper", Addr: z.Nodes[0].Addr, Issuer: func() issuertest.Issuer { return issuer(t, nil, z.Addrs()...) },
			Base:    func() string { return fmt.Sprint(baseOf(t, z)) },
			SetBase: func(value string) { setBase(t, c, value) },
			Places: func(resource string) (n int) { // none runs out while its watch is open
				children, _, err := c.Children("/fencepost/r-" + resource)
				testkit.Must(t, err)
				for _, node := range children {
					if strings.HasPrefix(node, "wait-") {
						n++
					}
				}
				return n
			},
			Lost: 1 << 36, // zxids: 16 elections
		}
	})
}

// TestConformance runs the suite, and the suite on broken issuers.
func TestConformance(t *testing.T) { conformance(t, startServers(t, 1)) }

// TestConformanceEnsemble runs the suite on three servers, through the leader and
// through followers.
func TestConformanceEnsemble(t *testing.T) {
	z := startServers(t, 3)
	conformance(t, z)
}

// client is a bare client, with which a test reads and damages nodes.
func client(t testing.TB, addrs ...string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect(addrs, 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	for e := range events {
		if e.State == zk.StateHasSession {
			return c
		}
	}
	return nil
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// must returns v, or fails on an error.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		testkit.Must(t, err)
		return v
	}
}

// TestP3TokensSurviveAWipedDirectory: the data directory is lost. The base keeps
// the tokens of a new process above those of before; zxids alone repeat. A
// process that runs throughout refuses until RaiseEpoch has been called and the
// process was restarted.
func TestP3TokensSurviveAWipedDirectory(t *testing.T) {
	z := startServers(t, 1)
	zxid := func() int64 {
		_, stat, err := client(t, z.Addrs()...).Get("/fencepost/base")
		testkit.Must(t, err)
		return stat.Czxid
	}
	running := issuer(t, nil, z.Addrs()...)
	for n := range 5 {
		free(t, running, acquire(t, running, "r", fmt.Sprint("a", n)))
	}
	before := acquire(t, running, "r", "a")
	last := int64(before.Token) - baseOf(t, z)
	z.Nodes[0].Kill()
	z.Wipe(t, 0)
	z.Nodes[0].Start()
	after := acquire(t, issuer(t, nil, z.Addrs()...), "r", "b")
	if is := zxid(); is >= last {
		t.Errorf("control: the zxid was %#x and is %#x though the data was lost", last, is)
	}
	if after.Token <= before.Token {
		t.Errorf("token %v after %v", after.Token, before.Token)
	}
	var err error
	testkit.Eventually(t, "the issuer to notice", func() bool {
		_, err = running.Acquire(t.Context(), ask("other", "c"))
		return err == nil || errors.Is(err, guard.ErrMarkAhead)
	})
	if !errors.Is(err, guard.ErrMarkAhead) || !strings.Contains(err.Error(), "RaiseEpoch") {
		t.Errorf("an issuer that ran through the loss: %v; want ErrMarkAhead and the way out", err)
	}
	if _, err := running.RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, running, "other", "d"); next.Token <= after.Token {
		t.Errorf("token %v after RaiseEpoch, %v before", next.Token, after.Token)
	}
}

func baseOf(t testing.TB, z *servers.ZooKeeper) int64 {
	t.Helper()
	values, _, err := client(t, z.Addrs()...).Children("/fencepost/base")
	if err != nil || len(values) != 1 {
		t.Fatalf("the base is %q, %v", values, err)
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	testkit.Must(t, err)
	return n
}

// setBase replaces the base by another value, which need not be a number.
func setBase(t testing.TB, c *zk.Conn, value string) {
	t.Helper()
	values, _, err := c.Children("/fencepost/base")
	for _, old := range values {
		err = errors.Join(err, c.Delete("/fencepost/base/"+old, -1))
	}
	testkit.Must(t, err)
	must[string](t)(c.Create("/fencepost/base/"+value, nil, 0, zk.WorldACL(zk.PermAll)))
}

// TestForeignValues: a foreign value under a node is an error that says where,
// and nothing is granted or changed.
func TestForeignValues(t *testing.T) {
	z := startServers(t, 1)
	i, c := issuer(t, nil, z.Addrs()...), client(t, z.Addrs()...)
	free(t, i, acquire(t, i, "warm", "a"))
	all := zk.WorldACL(zk.PermAll)
	for r, value := range map[string]string{
		"text":      "x",
		"json":      `{"owner":"x"}`,
		"version":   `{"v":2,"id":"x","base":"1","ttl":1}`,
		"endless":   `{"v":1,"id":"x","base":"1","grant":"g"}`,
		"nodeless":  `{"v":1,"id":"x","base":"1","ttl":1}`,
		"ephemeral": `{"v":1,"id":"x","base":"1","ttl":1,"grant":"g"}`,
	} {
		container := "/fencepost/r-" + r
		must[string](t)(c.Create(container, nil, 0, all))
		path, flags := container+"/lock", int32(0)
		if r == "ephemeral" {
			flags = zk.FlagEphemeral
		}
		must[string](t)(c.Create(path, []byte(value), flags, all))
		g, err := i.Acquire(t.Context(), ask(r, "a"))
		if !errors.Is(err, guard.ErrSetup) || g.Token != guard.NoToken || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v; want ErrSetup that names %s", r, g, err, path)
		}
		if got, _, err := c.Get(path); err != nil || !bytes.Equal(got, []byte(value)) {
			t.Errorf("%s was changed", path)
		}
	}
	for _, value := range []string{"x", "-7"} {
		setBase(t, c, value)
		if _, err := issuer(t, nil, z.Addrs()...).Acquire(t.Context(), ask("base", "a")); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "/fencepost/base") {
			t.Errorf("a foreign base: %v", err)
		}
	}
}

// TestRefusals: unsuitable servers, or operations they do not allow, are a clear
// error, and nothing is granted.
func TestRefusals(t *testing.T) {
	z := startServers(t, 1)
	addr := z.Nodes[0].Addr
	c := client(t, addr)
	must[string](t)(c.Create("/locked", nil, 0, zk.DigestACL(zk.PermAll, "user", "secret")))
	for name, test := range map[string]struct {
		opts zklock.Options
		addr string
		want string
	}{
		"no rights":               {zklock.Options{Root: "/locked"}, addr, "not authenticated"},
		"a wrong password":        {zklock.Options{Root: "/locked", Scheme: "digest", Auth: "user:wrong"}, addr, "not authenticated"},
		"no such parent":          {zklock.Options{Root: "/no/such"}, addr, "does not exist"},
		"a server that wants TLS": {zklock.Options{}, issuertest.WantsTLS(t), ""},
		"nobody there":            {zklock.Options{}, process.FreeAddr(t), ""},
	} {
		t.Run(name, func(t *testing.T) {
			i := issuer(t, &test.opts, test.addr)
			r := ask("r", "a")
			if name == "a server that wants TLS" || name == "nobody there" {
				r.Timeout = 3 * time.Second
			}
			g, err := i.Acquire(t.Context(), r)
			want := guard.ErrUnavailable
			if test.want == "not authenticated" {
				want = guard.ErrSetup
			}
			if !errors.Is(err, want) || g.Token != guard.NoToken || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v, %v; want %v that says %q", g, err, want, test.want)
			}
		})
	}
	acquire(t, issuer(t, &zklock.Options{Root: "/locked/below", Scheme: "digest", Auth: "user:secret"}, addr), "r", "a")
	for field, opts := range map[string]*zklock.Options{
		"Options.Root": {Root: "x"},
	} {
		if _, err := zklock.New([]string{addr}, opts); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v; want ErrInvalid that names %s", opts, err, field)
		}
	}
}

// TestSpentLeaseFreesNoSuccessor: a lease is released without its token, as one
// whose answer was lost, while the issuer still counts it among its own. Neither
// its end there nor a release of it takes a successor's lock.
func TestSpentLeaseFreesNoSuccessor(t *testing.T) {
	z := startServers(t, 1)
	a, b := issuer(t, nil, z.Addrs()...), issuer(t, nil, z.Addrs()...)
	old := acquire(t, a, "r", "a")
	noToken := old
	noToken.Token = guard.NoToken
	free(t, b, noToken)
	next := acquire(t, b, "r", "b")
	if freed, err := a.Release(t.Context(), old); freed || err != nil {
		t.Errorf("the release of a spent lease: %v, %v", freed, err)
	}
	results := make([]driver.Renewed, 1)
	b.Renew(t.Context(), []driver.Renewal{{Claim: next, TTL: ttl}}, results)
	if _, err := a.Acquire(t.Context(), ask("r", "c")); results[0].State != driver.Extended || !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the successor's lease: %+v, and an acquire says %v; want ErrHeld", results[0], err)
	}
}

// cutting ends the connection as soon as a request has gone out on it.
type cutting struct {
	net.Conn
	request *atomic.Pointer[string] // what is in the request; nil for none
}

func (c cutting) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if s := c.request.Load(); s != nil && bytes.Contains(p, []byte(*s)) && c.request.CompareAndSwap(s, nil) {
		c.Conn.Close()
	}
	return n, err
}

// TestP8UnknownAcquireEndsWithItsTTL: the answer to an acquire is lost, and nobody
// retries or releases it. The grant that nobody holds ends with its TTL, and one that is
// retried before that is the holder's.
func TestP8UnknownAcquireEndsWithItsTTL(t *testing.T) {
	z := startServers(t, 1)
	var request atomic.Pointer[string]
	i := issuer(t, &zklock.Options{Dialer: func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, timeout)
		return cutting{conn, &request}, err
	}}, z.Addrs()...)
	other := issuer(t, nil, z.Addrs()...)
	const ttl = 3 * time.Second
	r := func(id string) driver.Request {
		return driver.Request{Resource: "r", LeaseID: id, Owner: "o", TTL: ttl, Timeout: time.Minute}
	}
	c := client(t, z.Addrs()...)
	free(t, i, acquire(t, i, "r", "before"))
	// lose sends an acquire whose answer is lost. The server may notice the
	// connection's end first.
	lose := func(id string) (lost string, sent time.Time) {
		for n := range 20 {
			lost, what := fmt.Sprint(id, n), fmt.Sprint("id-", id, n)
			request.Store(&what)
			sent := time.Now()
			if _, err := i.Acquire(t.Context(), r(lost)); !errors.Is(err, guard.ErrOutcomeUnknown) {
				t.Fatalf("%v; want ErrOutcomeUnknown", err)
			}
			for began := time.Now(); time.Since(began) < time.Second; time.Sleep(5 * time.Millisecond) {
				if there, _, err := c.Exists("/fencepost/r-r/lock"); err != nil {
					t.Fatal(err)
				} else if there {
					return lost, sent
				}
			}
		}
		t.Fatal("the acquire was never carried out")
		return "", time.Time{}
	}
	_, sent := lose("lost")
	var next driver.Grant
	for {
		var err error
		if next, err = other.Acquire(t.Context(), r("next")); err == nil {
			break
		}
		if !errors.Is(err, driver.ErrHeld) || time.Since(sent) > testkit.Patience {
			t.Fatalf("%v after an acquire with a TTL of %v: %v", time.Since(sent), ttl, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if after := time.Since(sent); after < ttl {
		t.Errorf("it ended after %v, and its TTL is %v", after, ttl)
	}
	free(t, other, guard.Claim{Resource: "r", Token: next.Token, LeaseID: "next"})
	id, _ := lose("again")
	held, err := i.Acquire(t.Context(), r(id))
	testkit.Must(t, err)
	if _, err := other.Acquire(t.Context(), r("next")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("while the retried acquire's lease runs: %v", err)
	}
	if freed, err := i.Release(t.Context(), guard.Claim{Resource: "r", Token: held.Token, LeaseID: id}); !freed || err != nil {
		t.Errorf("the release of the retried acquire's lease: %v, %v", freed, err)
	}
}

// TestWatchesOfFreeResources: a watch of a resource that nobody leases leaves
// nothing behind when it is stopped, and an onlooker still sees the next grant.
func TestWatchesOfFreeResources(t *testing.T) {
	z := startServers(t, 1)
	i := issuer(t, nil, z.Addrs()...)
	look := func(resource, id string) {
		t.Helper()
		w, err := i.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: id}, func() {})
		testkit.Must(t, err)
		w.Stop()
	}
	look("warm", "")
	before := runtime.NumGoroutine()
	for n := range 200 {
		look(fmt.Sprint("onlooker-", n), "")
		look(fmt.Sprint("waiter-", n), "w")
	}
	testkit.Eventually(t, "the end of the goroutines of the watches, each of which was stopped", func() bool { return runtime.NumGoroutine() <= before+20 })
	seen := make(chan struct{})
	w, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() { close(seen) })
	testkit.Must(t, err)
	t.Cleanup(w.Stop)
	acquire(t, i, "r", "a")
	testkit.Receive(t, "the grant that the onlooker of a free resource sees", seen)
}
