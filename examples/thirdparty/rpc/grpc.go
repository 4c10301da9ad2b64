package rpc

import (
	"context"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/httpfence/grpcfence"
)

// store is etcd's KV, whose generated code is public: a put to a key is a write to the resource
// of that name. Put presents the claim to a fenced write.
type store struct {
	pb.UnimplementedKVServer
	mu     sync.Mutex
	values map[string]string
}

// errPast is for a call that has reached its handler past the fence. No
// interceptor can notice that, so each handler that writes looks for its claim.
var errPast = status.Error(codes.Internal, "the call came past its fence")

func (s *store) Put(ctx context.Context, in *pb.PutRequest) (*pb.PutResponse, error) {
	claim, ok := guard.ClaimFrom(ctx)
	if !ok {
		log.Print("a put came past the fence: is the gateway registered with RegisterKVHandlerServer?")
		return nil, errPast
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[string(in.GetKey())] = claim.Token.String() // in real life: sqlfence.DB.InTx(ctx, claim, ...)
	return &pb.PutResponse{}, nil
}

// newServer returns a service of grpc-go behind its fence.
func newServer(marks guard.Store, kv pb.KVServer) (*grpc.Server, *httpfence.Middleware, error) {
	resource, err := httpfence.Named(guard.Must(guard.NewTemplate("key:{key}")), httpfence.Bindings{
		"key": grpcfence.Field(func(m *pb.PutRequest) string { return string(m.GetKey()) }),
	})
	if err != nil {
		return nil, nil, err
	}
	fence, err := httpfence.New(marks, resource, nil)
	if err != nil {
		return nil, nil, err
	}
	guarded, err := grpcfence.New(fence, &grpcfence.Options{Unguarded: []string{pb.KV_Range_FullMethodName}})
	if err != nil {
		return nil, nil, err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(guarded.UnaryServer()), grpc.StreamInterceptor(guarded.StreamServer()))
	pb.RegisterKVServer(server, kv)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer()) // passes without a claim
	return server, fence, guarded.Covers(server)
}

// newGateway returns the gateway in front of server, in the same process.
// RegisterKVHandlerServer would call the service past its interceptors, so the
// gateway gets a connection, which is in memory.
func newGateway(ctx context.Context, server *grpc.Server, fence *httpfence.Middleware) (http.Handler, error) {
	l := bufconn.Listen(1 << 20)
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		return nil, err
	}
	mux := runtime.NewServeMux(runtime.WithIncomingHeaderMatcher(headers), runtime.WithErrorHandler(refusals(fence)))
	return mux, gw.RegisterKVHandler(ctx, mux, conn)
}

// headers has the gateway pass the fields of a claim on under their own names.
func headers(name string) (string, bool) {
	switch name {
	case httpfence.TokenHeader, httpfence.LeaseHeader, httpfence.ResourceHeader, proof.Header:
		return strings.ToLower(name), true
	}
	return runtime.DefaultHeaderMatcher(name)
}

// refusals renders what the fence has refused as httpfence does, with 412 and the
// reason. The gateway by itself would send 400 for a stale claim.
func refusals(fence *httpfence.Middleware) runtime.ErrorHandlerFunc {
	return func(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
		if refused := grpcfence.ErrorFrom(err, guard.Claim{}); refused != err {
			fence.Relay(w, r, refused)
			return
		}
		runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
	}
}

// inProcess is for a gateway without a connection: InTx of a fence, or Admit,
// around the gateway's own handlers, which render errors inside of it. The resource
// must come from the path or the identity, because the message is not known yet.
//
//	mux := runtime.NewServeMux(runtime.WithMiddlewares(inProcess(fence.InTx)))
func inProcess(guard func(http.Handler) http.Handler) runtime.Middleware {
	return func(next runtime.HandlerFunc) runtime.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
			for name, value := range params {
				r.SetPathValue(name, value) // for httpfence.PathValue
			}
			guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next(w, r, params) })).ServeHTTP(w, r)
		}
	}
}
