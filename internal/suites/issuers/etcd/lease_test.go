package etcd_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/etcdlock"
)

// wire sees every request of a client.
type wire struct {
	mu    sync.Mutex
	calls map[string]int             // by the last part of the method
	puts  []*etcdserverpb.TxnRequest // that create a lease's key
	// on is called before a request is sent; nil unless set.
	on func(ctx context.Context, method string, send func() error) error
}

func (w *wire) pass(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	w.mu.Lock()
	w.calls[name]++
	if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Success) > 0 && strings.HasPrefix(string(txn.Success[0].GetRequestPut().GetKey()), "fencepost/lease/") {
		w.puts = append(w.puts, proto.Clone(txn).(*etcdserverpb.TxnRequest))
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

// count returns how often a request was sent since the last call.
func (w *wire) count(names ...string) (out []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		out = append(out, w.calls[n])
	}
	clear(w.calls)
	return out
}

// wired returns an issuer whose requests are recorded.
func wired(t testing.TB, addr string) (*etcdlock.Issuer, *wire, *clientv3.Client) {
	t.Helper()
	w := &wire{calls: map[string]int{}}
	c := connect(t, addr, grpc.WithChainUnaryInterceptor(w.pass))
	i, err := etcdlock.New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return i, w, c
}

func release(t testing.TB, i driver.Issuer, claim guard.Claim) {
	t.Helper()
	if freed, err := i.Release(t.Context(), claim); !freed || err != nil {
		t.Fatal(freed, err)
	}
}

// TestTwoWritesForAPair: a client that acquires and releases in turns sends two
// transactions per pair, and no request for an etcd lease.
func TestTwoWritesForAPair(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, w, _ := wired(t, addr)
	hour := func(id string) driver.Request { // the etcd lease stays young for five seconds
		r := ask("r", id)
		r.TTL, r.Timeout = time.Hour, time.Hour
		return r
	}
	reused := false
	for n := 0; n < 20 && !reused; n++ { // a machine that stalls for five seconds may miss it
		var last driver.Grant
		for range 2 {
			id := string(rune('a' + n))
			w.count()
			began := driver.Now()
			g, err := i.Acquire(t.Context(), hour(id))
			if err != nil {
				t.Fatal(err)
			}
			if g.Token <= last.Token {
				t.Fatalf("token %v after %v", g.Token, last.Token)
			}
			release(t, i, guard.Claim{Resource: "r", Token: g.Token, LeaseID: id})
			if got := w.count("LeaseGrant", "LeaseRevoke", "Txn", "Put", "Range"); got[0] == 0 && got[1] == 0 {
				reused = true
				if got[2] != 2 || got[3] != 0 || got[4] != 0 {
					t.Errorf("%v requests of another kind; want two transactions alone", got)
				}
				if g.From >= began || g.From < last.From {
					t.Errorf("the lease counts from %v, the etcd lease was granted before %v", g.From, began)
				}
			}
			last = g
		}
	}
	if !reused {
		t.Error("no etcd lease served twice")
	}
}

// TestP8RepeatedTransaction: a network repeats a granted acquire's transaction
// after its release, while the etcd lease is still in use. It is refused;
// without the slot's comparison it is granted, which is the control.
func TestP8RepeatedTransaction(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, w, c := wired(t, addr)
	r := ask("r", "a")
	r.TTL = time.Hour
	g, err := i.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	release(t, i, guard.Claim{Resource: "r", Token: g.Token, LeaseID: "a"})
	send := func(txn *etcdserverpb.TxnRequest) bool {
		resp, err := etcdserverpb.NewKVClient(c.ActiveConnection()).Txn(t.Context(), txn)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	first := w.puts[0]
	if send(first) {
		t.Error("a lease ID that was released was granted again")
	}
	open := proto.Clone(first).(*etcdserverpb.TxnRequest)
	open.Compare = nil
	for _, cmp := range first.Compare {
		if !strings.HasPrefix(string(cmp.Key), "fencepost/slot/") {
			open.Compare = append(open.Compare, cmp)
		}
	}
	if len(open.Compare) != len(first.Compare)-1 || !send(open) {
		t.Error("control: without the comparison the repeated transaction was refused as well")
	}
}

// TestP7NoRevokeOfWhatMayBeAdopted: the answer to a transaction is lost, and the
// same lease ID finds its own grant. Nothing ends that etcd lease meanwhile.
func TestP7NoRevokeOfWhatMayBeAdopted(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i, w, c := wired(t, addr)
	release(t, i, acquire(t, i, "warm", "a"))
	w.count()
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
	if got := w.count("LeaseRevoke"); got[0] != 0 {
		t.Error("an etcd lease was revoked whose key the next attempt took for its own")
	}
	if got, err := c.Get(t.Context(), "fencepost/lease/r"); err != nil || got.Count != 1 {
		t.Error("the lease is gone")
	}
	release(t, i, claim)
}

// TestAStalledCallHoldsUpNoOther: a hanging request delays neither another
// resource's acquire nor an answer that is already known.
func TestAStalledCallHoldsUpNoOther(t *testing.T) {
	t.Run("attempt key", func(t *testing.T) {
		addr, _ := startNode(t, t.TempDir())
		i, w, _ := wired(t, addr)
		stalled, end := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.set(func(_ context.Context, method string, send func() error) error {
			first := false
			if method == "LeaseGrant" { // the first is for the attempt key
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
		select {
		case err := <-other:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Error("another resource's acquire waits for the request that hangs")
		}
		close(end)
		if err := <-done; err != nil {
			t.Error(err)
		}
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
