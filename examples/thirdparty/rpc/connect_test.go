package rpc

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/httpfence/grpcfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

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

// TestProtocols: the reason reaches the client over each of the protocols.
func TestProtocols(t *testing.T) {
	testkit.CaptureDefault(t)
	for name, opts := range map[string][]connect.ClientOption{
		"Connect": nil, "Connect JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			store := &brittle{Store: guard.NewMemory()}
			server := httptest.NewUnstartedServer(guard.Must(newHandler(store)))
			server.EnableHTTP2 = true
			server.StartTLS()
			defer server.Close()
			try := func(claim guard.Claim, account string) error {
				_, err := call(t.Context(), server.URL, server.Client(), claim, account, opts...)
				return err
			}
			acme := func(token guard.Token, lease string) guard.Claim {
				return guard.Claim{Resource: "account:acme", Token: token, LeaseID: lease}
			}
			for _, c := range []struct {
				claim   guard.Claim
				account string
				want    error
				code    connect.Code
			}{
				{acme(11, "b"), "acme", nil, 0},
				{acme(10, "a"), "acme", guard.ErrStale, connect.CodeFailedPrecondition},
				{acme(11, "a"), "acme", guard.ErrConflict, connect.CodeFailedPrecondition},
				{acme(0, ""), "acme", guard.ErrMissing, connect.CodeInvalidArgument},
				{acme(11, "b"), "other", guard.ErrMisdirected, connect.CodeInvalidArgument},
			} {
				err := try(c.claim, c.account)
				if c.want != nil && !errors.Is(err, c.want) || c.code != 0 && connect.CodeOf(err) != c.code || c.code == 0 && err != nil {
					t.Errorf("%+v: %v", c.claim, err)
				}
			}
			store.err = guard.Unavailable("admit", guard.Claim{}, nil)
			if err := try(acme(12, "c"), "acme"); !errors.Is(err, guard.ErrUnavailable) || connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("store down: %v", err)
			}
		})
	}
}

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
