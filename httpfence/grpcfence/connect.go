package grpcfence

import (
	"context"

	"connectrpc.com/connect"
	"github.com/fencepost-go/fencepost/guard"
)

// Connect returns the interceptor for a Connect handler, unary and streaming,
// over the protocols of Connect, gRPC and gRPC-Web. On a client it does nothing:
// a client uses [httpfence.Transport].
func (f *Fence) Connect() connect.Interceptor { return interceptor{f} }

type interceptor struct{ fence *Fence }

func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		procedure := req.Spec().Procedure
		if req.Spec().IsClient || i.fence.passes(procedure) {
			return next(ctx, req)
		}
		claim, err := i.fence.admit(ctx, procedure, req.Header(), req.Any())
		if err != nil {
			return nil, ConnectError(err)
		}
		response, err := next(guard.WithClaim(ctx, claim), req)
		return response, ours(claim, err, ConnectError)
	}
}

func (i interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if i.fence.passes(conn.Spec().Procedure) {
			return next(ctx, conn)
		}
		s := &connectStream{conn, messages{fence: i.fence, ctx: ctx, method: conn.Spec().Procedure, header: conn.RequestHeader(), render: ConnectError}}
		return s.outcome(next(s.handlers(), s))
	}
}

type connectStream struct {
	connect.StreamingHandlerConn
	messages
}

func (s *connectStream) Receive(message any) error {
	return s.receive(message, s.StreamingHandlerConn.Receive)
}

func (s *connectStream) Send(message any) error {
	return s.send(message, s.StreamingHandlerConn.Send)
}
