package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is the program. The context ends with the operator's Ctrl-C.
func run(ctx context.Context, args []string, in *os.File, out *os.File, errOut io.Writer) int {
	a := &app{in: in, out: out, errOut: errOut}
	err := a.root().Run(ctx, args)
	var failed *actionError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &failed):
		err = failed.err
	default: // the command line library refused the command line
		err = usage("%v", err)
	}
	if ctx.Err() != nil {
		err = interrupted(err)
	}
	return report(errOut, wantsJSON(args), err)
}

// actionError marks what a command failed with. Every other error is one of
// the command line.
type actionError struct{ err error }

func (e *actionError) Error() string { return e.err.Error() }
