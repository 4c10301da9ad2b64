package zklock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
)

// foreign is a value that this package did not write.
type foreign struct{ path, value string }

func (e foreign) Error() string {
	return fmt.Sprintf("the node %q holds something else: %.64q", e.path, e.value)
}

// notSent is an error from before anything was sent.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// unsent is for an error of a request that wrote nothing that matters.
func unsent(op string, claim guard.Claim, err error) error {
	if errors.Is(err, guard.ErrMarkAhead) {
		return err
	}
	return unavailable(op, claim, err)
}

// unavailable is for an error of a request that wrote nothing that matters.
func unavailable(op string, claim guard.Claim, err error) error {
	for _, refusal := range []error{zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL} {
		if errors.Is(err, refusal) {
			return guard.Setup(op, claim, err)
		}
	}
	if errors.As(err, new(foreign)) {
		return guard.Setup(op, claim, err)
	}
	return guard.Unavailable(op, claim, err)
}

// failed classifies the error of a write: servers refuse before they write.
func failed(op string, claim guard.Claim, err error) error {
	certain := []error{zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved, zk.ErrAPIError}
	if errors.As(err, new(notSent)) || errors.As(err, new(foreign)) || slices.ContainsFunc(certain, func(e error) bool { return errors.Is(err, e) }) {
		return unavailable(op, claim, err)
	}
	return guard.OutcomeUnknown(op, claim, err)
}
