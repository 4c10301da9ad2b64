package grpcfence

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

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
		return next(guard.WithClaim(ctx, claim), req)
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
