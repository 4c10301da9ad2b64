package grpcfence

import (
	"context"
	"net/http"
	"net/textproto"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryServer returns the interceptor for unary calls of a grpc-go server.
func (f *Fence) UnaryServer() grpc.UnaryServerInterceptor {
	f.unary.Store(true)
	return func(ctx context.Context, message any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if f.passes(call.FullMethod) {
			return next(ctx, message)
		}
		claim, err := f.admit(ctx, call.FullMethod, headerOf(ctx), message)
		if err != nil {
			return nil, Status(err)
		}
		reply, err := next(guard.WithClaim(ctx, claim), message)
		return reply, ours(claim, err, Status)
	}
}

// StreamServer returns the interceptor for streams of a grpc-go server.
func (f *Fence) StreamServer() grpc.StreamServerInterceptor {
	f.stream.Store(true)
	return func(server any, stream grpc.ServerStream, call *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if f.passes(call.FullMethod) {
			return next(server, stream)
		}
		s := &grpcStream{ServerStream: stream, messages: messages{fence: f, ctx: stream.Context(), method: call.FullMethod, header: headerOf(stream.Context()), render: Status}}
		s.own = s.handlers()
		return s.outcome(next(server, s))
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
	messages
	own context.Context
}

func (s *grpcStream) Context() context.Context { return s.own }

func (s *grpcStream) RecvMsg(message any) error { return s.receive(message, s.ServerStream.RecvMsg) }

func (s *grpcStream) SendMsg(message any) error { return s.send(message, s.ServerStream.SendMsg) }

// ClientOptions configures [UnaryClient] and [StreamClient]. The zero value is the default.
type ClientOptions struct {
	// Proof returns the proof that claim was issued, as of httpfence's
	// TransportOptions; nil sends none. It must be safe for concurrent use.
	Proof func(ctx context.Context, claim guard.Claim) (string, error)
}

// UnaryClient returns the interceptor that sends the claim in the context
// ([guard.WithClaim], [guard.WithLease]) with unary calls of a grpc-go client,
// and has none of them repeated. opts may be nil. It sends to whatever server the
// connection leads to: use it only for servers that may see your tokens.
//
// Errors before anything is sent, not as a status:
//   - [guard.ErrLeaseLost]: the lease is over by the holder's clock.
//   - [guard.ErrInvalid]: the claim is invalid.
//   - the error of Proof.
func UnaryClient(opts *ClientOptions) grpc.UnaryClientInterceptor {
	send := sender(opts)
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, opts, err := send(ctx, opts)
		if err != nil {
			return err
		}
		return next(ctx, method, req, reply, conn, opts...)
	}
}

// StreamClient is [UnaryClient] for streams.
func StreamClient(opts *ClientOptions) grpc.StreamClientInterceptor {
	send := sender(opts)
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, opts, err := send(ctx, opts)
		if err != nil {
			return nil, err
		}
		return next(ctx, desc, conn, method, opts...)
	}
}

// sender returns a function that replaces the claim in the metadata of ctx with the claim
// of ctx, and has the call never repeated: grpc-go repeats only what fits into its buffer.
func sender(opts *ClientOptions) func(context.Context, []grpc.CallOption) (context.Context, []grpc.CallOption, error) {
	var o ClientOptions
	if opts != nil {
		o = *opts
	}
	return func(ctx context.Context, opts []grpc.CallOption) (context.Context, []grpc.CallOption, error) {
		claim, ok := guard.ClaimFrom(ctx)
		if !ok {
			return ctx, opts, nil
		}
		if lost := guard.Lost(ctx); lost != nil {
			return nil, nil, lost
		}
		if err := claim.Validate(); err != nil {
			return nil, nil, err
		}
		md, _ := metadata.FromOutgoingContext(ctx)
		md = md.Copy()
		md.Set(httpfence.TokenHeader, claim.Token.String())
		md.Set(httpfence.ResourceHeader, httpfence.Encode(claim.Resource))
		md.Delete(httpfence.LeaseHeader)
		if claim.LeaseID != "" {
			md.Set(httpfence.LeaseHeader, httpfence.Encode(claim.LeaseID))
		}
		if o.Proof != nil {
			evidence, err := o.Proof(ctx, claim)
			if err != nil {
				return nil, nil, err
			}
			md.Set(proof.Header, evidence)
		}
		return metadata.NewOutgoingContext(ctx, md), append(slices.Clone(opts), grpc.MaxRetryRPCBufferSize(0)), nil
	}
}
