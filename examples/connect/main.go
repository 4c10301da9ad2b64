// Command connect guards a Connect service. Its handlers are net/http handlers,
// so the middleware goes around them like around any other; what is left to do
// is to give refusals the form that Connect clients understand.
//
//	cd examples/connect && go run .
//
// It is a module of its own, because nothing else here needs Connect.
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
)

// The generated code of a service gives such a path and handler:
//
//	path, handler := ledgerv1connect.NewLedgerServiceHandler(ledger)
const procedure = "/ledger.v1.LedgerService/Close"

// reasonHeader carries the reason in the error's metadata, where
// a Connect client finds it.
const reasonHeader = "X-Fencing-Reason"

func newHandler(store guard.Store) http.Handler {
	handler := connect.NewUnaryHandler(procedure, func(ctx context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		claim, _ := guard.ClaimFrom(ctx) // for the fenced write
		// A procedure has one path for all resources, so the middleware took
		// the name from a header; here is the message, and it must agree.
		if req.Msg.GetValue() != claim.Resource {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the message names another account than the header"))
		}
		return connect.NewResponse(wrapperspb.String(fmt.Sprintf("closed %s under token %v", claim.Resource, claim.Token))), nil
	})
	write := connect.NewErrorWriter()
	fence := guard.Must(httpfence.New(store, account, &httpfence.Options{
		// Connect, gRPC and gRPC-Web clients get an error of their protocol;
		// for the rest the default answer stays.
		OnReject: func(w http.ResponseWriter, r *http.Request, rej *httpfence.Rejection) {
			if !write.IsSupported(r) {
				return
			}
			err := connect.NewError(codeOf(rej.Reason), errors.New("refused: "+string(rej.Reason)))
			err.Meta().Set(reasonHeader, string(rej.Reason))
			_ = write.Write(w, r, err)
		},
	}))
	mux := http.NewServeMux()
	mux.Handle(procedure, fence.Admit(handler))
	return mux
}

// account names the resource. It is the client's word, so the handler compares
// it with the message; a tenant would come from the authenticated identity.
func account(r *http.Request) (string, error) {
	names := r.Header.Values("X-Account")
	if len(names) != 1 {
		return "", guard.Invalid("X-Account", "", "must be given once")
	}
	return names[0], nil
}

// codeOf follows the gRPC guide: failed precondition says "do not retry", and
// unavailable says "do".
func codeOf(reason guard.Reason) connect.Code {
	switch reason {
	case guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonUnfenced:
		return connect.CodeFailedPrecondition
	case guard.ReasonMissing, guard.ReasonInvalid, guard.ReasonMisdirected:
		return connect.CodeInvalidArgument
	case guard.ReasonNotFound:
		return connect.CodeNotFound
	case guard.ReasonUnavailable:
		return connect.CodeUnavailable
	case guard.ReasonOutcomeUnknown:
		return connect.CodeUnknown
	}
	return connect.CodeInternal
}

// errorOf is the client's half: the error of package guard that a Connect
// error stands for, or the error itself.
func errorOf(err error, claim guard.Claim) error {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err
	}
	reason := guard.Reason(ce.Meta().Get(reasonHeader))
	if reason.Err() == nil {
		return err
	}
	return &guard.RejectedError{Reason: reason, Claim: claim, Cause: err}
}

// call closes an account under a claim. The Transport adds the token.
func call(ctx context.Context, server string, base *http.Client, claim guard.Claim, account string, opts ...connect.ClientOption) (string, error) {
	client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](
		&http.Client{Transport: guard.Must(httpfence.NewTransport(base.Transport, []string{server}, nil))}, server+procedure, opts...)
	req := connect.NewRequest(wrapperspb.String(account))
	req.Header().Set("X-Account", claim.Resource)
	if claim.Token != guard.NoToken {
		ctx = guard.WithClaim(ctx, claim)
	}
	resp, err := client.CallUnary(ctx, req)
	if err != nil {
		return "", errorOf(err, claim)
	}
	return resp.Msg.GetValue(), nil
}

func main() {
	server := httptest.NewServer(newHandler(guard.NewMemory(nil)))
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
		answer, err := call(ctx, server.URL, server.Client(), guard.Claim{Resource: "acme", Token: step.token, LeaseID: "lease-" + step.token.String()}, "acme")
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
