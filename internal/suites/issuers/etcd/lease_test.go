package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
)

// wire sees every request of a client.
type wire struct {
	mu    sync.Mutex
	puts  []*etcdserverpb.TxnRequest // that create a lease's key
	ended []int64                    // the etcd leases that were revoked
	// on is called before a request is sent; nil unless set.
	on func(ctx context.Context, method string, send func() error) error
}

func (w *wire) pass(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	w.mu.Lock()
	if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Success) > 0 && strings.HasPrefix(string(txn.Success[0].GetRequestPut().GetKey()), "fencepost/lease/") {
		w.puts = append(w.puts, proto.Clone(txn).(*etcdserverpb.TxnRequest))
	}
	if revoke, ok := req.(*etcdserverpb.LeaseRevokeRequest); ok {
		w.ended = append(w.ended, revoke.ID)
	}
	on := w.on
	w.mu.Unlock()
	send := func() error { return invoke(ctx, method, req, reply, cc, opts...) }
	if on != nil {
		return on(ctx, name, send)
	}
	return send()
}

func (w *wire) set(on func(ctx context.Context, method string, send func() error) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = on
}

// wired returns an issuer whose requests are recorded.
func wired(t testing.TB, addr string) (*etcdlock.Issuer, *wire, *clientv3.Client) {
	t.Helper()
	w := &wire{}
	c := connect(t, addr, grpc.WithChainUnaryInterceptor(w.pass))
	i, err := etcdlock.New(c, nil)
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	return i, w, c
}

// TestP8RepeatedTransaction: a network repeats a granted acquire's transaction
// after its release. It is refused, because the release ended its etcd lease; with one
// that runs it is granted, which is the control.
func TestP8RepeatedTransaction(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, w, c := wired(t, addr)
	release(t, i, acquire(t, i, "r", "a"))
	send := func(txn *etcdserverpb.TxnRequest) error {
		resp, err := etcdserverpb.NewKVClient(c.ActiveConnection()).Txn(t.Context(), txn)
		if err == nil && !resp.Succeeded {
			err = errors.New("the transaction's comparisons failed")
		}
		return err
	}
	first := w.puts[0]
	if err := send(first); !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		t.Errorf("a lease ID that was released: %v; want that its etcd lease is gone", err)
	}
	running, err := c.Grant(t.Context(), 60)
	testkit.Must(t, err)
	open := proto.Clone(first).(*etcdserverpb.TxnRequest)
	open.Success[0].GetRequestPut().Lease = int64(running.ID)
	if err := send(open); err != nil {
		t.Errorf("control: with an etcd lease that runs the repeated transaction was refused as well: %v", err)
	}
}

// TestP7NoRevokeOfWhatMayBeAdopted: the answer to a transaction is lost, and the
// same lease ID finds its own grant. Nothing ends that etcd lease meanwhile.
func TestP7NoRevokeOfWhatMayBeAdopted(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, w, c := wired(t, addr)
	release(t, i, acquire(t, i, "warm", "a"))
	w.set(func(_ context.Context, method string, send func() error) error {
		err := send()
		if method == "Txn" && err == nil {
			err = status.Error(codes.Internal, "the answer is lost")
		}
		return err
	})
	if _, err := i.Acquire(t.Context(), ask("r", "a")); !errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Fatalf("%v; want ErrOutcomeUnknown", err)
	}
	w.set(nil)
	claim := acquire(t, i, "r", "a")
	got, err := c.Get(t.Context(), "fencepost/lease/r")
	if err != nil || got.Count != 1 {
		t.Fatal("the lease is gone")
	}
	w.mu.Lock()
	if slices.Contains(w.ended, got.Kvs[0].Lease) {
		t.Error("an etcd lease was revoked whose key the next attempt took for its own")
	}
	w.mu.Unlock()
	release(t, i, claim)
}

// TestAStalledCallHoldsUpNoOther: a hanging request delays neither another
// resource's acquire nor an answer that is already known.
func TestAStalledCallHoldsUpNoOther(t *testing.T) {
	t.Run("attempt", func(t *testing.T) {
		addr, _ := startNode(t, t.TempDir())
		i, w, _ := wired(t, addr)
		stalled, end := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.set(func(_ context.Context, method string, send func() error) error {
			first := false
			if method == "LeaseGrant" { // the first is for the attempt
				once.Do(func() { first = true })
			}
			if first {
				close(stalled)
				<-end
			}
			return send()
		})
		done := make(chan error, 1)
		go func() {
			_, err := i.Acquire(context.WithoutCancel(t.Context()), ask("slow", "a"))
			done <- err
		}()
		<-stalled
		other := make(chan error, 1)
		go func() {
			_, err := i.Acquire(context.WithoutCancel(t.Context()), ask("other", "a"))
			other <- err
		}()
		testkit.Check(t, testkit.Receive(t, "another resource's acquire beside the request that hangs", other))
		close(end)
		testkit.Check(t, <-done)
	})
	t.Run("revoke", func(t *testing.T) {
		addr, _ := startNode(t, t.TempDir())
		i, w, c := wired(t, addr)
		if _, err := c.Put(t.Context(), "fencepost/lease/foreign", "x"); err != nil {
			t.Fatal(err)
		}
		acquire(t, i, "warm", "a")
		given := make(chan struct{})
		w.set(func(ctx context.Context, method string, send func() error) error {
			if method != "LeaseRevoke" {
				return send()
			}
			<-ctx.Done() // until it is given up
			close(given)
			return status.FromContextError(ctx.Err()).Err()
		})
		if _, err := i.Acquire(t.Context(), ask("foreign", "a")); !errors.Is(err, guard.ErrSetup) {
			t.Errorf("%v; want ErrSetup", err)
		}
		select {
		case <-given:
			t.Error("the answer waited until the etcd lease's end was given up")
		default:
		}
		<-given // it was tried: an etcd lease without a key is not left
	})
}

// line returns the keys of a resource's line, the longest waiting first.
func line(t testing.TB, c *clientv3.Client, resource string) (keys []string) {
	t.Helper()
	resp, err := c.Get(t.Context(), "fencepost/queue/"+resource+"\x00", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	testkit.Must(t, err)
	for _, kv := range resp.Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// TestWatchingAgainKeepsThePlace: the first in line ends its watch and watches
// again, as a client does every few seconds. It keeps its place and is woken first.
func TestWatchingAgainKeepsThePlace(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	holder, first, second, c := issuer(t, addr), issuer(t, addr), issuer(t, addr), connect(t, addr)
	held := acquire(t, holder, "r", "holder")
	woken := make(chan string, 10)
	watch := func(i driver.Issuer, name string) driver.Watching {
		t.Helper()
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: name}, func() { woken <- name })
		if err != nil || w.Held == nil {
			t.Fatalf("%+v, %v", w, err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	w := watch(first, "first")
	watch(second, "second")
	before := line(t, c, "r")
	for range 3 {
		time.Sleep(200 * time.Millisecond) // until it watches the lease
		w.Stop()
		w = watch(first, "first")
	}
	time.Sleep(500 * time.Millisecond)
	if now := line(t, c, "r"); len(before) != 2 || strings.Join(now, " ") != strings.Join(before, " ") {
		t.Errorf("the line was %q and is %q", before, now)
	}
	release(t, holder, held)
	if name := <-woken; name != "first" {
		t.Errorf("the %s in line was woken before the other", name)
	}
}

// TestCloseLeavesTheLine: an issuer that is closed gives up its places in line, so
// that nobody waits for them to run out.
func TestCloseLeavesTheLine(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, c := issuer(t, addr), connect(t, addr)
	for _, resource := range []string{"r", "s"} {
		acquire(t, i, resource, "holder")
		if _, err := i.Watch(t.Context(), driver.Watch{Resource: resource, LeaseID: "waiter"}, func() {}); err != nil {
			t.Fatal(err)
		}
		if places := line(t, c, resource); len(places) != 1 {
			t.Fatalf("%s: the line is %q", resource, places)
		}
	}
	testkit.Must(t, i.Close())
	for _, resource := range []string{"r", "s"} {
		if places := line(t, c, resource); len(places) > 0 {
			t.Errorf("%s: after Close the line is %q", resource, places)
		}
	}
}

// TestRepeatedAcquireUnderALongerTTL: the lease keeps the TTL that it was granted
// with, and the answer says so: otherwise its holder would rely on it after the
// cluster had granted it to another.
func TestRepeatedAcquireUnderALongerTTL(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i := issuer(t, addr)
	r := ask("r", "a")
	r.TTL = 5 * time.Second
	first, err := i.Acquire(t.Context(), r)
	testkit.Must(t, err)
	r.TTL = time.Hour
	again, err := i.Acquire(t.Context(), r)
	if err != nil || again.Token != first.Token {
		t.Fatalf("%+v, %v; want the same lease as %+v", again, err, first)
	}
	if again.TTL == 0 || again.TTL > 5*time.Second {
		t.Errorf("the lease of 5s is said to last %v (0 is what was asked, an hour)", again.TTL)
	}
}

// TestRestoreOfAFewRevisions: an issuer that keeps running during a restore that
// lost only the last few writes notices, and issues no token twice.
func TestRestoreOfAFewRevisions(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	addr, stop := startNode(t, data)
	proxy, err := faultproxy.New("tcp", addr, nil) // one address for a server that comes back under another
	testkit.Must(t, err)
	t.Cleanup(proxy.Close)
	i := issuer(t, proxy.Addr())
	for n := range 20 { // so that what is lost is a small part
		acquire(t, i, fmt.Sprint("before", n), "a")
	}
	stop()
	restore := saved(t, data)
	addr, stop = startNode(t, data)
	proxy.Backend("tcp", addr)
	lost := acquire(t, i, "r", "a")
	stop()
	restore()
	addr, _ = startNode(t, data)
	proxy.Backend("tcp", addr)
	r := ask("r", "b")
	r.Timeout = time.Minute
	g, err := i.Acquire(t.Context(), r)
	if !errors.Is(err, guard.ErrMarkAhead) {
		t.Errorf("after %v was lost: %+v, %v; want ErrMarkAhead", lost.Token, g, err)
	}
	if _, err := i.RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, i, "r", "c"); next.Token <= lost.Token {
		t.Errorf("token %v after %v and RaiseEpoch", next.Token, lost.Token)
	}
}

// TestP3BaseOfARestoredSnapshot: a base is lost with a restored snapshot, and RaiseEpoch
// replaces it by another at the same revision. A process that has the lost one in memory
// grants nothing from it: it refuses, or grants above what others were granted since.
func TestP3BaseOfARestoredSnapshot(t *testing.T) {
	for name, above := range map[string]guard.Token{
		"raised above the lost one": 1 << 36,
		"raised below the lost one": 1 << 50,
	} {
		t.Run(name, func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			addr, stop := startNode(t, data)
			proxy, err := faultproxy.New("tcp", addr, nil)
			testkit.Must(t, err)
			t.Cleanup(proxy.Close)
			running := issuer(t, proxy.Addr())
			first := acquire(t, running, "r", "a")
			release(t, running, first)
			revision := func() int64 {
				resp, err := connect(t, addr).Get(t.Context(), "fencepost/base")
				testkit.Must(t, err)
				return resp.Kvs[0].ModRevision
			}
			stop()
			restore := saved(t, data)
			addr, stop = startNode(t, data)
			proxy.Backend("tcp", addr)
			if _, err := issuer(t, addr).Advance(t.Context(), "other", first.Token+above); err != nil {
				t.Fatal(err)
			}
			lost := revision()
			release(t, running, acquire(t, running, "r", "b")) // it learns the base
			stop()
			restore()
			addr, _ = startNode(t, data)
			proxy.Backend("tcp", addr)
			fresh := issuer(t, addr)
			if _, err := fresh.RaiseEpoch(t.Context()); err != nil {
				t.Fatal(err)
			}
			if is := revision(); is != lost {
				t.Errorf("control: the base that was lost has revision %d, the other one %d", lost, is)
			}
			var last guard.Claim
			for range 3 { // so that the revision is above what the running process saw
				last = acquire(t, fresh, "r", "c")
				release(t, fresh, last)
			}
			g, err := running.Acquire(t.Context(), ask("r", "d"))
			if err == nil && g.Token <= last.Token || err != nil && !errors.Is(err, guard.ErrMarkAhead) {
				t.Errorf("the running process: token %v after %v, %v", g.Token, last.Token, err)
			}
			if above > 1<<40 && err == nil {
				t.Errorf("the base went back, and the running process is granted token %v", g.Token)
			}
		})
	}
}
