package explore

import (
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// verdict is every comparison that a model makes, and [guard.Decide] makes it.
// Leases are small numbers; 0 is the empty lease ID.
func verdict(rule guard.Rule, mark guard.Mark, token, lease uint8) guard.Reason {
	err := guard.Decide(rule, mark, guard.Claim{Resource: "r", Token: guard.Token(token), LeaseID: leaseID(lease)})
	if err == nil {
		return guard.ReasonNone
	}
	if refused, ok := err.(*guard.RejectedError); ok { // faster than ReasonOf, which matters a million times
		return refused.Reason
	}
	return guard.ReasonOf(err)
}

func markOf(token, lease uint8) guard.Mark {
	return guard.Mark{Token: guard.Token(token), LeaseID: leaseID(lease)}
}

// floorMark returns the mark of a resource that has none of its own.
func floorMark(floor uint8) guard.Mark {
	return guard.Mark{Token: guard.Token(floor), Floor: floor != 0}
}

var leaseIDs = [...]string{"", "a", "b", "c", "d", "e", "f", "g", "h"}

func leaseID(n uint8) string { return leaseIDs[n] }

// claim is a worker's initial claim, where another model covers leasing.
type claim struct{ token, lease uint8 }

// of names worker w with its claim, such as "A (1/a)".
func (c claim) of(w int) string {
	return fmt.Sprintf("%s (%d/%s)", workerNames[w], c.token, leaseID(c.lease))
}

var workerNames = [...]string{"A", "B", "C", "D"}
