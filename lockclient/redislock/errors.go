package redislock

import (
	"errors"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// setups and refusals are the codes of the server's errors after which nothing was
// written: it did not begin the script, or it refused the script's first write. What
// they depend on does not change while a script runs, and a script that has written is
// not refused memory. After one of setups no retry helps.
var (
	setups = []string{
		"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", // who asks
		"WRONGTYPE", "ERR fencepost:", // a foreign value under a key
		"CROSSSLOT", "ERR unknown command",
	}
	refusals = []string{
		"READONLY", "MASTERDOWN", "NOREPLICAS", // a replica, or too few of them
		"LOADING", "BUSY", "OOM", "MISCONF", // not now: it starts, another script runs, no memory, it cannot save
		"CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", // another node of a cluster
		"ERR max number of clients reached",
	}
)

// failed says what an error means: guard.ErrSetup or guard.ErrUnavailable for a
// refusal, and otherwise guard.ErrOutcomeUnknown.
func failed(op string, claim guard.Claim, err error) error {
	text := inScript(err.Error())
	switch {
	// Redis before 7.2 has no code for a command that a script may not use. No
	// script is refused one after it has granted or freed a lease.
	case begins(text, setups), strings.Contains(text, "The user executing the script can't "):
		return guard.Setup(op, claim, err)
	case begins(text, refusals):
		return guard.Unavailable(op, claim, err)
	}
	return guard.OutcomeUnknown(op, claim, err)
}

// setupError is a reason that no retry cures.
type setupError struct{ error }

func (e *setupError) Unwrap() []error { return []error{guard.ErrSetup, e.error} }

// unsent is failed for a request that cannot have written.
func unsent(op string, claim guard.Claim, err error) error {
	if said := failed(op, claim, err); errors.Is(said, guard.ErrSetup) {
		return said
	}
	return guard.Unavailable(op, claim, err)
}

// inScript returns what an error says without the words that Redis before 7.0 puts
// before the code of an error in a script: "ERR Error running script (call to f_05):
// @user_script:58: -MISCONF Redis ..."
func inScript(text string) string {
	if _, inner, found := strings.Cut(text, ": -"); found && strings.HasPrefix(text, "ERR Error running script") {
		return inner
	}
	return text
}

func begins(text string, codes []string) bool {
	for _, code := range codes {
		if text == code || strings.HasPrefix(text, code+" ") {
			return true
		}
	}
	return false
}
