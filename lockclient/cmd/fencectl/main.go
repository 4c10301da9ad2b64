package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program. Its context ends at the operator's Ctrl-C.
func run(ctx context.Context, args []string, in *os.File, out, errOut io.Writer) int {
	a := &app{in: in, out: out, errOut: errOut}
	if err := a.execute(ctx, args); err != nil {
		return report(errOut, wantsJSON(args), err)
	}
	return exitOK
}

// execute carries out a command line.
func (a *app) execute(ctx context.Context, args []string) error {
	err := a.root().Run(ctx, args)
	var failed *actionError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed):
		err = failed.err
	default: // the command line library refused the command line
		err = usage("%v", err)
	}
	if ctx.Err() != nil {
		err = interrupted(err)
	}
	return err
}

// actionError marks an error of a command. Every other error is one of the
// command line.
type actionError struct{ err error }

func (e *actionError) Error() string { return e.err.Error() }

// The exit codes. They are part of the program's contract: scripts branch on
// them.
const (
	exitOK          = 0
	exitOther       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitRefused     = 4
	exitNoRights    = 5
	exitUnavailable = 6
	exitUnknown     = 7
	exitSchema      = 8
	exitCancelled   = 9
	exitUnhealthy   = 10
	exitPartial     = 11
	exitInterrupted = 130
)

// exitCodes is what "fencectl help exit-codes" prints.
var exitCodes = []struct {
	code    int
	reasons string
	meaning string
}{
	{exitOK, "", "done"},
	{exitOther, "other", "an error of none of the kinds below"},
	{exitUsage, "usage, invalid", "the command line or a value in it is malformed, or a confirmation is needed and there is no terminal to ask at: nothing was sent"},
	{exitNotFound, "not_found", "there is no such resource"},
	{exitRefused, "held, lease_changed, stale, spent, conflict, mark_ahead, unfenced", "the state is not what the command expects, such as the lease ID of a successor: nothing was changed"},
	{exitNoRights, "no_rights", "the server does not let this role do it"},
	{exitUnavailable, "unavailable", "no connection, a timeout, a standby: nothing was changed, trying again is safe"},
	{exitUnknown, "outcome_unknown", "the response was lost and the change may have been made: look before trying again"},
	{exitSchema, "schema_missing, schema_older, schema_newer, setup", "the database does not have the schema, or has another version of it than this build, or something else needs a person: nothing was changed"},
	{exitCancelled, "cancelled", "the operator did not confirm: nothing was sent"},
	{exitUnhealthy, "unhealthy", "doctor found something that must be repaired"},
	{exitPartial, "partial", "a part was done and the rest was not: the message says how to go on"},
	{exitInterrupted, "interrupted", "Ctrl-C or SIGTERM before the command was done; where a change may have been made it is outcome_unknown"},
}

// coded is an error of this program itself, with its exit code.
type coded struct {
	code   int
	reason string
	err    error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &coded{exitUsage, "usage", fmt.Errorf(format, args...)}
}

// partial says that a command failed after it had changed something. It hides
// neither an unknown outcome nor that the operator ended the command.
func partial(ctx context.Context, err error, format string, args ...any) error {
	err = fmt.Errorf(format+": %w", append(args, err)...)
	if code, _ := classify(err); code == exitUnknown || ctx.Err() != nil {
		return err
	}
	return &coded{exitPartial, "partial", err}
}

func notFound(format string, args ...any) error {
	return &coded{exitNotFound, "not_found", fmt.Errorf(format, args...)}
}

// interrupted says that the operator ended the command, if no more is known: it
// does not hide an outcome that is known, or known to be unknown.
func interrupted(err error) error {
	var own *coded
	code, _ := classify(err)
	if errors.As(err, &own) || code == exitUnknown || code != exitUnavailable && !errors.Is(err, context.Canceled) {
		return err
	}
	return &coded{exitInterrupted, "interrupted", fmt.Errorf("interrupted: %w", err)}
}

// classify returns the exit code and the reason of an error. If an error wraps
// several, the one that promises least comes first.
func classify(err error) (code int, reason string) {
	var own *coded
	if errors.As(err, &own) {
		return own.code, own.reason
	}
	if errors.Is(err, guard.ErrOutcomeUnknown) {
		return exitUnknown, string(guard.ReasonOutcomeUnknown)
	}
	if reason := schemaReason(err); reason != "" {
		return exitSchema, reason
	}
	switch {
	case errors.Is(err, lockclient.ErrHeld):
		return exitRefused, "held"
	case errors.Is(err, lockadmin.ErrLeaseChanged):
		return exitRefused, "lease_changed"
	}
	switch reason := guard.ReasonOf(err); reason {
	case guard.ReasonInvalid, guard.ReasonMissing:
		return exitUsage, string(guard.ReasonInvalid)
	case guard.ReasonNotFound:
		return exitNotFound, string(reason)
	case guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonUnfenced, guard.ReasonLeaseLost:
		return exitRefused, string(reason)
	case guard.ReasonSetup, guard.ReasonUnavailable, guard.ReasonOther:
		if noRights(err) {
			return exitNoRights, "no_rights"
		}
		if reason == guard.ReasonSetup {
			return exitSchema, string(reason)
		}
		if reason == guard.ReasonUnavailable || errors.Is(err, context.DeadlineExceeded) {
			return exitUnavailable, string(guard.ReasonUnavailable)
		}
	}
	return exitOther, string(guard.ReasonOther)
}

// noRights reports that the server refused the role: a right that it lacks
// (42501), or no entry at all (class 28, PostgreSQL documentation, appendix A).
func noRights(err error) bool {
	state := sqlState(err)
	return state == "42501" || strings.HasPrefix(state, "28")
}

// withoutRepetition omits the lines that a driver's error has twice because it
// tried with TLS and without.
func withoutRepetition(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

// report prints the error as one line and returns the exit code.
func report(w io.Writer, asJSON bool, err error) int {
	code, reason := classify(err)
	message := oneLine(withoutRepetition(strings.TrimPrefix(err.Error(), "fencepost: ")))
	if asJSON {
		line, _ := jsonLine(object{"code": code, "reason": reason, "message": message})
		w.Write(line)
		return code
	}
	fmt.Fprintf(w, "fencectl: %s\n", message)
	return code
}
