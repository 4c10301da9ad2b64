package opcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// The exit codes of fencectl, fencectl-etcd and fencectl-zookeeper. They are part of
// the contract: scripts branch on them.
const (
	ExitOK          = 0
	ExitOther       = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitRefused     = 4
	ExitNoRights    = 5
	ExitUnavailable = 6
	ExitUnknown     = 7
	ExitSetup       = 8
	ExitCancelled   = 9
	ExitUnhealthy   = 10
	ExitPartial     = 11
	ExitInterrupted = 130
)

// ExitCode is a line of [ExitCodes].
type ExitCode struct {
	Code    int      `json:"code"`
	Reasons []string `json:"reasons"`
	Meaning string   `json:"meaning"`
}

// ExitCodes is what "fencectl help exit-codes" prints.
var ExitCodes = []ExitCode{
	{ExitOK, []string{}, "done"},
	{ExitOther, []string{"other"}, "an error of none of the kinds below"},
	{ExitUsage, []string{"usage", "invalid"}, "the command line or a value in it is malformed, or a confirmation is needed and there is no terminal to ask at: nothing was changed"},
	{ExitNotFound, []string{"not_found"}, "there is no such resource"},
	{ExitRefused, []string{"held", "lease_changed", "stale", "spent", "conflict", "mark_ahead", "unfenced", "lease_lost"}, "the state is not what the command expects, such as the lease ID of a successor: nothing was changed"},
	{ExitNoRights, []string{"no_rights"}, "the server does not let this role do it"},
	{ExitUnavailable, []string{"unavailable"}, "no connection, a timeout, a standby: nothing was changed, trying again is safe"},
	{ExitUnknown, []string{"outcome_unknown"}, "the response was lost and the change may have been made: look before trying again"},
	{ExitSetup, []string{"schema_missing", "schema_older", "schema_newer", "setup"}, "the database does not have the schema, or has another version of it than this build, or something else needs a person: nothing was changed"},
	{ExitCancelled, []string{"cancelled"}, "the operator did not confirm: nothing was sent"},
	{ExitUnhealthy, []string{"unhealthy"}, "doctor found something that must be repaired"},
	{ExitPartial, []string{"partial"}, "a part was done and the rest was not, or what was done could not be printed: the message says what was done and how to go on"},
	{ExitInterrupted, []string{"interrupted"}, "Ctrl-C or SIGTERM before the command was done: if a part was done, the message says which; if a change may have been made, it is outcome_unknown and not this code"},
}

// byReason is total over guard's reasons.
var byReason = map[guard.Reason]int{
	guard.ReasonInvalid:        ExitUsage,
	guard.ReasonMissing:        ExitUsage,
	guard.ReasonMisdirected:    ExitUsage,
	guard.ReasonNotFound:       ExitNotFound,
	guard.ReasonStale:          ExitRefused,
	guard.ReasonSpent:          ExitRefused,
	guard.ReasonConflict:       ExitRefused,
	guard.ReasonMarkAhead:      ExitRefused,
	guard.ReasonUnfenced:       ExitRefused,
	guard.ReasonLeaseLost:      ExitRefused,
	guard.ReasonUnavailable:    ExitUnavailable,
	guard.ReasonOutcomeUnknown: ExitUnknown,
	guard.ReasonSetup:          ExitSetup,
	guard.ReasonOther:          ExitOther,
}

// Error is an error of a command itself, with its exit code and reason.
type Error struct {
	Code   int
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Usage is an error of the command line.
func Usage(format string, args ...any) error {
	return &Error{ExitUsage, "usage", fmt.Errorf(format, args...)}
}

// Exit returns the exit code and the reason of an error. If an error wraps
// several, the one that promises least comes first.
func Exit(err error) (code int, reason string) {
	var own *Error
	switch {
	case errors.As(err, &own):
		return own.Code, own.Reason
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return ExitUnknown, string(guard.ReasonOutcomeUnknown)
	case errors.Is(err, driver.ErrHeld):
		return ExitRefused, "held"
	case errors.Is(err, driver.ErrLeaseChanged):
		return ExitRefused, "lease_changed"
	}
	of := guard.ReasonOf(err)
	code = byReason[of]
	switch {
	case code == ExitUsage:
		return code, string(guard.ReasonInvalid)
	case (code == ExitSetup || code == ExitUnavailable || code == ExitOther) && noRights(err):
		return ExitNoRights, "no_rights"
	case code == ExitOther && errors.Is(err, context.DeadlineExceeded):
		return ExitUnavailable, string(guard.ReasonUnavailable)
	}
	return code, string(of)
}

// noRights reports that PostgreSQL refused the role: a right that it lacks
// (42501), or no entry at all (class 28, PostgreSQL documentation, appendix A).
func noRights(err error) bool {
	var server interface{ SQLState() string }
	return errors.As(err, &server) && (server.SQLState() == "42501" || strings.HasPrefix(server.SQLState(), "28"))
}
