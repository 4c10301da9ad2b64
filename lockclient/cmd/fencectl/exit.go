package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// The exit codes. They are part of
// the contract: scripts branch on them.
const (
	exitOK          = 0
	exitOther       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitNoRights    = 5
	exitUnavailable = 6
	exitUnknown     = 7
	exitSetup       = 8
	exitCancelled   = 9
	exitUnhealthy   = 10
	exitPartial     = 11
	exitInterrupted = 130
)

// exitCode is a line of exitCodes.
type exitCode struct {
	Code    int      `json:"code"`
	Reasons []string `json:"reasons"`
	Meaning string   `json:"meaning"`
}

// exitCodes is what "fencectl help exit-codes" prints. The literal has the reasons
// that fencectl alone knows; byReason adds those of guard.
var exitCodes = withReasons([]exitCode{
	{exitOK, []string{}, "done"},
	{exitOther, nil, "an error of none of the kinds below"},
	{exitUsage, []string{"usage", "unsupported"}, "the command line or a value in it is malformed, or the issuer cannot do this, or a confirmation is needed and there is no terminal to ask at: nothing was changed"},
	{exitNotFound, nil, "there is no such resource"},
	{exitRefused, []string{"held", "lease_changed"}, "the state is not what the command expects, such as the lease ID of a successor: nothing was changed"},
	{exitNoRights, []string{"no_rights"}, "the server does not let this role do it"},
	{exitUnavailable, nil, "no connection, a timeout, a standby: nothing was changed, trying again is safe"},
	{exitUnknown, nil, "the response was lost and the change may have been made: look before trying again"},
	{exitSetup, []string{"schema_missing", "schema_older", "schema_newer"}, "the database does not have the schema, or has another version of it than this build, or something else needs a person: nothing was changed"},
	{exitCancelled, []string{"cancelled"}, "the operator did not confirm: nothing was sent"},
	{exitUnhealthy, []string{"unhealthy"}, "doctor found something that must be repaired"},
	{exitPartial, []string{"partial"}, "a part was done and the rest was not, or what was done could not be printed: the message says what was done and how to go on"},
	{exitInterrupted, []string{"interrupted"}, "Ctrl-C or SIGTERM before the command was done: if a part was done, the message says which; if a change may have been made, it is outcome_unknown and not this code"},
})

// withReasons adds the reasons of guard to the lines of their exit codes.
func withReasons(lines []exitCode) []exitCode {
	for _, reason := range append(guard.Reasons(), guard.ReasonOther) {
		code, printed := ofReason(reason)
		for i := range lines {
			if lines[i].Code == code && !slices.Contains(lines[i].Reasons, printed) {
				lines[i].Reasons = append(lines[i].Reasons, printed)
			}
		}
	}
	return lines
}

// ofReason returns the exit code of a reason of guard, and the reason as fencectl
// prints it: whoever typed the command need not tell a missing value from a malformed one.
func ofReason(reason guard.Reason) (code int, printed string) {
	if code = byReason[reason]; code == exitUsage {
		return code, string(guard.ReasonInvalid)
	}
	return code, string(reason)
}

// byReason is total over guard's reasons.
var byReason = map[guard.Reason]int{
	guard.ReasonInvalid:        exitUsage,
	guard.ReasonMissing:        exitUsage,
	guard.ReasonMisdirected:    exitUsage,
	guard.ReasonNotFound:       exitNotFound,
	guard.ReasonStale:          exitRefused,
	guard.ReasonSpent:          exitRefused,
	guard.ReasonConflict:       exitRefused,
	guard.ReasonMarkAhead:      exitRefused,
	guard.ReasonUnfenced:       exitRefused,
	guard.ReasonLeaseLost:      exitRefused,
	guard.ReasonUnavailable:    exitUnavailable,
	guard.ReasonOutcomeUnknown: exitUnknown,
	guard.ReasonSetup:          exitSetup,
	guard.ReasonOther:          exitOther,
}

// commandError is an error of a command itself, with its exit code and reason.
type commandError struct {
	Code   int
	Reason string
	Err    error
}

func (e *commandError) Error() string { return e.Err.Error() }
func (e *commandError) Unwrap() error { return e.Err }

// usage is an error of the command line.
func usage(format string, args ...any) error {
	return &commandError{exitUsage, "usage", fmt.Errorf(format, args...)}
}

// exitOf returns the exit code and the reason of an error. If an error wraps
// several, the one that promises least comes first.
func exitOf(err error) (code int, reason string) {
	var own *commandError
	switch {
	case errors.As(err, &own):
		return own.Code, own.Reason
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return exitUnknown, string(guard.ReasonOutcomeUnknown)
	case errors.Is(err, driver.ErrHeld):
		return exitRefused, "held"
	case errors.Is(err, lockadmin.ErrLeaseChanged):
		return exitRefused, "lease_changed"
	case errors.Is(err, errors.ErrUnsupported):
		return exitUsage, "unsupported"
	}
	code, reason = ofReason(guard.ReasonOf(err))
	switch {
	case (code == exitSetup || code == exitUnavailable || code == exitOther) && noRights(err):
		return exitNoRights, "no_rights"
	case code == exitOther && errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable, string(guard.ReasonUnavailable)
	}
	return code, reason
}

// noRights reports that PostgreSQL refused the role: a right that it lacks
// (42501), or no entry at all (class 28, PostgreSQL documentation, appendix A); or that the
// lock server does not know or allow the identity.
func noRights(err error) bool {
	if errors.Is(err, fs.ErrPermission) {
		return true
	}
	var server interface{ SQLState() string }
	return errors.As(err, &server) && (server.SQLState() == "42501" || strings.HasPrefix(server.SQLState(), "28"))
}
