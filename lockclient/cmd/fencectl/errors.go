package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// The exit codes, and the reasons that they stand for, are in exit.go.

// partial says that a command failed after it had changed something. It hides
// neither an unknown outcome nor that the operator ended the command.
func partial(ctx context.Context, err error, format string, args ...any) error {
	err = fmt.Errorf(format+": %w", append(args, err)...)
	if code, _ := exitOf(err); code == exitUnknown || ctx.Err() != nil {
		return err
	}
	return &commandError{Code: exitPartial, Reason: "partial", Err: err}
}

// notPrinted is the error of a change that was made and whose result could not be
// printed; nil if it was.
func notPrinted(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &commandError{Code: exitPartial, Reason: "partial", Err: fmt.Errorf(format+", which could not be printed: %w", append(args, err)...)}
}

func notFound(format string, args ...any) error {
	return &commandError{Code: exitNotFound, Reason: "not_found", Err: fmt.Errorf(format, args...)}
}

// interrupted says that the operator ended the command, if no more is known: it
// does not hide an outcome that is known, or known to be unknown.
func interrupted(err error) error {
	var own *commandError
	code, _ := exitOf(err)
	if errors.As(err, &own) || code == exitUnknown || code != exitUnavailable && !errors.Is(err, context.Canceled) {
		return err
	}
	return &commandError{Code: exitInterrupted, Reason: "interrupted", Err: fmt.Errorf("interrupted: %w", err)}
}

// report prints the error as one line and returns the exit code.
func report(w io.Writer, asJSON bool, err error) int {
	code, reason := exitOf(err)
	message := oneLine(withoutRepetition(strings.TrimPrefix(err.Error(), "fencepost: ")))
	if asJSON {
		line, _ := jsonLine(object{"code": code, "reason": reason, "message": message})
		w.Write(line)
		return code
	}
	fmt.Fprintf(w, "fencectl: %s\n", message)
	return code
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
