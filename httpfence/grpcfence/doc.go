// Package grpcfence puts the fence of package httpfence in front of RPCs: as
// interceptors of Connect (connectrpc.com/connect) and of grpc-go.
//
//	fence, err := httpfence.New(db, resource, nil)
//	guarded, err := grpcfence.New(fence, nil)
//	server := grpc.NewServer(grpc.UnaryInterceptor(guarded.UnaryServer()), grpc.StreamInterceptor(guarded.StreamServer()))
//	... // register the services
//	err = guarded.Covers(server)
//
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
// examples/thirdparty/rpc has a service.
//
// # What it guarantees
//
// What [httpfence.Middleware.Admit] does: no claim below the mark is
// admitted, and the mark is raised. A unary call is checked before its handler, and a
// stream again for each message it receives, because a stream may outlive its
// claim: the first message under a claim that is stale by then ends the stream,
// whatever the handler returns, its context, and what another goroutine of it sends. A
// stream that ends before its first message is
// refused as missing. [httpfence.Options.Verify] and the observer work as in
// httpfence; its OnReject and report-only mode do not. The services for health
// checks and reflection pass without a claim.
//
// # What it does not
//
// Admission does not stop a write already in flight: present the claim
// ([guard.ClaimFrom]) to a fenced write. Messages that a stream sends are not
// checked, nor is the end of a stream once a message was admitted: what
// a handler does after the last message may come after a newer holder. A
// handler that receives nothing is not checked at all.
//
// A call that reaches a handler past its interceptors is not checked either:
// grpc-gateway's RegisterXHandlerServer calls handlers in process. Give it
// a connection to the server, in memory if you like, and the names of the fields
// in its header matcher. A handler notices that [guard.ClaimFrom] finds no claim, and
// a fenced write refuses the empty one. examples/thirdparty/rpc has such a gateway.
//
// # Retries
//
// A fence admits the same claim again, so a call that a client repeats is handled
// twice. grpc-go repeats calls by the retry policy of a service config, often for
// UNAVAILABLE, which is also what a handler that wrote may have returned and
// what a connection that broke looks like. [UnaryClient] and [StreamClient]
// therefore prevent all repetitions of a call that carries a claim. A fence's own
// refusal as Unavailable was not handled and may be repeated ([ErrorFrom] and
// [guard.ErrUnavailable]). Clients without these interceptors need an idempotency
// key in the work's transaction.
//
// # Refusals
//
// Each is a status with a google.rpc.ErrorInfo, whose domain is [Domain] and
// whose reason is the [guard.Reason]; [ErrorFrom] turns it into package guard's
// error. A handler's error that speaks of another claim, or that another service's fence
// has sent, is Internal. [Code] is the table of codes: FailedPrecondition and InvalidArgument
// mean "do not retry", Unavailable means "retry", as in the gRPC guide. No
// refusal is Aborted, which invites a retry at a higher level.
//
// # Where to read on
//
// grpcfence.go has [Fence] and what checks each message, grpc.go and connect.go the
// interceptors, status.go the refusals in both directions.
//
// # Compatibility
//
// As in package httpfence, names may change until version 1; meanings will not.
package grpcfence
