package rpc

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/httpfence/grpcfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// put sends a put of key through the gateway under a claim.
func put(ctx context.Context, gateway string, claim guard.Claim, key string) error {
	transport, err := httpfence.NewTransport(nil, []string{gateway}, nil)
	if err != nil {
		return err
	}
	body := strings.NewReader(fmt.Sprintf(`{"key":%q}`, base64.StdEncoding.EncodeToString([]byte(key))))
	r, err := http.NewRequestWithContext(guard.WithClaim(ctx, claim), http.MethodPost, gateway+"/v3/kv/put", body)
	if err != nil {
		return err
	}
	resp, err := httpfence.Do(&http.Client{Transport: transport}, r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func claim(resource string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: "l" + token.String()}
}

// TestGRPC: a client of grpc-go learns each reason; reads and other keys are free.
func TestGRPC(t *testing.T) {
	testkit.CaptureDefault(t)
	s := &store{values: map[string]string{}}
	server, _, err := newServer(guard.NewMemory(), s)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn := guard.Must(grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(grpcfence.UnaryClient(nil))))
	defer func() { _ = conn.Close() }()
	kv := pb.NewKVClient(conn)
	for _, c := range []struct {
		claim guard.Claim
		key   string
		want  error
	}{
		{claim("key:a", 11), "a", nil},
		{claim("key:a", 10), "a", guard.ErrStale},
		{claim("key:a", 12), "b", guard.ErrMisdirected},
		{claim("key:b", 10), "b", nil},
		{guard.Claim{}, "a", guard.ErrMissing},
	} {
		ctx := t.Context()
		if c.claim.Token != guard.NoToken {
			ctx = guard.WithClaim(ctx, c.claim)
		}
		_, err := kv.Put(ctx, &pb.PutRequest{Key: []byte(c.key)})
		if err := grpcfence.ErrorFrom(err, c.claim); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if s.values["a"] != "11" || s.values["b"] != "10" {
		t.Errorf("%v", s.values)
	}
	if _, err := kv.Range(t.Context(), &pb.RangeRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a read: %v", err)
	}
}

// TestGateway: a gateway is fenced if it calls the service by a connection and
// passes the fields on. The controls are one that has its default headers, whose
// claims are missing, and one that calls the service in process: it reaches the
// handler past the fence, which only the handler can notice.
func TestGateway(t *testing.T) {
	testkit.CaptureDefault(t)
	for name, c := range map[string]struct {
		gateway       func(server *grpc.Server, fence *httpfence.Middleware, kv pb.KVServer) (http.Handler, error)
		first, second string // the errors under tokens 11 and 10
		stored        string
	}{
		"by a connection": {func(server *grpc.Server, fence *httpfence.Middleware, _ pb.KVServer) (http.Handler, error) {
			return newGateway(t.Context(), server, fence)
		}, "", "stale fencing token", "11"},
		"default headers": {func(server *grpc.Server, _ *httpfence.Middleware, _ pb.KVServer) (http.Handler, error) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			go func() { _ = server.Serve(l) }()
			mux := runtime.NewServeMux()
			return mux, gw.RegisterKVHandlerFromEndpoint(t.Context(), mux, l.Addr().String(), []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())})
		}, "400", "400", ""},
		"in process": {func(_ *grpc.Server, _ *httpfence.Middleware, kv pb.KVServer) (http.Handler, error) {
			mux := runtime.NewServeMux()
			return mux, gw.RegisterKVHandlerServer(t.Context(), mux, kv)
		}, "500", "500", ""},
	} {
		var logged bytes.Buffer
		log.SetOutput(&logged)
		s := &store{values: map[string]string{}}
		server, fence, err := newServer(guard.NewMemory(), s)
		if err != nil {
			t.Fatal(err)
		}
		gateway, err := c.gateway(server, fence, s)
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(gateway)
		for token, want := range map[guard.Token]string{11: c.first, 10: c.second} {
			if token == 10 {
				_ = put(t.Context(), web.URL, claim("key:a", 11), "a")
			}
			err := put(t.Context(), web.URL, claim("key:a", token), "a")
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, token %v: %v", name, token, err)
			}
		}
		if s.values["a"] != c.stored || strings.Contains(logged.String(), "past the fence") != (name == "in process") {
			t.Errorf("%s: stored %v, logged %s", name, s.values, &logged)
		}
		web.Close()
		server.Stop()
	}
}

// TestGatewayInProcess: InTx around a gateway's handlers commits what succeeds
// and rolls back what fails. The handler gets the claim.
func TestGatewayInProcess(t *testing.T) {
	testkit.CaptureDefault(t)
	tx := &transactor{Store: guard.NewMemory()}
	fence := guard.Must(httpfence.NewTx(tx, func(*http.Request) (string, error) { return "keys of acme", nil }, nil))
	mux := runtime.NewServeMux(runtime.WithMiddlewares(inProcess(fence.InTx)))
	s := &store{values: map[string]string{}}
	if err := gw.RegisterKVHandlerServer(t.Context(), mux, s); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(mux)
	defer web.Close()
	for _, c := range []struct {
		path      string
		token     guard.Token
		status    int
		committed int
	}{
		{"/v3/kv/put", 11, 200, 1},
		{"/v3/kv/range", 11, 501, 1}, // not implemented
		{"/v3/kv/put", 10, 412, 1},
		{"/v3/kv/put", 12, 200, 2},
	} {
		r := guard.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+c.path, strings.NewReader(`{"key":"`+base64.StdEncoding.EncodeToString([]byte("a"))+`"}`)))
		r.Header.Set(httpfence.TokenHeader, c.token.String())
		r.Header.Set(httpfence.LeaseHeader, "l")
		r.Header.Set(httpfence.ResourceHeader, httpfence.Encode("keys of acme"))
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || tx.committed != c.committed {
			t.Errorf("%+v: %s, %d committed", c, resp.Status, tx.committed)
		}
	}
	if s.values["a"] != "12" {
		t.Errorf("%v", s.values)
	}
}

// transactor is a Transactor in memory, for calls one after the other.
type transactor struct {
	guard.Store
	committed int
}

func (x *transactor) Marks() guard.Store { return x.Store }

func (x *transactor) InTx(ctx context.Context, claim guard.Claim, fn func(context.Context) error) error {
	if _, err := x.Admit(ctx, claim); err != nil {
		return err
	}
	err := fn(guard.WithClaim(ctx, claim))
	if err == nil {
		x.committed++
	}
	return err
}
