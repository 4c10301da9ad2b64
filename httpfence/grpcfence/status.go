package grpcfence

import (
	"cmp"
	"errors"
	"strings"

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

// info returns what a refusal says besides its code: never the mark, and of what is
// missing or invalid only the name.
func info(err error) *errdetails.ErrorInfo {
	i := &errdetails.ErrorInfo{Reason: string(guard.ReasonOf(err)), Domain: Domain}
	var misdirected *guard.MisdirectedError
	var invalid *guard.InvalidError
	switch guard.Reason(i.Reason) {
	case guard.ReasonMisdirected:
		if errors.As(err, &misdirected) {
			i.Metadata = map[string]string{"claimed": misdirected.Claimed, "guarded": misdirected.Guarded}
		}
	case guard.ReasonMissing, guard.ReasonInvalid:
		if errors.As(err, &invalid) {
			i.Metadata = map[string]string{"field": invalid.Field}
		}
	}
	return i
}

// refusal is what a fence of this process says, in a library's form.
type refusal struct{ err, rendered error }

func (r *refusal) Error() string { return r.rendered.Error() }
func (r *refusal) Unwrap() error { return r.rendered }

// GRPCStatus is what grpc-go looks for.
func (r *refusal) GRPCStatus() *status.Status { return status.Convert(r.rendered) }

// Status returns err as an error of grpc-go, for handlers whose fenced write was
// refused. nil is Internal: a refusal is never a success. Behind the interceptors it counts
// as far as err speaks of the call's claim ([guard.ReasonFor]); else it is Internal.
func Status(err error) error {
	reason := guard.ReasonOf(err)
	s := status.New(Code(reason), "refused: "+string(reason))
	if detailed, err := s.WithDetails(info(err)); err == nil {
		s = detailed
	}
	return &refusal{err, s.Err()}
}

// ConnectError is [Status] for Connect.
func ConnectError(err error) error {
	reason := guard.ReasonOf(err)
	e := connect.NewError(connect.Code(Code(reason)), errors.New("refused: "+string(reason)))
	if detail, err := connect.NewErrorDetail(info(err)); err == nil {
		e.AddDetail(detail)
	}
	return &refusal{err, e}
}

// errPassedOn is sent for what a handler has from another service's fence.
var errPassedOn = errors.New("grpcfence: the handler passed on what a fence said of another claim")

// ours returns the error of a handler, but in place of one that speaks of another claim,
// or that another service's fence has sent, a failure that matches no sentinel: the caller
// must not stop, or repeat, for what happened somewhere else.
func ours(claim guard.Claim, err error, render func(error) error) error {
	var own *refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		if guard.ReasonFor(claim, own.err) == guard.ReasonOf(own.err) {
			return err
		}
	case infoOf(err) == nil:
		return err
	}
	return render(errPassedOn)
}

// infoOf returns the detail that a fence has put into an error of grpc-go or Connect, nil
// if there is none.
func infoOf(err error) (found *errdetails.ErrorInfo) {
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
	for _, detail := range details {
		if i, ok := detail.(*errdetails.ErrorInfo); ok && i.GetDomain() == Domain {
			found = i
		}
	}
	return found
}

// ErrorFrom returns the error of package guard that an error of a client of
// grpc-go or Connect stands for, with the claim that was sent, in
// a [*guard.ElsewhereError], or err itself if it is not a fence's refusal. The library's
// error stays reachable with errors.As.
func ErrorFrom(err error, claim guard.Claim) error {
	found := infoOf(err)
	if found == nil {
		return err
	}
	field := found.GetMetadata()["field"]
	if len(field) > 64 || strings.ContainsFunc(field, func(c rune) bool { return c < ' ' || c > '~' }) {
		field = ""
	}
	var said error
	switch reason := guard.Reason(found.GetReason()); reason {
	case guard.ReasonMissing:
		said = &guard.InvalidError{Field: cmp.Or(field, "claim"), Problem: "did not reach the server; UnaryClient, StreamClient or httpfence.Transport sends the claim in the call's context, and its proof", Missing: true}
	case guard.ReasonInvalid:
		said = &guard.InvalidError{Field: cmp.Or(field, "claim or another part of the call"), Problem: "the server found it malformed"}
	case guard.ReasonMisdirected:
		said = &guard.MisdirectedError{Claimed: found.GetMetadata()["claimed"], Guarded: found.GetMetadata()["guarded"]}
	case guard.ReasonUnavailable, guard.ReasonSetup, guard.ReasonOutcomeUnknown:
		said = &guard.FailedError{Reason: reason, Op: "call", Claim: claim}
	case guard.ReasonLeaseLost:
		said = &guard.LostError{Claim: claim, Cause: errors.New("the server reported it")}
	case guard.ReasonOther:
		said = errors.New("grpcfence: the server failed for a reason other than the claim; its log has the error")
	default:
		if reason.Err() == nil {
			reason = guard.ReasonOther // only a later version knows it: still a refusal
		}
		said = &guard.RejectedError{Reason: reason, Claim: claim}
	}
	return &callError{&guard.ElsewhereError{Err: said}, err}
}

type callError struct{ said, call error }

func (e *callError) Error() string   { return e.said.Error() }
func (e *callError) Unwrap() []error { return []error{e.said, e.call} }
