// Package grpcfence puts the fence of package httpfence in front of RPCs: as
// interceptors of Connect (connectrpc.com/connect) and of grpc-go.
//
//	fence, err := httpfence.New(db, resource, nil)
//	guarded, err := grpcfence.New(fence, nil)
//	grpc.NewServer(grpc.UnaryInterceptor(guarded.UnaryServer()), grpc.StreamInterceptor(guarded.StreamServer()))
//	ledgerv1connect.NewLedgerHandler(ledger, connect.WithInterceptors(guarded.Connect()))
//
// The claim comes in metadata under the names of httpfence's header fields. The
// resource comes from the message of the RPC:
//
//	resource, err := httpfence.Named(closes, httpfence.Bindings{
//		"tenant": tenantOfIdentity, // r.Context() is the RPC's context
//		"period": grpcfence.Field(func(m *ledgerv1.CloseRequest) string { return m.GetPeriod() }),
//	})
//
// # What it guarantees
//
// What [httpfence.Middleware.Admit] does: nobody below the mark is admitted,
// and the mark is raised. A unary call is checked before its handler, and a
// stream again for each message it receives, because a stream may outlive its
// claim: the first message under a claim that is stale by then ends the stream,
// whatever the handler returns. A stream that ends before its first message is
// refused as missing. [httpfence.Options.Verify], the log and the observer work
// as in httpfence; its status overrides, OnReject and InsecureReportOnly do not.
//
// # What it does not
//
// Admission does not stop a write already in flight: present the claim
// ([ClaimFrom]) to a fenced write. Messages that a stream sends are not
// checked, nor is the end of a stream once a message was admitted: what
// a handler does after the last message may come after a newer holder. A
// handler that receives nothing is not checked at all. A transaction around
// a whole unary call is httpfence's InTx around a Connect handler, which knows
// the statuses of gRPC, gRPC-Web and Connect.
//
// # Refusals
//
// Each is a status with a google.rpc.ErrorInfo, whose domain is [Domain] and
// whose reason is the [guard.Reason]; [ErrorFrom] turns it into package guard's
// error. [Code] is the table of codes: FailedPrecondition and InvalidArgument
// mean "do not retry", Unavailable means "retry", as in the gRPC guide. No
// refusal is Aborted, which invites a retry at a higher level.
//
// # Compatibility
//
// As in package httpfence, names may change until version 1; meanings will not.
package grpcfence

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// Domain is the domain of the google.rpc.ErrorInfo in a refusal.
const Domain = "fencepost-go.github.io"

// Options configures [New]. The zero value is the default.
type Options struct {
	// Unguarded are the full names of methods that pass unexamined and without
	// a claim, such as "/ledger.v1.Ledger/Get"; nil means none.
	Unguarded []string
}

// Fence checks the claims of RPCs. Make one with [New]; the zero value is not
// usable. It is safe for concurrent use.
type Fence struct {
	fence     *httpfence.Middleware
	unguarded []string
}

// New returns a [Fence] that checks claims with fence. opts may be nil. The
// error is a *guard.InvalidError (guard.ErrInvalid).
func New(fence *httpfence.Middleware, opts *Options) (*Fence, error) {
	if fence == nil {
		return nil, guard.Invalid("fence", "", "must not be nil")
	}
	f := &Fence{fence: fence}
	if opts != nil {
		f.unguarded = slices.Clone(opts.Unguarded)
	}
	for _, method := range f.unguarded {
		if service, name, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/"); !ok || !strings.HasPrefix(method, "/") || service == "" || name == "" {
			return nil, guard.Invalid("Options.Unguarded", method, `must be "/service/method"`)
		}
	}
	return f, nil
}

type messageKey struct{}

// Field returns a [httpfence.ResourceFunc], or a binding, that takes a value
// from the RPC's message. A call with a message of another type is answered with
// Internal: the method has no such resource, and no client can fix that.
func Field[M any](get func(M) string) httpfence.ResourceFunc {
	return func(r *http.Request) (string, error) {
		m, ok := r.Context().Value(messageKey{}).(M)
		if !ok {
			return "", errors.New("grpcfence: the message of " + r.URL.Path + " is of another type")
		}
		return get(m), nil
	}
}

type currentKey struct{}

// ClaimFrom returns the claim that was admitted last in the unary call or the
// stream whose handler has ctx, and whether there is one.
func ClaimFrom(ctx context.Context) (guard.Claim, bool) {
	if current, ok := ctx.Value(currentKey{}).(*atomic.Pointer[guard.Claim]); ok {
		if claim := current.Load(); claim != nil {
			return *claim, true
		}
	}
	return guard.ClaimFrom(ctx)
}

// admit checks one message.
func (f *Fence) admit(ctx context.Context, procedure string, header http.Header, message any) (guard.Claim, error) {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: procedure}, Header: header, Pattern: procedure}
	return f.fence.AdmitRequest(r.WithContext(context.WithValue(ctx, messageKey{}, message)))
}

// Code returns the code that stands for a reason; Internal for an unknown one.
// It is never OK.
func Code(reason guard.Reason) codes.Code {
	switch reason {
	case guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonUnfenced:
		return codes.FailedPrecondition
	case guard.ReasonMissing, guard.ReasonInvalid, guard.ReasonMisdirected:
		return codes.InvalidArgument
	case guard.ReasonNotFound:
		return codes.NotFound
	case guard.ReasonUnavailable:
		return codes.Unavailable
	case guard.ReasonOutcomeUnknown:
		return codes.Unknown
	}
	return codes.Internal
}

// info returns what a refusal says besides its code. It does not include the
// mark.
func info(err error) *errdetails.ErrorInfo {
	i := &errdetails.ErrorInfo{Reason: string(guard.ReasonOf(err)), Domain: Domain}
	var misdirected *guard.MisdirectedError
	if i.Reason == string(guard.ReasonMisdirected) && errors.As(err, &misdirected) {
		i.Metadata = map[string]string{"claimed": misdirected.Claimed, "guarded": misdirected.Guarded}
	}
	return i
}

// Status returns err as an error of grpc-go, for handlers whose fenced write was
// refused. nil is Internal: a refusal is never a success.
func Status(err error) error {
	reason := guard.ReasonOf(err)
	s := status.New(Code(reason), "refused: "+string(reason))
	if detailed, err := s.WithDetails(info(err)); err == nil {
		s = detailed
	}
	return s.Err()
}

// ConnectError is [Status] for Connect.
func ConnectError(err error) error {
	reason := guard.ReasonOf(err)
	e := connect.NewError(connect.Code(Code(reason)), errors.New("refused: "+string(reason)))
	if detail, err := connect.NewErrorDetail(info(err)); err == nil {
		e.AddDetail(detail)
	}
	return e
}

// ErrorFrom returns the error of package guard that an error of a client of
// grpc-go or Connect stands for, with the claim that was sent, or err itself if
// it is not a fence's refusal. The library's error stays reachable with
// errors.As.
func ErrorFrom(err error, claim guard.Claim) error {
	var found *errdetails.ErrorInfo
	var fromConnect *connect.Error
	if errors.As(err, &fromConnect) {
		for _, detail := range fromConnect.Details() {
			if value, err := detail.Value(); err == nil {
				if i, ok := value.(*errdetails.ErrorInfo); ok && i.GetDomain() == Domain {
					found = i
				}
			}
		}
	} else if s, ok := status.FromError(err); ok && s != nil {
		for _, detail := range s.Details() {
			if i, ok := detail.(*errdetails.ErrorInfo); ok && i.GetDomain() == Domain {
				found = i
			}
		}
	}
	if found == nil {
		return err
	}
	var refusal error
	switch reason := guard.Reason(found.GetReason()); reason {
	case guard.ReasonMissing:
		refusal = &guard.InvalidError{Field: "claim", Problem: "is missing, says the server", Missing: true}
	case guard.ReasonInvalid:
		refusal = &guard.InvalidError{Field: "claim", Problem: "the server found it malformed"}
	case guard.ReasonMisdirected:
		refusal = &guard.MisdirectedError{Claimed: found.GetMetadata()["claimed"], Guarded: found.GetMetadata()["guarded"]}
	case guard.ReasonUnavailable, guard.ReasonOutcomeUnknown:
		refusal = &guard.FailedError{Reason: reason, Op: "call", Claim: claim}
	default:
		if reason.Err() == nil {
			reason = guard.ReasonOther // only a later version knows it: still a refusal
		}
		refusal = &guard.RejectedError{Reason: reason, Claim: claim}
	}
	return &callError{refusal, err}
}

type callError struct{ refusal, call error }

func (e *callError) Error() string   { return e.refusal.Error() }
func (e *callError) Unwrap() []error { return []error{e.refusal, e.call} }

// UnaryServer returns the interceptor for unary calls of a grpc-go server.
func (f *Fence) UnaryServer() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, message any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if slices.Contains(f.unguarded, call.FullMethod) {
			return next(ctx, message)
		}
		claim, err := f.admit(ctx, call.FullMethod, headerOf(ctx), message)
		if err != nil {
			return nil, Status(err)
		}
		return next(guard.WithClaim(ctx, claim), message)
	}
}

// StreamServer returns the interceptor for streams of a grpc-go server.
func (f *Fence) StreamServer() grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, call *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if slices.Contains(f.unguarded, call.FullMethod) {
			return next(server, stream)
		}
		s := &grpcStream{ServerStream: stream, fence: f, method: call.FullMethod, header: headerOf(stream.Context())}
		s.ctx = context.WithValue(stream.Context(), currentKey{}, &s.current)
		err := next(server, s)
		if refused := s.refused.Load(); refused != nil {
			return *refused // whatever the handler returned
		}
		return err
	}
}

// headerOf returns the metadata as header fields, with all values of each.
func headerOf(ctx context.Context) http.Header {
	header := http.Header{}
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		name := textproto.CanonicalMIMEHeaderKey(key)
		header[name] = append(header[name], values...)
	}
	return header
}

type grpcStream struct {
	grpc.ServerStream
	fence   *Fence
	ctx     context.Context
	method  string
	header  http.Header
	current atomic.Pointer[guard.Claim]
	refused atomic.Pointer[error]
}

func (s *grpcStream) Context() context.Context { return s.ctx }

func (s *grpcStream) RecvMsg(message any) error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	err := s.ServerStream.RecvMsg(message)
	if err != nil && (!errors.Is(err, io.EOF) || s.current.Load() != nil) {
		return err
	}
	var claim guard.Claim
	if err != nil {
		err = errNoMessage
	} else {
		claim, err = s.fence.admit(s.ServerStream.Context(), s.method, s.header, message)
	}
	if err != nil {
		err = Status(err)
		s.refused.Store(&err)
		return err
	}
	s.current.Store(&claim)
	return nil
}

// errNoMessage is for a stream that ends before its first message: it has named
// no resource, so nothing can be compared.
var errNoMessage = guard.Missing("first message of the stream")

// Connect returns the interceptor for a Connect handler, unary and streaming,
// over the protocols of Connect, gRPC and gRPC-Web. On a client it does nothing:
// a client uses [httpfence.Transport].
func (f *Fence) Connect() connect.Interceptor { return interceptor{f} }

type interceptor struct{ fence *Fence }

func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		procedure := req.Spec().Procedure
		if req.Spec().IsClient || slices.Contains(i.fence.unguarded, procedure) {
			return next(ctx, req)
		}
		claim, err := i.fence.admit(ctx, procedure, req.Header(), req.Any())
		if err != nil {
			return nil, ConnectError(err)
		}
		return next(guard.WithClaim(ctx, claim), req)
	}
}

func (i interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if slices.Contains(i.fence.unguarded, conn.Spec().Procedure) {
			return next(ctx, conn)
		}
		s := &connectStream{StreamingHandlerConn: conn, fence: i.fence, ctx: ctx}
		err := next(context.WithValue(ctx, currentKey{}, &s.current), s)
		if refused := s.refused.Load(); refused != nil {
			return *refused
		}
		return err
	}
}

type connectStream struct {
	connect.StreamingHandlerConn
	fence   *Fence
	ctx     context.Context
	current atomic.Pointer[guard.Claim]
	refused atomic.Pointer[error]
}

func (s *connectStream) Receive(message any) error {
	if refused := s.refused.Load(); refused != nil {
		return *refused
	}
	err := s.StreamingHandlerConn.Receive(message)
	if err != nil && (!errors.Is(err, io.EOF) || s.current.Load() != nil) {
		return err
	}
	var claim guard.Claim
	if err != nil {
		err = errNoMessage
	} else {
		claim, err = s.fence.admit(s.ctx, s.Spec().Procedure, s.RequestHeader(), message)
	}
	if err != nil {
		err = ConnectError(err)
		s.refused.Store(&err)
		return err
	}
	s.current.Store(&claim)
	return nil
}

// UnaryClient returns the interceptor that sends the claim in the context
// ([guard.WithClaim], [guard.WithLease]) with unary calls of a grpc-go client,
// under the default names. Errors before anything is sent, not as a status:
// [guard.ErrLeaseLost] once the lease is over by the holder's clock,
// [guard.ErrInvalid] for an invalid claim. It sends to whatever server the
// connection leads to: use it only for servers that may see your tokens.
func UnaryClient() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, err := outgoing(ctx)
		if err != nil {
			return err
		}
		return next(ctx, method, req, reply, conn, opts...)
	}
}

// StreamClient is [UnaryClient] for streams.
func StreamClient() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, err := outgoing(ctx)
		if err != nil {
			return nil, err
		}
		return next(ctx, desc, conn, method, opts...)
	}
}

// outgoing replaces the claim in the metadata of ctx with the claim of ctx.
func outgoing(ctx context.Context) (context.Context, error) {
	claim, ok := guard.ClaimFrom(ctx)
	if !ok {
		return ctx, nil
	}
	if lease, ok := guard.LeaseFrom(ctx); ok && !lease.Valid() {
		return nil, &guard.RejectedError{Reason: guard.ReasonLeaseLost, Claim: claim}
	}
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	for i := range len(claim.LeaseID) { // gRPC's metadata is printable ASCII; other bytes would arrive changed
		if c := claim.LeaseID[i]; c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(claim.LeaseID)-1) {
			return nil, guard.Invalid("lease ID", claim.LeaseID, "cannot be sent as gRPC metadata")
		}
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	md.Set(httpfence.TokenHeader, claim.Token.String())
	md.Set(httpfence.ResourceHeader, httpfence.EncodeResource(claim.Resource))
	md.Delete(httpfence.LeaseHeader)
	if claim.LeaseID != "" {
		md.Set(httpfence.LeaseHeader, claim.LeaseID)
	}
	return metadata.NewOutgoingContext(ctx, md), nil
}
