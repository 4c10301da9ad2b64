// Command billingclose shows the problem that this module solves, with a real
// PostgreSQL, a real HTTP service, an S3 server and two real processes, one of which
// is stopped for longer than its lease and then continues.
//
//	go run ./examples/billingclose            the guards are on: four stale attempts, four refused
//	go run ./examples/billingclose -unfenced  the guards are off: see what is lost
//	go run ./examples/billingclose -json      the last line is a summary for programs
//
// The exit status is 0 exactly when the flags' promise held: with the guards on,
// nothing stale was written; with -unfenced, something was. The code to copy is in
// fenced.go and ledger.go. It needs a Unix, to stop a process.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// limit ends a run that hangs; a run takes about four seconds, and several times
// that on a busy machine.
const limit = 10 * time.Minute

func main() {
	if encoded := os.Getenv(roleVariable); encoded != "" {
		if err := runWorker(context.Background(), encoded); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// The kernel ties dieWithParent to the thread that starts the worker.
	runtime.LockOSThread()
	os.Exit(tell(os.Args[1:], os.Stdout, os.Stderr))
}

// tell runs the story and returns the exit status.
func tell(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("billingclose", flag.ContinueOnError)
	flags.SetOutput(stderr)
	unfenced := flags.Bool("unfenced", false, "run the same story with the guards off and show the damage")
	asJSON := flags.Bool("json", false, "print a machine-readable summary as the last line")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 1
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "billingclose: unexpected argument %q\n", flags.Arg(0))
		return 1
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("the story did not end within %s", limit))
	defer cancel()

	show := &timeline{out: stdout, start: time.Now()}
	s, err := run(ctx, !*unfenced, show)
	if err != nil {
		fmt.Fprintln(stderr, "billingclose:", err)
		return 1
	}
	show.verdict(s)
	if *asJSON {
		if err := json.NewEncoder(stdout).Encode(s); err != nil {
			fmt.Fprintln(stderr, "billingclose:", err)
			return 1
		}
	}
	if !s.promised() {
		return 1
	}
	return 0
}
