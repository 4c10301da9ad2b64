// Package rpc guards a Connect service, a service of grpc-go and grpc-gateway in front of it by the
// interceptors of grpcfence. The resource is taken from the message. Copy what you need: Connect is
// here, grpc-go and the gateway are in grpc.go.
package rpc

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/httpfence/grpcfence"
)

// The generated code of a service returns such a path and handler:
//
//	path, handler := ledgerv1connect.NewLedgerServiceHandler(ledger, connect.WithInterceptors(guarded.Connect()))
const procedure = "/ledger.v1.LedgerService/Close"

// accounts names the resource; its variable is a field of the message. In a
// real service the tenant comes from the authenticated identity.
var accounts = guard.Must(guard.NewTemplate("account:{id}"))

func newHandler(store guard.Store) (http.Handler, error) {
	resource, err := httpfence.Named(accounts, httpfence.Bindings{
		"id": grpcfence.Field(func(m *wrapperspb.StringValue) string { return m.GetValue() }),
	})
	if err != nil {
		return nil, err
	}
	fence, err := httpfence.New(store, resource, nil)
	if err != nil {
		return nil, err
	}
	guarded, err := grpcfence.New(fence, nil)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, closeAccount, connect.WithInterceptors(guarded.Connect())))
	return mux, nil
}

func closeAccount(ctx context.Context, _ *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
	claim, _ := guard.ClaimFrom(ctx) // for the fenced write
	return connect.NewResponse(wrapperspb.String(fmt.Sprintf("closed %s under token %v", claim.Resource, claim.Token))), nil
}
