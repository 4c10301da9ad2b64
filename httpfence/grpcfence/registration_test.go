package grpcfence

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fencepost-go/fencepost/guard"
)

// closer registers a service with one unary method.
func closer(server *grpc.Server, err func() error) {
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "ledger.v1.Ledger", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		unaryMethod(unary, func(context.Context) (*text, error) { return wrapperspb.String("closed"), err() }),
	}}, struct{}{})
}

func closes() error { return nil }

// TestHealthChecksPass: a load balancer holds no lease. The control is a method of
// the service.
func TestHealthChecksPass(t *testing.T) {
	f := fence(t, guard.NewMemory())
	server := grpc.NewServer(grpc.UnaryInterceptor(f.UnaryServer()), grpc.StreamInterceptor(f.StreamServer()))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	closer(server, closes)
	conn := serve(t, server)
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	watch := guard.Must(grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}))
	if _, err := watch.Recv(); err != nil {
		t.Errorf("watch: %v", err)
	}
	if err := conn.Invoke(t.Context(), unary, wrapperspb.String("acme"), &text{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("control: %v", err)
	}
	for method, want := range map[string]bool{
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": true, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": true,
		"/grpc.health.v1.Healthy/Check": false, "/x/grpc.health.v1.Health/Check": false, unary: false,
	} {
		if f.passes(method) != want {
			t.Errorf("%s passes: %v", method, !want)
		}
	}
}

// TestRetryPolicies: a service config that retries UNAVAILABLE repeats a handler
// under one claim, which is the control; behind UnaryClient it does not.
func TestRetryPolicies(t *testing.T) {
	const policy = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.002s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
	for name, c := range map[string]struct {
		opts  []grpc.DialOption
		calls int64
	}{
		"UnaryClient": {[]grpc.DialOption{grpc.WithUnaryInterceptor(UnaryClient(nil))}, 1},
		"control":     {nil, 4},
	} {
		var handled atomic.Int64
		f := fence(t, guard.NewMemory())
		server := grpc.NewServer(grpc.UnaryInterceptor(f.UnaryServer()))
		closer(server, func() error { handled.Add(1); return status.Error(codes.Unavailable, "after the write") })
		conn := serve(t, server, append(c.opts, grpc.WithDefaultServiceConfig(policy))...)
		ctx := guard.WithClaim(t.Context(), guard.Claim{Resource: "account:acme", Token: 5, LeaseID: "a"})
		if name == "control" { // the same metadata, from a client that knows nothing of fences
			var err error
			if ctx, _, err = sender(nil)(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.Invoke(ctx, unary, wrapperspb.String("acme"), &text{}); status.Code(err) != codes.Unavailable || handled.Load() != c.calls {
			t.Errorf("%s: handled %d times, %v", name, handled.Load(), err)
		}
	}
}

// TestCovers: registrations that guard less than they seem to; the last is the
// control.
func TestCovers(t *testing.T) {
	for _, c := range []struct {
		name      string
		unguarded []string
		prepare   func(f *Fence)
		want      string
	}{
		{"no interceptor", nil, func(*Fence) {}, unary},
		{"unary only", nil, func(f *Fence) { f.UnaryServer() }, stream},
		{"a method that no service has", []string{free}, func(f *Fence) { f.UnaryServer(); f.StreamServer() }, free},
		{"streams only", nil, func(f *Fence) { f.StreamServer() }, unary},
		{"both, with health checks", []string{stream}, func(f *Fence) { f.UnaryServer(); f.StreamServer() }, ""},
		{"the unary method is unguarded", []string{unary}, func(f *Fence) { f.StreamServer() }, ""},
		{"the stream is unguarded", []string{stream}, func(f *Fence) { f.UnaryServer() }, ""},
	} {
		f := guard.Must(New(fence(t, guard.NewMemory()).fence, &Options{Unguarded: c.unguarded}))
		c.prepare(f)
		server := grpc.NewServer()
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		server.RegisterService(&grpc.ServiceDesc{
			ServiceName: "ledger.v1.Ledger", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{unaryMethod(unary, seen)}, Streams: []grpc.StreamDesc{{StreamName: "Post", ClientStreams: true}},
		}, struct{}{})
		if err := f.Covers(server); (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
