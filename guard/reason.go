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
	// ErrMissing: something that has to be given was not: a token, a lease ID, the
	// name of a resource, a proof. It is also ErrInvalid.
	ErrMissing = errors.New("missing")
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

// Outcome is what a [Reason] means for whoever watches a service: logs, metrics and
// alerts name their lines and series by it.
type Outcome string

// The outcomes.
const (
	// Admitted: the claim was let through.
	Admitted Outcome = "admitted"
	// Rejected: the claim was refused, by comparison with the mark or for what it
	// lacks. Some are normal after a takeover.
	Rejected Outcome = "rejected"
	// Failed: the claim could not be judged, or the write not carried out: a store
	// that is down or not set up, an unknown outcome, an error of another kind.
	Failed Outcome = "failed"
	// LostLease: the lease was over by the holder's clock, and nothing was sent.
	LostLease Outcome = "lost"
)

// Outcome returns what r means. A string that is not a reason has failed.
func (r Reason) Outcome() Outcome {
	switch r {
	case ReasonNone:
		return Admitted
	case ReasonStale, ReasonSpent, ReasonConflict, ReasonMarkAhead, ReasonNotFound, ReasonUnfenced, ReasonInvalid, ReasonMisdirected, ReasonMissing:
		return Rejected
	case ReasonLeaseLost:
		return LostLease
	}
	return Failed
}

// ReasonFor returns the reason of an error that the code which handles claim has
// returned, as far as the error speaks of that claim. It is [ReasonOther] for
//
//   - what another service said ([ElsewhereError]),
//   - the refusal, failure or lost lease of another claim,
//   - a claim that is missing or misdirected: this one was neither.
//
// A sentinel without facts counts, because somebody chose it. Servers use ReasonFor so
// that their caller does not stop, or repeat, for what happened somewhere else.
func ReasonFor(claim Claim, err error) Reason {
	reason := ReasonOf(err)
	var elsewhere *ElsewhereError
	var rejected *RejectedError
	var failed *FailedError
	var lost *LostError
	about := claim
	switch {
	case errors.As(err, &elsewhere), reason == ReasonMissing, reason == ReasonMisdirected:
		return ReasonOther
	case errors.As(err, &rejected):
		about = rejected.Claim
	case errors.As(err, &lost):
		about = lost.Claim
	case errors.As(err, &failed):
		if about = failed.Claim; about.Token == NoToken && about.Resource == claim.Resource {
			about = claim // it concerns the resource
		}
	}
	if about != claim {
		return ReasonOther
	}
	return reason
}

// ElsewhereError is what another service has said, as a client of that service has
// read it: [errors.Is] and [errors.As] find all of Err, but it says nothing about the
// claims that this process handles ([ReasonFor]). httpfence.ErrorFrom returns one.
type ElsewhereError struct{ Err error }

// Error is Err's.
func (e *ElsewhereError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ElsewhereError) Unwrap() error { return e.Err }
