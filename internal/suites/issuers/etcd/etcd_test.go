package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/issuertest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/admintest"
)

func TestMain(m *testing.M) {
	etcdnode.Main()
	issuertest.Main(m)
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// startNode runs a cluster of one node in this process.
func startNode(t testing.TB, dir string) (addr string, stop func()) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel, cfg.ZapLoggerBuilder = "panic", embed.NewZapLoggerBuilder(zap.NewNop())
	addr = freePort(t)
	client, peer := url.URL{Scheme: "http", Host: addr}, url.URL{Scheme: "http", Host: freePort(t)}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = true
	e, err := embed.StartEtcd(cfg)
	testkit.Must(t, err)
	testkit.Receive(t, "etcd", e.Server.ReadyNotify())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			e.Close()
		}
	}
	t.Cleanup(stop)
	return addr, stop
}

// connect connects to a node, or to several with commas between them.
func connect(t testing.TB, addr string, opts ...grpc.DialOption) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addr, ","), DialTimeout: time.Minute, Logger: zap.NewNop(), DialOptions: opts})
	testkit.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func issuer(t testing.TB, addr string) *etcdlock.Issuer {
	t.Helper()
	i, err := etcdlock.New(connect(t, addr), nil)
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}

// network holds transactions, which are what takes effect, on the way to the
// cluster: a TCP proxy would hold the earlier request for an etcd lease, and
// nothing after it would be sent.
type network struct {
	mu   sync.Mutex
	hold chan struct{} // closed by Deliver; nil unless held
	kept sync.WaitGroup
	n    int
}

func (n *network) Hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hold = make(chan struct{})
}

func (n *network) Holding() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.n > 0
}

func (n *network) Deliver() {
	n.mu.Lock()
	close(n.hold)
	n.hold = nil
	n.mu.Unlock()
	n.kept.Wait()
}

// pass sends a held request, whatever happened to its client.
func (n *network) pass(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	n.mu.Lock()
	hold := n.hold
	switch method {
	case "/etcdserverpb.KV/Txn":
	case "/etcdserverpb.Lease/LeaseRevoke": // the clean-up does not arrive either
		if hold != nil {
			n.mu.Unlock()
			return status.Error(codes.Internal, "the network is held") // a code that the client does not retry
		}
	default:
		hold = nil
	}
	if hold != nil {
		n.n++
		n.kept.Add(1)
	}
	n.mu.Unlock()
	if hold == nil {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	done := make(chan error, 1)
	go func() {
		defer n.kept.Done()
		<-hold
		n.mu.Lock()
		n.n--
		n.mu.Unlock()
		done <- invoke(context.WithoutCancel(ctx), method, req, reply, cc, opts...)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

var (
	ask     = issuertest.Ask
	acquire = issuertest.Acquire
	release = issuertest.Release
)

// TestOperators runs the operators' calls, and what etcd shares with ZooKeeper.
func TestOperators(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i := issuer(t, addr)
	admintest.Run(t, admintest.Engine{Admin: i, Issuer: i, Cannot: []string{"purge", "inspect"}})
	issuertest.Run(t, func(t *testing.T) *issuertest.Engine {
		addr, _ := startNode(t, t.TempDir())
		c := connect(t, addr)
		return &issuertest.Engine{
			Name: "etcd", Addr: addr, Issuer: func() issuertest.Issuer { return issuer(t, addr) },
			Base: func() string {
				got, err := c.Get(t.Context(), "fencepost/base")
				testkit.Must(t, err)
				return string(got.Kvs[0].Value)
			},
			SetBase: func(value string) {
				_, err := c.Put(t.Context(), "fencepost/base", value)
				testkit.Must(t, err)
			},
			Places: func(resource string) int {
				places, err := c.Get(t.Context(), "fencepost/queue/"+resource+"\x00", clientv3.WithPrefix())
				testkit.Must(t, err)
				for _, place := range places.Kvs {
					c.KeepAliveOnce(t.Context(), clientv3.LeaseID(place.Lease))
				}
				return int(places.Count)
			},
			Lost: 1 << 30, // revisions
		}
	})
}

// TestConformance runs the suite, and the suite on broken issuers.
func TestConformance(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	conformance(t, addr)
}

// TestConformanceThreeNodes does so on a cluster of processes; clients change
// between its nodes with every request.
func TestConformanceThreeNodes(t *testing.T) {
	conformance(t, strings.Join(servers.StartEtcd(t, 3).Addrs(), ","))
}

func conformance(t *testing.T, addr string) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		return drivertest.Harness{
			Issuer: func(t testing.TB) driver.Issuer { return issuer(t, addr) },
			Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
				n := &network{}
				i, err := etcdlock.New(connect(t, addr, grpc.WithChainUnaryInterceptor(n.pass)), nil)
				testkit.Must(t, err)
				t.Cleanup(func() { i.Close() })
				return i, n
			},
			TTL:      6 * time.Second, // longer than Slack and a second, or leases would expire
			Slack:    3 * time.Second, // see "What a late request does" in the documentation
			Parallel: true,
		}
	})
}

// TestP3TokensSurviveAWipedCluster: the data directory is lost. The base keeps
// the tokens above those of the former cluster; revisions alone repeat.
func TestP3TokensSurviveAWipedCluster(t *testing.T) {
	addr, stop := startNode(t, t.TempDir())
	before := acquire(t, issuer(t, addr), "r", "a")
	revision := func(addr string) int64 {
		resp, err := connect(t, addr).Put(t.Context(), "control", "")
		testkit.Must(t, err)
		return resp.Header.Revision
	}
	was := revision(addr)
	for range 10 {
		was = revision(addr)
	}
	stop()
	addr, _ = startNode(t, t.TempDir())
	if is := revision(addr); is >= was {
		t.Errorf("control: the revision was %d and is %d though the data was lost", was, is)
	}
	if after := acquire(t, issuer(t, addr), "r", "b"); after.Token <= before.Token {
		t.Errorf("token %v after %v", after.Token, before.Token)
	}
}

// saved copies a stopped node's data, and returns what puts it back.
func saved(t testing.TB, data string) (restore func()) {
	t.Helper()
	backup := filepath.Join(t.TempDir(), "backup")
	testkit.Must(t, os.CopyFS(backup, os.DirFS(data)))
	return func() {
		t.Helper()
		testkit.Must(t, errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(backup))))
	}
}

// TestP3TokensSurviveARestore: an old copy of the data is restored without
// bumping the revision. A new process repeats tokens until RaiseEpoch is
// called, and one that ran throughout refuses: the former is the residual risk.
func TestP3TokensSurviveARestore(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	addr, stop := startNode(t, data)
	acquire(t, issuer(t, addr), "first", "a")
	stop()
	restore := saved(t, data)
	addr, stop = startNode(t, data)
	lost := acquire(t, issuer(t, addr), "r", "a")
	stop()
	restore()
	addr, _ = startNode(t, data)
	i := issuer(t, addr)
	if next := acquire(t, i, "r", "b"); next.Token > lost.Token {
		t.Errorf("control: token %v after %v, though the revision went back", next.Token, lost.Token)
	} else {
		release(t, i, next)
	}
	if _, err := i.RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, issuer(t, addr), "r", "c"); next.Token <= lost.Token {
		t.Errorf("token %v after %v and RaiseEpoch", next.Token, lost.Token)
	}
}

// TestRefusals: an unsuitable cluster, or an operation it does not allow, is a
// clear error, and nothing is granted.
func TestRefusals(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	refused := func(name, want string, err error) {
		t.Helper()
		if !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want ErrUnavailable that says %q", name, err, want)
		}
	}
	setup := func(name, want string, err error) {
		t.Helper()
		if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want ErrSetup that says %q", name, err, want)
		}
	}
	for name, addr := range map[string]string{"a server that uses TLS": issuertest.WantsTLS(t), "nobody there": freePort(t)} {
		r := ask("r", "a")
		r.Timeout = 2 * time.Second
		_, err := issuer(t, addr).Acquire(t.Context(), r)
		refused(name, "", err)
	}

	c := connect(t, addr)
	for _, f := range []func() error{
		func() error { _, err := c.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := c.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := c.UserAdd(t.Context(), "nobody", "secret"); return err },
		func() error { _, err := c.AuthEnable(t.Context()); return err },
	} {
		testkit.Must(t, f())
	}
	_, err := issuer(t, addr).Acquire(t.Context(), ask("r", "a"))
	setup("no user", "user name is empty", err)
	as := func(user string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Username: user, Password: "secret", Logger: zap.NewNop()})
		testkit.Must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	i, err := etcdlock.New(as("nobody"), nil)
	testkit.Must(t, err)
	_, err = i.Acquire(t.Context(), ask("r", "a"))
	setup("a user without rights", "permission denied", err)
	if got, err := as("root").Get(t.Context(), "fencepost/lease/", clientv3.WithPrefix()); err != nil || got.Count != 0 {
		t.Errorf("%d leases were left, %v", got.Count, err)
	}
}

// TestServerWentBack: a running issuer that finds itself on another cluster
// refuses.
func TestServerWentBack(t *testing.T) {
	oldAddr, _ := startNode(t, t.TempDir())
	newAddr, _ := startNode(t, t.TempDir())
	old := connect(t, oldAddr)
	for range 30 {
		if _, err := old.Put(t.Context(), "filler", ""); err != nil {
			t.Fatal(err)
		}
	}
	c := connect(t, oldAddr)
	i, err := etcdlock.New(c, nil)
	testkit.Must(t, err)
	acquire(t, i, "r", "a")
	c.SetEndpoints(newAddr) // as if a restored cluster had the old one's address
	var last error
	n := 0
	testkit.Eventually(t, "the client to move", func() bool {
		n++
		_, last = i.Acquire(t.Context(), ask(fmt.Sprint("r", n), "b"))
		return errors.Is(last, guard.ErrMarkAhead)
	})
	if !strings.Contains(last.Error(), "RaiseEpoch") {
		t.Errorf("on another cluster: %v; want ErrMarkAhead and the way out", last)
	}
}

// TestForeignValues: a foreign value under a key is an error, and nothing is
// granted or changed.
func TestForeignValues(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, c := issuer(t, addr), connect(t, addr)
	acquire(t, i, "warm", "a")
	for r, kv := range map[string][2]string{
		"text":    {"lease/text", "x"},
		"json":    {"lease/json", `{"owner":"x"}`},
		"version": {"lease/version", `{"v":2,"id":"x","base":"1"}`},
	} {
		if _, err := c.Put(t.Context(), "fencepost/"+kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
		if g, err := i.Acquire(t.Context(), ask(r, "a")); !errors.Is(err, guard.ErrSetup) || g.Token != guard.NoToken {
			t.Errorf("%s: %+v, %v; want ErrSetup", r, g, err)
		}
		if got, err := c.Get(t.Context(), "fencepost/"+kv[0]); err != nil || string(got.Kvs[0].Value) != kv[1] {
			t.Errorf("%s was changed", kv[0])
		}
	}
	for _, value := range []string{"x", "-7"} {
		if _, err := c.Put(t.Context(), "fencepost/base", value); err != nil {
			t.Fatal(err)
		}
		if _, err := issuer(t, addr).Acquire(t.Context(), ask("base", "a")); !errors.Is(err, guard.ErrSetup) {
			t.Errorf("a foreign base: %v", err)
		}
	}
}

// TestLateAcquire: the transaction that creates the key comes after its attempt
// key has ended: it is refused, though its etcd lease runs.
func TestLateAcquire(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	c := connect(t, addr)
	i, err := etcdlock.New(c, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	acquire(t, i, "warm", "a")
	keys, err := c.Get(t.Context(), "fencepost/attempt/", clientv3.WithPrefix())
	if err != nil || keys.Count != 1 {
		t.Fatalf("%+v, %v; want one attempt key", keys, err)
	}
	if keys.Kvs[0].Lease == 0 {
		t.Error("the attempt key has no lease, so it never ends")
	}
	// The key disappears as when its lease ends.
	if _, err := c.Revoke(t.Context(), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Acquire(t.Context(), ask("r", "a")); !errors.Is(err, driver.ErrLate) || !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("after the attempt's end: %v; want ErrLate", err)
	}
	if got, err := c.Get(t.Context(), "fencepost/lease/r"); err != nil || got.Count != 0 {
		t.Error("the late acquire left a lease")
	}
	acquire(t, i, "r", "a") // under an attempt of its own: the cluster may have lost the other
}

// TestNoPlaceAfterClose: a watch that begins beside Close, or after it, leaves no
// place in line, which those behind it would wait for.
func TestNoPlaceAfterClose(t *testing.T) {
	addr, stop := startNode(t, t.TempDir())
	defer stop()
	c := connect(t, addr)
	beside := 0
	for round := range 30 {
		i, err := etcdlock.New(c, nil)
		testkit.Must(t, err)
		var watches sync.WaitGroup
		for n := range 4 {
			watches.Go(func() {
				i.Watch(t.Context(), driver.Watch{Resource: fmt.Sprint("r", n), LeaseID: "x"}, func() {})
			})
		}
		time.Sleep(time.Duration(round) * 200 * time.Microsecond)
		testkit.Check(t, i.Close())
		watches.Wait()
		if _, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "x"}, func() {}); !errors.Is(err, guard.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
		testkit.Eventually(t, fmt.Sprintf("the end of the places of round %d", round), func() bool {
			places, err := c.Get(t.Context(), "fencepost/queue/", clientv3.WithPrefix())
			testkit.Must(t, err)
			if places.Count > 0 {
				beside++
			}
			for _, place := range places.Kvs { // it does not run out by itself
				c.KeepAliveOnce(t.Context(), clientv3.LeaseID(place.Lease))
			}
			return places.Count == 0
		})
	}
	t.Logf("places were seen %d times", beside)
}
