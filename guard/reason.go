package guard

import "errors"

// The sentinels of the module, for [errors.Is]. Every package returns these;
// none declares its own for the same meaning.
var (
	// ErrStale: the token is below the resource's mark. The writer has been
	// superseded; it must stop, and must not retry.
	ErrStale = errors.New("stale fencing token")
	// ErrSpent: the token equals the mark and the rule is [OncePerToken]. The
	// token has already written; if that write was the caller's own, it stands.
	ErrSpent = errors.New("fencing token already spent")
	// ErrConflict: the token equals the mark under another lease ID. Two
	// holders have one token: the issuer is broken or was restored. Raise an
	// alarm.
	ErrConflict = errors.New("fencing token belongs to another lease")
	// ErrNotFound: the row, object or resource to write to does not exist.
	ErrNotFound = errors.New("resource not found")
	// ErrMarkAhead: the mark is above everything that the issuer ever issued:
	// the issuer was restored from a backup, or the mark was poisoned. Every
	// claim will be stale until an operator repairs one of the two.
	ErrMarkAhead = errors.New("mark is ahead of the issuer")
	// ErrUnfenced: the object exists but was never written under a token.
	ErrUnfenced = errors.New("resource is not fenced")
	// ErrInvalid: the input is malformed; nothing was changed.
	ErrInvalid = errors.New("invalid")
	// ErrMisdirected: the claim is for a resource other than the one being
	// written. Nothing was sent or changed. It is also ErrInvalid.
	ErrMisdirected = errors.New("claim for another resource")
	// ErrMissing: no token was presented at all. It is also ErrInvalid.
	ErrMissing = errors.New("fencing token missing")
	// ErrSetup: something is wrong that a person has to put right, and that no
	// retry cures: the schema is missing, too old or too new for this build, a
	// right or a bucket is missing, the client is closed. Nothing was written.
	// It is never also ErrUnavailable.
	ErrSetup = errors.New("setup error")
	// ErrUnavailable: the store could not be queried, or responded that it
	// cannot serve. Nothing was written; a retry is safe.
	ErrUnavailable = errors.New("store unavailable")
	// ErrOutcomeUnknown: a write was sent and its outcome is unknown.
	// It may have taken effect. A blind retry may write twice.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrLeaseLost: the lease has ended by the holder's own clock, or the
	// issuer said so. Nothing was written.
	ErrLeaseLost = errors.New("lease lost")
)

// Reason names why something was refused or failed. It is a stable, short
// string for logs, metrics and problem types. The zero value means success.
type Reason string

// The reasons, one for each sentinel.
const (
	ReasonNone           Reason = ""
	ReasonStale          Reason = "stale"
	ReasonSpent          Reason = "spent"
	ReasonConflict       Reason = "conflict"
	ReasonNotFound       Reason = "not_found"
	ReasonMarkAhead      Reason = "mark_ahead"
	ReasonUnfenced       Reason = "unfenced"
	ReasonInvalid        Reason = "invalid"
	ReasonMisdirected    Reason = "misdirected"
	ReasonMissing        Reason = "missing"
	ReasonSetup          Reason = "setup"
	ReasonUnavailable    Reason = "unavailable"
	ReasonOutcomeUnknown Reason = "outcome_unknown"
	ReasonLeaseLost      Reason = "lease_lost"
	// ReasonOther is an error of none of these kinds, such as a constraint
	// that the caller's own statement violated.
	ReasonOther Reason = "other"
)

// reasons pairs each Reason with its sentinel in the order in which
// [ReasonOf] looks: where an error wraps several, the one that promises least
// comes first, so that an unknown outcome is never reported as anything milder.
var reasons = [...]struct {
	reason Reason
	err    error
}{
	{ReasonOutcomeUnknown, ErrOutcomeUnknown},
	{ReasonConflict, ErrConflict},
	{ReasonMarkAhead, ErrMarkAhead},
	{ReasonStale, ErrStale},
	{ReasonSpent, ErrSpent},
	{ReasonLeaseLost, ErrLeaseLost},
	{ReasonNotFound, ErrNotFound},
	{ReasonUnfenced, ErrUnfenced},
	{ReasonMissing, ErrMissing},
	{ReasonMisdirected, ErrMisdirected},
	{ReasonInvalid, ErrInvalid},
	{ReasonSetup, ErrSetup},
	{ReasonUnavailable, ErrUnavailable},
}

// Reasons returns every reason that has a sentinel, so that a test can show
// that a table covers all of them.
func Reasons() []Reason {
	out := make([]Reason, len(reasons))
	for i, r := range reasons {
		out[i] = r.reason
	}
	return out
}

// Err returns the sentinel of r: nil for [ReasonNone], [ReasonOther] and
// strings that are not a reason.
func (r Reason) Err() error {
	for i := range reasons {
		if reasons[i].reason == r {
			return reasons[i].err
		}
	}
	return nil
}

// ReasonOf returns the reason of err: [ReasonNone] for nil, [ReasonOther] for
// an error that wraps none of the sentinels.
func ReasonOf(err error) Reason {
	if err == nil {
		return ReasonNone
	}
	for i := range reasons {
		if errors.Is(err, reasons[i].err) {
			return reasons[i].reason
		}
	}
	return ReasonOther
}
