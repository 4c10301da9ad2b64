package grpcfence

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fencepost-go/fencepost/guard"
)

// closer registers a service with one unary method.
func closer(server *grpc.Server, handle func(context.Context) error) {
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "ledger.v1.Ledger", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Close",
		Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			in := &text{}
			if err := decode(in); err != nil {
				return nil, err
			}
			return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: unary}, func(ctx context.Context, _ any) (any, error) {
				return wrapperspb.String("closed"), handle(ctx)
			})
		},
	}}}, struct{}{})
}

func serve(t *testing.T, server *grpc.Server, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn := guard.Must(grpc.NewClient(l.Addr().String(), append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestHealthChecksPass: a load balancer holds no lease. The control is a method of
// the service.
func TestHealthChecksPass(t *testing.T) {
	f := fence(t, guard.NewMemory(nil))
	server := grpc.NewServer(grpc.UnaryInterceptor(f.UnaryServer()), grpc.StreamInterceptor(f.StreamServer()))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	closer(server, func(context.Context) error { return nil })
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
		"UnaryClient": {[]grpc.DialOption{grpc.WithUnaryInterceptor(UnaryClient())}, 1},
		"control":     {nil, 4},
	} {
		var handled atomic.Int64
		f := fence(t, guard.NewMemory(nil))
		server := grpc.NewServer(grpc.UnaryInterceptor(f.UnaryServer()))
		closer(server, func(context.Context) error { handled.Add(1); return status.Error(codes.Unavailable, "after the write") })
		conn := serve(t, server, append(c.opts, grpc.WithDefaultServiceConfig(policy))...)
		ctx := guard.WithClaim(t.Context(), guard.Claim{Resource: "account:acme", Token: 5, LeaseID: "a"})
		if name == "control" { // the same metadata, from a client that knows nothing of fences
			var err error
			if ctx, _, err = outgoing(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.Invoke(ctx, unary, wrapperspb.String("acme"), &text{}); status.Code(err) != codes.Unavailable || handled.Load() != c.calls {
			t.Errorf("%s: handled %d times, %v", name, handled.Load(), err)
		}
	}
}

// TestVerify: registrations that guard less than they seem to.
func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(f *Fence)
		want    string
	}{
		"no interceptor": {func(*Fence) {}, unary},
		"unary only":     {func(f *Fence) { f.UnaryServer() }, free}, // which the service does not have
	} {
		f := fence(t, guard.NewMemory(nil))
		c.prepare(f)
		server := grpc.NewServer()
		closer(server, func(context.Context) error { return nil })
		if err := f.Verify(server); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := guard.Must(New(fence(t, guard.NewMemory(nil)).fence, nil))
	f.UnaryServer()
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	closer(server, func(context.Context) error { return nil })
	if err := f.Verify(server); err != nil {
		t.Errorf("control: %v", err)
	}
}
