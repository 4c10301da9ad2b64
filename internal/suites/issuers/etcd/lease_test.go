package etcd_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fencepost-go/fencepost/guard"
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
	if err != nil {
		t.Fatal(err)
	}
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
		if err := testkit.Receive(t, "another resource's acquire beside the request that hangs", other); err != nil {
			t.Error(err)
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
