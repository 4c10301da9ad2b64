package lockadmin

import (
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

// ErrLeaseChanged: the resource's lease is not the one that
// ForceUnlockOptions.ExpectedLeaseID names. Nothing was changed. The error is a
// [*LeaseChangedError], or the lock server's word.
var ErrLeaseChanged = errors.New("lease is not the expected one")

// LeaseChangedError says what there is instead of the expected lease. It
// unwraps to [ErrLeaseChanged]. Nothing was changed.
type LeaseChangedError struct {
	// Expected is the lease ID that was expected.
	Expected string
	// Now is the resource as it is: a successor's lease, or a free one.
	Now LeaseInfo
}

// Error names the resource, the expected lease and what there is now.
func (e *LeaseChangedError) Error() string {
	s := fmt.Sprintf("fencepost: %v: %s is %s", ErrLeaseChanged, strconv.Quote(e.Now.Resource), e.Now.State)
	if e.Now.LeaseID != "" {
		s += fmt.Sprintf(" under lease %s of %s, token %s", strconv.Quote(e.Now.LeaseID), strconv.Quote(e.Now.Owner), e.Now.Token)
	}
	return s + ", expected was " + strconv.Quote(e.Expected)
}

// Unwrap returns [ErrLeaseChanged].
func (e *LeaseChangedError) Unwrap() error { return ErrLeaseChanged }

// UnsupportedError says that an engine does not have a call, and why. Nothing was sent.
// It unwraps to [errors.ErrUnsupported].
type UnsupportedError struct {
	// Op is the call, such as "purge"; Engine is such as "etcd".
	Op, Engine string
	// Why says what there is in the engine instead, in a short sentence.
	Why string
}

// Error names the engine, the call and the reason.
func (e *UnsupportedError) Error() string {
	return "fencepost: " + e.Op + ": " + e.Engine + " does not have this: " + e.Why
}

// Unwrap returns [errors.ErrUnsupported].
func (e *UnsupportedError) Unwrap() error { return errors.ErrUnsupported }

// Failed is a list that ends with the error at once, for engines.
func Failed[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		yield(none, err)
	}
}

// MaxReasonLen is the longest reason of a force unlock, in bytes.
const MaxReasonLen = 1000

// ValidateActor and ValidateReason check what a person wrote, for engines. The error is a
// [*guard.InvalidError].
func ValidateActor(actor string) error { return spoken("actor", actor, guard.MaxOwnerLen) }

// ValidateReason is explained with [ValidateActor].
func ValidateReason(reason string) error { return spoken("reason", reason, MaxReasonLen) }

func spoken(field, s string, most int) error {
	if strings.TrimSpace(s) == "" {
		return guard.Invalid(field, s, "must not be empty or only spaces")
	}
	return input.Plain(field, s, most)
}
