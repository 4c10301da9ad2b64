package grpcfence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

type text = wrapperspb.StringValue

const (
	unary  = "/ledger.v1.Ledger/Close"
	stream = "/ledger.v1.Ledger/Post"
	free   = "/ledger.v1.Ledger/Get"
)

// fence guards the account that the message names.
func fence(t *testing.T, store guard.Store) *Fence {
	t.Helper()
	named := guard.Must(httpfence.Named(guard.Must(guard.NewTemplate("account:{id}")), httpfence.Bindings{
		"id": Field(func(m *text) string { return m.GetValue() }),
	}))
	m := guard.Must(httpfence.New(store, named, &httpfence.Options{Logger: testkit.Logger(t)}))
	return guard.Must(New(m, &Options{Unguarded: []string{free}}))
}

// client is one RPC transport.
type client struct {
	call func(ctx context.Context, method, account string) (string, error)
	open func(ctx context.Context) (bidi, error)
}

// bidi is Connect's *BidiStreamForClient, and what grpcBidi makes of grpc-go's.
type bidi interface {
	Send(*text) error
	Receive() (*text, error)
	CloseRequest() error
}

type grpcBidi struct{ grpc.ClientStream }

func (s grpcBidi) Send(m *text) error  { return s.SendMsg(m) }
func (s grpcBidi) CloseRequest() error { return s.CloseSend() }
func (s grpcBidi) Receive() (*text, error) {
	out := &text{}
	return out, s.RecvMsg(out)
}

// exchange sends a message and waits for the response.
func exchange(s bidi, account string) (string, error) {
	_ = s.Send(wrapperspb.String(account)) // Receive returns the outcome
	out, err := s.Receive()
	return out.GetValue(), err
}

// end is the outcome of a stream of that many messages; nil at a regular end.
func end(s bidi, messages int) (err error) {
	for range messages {
		_ = s.Send(wrapperspb.String("a"))
	}
	_ = s.CloseRequest()
	for err == nil {
		_, err = s.Receive()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// What a test has the handlers do besides: fail, and send from another goroutine.
var (
	fails  func() error
	beside atomic.Pointer[func(ctx context.Context, send func(*text) error)]
)

// seen is the handlers' response: the claim under which they were called.
func seen(ctx context.Context) (*text, error) {
	if fails != nil {
		return nil, fails()
	}
	claim, ok := guard.ClaimFrom(ctx)
	if !ok {
		return wrapperspb.String("no claim"), nil
	}
	return wrapperspb.String(claim.Resource + " " + claim.Token.String() + " " + claim.LeaseID), nil
}

// each is the stream's handler: it responds to each message. With swallow it ends
// without an error when it gets one.
func each(ctx context.Context, receive func() error, send func(*text) error, swallow bool) error {
	for {
		err := receive()
		if errors.Is(err, io.EOF) || err != nil && swallow {
			return nil
		}
		if err != nil {
			return err
		}
		if f := beside.Load(); f != nil {
			go (*f)(ctx, send)
		}
		out, err := seen(ctx)
		if err != nil {
			return err
		}
		if err := send(out); err != nil {
			return err
		}
	}
}

// transports are all ways to reach a guarded handler.
var transports = []struct {
	name string
	dial func(t *testing.T, f *Fence, swallow bool) client
}{
	{"grpc-go", grpcClient},
	{"Connect", connectClient()},
	{"gRPC", connectClient(connect.WithGRPC())},
	{"gRPC-Web", connectClient(connect.WithGRPCWeb())},
}

// unaryMethod is a unary method of the service for grpc-go.
func unaryMethod(full string, handle func(context.Context) (*text, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: path.Base(full), Handler: func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := &text{}
		if err := decode(in); err != nil {
			return nil, err
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: full}, func(ctx context.Context, _ any) (any, error) { return handle(ctx) })
	}}
}

// serve runs a grpc-go server and returns a connection to it.
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

func grpcClient(t *testing.T, f *Fence, swallow bool) client {
	server := grpc.NewServer(grpc.UnaryInterceptor(f.UnaryServer()), grpc.StreamInterceptor(f.StreamServer()))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "ledger.v1.Ledger", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{unaryMethod(unary, seen), unaryMethod(free, seen)},
		Streams: []grpc.StreamDesc{{StreamName: "Post", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			return each(s.Context(), func() error { return s.RecvMsg(&text{}) }, func(m *text) error { return s.SendMsg(m) }, swallow)
		}}},
	}, struct{}{})
	conn := serve(t, server, grpc.WithUnaryInterceptor(UnaryClient(nil)), grpc.WithStreamInterceptor(StreamClient(nil)))
	return client{
		func(ctx context.Context, method, account string) (string, error) {
			out := &text{}
			err := conn.Invoke(ctx, method, wrapperspb.String(account), out)
			return out.GetValue(), err
		},
		func(ctx context.Context) (bidi, error) {
			s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, stream)
			return grpcBidi{s}, err
		},
	}
}

func connectClient(opts ...connect.ClientOption) func(*testing.T, *Fence, bool) client {
	return func(t *testing.T, f *Fence, swallow bool) client {
		mux := http.NewServeMux()
		guarded := connect.WithInterceptors(f.Connect())
		for _, method := range []string{unary, free} {
			mux.Handle(method, connect.NewUnaryHandler(method, func(ctx context.Context, _ *connect.Request[text]) (*connect.Response[text], error) {
				out, err := seen(ctx)
				return connect.NewResponse(out), err
			}, guarded))
		}
		mux.Handle(stream, connect.NewBidiStreamHandler(stream, func(ctx context.Context, s *connect.BidiStream[text, text]) error {
			return each(ctx, func() error { _, err := s.Receive(); return err }, s.Send, swallow)
		}, guarded))
		server := httptest.NewUnstartedServer(mux)
		server.EnableHTTP2 = true
		server.StartTLS()
		t.Cleanup(func() { server.CloseClientConnections(); server.Close() }) // streams are left open
		h := &http.Client{Transport: guard.Must(httpfence.NewTransport(server.Client().Transport, []string{server.URL}, nil))}
		return client{
			func(ctx context.Context, method, account string) (string, error) {
				resp, err := connect.NewClient[text, text](h, server.URL+method, opts...).CallUnary(ctx, connect.NewRequest(wrapperspb.String(account)))
				if err != nil {
					return "", err
				}
				return resp.Msg.GetValue(), nil
			},
			func(ctx context.Context) (bidi, error) {
				return connect.NewClient[text, text](h, server.URL+stream, opts...).CallBidiStream(ctx), nil
			},
		}
	}
}

func claim(id string, token guard.Token, lease string) guard.Claim {
	return guard.Claim{Resource: "account:" + id, Token: token, LeaseID: lease}
}

// code returns the code of an error from either library.
func code(err error) codes.Code {
	var c *connect.Error
	if errors.As(err, &c) {
		return codes.Code(c.Code())
	}
	return status.Code(err)
}

// TestUnary: every refusal arrives with its code and its reason, in all
// protocols, and the handler has the claim.
func TestUnary(t *testing.T) {
	for _, via := range transports {
		t.Run(via.name, func(t *testing.T) {
			store := &brittle{Store: guard.NewMemory()}
			c := via.dial(t, fence(t, store), false)
			for _, step := range []struct {
				account string
				claim   guard.Claim
				want    error
				code    codes.Code
			}{
				{"a", claim("a", 11, "b"), nil, codes.OK},
				{"a", claim("a", 10, "a"), guard.ErrStale, codes.FailedPrecondition},
				{"a", claim("a", 11, "x"), guard.ErrConflict, codes.FailedPrecondition},
				{"a", guard.Claim{}, guard.ErrMissing, codes.InvalidArgument},
				{"a", claim("a", 12, ""), guard.ErrMissing, codes.InvalidArgument},
				{"b", claim("a", 2000, "b"), guard.ErrMisdirected, codes.InvalidArgument},
				{"", claim("a", 12, "b"), guard.ErrInvalid, codes.InvalidArgument},
				{"a", claim("a", 11, "b"), nil, codes.OK},
			} {
				ctx := t.Context()
				if step.claim.Token != guard.NoToken {
					ctx = guard.WithClaim(ctx, step.claim)
				}
				got, err := c.call(ctx, unary, step.account)
				err = ErrorFrom(err, step.claim)
				if !errors.Is(err, step.want) || code(err) != step.code {
					t.Errorf("%+v: %v (%v)", step, err, code(err))
				}
				if want := step.claim.Resource + " " + step.claim.Token.String() + " " + step.claim.LeaseID; err == nil && got != want {
					t.Errorf("%+v: the handler had %q", step, got)
				}
				var misdirected *guard.MisdirectedError
				if step.want == guard.ErrMisdirected && (!errors.As(err, &misdirected) || misdirected.Claimed != "account:a" || misdirected.Guarded != "account:b") {
					t.Errorf("%v", err)
				}
			}
			if m, err := store.Mark(t.Context(), "account:b"); err != nil || m != (guard.Mark{}) {
				t.Errorf("the other account's mark: %+v, %v", m, err)
			}
			if got, err := c.call(t.Context(), free, "a"); err != nil || got != "no claim" {
				t.Errorf("unguarded: %q, %v", got, err)
			}
			store.err = guard.Unavailable("admit", guard.Claim{}, errors.New("10.0.0.7:5432: refused"))
			_, err := c.call(guard.WithClaim(t.Context(), claim("a", 11, "b")), unary, "a")
			if err = ErrorFrom(err, claim("a", 11, "b")); !errors.Is(err, guard.ErrUnavailable) || code(err) != codes.Unavailable || strings.Contains(err.Error(), "10.0.0.7") {
				t.Errorf("store down: %v", err)
			}
		})
	}
}

// TestStreamPerMessage: a stream that was admitted ends with the first message
// under a claim that is stale by then, even if its handler hides that. The
// control continues, because nobody has taken over.
func TestStreamPerMessage(t *testing.T) {
	for _, swallow := range []bool{false, true} {
		for _, via := range transports {
			for _, step := range []struct {
				what   string
				newest guard.Token // whose holder takes over
				second string      // the account of the second message
				want   error
			}{
				{"control", 10, "a", nil},
				{"taken over", 11, "a", guard.ErrStale},
				{"another account in the second message", 10, "b", guard.ErrMisdirected},
			} {
				store := guard.NewMemory()
				s := guard.Must(via.dial(t, fence(t, store), swallow).open(guard.WithClaim(t.Context(), claim("a", 10, "a"))))
				if got, err := exchange(s, "a"); err != nil || got != "account:a 10 a" {
					t.Fatalf("%s: %q, %v", via.name, got, err)
				}
				if _, err := store.Admit(t.Context(), claim("a", step.newest, "a")); err != nil {
					t.Fatal(err)
				}
				_, err := exchange(s, step.second)
				if err = ErrorFrom(err, claim("a", 10, "a")); !errors.Is(err, step.want) {
					t.Errorf("%s, %s, swallow %v: %v", via.name, step.what, swallow, err)
				}
			}
		}
	}
}

// TestRefusedStreamEndsItsHandler: what a handler does in another goroutine learns of the
// refusal by its context, and can no longer send. The control is the message before, which
// is sent.
func TestRefusedStreamEndsItsHandler(t *testing.T) {
	t.Cleanup(func() { beside.Store(nil) })
	for _, via := range transports {
		store, sent := guard.NewMemory(), make(chan error, 1)
		waits := func(ctx context.Context, send func(*text) error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), guard.ErrStale) {
				t.Errorf("%s: the context ended with %v", via.name, context.Cause(ctx))
			}
			sent <- send(wrapperspb.String("late"))
		}
		beside.Store(&waits)
		s := guard.Must(via.dial(t, fence(t, store), true).open(guard.WithClaim(t.Context(), claim("a", 10, "a"))))
		if got, err := exchange(s, "a"); err != nil || got != "account:a 10 a" {
			t.Errorf("control, %s: %q, %v", via.name, got, err)
		}
		if _, err := store.Admit(t.Context(), claim("a", 11, "a")); err != nil {
			t.Fatal(err)
		}
		_ = s.Send(wrapperspb.String("a"))
		if err := testkit.Receive(t, "the end of the context", sent); code(err) != codes.FailedPrecondition {
			t.Errorf("%s: sent after the refusal: %v", via.name, err)
		}
	}
}

// TestPassedOn: what another service's fence has said, or one of this process about
// another claim, is this handler's failure and not a refusal of the call. The controls are
// a refusal of this claim and an error that has nothing to do with fences.
func TestPassedOn(t *testing.T) {
	t.Cleanup(func() { fails = nil })
	own := claim("a", 5, "l")
	for name, c := range map[string]struct {
		err  func() error
		want guard.Reason
		code codes.Code
	}{
		"passed on as it is":   {func() error { return Status(guard.ErrStale).(*refusal).rendered }, "other", codes.Internal},
		"passed on by Connect": {func() error { return ConnectError(guard.ErrStale).(*refusal).rendered }, "other", codes.Internal},
		"read and refused":     {func() error { return Status(ErrorFrom(Status(guard.ErrUnavailable), own)) }, "other", codes.Internal},
		"another claim": {func() error {
			return Status(&guard.RejectedError{Reason: guard.ReasonStale, Claim: claim("b", 5, "l")})
		}, "other", codes.Internal},
		"control: this claim":        {func() error { return Status(&guard.RejectedError{Reason: guard.ReasonStale, Claim: own}) }, "stale", codes.FailedPrecondition},
		"control: this claim, again": {func() error { return ConnectError(&guard.RejectedError{Reason: guard.ReasonStale, Claim: own}) }, "stale", codes.FailedPrecondition},
		"control: no fence":          {func() error { return status.Error(codes.AlreadyExists, "twice") }, "other", codes.AlreadyExists},
	} {
		fails = c.err
		for _, via := range transports {
			if strings.Contains(name, "onnect") != (via.name != "grpc-go") && name != "read and refused" && name != "another claim" || name == "control: this claim, again" && via.name == "grpc-go" {
				continue // each library knows its own errors
			}
			s := guard.Must(via.dial(t, fence(t, guard.NewMemory()), false).open(guard.WithClaim(t.Context(), own)))
			_, streamed := exchange(s, "a")
			_, called := via.dial(t, fence(t, guard.NewMemory()), false).call(guard.WithClaim(t.Context(), own), unary, "a")
			for _, err := range []error{streamed, called} {
				if got := guard.ReasonOf(ErrorFrom(err, own)); got != c.want || code(err) != c.code {
					t.Errorf("%s over %s: %v, %v", name, via.name, got, err)
				}
			}
		}
	}
}

// TestProofOfACall: a client's proof arrives in the field of httpfence's Transport.
func TestProofOfACall(t *testing.T) {
	failed := errors.New("no proof")
	for _, c := range []struct {
		proof string
		err   error
		want  error
	}{{"p", nil, nil}, {"other", nil, guard.ErrInvalid}, {"", failed, failed}} {
		m := guard.Must(httpfence.New(guard.NewMemory(), func(*http.Request) (string, error) { return "account:a", nil }, &httpfence.Options{
			Logger: testkit.Logger(t),
			Verify: func(_ guard.Claim, r *http.Request) error {
				if r.Header.Get(proof.Header) != "p" {
					return guard.Invalid("proof", "", "is another")
				}
				return nil
			},
		}))
		f := guard.Must(New(m, nil))
		server := grpc.NewServer(grpc.UnaryInterceptor(f.UnaryServer()))
		closer(server, closes)
		conn := serve(t, server, grpc.WithUnaryInterceptor(UnaryClient(&ClientOptions{Proof: func(context.Context, guard.Claim) (string, error) { return c.proof, c.err }})))
		err := conn.Invoke(guard.WithClaim(t.Context(), claim("a", 5, "\u00e4, b")), unary, wrapperspb.String("a"), &text{})
		if err = ErrorFrom(err, claim("a", 5, "")); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestStreamWithoutMessages: a stream that ends before its first message has no
// resource, so it is refused, with a claim or without, even if its handler
// succeeds. The control has one message.
func TestStreamWithoutMessages(t *testing.T) {
	for _, via := range transports {
		c := via.dial(t, fence(t, guard.NewMemory()), false)
		with := guard.WithClaim(t.Context(), claim("a", 10, "a"))
		for _, ctx := range []context.Context{t.Context(), with} {
			if err := end(guard.Must(c.open(ctx)), 0); !errors.Is(ErrorFrom(err, guard.Claim{}), guard.ErrMissing) || code(err) != codes.InvalidArgument {
				t.Errorf("%s: without messages: %v", via.name, err)
			}
		}
		if err := end(guard.Must(c.open(with)), 1); err != nil {
			t.Errorf("%s: with a message: %v", via.name, err)
		}
	}
}

// TestResourceErrors: a ResourceFunc whose own look-up was refused says nothing
// about the claim of the call. The reasons are those of httpfence.
func TestResourceErrors(t *testing.T) {
	misdirected := &guard.MisdirectedError{Claimed: "inner", Guarded: "other"}
	for cause, want := range map[error]guard.Reason{
		guard.ErrStale: guard.ReasonOther, guard.ErrConflict: guard.ReasonOther, guard.ErrMissing: guard.ReasonOther, misdirected: guard.ReasonInvalid,
		guard.ErrNotFound: guard.ReasonNotFound, guard.ErrUnavailable: guard.ReasonUnavailable, guard.ErrSetup: guard.ReasonSetup, guard.ErrInvalid: guard.ReasonInvalid,
	} {
		m := guard.Must(httpfence.New(guard.NewMemory(), func(*http.Request) (string, error) {
			return "", fmt.Errorf("look-up: %w", cause)
		}, &httpfence.Options{Logger: testkit.Logger(t)}))
		c := grpcClient(t, guard.Must(New(m, nil)), false)
		_, err := c.call(guard.WithClaim(t.Context(), claim("a", 5, "a")), unary, "a")
		if got := guard.ReasonOf(ErrorFrom(err, guard.Claim{})); got != want || code(err) != Code(want) {
			t.Errorf("%v: the call was refused as %q, want %q: %v", cause, got, want, err)
		}
		if s, _ := status.FromError(err); strings.Contains(fmt.Sprint(s.Details()), "inner") {
			t.Errorf("%v: the refusal has details of the look-up: %v", cause, s.Details())
		}
	}
}

// TestDoubledMetadata: two tokens are refused, not guessed between.
func TestDoubledMetadata(t *testing.T) {
	f := fence(t, guard.NewMemory())
	for i, key := range []string{"x-other", "x-fencing-token", "x-fencing-lease", "x-fencing-resource"} {
		want := error(guard.ErrInvalid)
		if i == 0 {
			want = nil // the control
		}
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Join(
			metadata.Pairs("x-fencing-token", "5", "x-fencing-lease", "l", "x-fencing-resource", "account:a"), metadata.Pairs(key, "5")))
		_, err := f.UnaryServer()(ctx, wrapperspb.String("a"), &grpc.UnaryServerInfo{FullMethod: unary}, func(context.Context, any) (any, error) { return nil, nil })
		if err = ErrorFrom(err, guard.Claim{}); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s twice: %v", key, err)
		}
	}
	_, err := f.UnaryServer()(t.Context(), wrapperspb.Int64(1), &grpc.UnaryServerInfo{FullMethod: unary}, nil)
	if code(err) != codes.InvalidArgument {
		t.Errorf("no metadata: %v", err)
	}
}

type lost struct{}

func (lost) Claim() guard.Claim { return claim("a", 5, "l") }
func (lost) Valid() bool        { return false }

// TestClientFailsLocally: nothing is sent under a lease that is over.
func TestClientFailsLocally(t *testing.T) {
	c := grpcClient(t, fence(t, guard.NewMemory()), false)
	for name, step := range map[string]struct {
		ctx  context.Context
		want error
	}{
		"lease lost":  {guard.WithLease(t.Context(), lost{}), guard.ErrLeaseLost},
		"no resource": {guard.WithClaim(t.Context(), guard.Claim{Token: 5}), guard.ErrInvalid},
	} {
		if _, err := c.call(step.ctx, unary, "a"); !errors.Is(err, step.want) || step.want == guard.ErrLeaseLost && !errors.As(err, new(*guard.LostError)) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := c.open(step.ctx); !errors.Is(err, step.want) {
			t.Errorf("%s, stream: %v", name, err)
		}
	}
}

var rejections = []guard.Reason{
	guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonNotFound, guard.ReasonUnfenced,
}

// TestCodesAreTotal: every reason has a code, none is a success, and each is
// read back as itself.
func TestCodesAreTotal(t *testing.T) {
	for _, reason := range guard.Reasons() {
		c := Code(reason)
		if c == codes.OK || c == codes.Aborted || c == codes.Internal && reason != guard.ReasonLeaseLost && reason != guard.ReasonSetup {
			t.Errorf("%s: %v", reason, c)
		}
		for _, err := range []error{Status(reason.Err()), ConnectError(reason.Err())} {
			back := ErrorFrom(err, guard.Claim{})
			if got := guard.ReasonOf(back); got != reason {
				t.Errorf("%s comes back as %s", reason, got)
			}
			// Only a claim that was compared is a rejection.
			if errors.As(back, new(*guard.RejectedError)) != slices.Contains(rejections, reason) {
				t.Errorf("%s comes back as %#v", reason, back)
			}
		}
	}
	if code(Status(nil)) == codes.OK || code(ConnectError(nil)) == codes.OK || ErrorFrom(io.EOF, guard.Claim{}) != io.EOF || ErrorFrom(nil, guard.Claim{}) != nil {
		t.Error("nil is a success, or another error a refusal")
	}
	foreign := guard.Must(status.New(codes.FailedPrecondition, "").WithDetails(&errdetails.ErrorInfo{Reason: string(guard.ReasonStale), Domain: "example.com"})).Err()
	if ErrorFrom(foreign, guard.Claim{}) != foreign {
		t.Error("an error of another domain is a refusal")
	}
	for _, bad := range []error{second(New(nil, nil)), second(New(&httpfence.Middleware{}, &Options{Unguarded: []string{"Get"}})), second(New(&httpfence.Middleware{}, &Options{Unguarded: []string{""}}))} {
		if !errors.Is(bad, guard.ErrInvalid) {
			t.Errorf("%v", bad)
		}
	}
}

func second[T any](_ T, err error) error { return err }

type brittle struct {
	guard.Store
	err error
}

func (b *brittle) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	if b.err != nil {
		return guard.Mark{}, b.err
	}
	return b.Store.Admit(ctx, c)
}
