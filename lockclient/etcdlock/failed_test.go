package etcdlock

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost-go/fencepost/guard"
)

// TestFailed: what etcd says of a write, as the client shows it and as it travels. An
// error that may come after the write is an unknown outcome.
func TestFailed(t *testing.T) {
	for _, c := range []struct {
		err  error
		want guard.Reason
	}{
		{rpctypes.ErrGRPCAuthOldRevision, guard.ReasonUnavailable},
		{rpctypes.ErrGRPCInvalidAuthToken, guard.ReasonUnavailable},
		{rpctypes.ErrGRPCRequestTooManyRequests, guard.ReasonUnavailable},
		{rpctypes.ErrGRPCNotSupportedForLearner, guard.ReasonUnavailable},
		{rpctypes.ErrGRPCPermissionDenied, guard.ReasonSetup},
		{rpctypes.ErrGRPCAuthFailed, guard.ReasonSetup},
		{rpctypes.ErrGRPCUserEmpty, guard.ReasonSetup},
		{rpctypes.ErrGRPCRequestTooLarge, guard.ReasonSetup},
		{rpctypes.ErrGRPCNoSpace, guard.ReasonOutcomeUnknown}, // the write that exceeds the quota is applied
		{rpctypes.ErrGRPCTimeout, guard.ReasonOutcomeUnknown},
		{rpctypes.ErrGRPCLeaderChanged, guard.ReasonOutcomeUnknown},
		{rpctypes.ErrGRPCStopped, guard.ReasonOutcomeUnknown},
		{status.Error(codes.Unavailable, "transport is closing"), guard.ReasonOutcomeUnknown},
		{status.Error(codes.ResourceExhausted, "received message larger than max"), guard.ReasonOutcomeUnknown},
		{context.DeadlineExceeded, guard.ReasonOutcomeUnknown},
		{errors.New("another"), guard.ReasonOutcomeUnknown},
	} {
		for _, err := range []error{rpctypes.Error(c.err), c.err} {
			if got := failed("acquire", guard.Claim{Resource: "r"}, err); guard.ReasonOf(got) != c.want || !errors.Is(got, err) {
				t.Errorf("%v (%T): %v, want %s", err, err, got, c.want)
			}
		}
	}
}
