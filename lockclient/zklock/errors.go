package zklock

import (
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

var (
	errClosed  = unwritten("the issuer is closed")
	errOver    = unwritten("the session is over")
	errEnding  = unwritten("the lease ran out and is being deleted")
	errChanged = unwritten("the lease, the base or the floor kept changing")
)

func unwritten(text string) error { return sequence.Unwritten{Err: errors.New(text)} }

// setups and refusals are errors from before a write: servers refuse first. After one of
// setups no retry helps.
var (
	setups   = []error{zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL}
	refusals = []error{zk.ErrNoServer, zk.ErrSessionExpired, zk.ErrSessionMoved, zk.ErrAPIError}
)

// verdict is what an error says of a write.
func verdict(err error) guard.Reason {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case slices.ContainsFunc(setups, is):
		return guard.ReasonSetup
	case slices.ContainsFunc(refusals, is):
		return guard.ReasonUnavailable
	}
	return guard.ReasonOutcomeUnknown
}

func failed(op string, claim guard.Claim, err error) error {
	return sequence.Failed(op, claim, err, verdict)
}

// refused is the result of an acquire that found h, unless it could not see it.
func refused(resource string, h *held, err error) error {
	if err != nil {
		return err
	}
	return sequence.Refusal{Err: heldBy(resource, h)}
}

// heldBy returns who has the lease. How long a session has left is not known: it is at
// most the whole TTL.
func heldBy(resource string, h *held) *driver.HeldError {
	if h == nil {
		return sequence.HeldBy(resource, nil, 0)
	}
	return sequence.HeldBy(resource, h.Lease, h.ttl())
}
