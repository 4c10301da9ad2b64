package zklock

import (
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/sequence"
)

var (
	errClosed = unwritten("the issuer is closed")
	errOver   = unwritten("the session is over")
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
