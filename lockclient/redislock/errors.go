package redislock

import (
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// refusals are the codes of the server's answers after which nothing was written: it
// did not begin the script, or it refused the script's first write. What they depend
// on does not change while a script runs, and a script that has written is not refused
// memory.
var refusals = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", // who asks
	"WRONGTYPE", "ERR fencepost:", // a foreign value under a key
	"READONLY", "MASTERDOWN", "NOREPLICAS", // a replica, or too few of them
	"LOADING", "BUSY", "OOM", "MISCONF", // not now: it starts, another script runs, no memory, it cannot save
	"CLUSTERDOWN", "CROSSSLOT", "MOVED", "ASK", "TRYAGAIN", // another node of a cluster
	"ERR max number of clients reached", "ERR unknown command",
}

// failed says what an error means: guard.ErrUnavailable for a refusal, and otherwise
// guard.ErrOutcomeUnknown.
func failed(op string, claim guard.Claim, err error) error {
	if refused(err.Error()) {
		return guard.Unavailable(op, claim, err)
	}
	return guard.OutcomeUnknown(op, claim, err)
}

func refused(text string) bool {
	// Redis before 7.0 puts the code of an error in a script behind its own words:
	// "ERR Error running script (call to f_05): @user_script:58: -MISCONF Redis ..."
	if _, inScript, found := strings.Cut(text, ": -"); found && strings.HasPrefix(text, "ERR Error running script") {
		text = inScript
	}
	for _, code := range refusals {
		if text == code || strings.HasPrefix(text, code+" ") {
			return true
		}
	}
	// Redis before 7.2 has no code for a command that a script may not use. No
	// script is refused one after it has granted or freed a lease.
	return strings.Contains(text, "The user executing the script can't ")
}
