// Package opcmd is what the operators' commands have in common: the exit codes of
// all (exit.go), and everything but the connection of fencectl-etcd and
// fencectl-zookeeper.
package opcmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const commands = `commands:
  show RESOURCE                   who holds the lease, and under which token
  advance RESOURCE TOKEN --yes    every later token of the resource is above TOKEN
  epoch raise --yes               every later token is above all that were issued: after
                                  each restore of a snapshot, then restart the workers
flags:
`

// Main runs a command line and ends the process. connect returns the issuer as the
// flags say.
func Main(flags *flag.FlagSet, connect func() (driver.Issuer, error)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := Run(ctx, flags, os.Args[1:], connect, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs a command line and returns the exit code. flags has those of the issuer's
// connection.
func Run(ctx context.Context, flags *flag.FlagSet, args []string, connect func() (driver.Issuer, error), out, errOut io.Writer) int {
	timeout := flags.Duration("timeout", 10*time.Second, "longest wait for a response")
	yes := flags.Bool("yes", false, "do it: nothing that is raised is lowered again")
	flags.SetOutput(errOut)
	flags.Usage = func() {
		fmt.Fprintf(errOut, "usage: %s [flags] command\n\n%s", flags.Name(), commands)
		flags.PrintDefaults()
	}
	var words []string
	for rest := args; ; { // flags may come after the command
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			return ExitOK
		} else if err != nil {
			return ExitUsage
		}
		if flags.NArg() == 0 {
			break
		}
		words, rest = append(words, flags.Arg(0)), flags.Args()[1:]
	}
	run, err := command(words, *yes)
	if err == nil {
		var issuer driver.Issuer
		if issuer, err = connect(); err == nil {
			defer issuer.Close()
			bounded, cancel := context.WithTimeout(ctx, *timeout)
			defer cancel()
			err = run(bounded, issuer, out)
		}
	}
	if err == nil {
		return ExitOK
	}
	fmt.Fprintf(errOut, "%s: %v\n", flags.Name(), err)
	code, _ := Exit(err)
	return code
}

// command parses a command; nothing is sent before it succeeds.
func command(words []string, yes bool) (func(context.Context, driver.Issuer, io.Writer) error, error) {
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	want := map[string]int{"show": 2, "advance": 3, "epoch": 2}[name]
	switch {
	case want == 0:
		return nil, Usage("%q is not a command; see --help", name)
	case len(words) != want:
		return nil, Usage("%s has %d arguments, not %d; see --help", name, want-1, len(words)-1)
	case name == "epoch" && words[1] != "raise":
		return nil, Usage("%q is not a command; see --help", "epoch "+words[1])
	case name != "show" && !yes:
		return nil, Usage("%s cannot be taken back: give --yes; see --help", name)
	case name == "epoch":
		return raise, nil
	}
	if err := guard.ValidateResource(words[1]); err != nil {
		return nil, err
	}
	if name == "show" {
		return func(ctx context.Context, i driver.Issuer, out io.Writer) error { return show(ctx, i, words[1], out) }, nil
	}
	token, err := guard.ParseToken(words[2])
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, i driver.Issuer, out io.Writer) error {
		return advance(ctx, i, words[1], token, out)
	}, nil
}

func show(ctx context.Context, i driver.Issuer, resource string, out io.Writer) error {
	w, err := i.Watch(ctx, driver.Watch{Resource: resource}, func() {})
	if err != nil {
		return err
	}
	w.Stop()
	if w.Held == nil {
		_, err = fmt.Fprintf(out, "%q is free\n", resource)
		return err
	}
	_, err = fmt.Fprintf(out, "%q is held\n  token     %v\n  owner     %q\n  lease ID  %q\n  metadata  %q\n  ends in   %v at most, unless renewed\n",
		resource, w.Held.Token, w.Held.Owner, w.Held.LeaseID, w.Held.Metadata, w.Held.Remaining.Round(time.Millisecond))
	return err
}

func advance(ctx context.Context, i driver.Issuer, resource string, above guard.Token, out io.Writer) error {
	f, ok := i.(driver.Floors)
	if !ok {
		return Usage("this issuer's tokens cannot be advanced; see --help")
	}
	reached, err := f.Advance(ctx, resource, above)
	if err == nil {
		_, err = fmt.Fprintf(out, "every later token of %q is above %v\n", resource, reached)
	}
	return err
}

func raise(ctx context.Context, i driver.Issuer, out io.Writer) error {
	e, ok := i.(driver.Epochs)
	if !ok {
		return Usage("this issuer has no epoch; see --help")
	}
	err := e.RaiseEpoch(ctx)
	if err == nil {
		_, err = fmt.Fprintln(out, "every later token is above all that were issued; restart the workers")
	}
	return err
}
