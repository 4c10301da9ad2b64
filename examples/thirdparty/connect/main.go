// Command connect guards a Connect service by the interceptor of grpcfence. The
// resource is taken from the message, and refusals have the form that clients
// of Connect, gRPC and gRPC-Web understand.
//
//	cd examples/thirdparty && go run ./connect
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

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

// call closes an account under a claim. The Transport adds the token.
func call(ctx context.Context, server string, base *http.Client, claim guard.Claim, account string, opts ...connect.ClientOption) (string, error) {
	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](
		&http.Client{Transport: guard.Must(httpfence.NewTransport(base.Transport, []string{server}, nil))}, server+procedure, opts...)
	req := connect.NewRequest(wrapperspb.String(account))
	if claim.Token != guard.NoToken {
		ctx = guard.WithClaim(ctx, claim)
	}
	resp, err := client.CallUnary(ctx, req)
	if err != nil {
		return "", grpcfence.ErrorFrom(err, claim)
	}
	return resp.Msg.GetValue(), nil
}

func main() {
	server := httptest.NewServer(guard.Must(newHandler(guard.NewMemory(nil))))
	defer server.Close()
	if err := story(context.Background(), server, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func story(ctx context.Context, server *httptest.Server, out io.Writer) error {
	for _, step := range []struct {
		token guard.Token
		want  error
	}{{10, nil}, {11, nil}, {10, guard.ErrStale}} {
		answer, err := call(ctx, server.URL, server.Client(), guard.Claim{Resource: "account:acme", Token: step.token, LeaseID: "lease-" + step.token.String()}, "acme")
		if !errors.Is(err, step.want) {
			return fmt.Errorf("token %v: %w, expected %v", step.token, err, step.want)
		}
		if err != nil {
			answer = err.Error()
		}
		fmt.Fprintf(out, "token %v: %s\n", step.token, answer)
	}
	return nil
}
