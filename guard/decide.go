package guard

// Rule says what a claim whose token equals the mark may do. It is fixed when a
// guard is constructed, never per call: two callers that compare one mark under
// two rules guard nothing.
//
// The zero value is not a rule; [Decide] refuses it. Constructors that take a
// Rule document which rule zero stands for.
type Rule uint8

const (
	// SameOrNewer admits token >= mark: a holder may write many times under
	// its token. It is the rule of stores, HTTP and transactions.
	SameOrNewer Rule = iota + 1
	// OncePerToken admits token > mark: each token writes once, and a second
	// write under it is spent. It is sound only where comparing and writing
	// are one atomic step.
	OncePerToken
)

// String returns "same-or-newer", "once-per-token" or "invalid rule".
func (r Rule) String() string {
	switch r {
	case SameOrNewer:
		return "same-or-newer"
	case OncePerToken:
		return "once-per-token"
	}
	return "invalid rule"
}

// Decide is the rule of fencing, and the only place in this module's Go code
// that decides by it. It says whether a resource whose highest admitted claim is
// mark admits claim:
//
//	token above the mark                      admitted
//	token below the mark                      stale
//	token equal, the mark is a floor          stale
//	token equal, another lease                conflict
//	token equal, same lease, SameOrNewer      admitted
//	token equal, same lease, OncePerToken     spent
//
// It returns nil or a [*RejectedError] with the facts ([ErrStale],
// [ErrConflict], [ErrSpent]), and an [*InvalidError] ([ErrInvalid]) for an
// invalid token or rule. It is pure, allocates nothing when it admits, and
// does not compare resources: the caller looked the mark up by claim.Resource.
func Decide(rule Rule, mark Mark, claim Claim) error { return decide(rule, &mark, &claim) }

// decide takes references, and Decide is inlined, because ten words do not fit
// into the registers of a call, and copying them costs more than comparing.
func decide(rule Rule, mark *Mark, claim *Claim) error {
	if rule != SameOrNewer && rule != OncePerToken {
		return Invalid("rule", rule.String(), "must be SameOrNewer or OncePerToken")
	}
	if !claim.Token.Valid() {
		return claim.Token.Validate()
	}
	switch {
	case claim.Token > mark.Token:
		return nil
	case claim.Token < mark.Token, mark.Floor:
		return rejected(ReasonStale, mark, claim)
	case claim.LeaseID != mark.LeaseID:
		return rejected(ReasonConflict, mark, claim)
	case rule == OncePerToken:
		return rejected(ReasonSpent, mark, claim)
	}
	return nil
}

func rejected(reason Reason, mark *Mark, claim *Claim) error {
	return &RejectedError{Reason: reason, Claim: *claim, Mark: *mark}
}
