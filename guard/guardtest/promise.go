package guardtest

// Promise is one of the module's promises, "P1" and so on.
type Promise string

// The promises that a store can keep or break. (P2 depends on how a store is
// used, P7 on the lease client.)
const (
	P1 Promise = "P1"
	P3 Promise = "P3"
	P4 Promise = "P4"
	P5 Promise = "P5"
	P6 Promise = "P6"
)

// Sentence returns what is promised.
func (p Promise) Sentence() string {
	switch p {
	case P1:
		return "No stale write. Once a resource's mark is T, no write under a lower token takes effect there."
	case P3:
		return "Tokens only grow. Neither a mark nor the floor is ever lowered or forgotten."
	case P4:
		return "One token, one lease. The same token under another lease ID is refused as a conflict and reported."
	case P5:
		return "Fail closed. Malformed input, an ended context or an unknown outcome is never a silent write and never success."
	case P6:
		return "The reason is exact. What is refused is refused for the reason given, with the token offered and the mark."
	}
	return "no such promise"
}
