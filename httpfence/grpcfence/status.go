package grpcfence

import (
	"errors"

	"connectrpc.com/connect"
	"github.com/fencepost-go/fencepost/guard"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Code returns the code that stands for a reason; Internal for an unknown one.
// It is never OK.
func Code(reason guard.Reason) codes.Code {
	switch reason {
	case guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonUnfenced:
		return codes.FailedPrecondition
	case guard.ReasonMissing, guard.ReasonInvalid, guard.ReasonMisdirected:
		return codes.InvalidArgument
	case guard.ReasonNotFound:
		return codes.NotFound
	case guard.ReasonUnavailable:
		return codes.Unavailable
	case guard.ReasonOutcomeUnknown:
		return codes.Unknown
	}
	return codes.Internal // also for setup: the server's fault, and nothing that a client repeats
}

// info returns what a refusal says besides its code. It does not include the
// mark.
func info(err error) *errdetails.ErrorInfo {
	i := &errdetails.ErrorInfo{Reason: string(guard.ReasonOf(err)), Domain: Domain}
	var misdirected *guard.MisdirectedError
	if i.Reason == string(guard.ReasonMisdirected) && errors.As(err, &misdirected) {
		i.Metadata = map[string]string{"claimed": misdirected.Claimed, "guarded": misdirected.Guarded}
	}
	return i
}

// Status returns err as an error of grpc-go, for handlers whose fenced write was
// refused. nil is Internal: a refusal is never a success.
func Status(err error) error {
	reason := guard.ReasonOf(err)
	s := status.New(Code(reason), "refused: "+string(reason))
	if detailed, err := s.WithDetails(info(err)); err == nil {
		s = detailed
	}
	return s.Err()
}

// ConnectError is [Status] for Connect.
func ConnectError(err error) error {
	reason := guard.ReasonOf(err)
	e := connect.NewError(connect.Code(Code(reason)), errors.New("refused: "+string(reason)))
	if detail, err := connect.NewErrorDetail(info(err)); err == nil {
		e.AddDetail(detail)
	}
	return e
}

// ErrorFrom returns the error of package guard that an error of a client of
// grpc-go or Connect stands for, with the claim that was sent, or err itself if
// it is not a fence's refusal. The library's error stays reachable with
// errors.As.
func ErrorFrom(err error, claim guard.Claim) error {
	var details []any
	var fromConnect *connect.Error
	if errors.As(err, &fromConnect) {
		for _, detail := range fromConnect.Details() {
			value, _ := detail.Value() // nil if this program does not know the type
			details = append(details, value)
		}
	} else {
		details = status.Convert(err).Details()
	}
	var found *errdetails.ErrorInfo
	for _, detail := range details {
		if i, ok := detail.(*errdetails.ErrorInfo); ok && i.GetDomain() == Domain {
			found = i
		}
	}
	if found == nil {
		return err
	}
	var refusal error
	switch reason := guard.Reason(found.GetReason()); reason {
	case guard.ReasonMissing:
		refusal = &guard.InvalidError{Field: "claim", Problem: "did not reach the server; UnaryClient, StreamClient or httpfence.Transport sends the claim in the call's context", Missing: true}
	case guard.ReasonInvalid:
		refusal = &guard.InvalidError{Field: "claim", Problem: "the server found it malformed"}
	case guard.ReasonMisdirected:
		refusal = &guard.MisdirectedError{Claimed: found.GetMetadata()["claimed"], Guarded: found.GetMetadata()["guarded"]}
	case guard.ReasonUnavailable, guard.ReasonSetup, guard.ReasonOutcomeUnknown:
		refusal = &guard.FailedError{Reason: reason, Op: "call", Claim: claim}
	case guard.ReasonLeaseLost:
		refusal = &guard.LostError{Claim: claim, Cause: errors.New("the server reported it")}
	case guard.ReasonOther:
		refusal = errors.New("grpcfence: the server failed for a reason other than the claim; its log has the error")
	default:
		if reason.Err() == nil {
			reason = guard.ReasonOther // only a later version knows it: still a refusal
		}
		refusal = &guard.RejectedError{Reason: reason, Claim: claim}
	}
	return &callError{refusal, err}
}

type callError struct{ refusal, call error }

func (e *callError) Error() string   { return e.refusal.Error() }
func (e *callError) Unwrap() []error { return []error{e.refusal, e.call} }
