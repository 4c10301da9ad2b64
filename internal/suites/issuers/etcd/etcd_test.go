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
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
)

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func issuer(t testing.TB, addr string) *etcdlock.Issuer {
	t.Helper()
	i, err := etcdlock.New(connect(t, addr), nil)
	if err != nil {
		t.Fatal(err)
	}
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
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { i.Close() })
				return i, n
			},
			TTL:      6 * time.Second, // longer than Slack and a second, or leases would expire
			Slack:    3 * time.Second, // see "What a late request does" in the documentation
			Parallel: true,
		}
	})
}

func ask(resource, id string) driver.Request {
	return driver.Request{Resource: resource, LeaseID: id, Owner: "o", TTL: time.Minute, Timeout: time.Minute}
}

func acquire(t testing.TB, i driver.Issuer, resource, id string) guard.Claim {
	t.Helper()
	g, err := i.Acquire(t.Context(), ask(resource, id))
	if err != nil {
		t.Fatal(err)
	}
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: id}
}

// TestP3TokensSurviveAWipedCluster: the data directory is lost. The base keeps
// the tokens above those of the former cluster; revisions alone repeat.
func TestP3TokensSurviveAWipedCluster(t *testing.T) {
	addr, stop := startNode(t, t.TempDir())
	before := acquire(t, issuer(t, addr), "r", "a")
	revision := func(addr string) int64 {
		resp, err := connect(t, addr).Put(t.Context(), "control", "")
		if err != nil {
			t.Fatal(err)
		}
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

// TestP3TokensSurviveARestore: an old copy of the data is restored without
// bumping the revision. A new process repeats tokens until RaiseEpoch is
// called, and one that ran throughout refuses: the former is the residual risk.
func TestP3TokensSurviveARestore(t *testing.T) {
	dir := t.TempDir()
	data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "backup")
	addr, stop := startNode(t, data)
	acquire(t, issuer(t, addr), "first", "a")
	stop()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	addr, stop = startNode(t, data)
	lost := acquire(t, issuer(t, addr), "r", "a")
	stop()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	addr, _ = startNode(t, data)
	i := issuer(t, addr)
	if next := acquire(t, i, "r", "b"); next.Token > lost.Token {
		t.Errorf("control: token %v after %v, though the revision went back", next.Token, lost.Token)
	} else if freed, err := i.Release(t.Context(), next); !freed || err != nil {
		t.Fatal(freed, err)
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("\x15\x03\x03\x00\x02\x02\x46")) // TLS: protocol version alert
			conn.Close()
		}
	}()
	for name, addr := range map[string]string{"a server that uses TLS": l.Addr().String(), "nobody there": freePort(t)} {
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
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = issuer(t, addr).Acquire(t.Context(), ask("r", "a"))
	setup("no user", "user name is empty", err)
	nobody, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Username: "nobody", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nobody.Close() })
	i, err := etcdlock.New(nobody, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Acquire(t.Context(), ask("r", "a"))
	setup("a user without rights", "permission denied", err)
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Username: "root", Password: "secret", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	if got, err := root.Get(t.Context(), "fencepost/lease/", clientv3.WithPrefix()); err != nil || got.Count != 0 {
		t.Errorf("%d leases were left, %v", got.Count, err)
	}
}

// TestAdvanceAndRaiseEpoch raise tokens and never lower them, and a running lease
// keeps its token.
func TestAdvanceAndRaiseEpoch(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i := issuer(t, addr)
	held := acquire(t, i, "r", "a")
	if _, err := i.Advance(t.Context(), "r", held.Token+1_000_000); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("Advance above a holder: %v; want ErrHeld", err)
	}
	if _, err := i.RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	results := make([]driver.Renewed, 1)
	i.Renew(t.Context(), []driver.Renewal{{Claim: held, TTL: time.Minute}}, results)
	if results[0].State != driver.Extended {
		t.Errorf("a lease that runs through RaiseEpoch: %+v", results[0])
	}
	if freed, err := i.Release(t.Context(), held); !freed || err != nil {
		t.Fatal(freed, err)
	}
	above := held.Token + 1<<40
	if reached, err := i.Advance(t.Context(), "r", above); err != nil || reached != above {
		t.Errorf("Advance: %v, %v", reached, err)
	}
	if reached, err := i.Advance(t.Context(), "r", above-5); err != nil || reached < above {
		t.Errorf("Advance below: %v, %v; want at least %v", reached, err, above)
	}
	// Another process does not have the base in memory.
	next := acquire(t, issuer(t, addr), "r", "b")
	if next.Token <= above {
		t.Errorf("token %v after Advance to %v", next.Token, above)
	}
	if other := acquire(t, issuer(t, addr), "other", "a"); other.Token <= above {
		t.Errorf("another resource has token %v; the base counts for all", other.Token)
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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

// TestWakeOne: a release wakes the longest waiting process alone, and its
// release at the next.
func TestWakeOne(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	a := issuer(t, addr)
	held := acquire(t, a, "r", "a")
	woken := make(chan int, 10)
	var waiting []*etcdlock.Issuer
	for n := range 3 {
		i := issuer(t, addr)
		waiting = append(waiting, i)
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: fmt.Sprint("w", n)}, func() { woken <- n })
		if err != nil || w.Held == nil || w.Held.Token != held.Token {
			t.Fatalf("%+v, %v", w, err)
		}
		t.Cleanup(w.Stop)
	}
	changed := make(chan bool, 1)
	onlooker, err := issuer(t, addr).Watch(t.Context(), driver.Watch{Resource: "r"}, func() { changed <- true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(onlooker.Stop)
	for n := range 3 {
		if freed, err := a.Release(t.Context(), held); !freed || err != nil {
			t.Fatal(freed, err)
		}
		if got := <-woken; got != n {
			t.Fatalf("process %d was woken, process %d waits longest", got, n)
		}
		held = acquire(t, waiting[n], "r", fmt.Sprint("w", n))
	}
	<-changed
	select {
	case n := <-woken:
		t.Errorf("process %d was woken while the lease was held", n)
	case <-time.After(time.Second):
	}
}

// TestGrantedBeforeItsTurn: a waiter that is granted the lease before its turn
// came leaves the line. Otherwise those behind it would wait for its place to run
// out.
func TestGrantedBeforeItsTurn(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, c := issuer(t, addr), connect(t, addr)
	w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "a"}, func() {})
	if err != nil || w.Held != nil {
		t.Fatalf("%+v, %v", w, err)
	}
	w.Stop()
	r := ask("r", "a")
	r.Waiting = true
	places := func() *clientv3.GetResponse {
		resp, err := c.Get(t.Context(), "fencepost/queue/", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	place := places()
	if place.Count != 1 {
		t.Fatalf("%d places", place.Count)
	}
	if _, err := i.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of the place", func() bool {
		c.KeepAliveOnce(t.Context(), clientv3.LeaseID(place.Kvs[0].Lease)) // it does not run out meanwhile
		return places().Count == 0
	})
}
