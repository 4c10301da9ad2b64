package guard

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
)

// RejectedError says that a claim was refused, and on which facts. It unwraps
// to its reason's sentinel, and to Cause if there is one.
//
// Its message names the mark. It is meant for use inside a trust boundary;
// httpfence does not pass it to clients.
type RejectedError struct {
	// Reason is why it was refused: stale, spent, conflict, not found, mark
	// ahead, unfenced. A lost lease is a [*LostError].
	Reason Reason
	// Claim is what was offered.
	Claim Claim
	// Mark is what Claim was compared with; the zero value where there was none
	// or where it was not disclosed.
	Mark Mark
	// Cause is the driver's error that carried the refusal; may be nil.
	Cause error
}

// Error gives the reason, the token offered, the resource and the mark, and the
// cause where these do not explain the refusal.
func (e *RejectedError) Error() string {
	var b strings.Builder
	b.WriteString("fencepost: ")
	if err := e.Reason.Err(); err != nil {
		b.WriteString(err.Error())
	} else {
		b.WriteString("rejected")
	}
	switch { // who only reads has no token, and may know no resource
	case e.Claim.Token != NoToken:
		b.WriteString(": token " + e.Claim.Token.String() + " for " + strconv.Quote(e.Claim.Resource))
	case e.Claim.Resource != "":
		b.WriteString(": for " + strconv.Quote(e.Claim.Resource))
	}
	switch {
	case e.Mark.Floor:
		b.WriteString(", the store's floor is " + e.Mark.Token.String())
	case e.Mark.Token != NoToken:
		b.WriteString(", the mark is " + e.Mark.Token.String())
		if e.Reason == ReasonConflict {
			b.WriteString(" under lease " + strconv.Quote(e.Mark.LeaseID) + ", offered under " + strconv.Quote(e.Claim.LeaseID))
		}
	}
	if e.Reason == ReasonSpent {
		b.WriteString("; the rule is OncePerToken: use SameOrNewer to write many times")
	}
	if e.Cause != nil && (e.Reason == ReasonUnfenced || e.Reason == ReasonNotFound) {
		b.WriteString(": " + e.Cause.Error()) // the facts above do not say why
	}
	return b.String()
}

// Unwrap returns the sentinel of the reason, and the cause.
func (e *RejectedError) Unwrap() []error { return unwrapped(e.Reason.Err(), e.Cause) }

// InvalidError says which input was malformed. It unwraps to [ErrInvalid], and
// to [ErrMissing] too if Missing is set.
type InvalidError struct {
	// Field names the input, in words a caller knows: "token", "resource",
	// "X-Fencing-Token header".
	Field string
	// Value is what was given, truncated to 64 bytes. It may hold anything; Error
	// escapes it.
	Value string
	// Problem says what is wrong with it.
	Problem string
	// Missing reports that nothing was given at all.
	Missing bool

	truncated bool // Value is not all that was given
}

// maxShown bounds how much of a malformed input an error keeps: enough to
// recognise it, too little to fill a log or to keep a megabyte in memory.
const maxShown = 64

// Invalid returns an [*InvalidError]. It copies and truncates value.
func Invalid(field, value, problem string) error {
	truncated := len(value) > maxShown
	if truncated {
		value = value[:maxShown]
	}
	return &InvalidError{Field: field, Value: strings.Clone(value), Problem: problem, truncated: truncated}
}

// Missing returns an [*InvalidError] for an input that was not given at all.
func Missing(field string) error {
	return &InvalidError{Field: field, Problem: "is missing", Missing: true}
}

// Error names the field and shows the escaped value.
func (e *InvalidError) Error() string {
	if e.Missing {
		return "fencepost: " + e.Field + " " + e.Problem
	}
	more := ""
	if e.truncated {
		more = "..."
	}
	return "fencepost: invalid " + e.Field + " " + strconv.QuoteToASCII(e.Value) + more + ": " + e.Problem
}

// Unwrap returns ErrInvalid, and ErrMissing if nothing was given.
func (e *InvalidError) Unwrap() []error {
	if e.Missing {
		return []error{ErrInvalid, ErrMissing}
	}
	return []error{ErrInvalid}
}

// MisdirectedError says that a claim for one resource was presented to another
// (promise P9). It unwraps to [ErrMisdirected] and [ErrInvalid]. Nothing was
// sent, raised or written.
type MisdirectedError struct {
	// Claimed is the resource that the claim is for.
	Claimed string
	// Guarded is the resource that the claim was presented to.
	Guarded string
}

// Error names both resources.
func (e *MisdirectedError) Error() string {
	return "fencepost: " + ErrMisdirected.Error() + ": the claim is for " + strconv.QuoteToASCII(e.Claimed) +
		", this resource is " + strconv.QuoteToASCII(e.Guarded) + "; name both by one guard.Template"
}

// Unwrap returns ErrMisdirected and ErrInvalid.
func (e *MisdirectedError) Unwrap() []error { return []error{ErrMisdirected, ErrInvalid} }

// FailedError says that an operation could not be carried out, or that its
// outcome is unknown. It unwraps to [ErrUnavailable], [ErrSetup] or
// [ErrOutcomeUnknown] and to Cause. Of the cause of an unknown outcome, whatever
// this package declares stays hidden from [errors.Is] and [errors.As], because
// it may promise that nothing was written; Cause itself has all of it.
type FailedError struct {
	// Reason is [ReasonUnavailable], [ReasonSetup] or [ReasonOutcomeUnknown].
	Reason Reason
	// Op says what was being done, "raise" or "update billing.close".
	Op string
	// Claim is the claim that was being presented; may be zero.
	Claim Claim
	// Cause is the driver's error.
	Cause error
}

// Unavailable returns a [*FailedError] of [ReasonUnavailable]: nothing was
// written, and a retry may succeed. A cause that is [ErrSetup] makes it one of
// [ReasonSetup], as [Setup] does. A cause that has a [*LostError] gives that: the lease
// was over before anything was written, and no store was unavailable.
func Unavailable(op string, claim Claim, cause error) error {
	var lost *LostError
	if errors.As(cause, &lost) {
		return lost
	}
	if errors.Is(cause, ErrSetup) {
		return Setup(op, claim, cause)
	}
	return &FailedError{Reason: ReasonUnavailable, Op: op, Claim: claim, Cause: cause}
}

// Setup returns a [*FailedError] of [ReasonSetup]: nothing was written, and no
// retry helps before somebody has put the cause right.
func Setup(op string, claim Claim, cause error) error {
	return &FailedError{Reason: ReasonSetup, Op: op, Claim: claim, Cause: cause}
}

// OutcomeUnknown returns a [*FailedError] of [ReasonOutcomeUnknown]: a write
// was sent and may have taken effect.
func OutcomeUnknown(op string, claim Claim, cause error) error {
	return &FailedError{Reason: ReasonOutcomeUnknown, Op: op, Claim: claim, Cause: cause}
}

// Error gives the operation, the reason, the claim and the cause.
func (e *FailedError) Error() string {
	s := "fencepost: " + e.Op
	if err := e.Reason.Err(); err != nil {
		s += ": " + err.Error()
	}
	if e.Claim.Resource != "" {
		s += ": "
		if e.Claim.Token != NoToken {
			s += "token " + e.Claim.Token.String() + " "
		}
		s += "for " + strconv.Quote(e.Claim.Resource)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap returns the sentinel of the reason, and the cause.
func (e *FailedError) Unwrap() []error {
	if e.Reason == ReasonOutcomeUnknown && e.Cause != nil {
		return []error{ErrOutcomeUnknown, &maskedError{e.Cause}}
	}
	return unwrapped(e.Reason.Err(), e.Cause)
}

// maskedError is the cause of an unknown outcome. A context that ended with
// [ErrLeaseLost] is such a cause, and so is a read that failed with
// [ErrUnavailable]. Both promise that nothing was written, which is true of the
// cause and not of the write.
type maskedError struct{ cause error }

func (e *maskedError) Error() string { return e.cause.Error() }

// Is hides the sentinels of this package.
func (e *maskedError) Is(target error) bool {
	for i := range reasons {
		if target == reasons[i].err {
			return false
		}
	}
	return errors.Is(e.cause, target)
}

// As hides the types of this package.
func (e *maskedError) As(target any) bool {
	switch target.(type) {
	case **RejectedError, **LostError, **InvalidError, **MisdirectedError, **FailedError, **ElsewhereError, **maskedError:
		return false
	}
	if t := reflect.TypeOf(target); t == nil || t.Kind() != reflect.Pointer || t.Elem() == errorType {
		return false // any error would do, and this one is at hand
	}
	return errors.As(e.cause, target)
}

var errorType = reflect.TypeFor[error]()

func unwrapped(errs ...error) []error {
	out := make([]error, 0, len(errs))
	for _, err := range errs {
		if err != nil {
			out = append(out, err)
		}
	}
	return out
}

func itoa(n int) string { return strconv.Itoa(n) }
