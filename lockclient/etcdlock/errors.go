package etcdlock

import (
	"errors"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

var errClosed = sequence.Unwritten{Err: errors.New("the issuer is closed")}

// refusedFirst are what etcd says before it proposes a write, where another try may
// succeed: the users were changed at that moment, its queue is full, the node is a
// learner. "database space exceeded" is not one of them: the write that exceeds it is
// applied.
var refusedFirst = []string{
	rpctypes.ErrorDesc(rpctypes.ErrGRPCAuthOldRevision), rpctypes.ErrorDesc(rpctypes.ErrGRPCInvalidAuthToken),
	rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests), rpctypes.ErrorDesc(rpctypes.ErrGRPCNotSupportedForLearner),
}

func failed(op string, claim guard.Claim, err error) error {
	return sequence.Failed(op, claim, err, verdict)
}

// verdict is what an error says of a write: the cluster refuses before it writes.
func verdict(err error) guard.Reason {
	code, said := status.Code(err), status.Convert(err).Message()
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		code, said = e.Code(), e.Error()
	}
	if slices.Contains(refusedFirst, said) {
		return guard.ReasonUnavailable
	}
	switch code {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument:
		return guard.ReasonSetup
	}
	return guard.ReasonOutcomeUnknown
}
