package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// What a run is expected to show.
const (
	expectClean      = "clean"
	expectViolations = "violations"
)

// The exit codes. go run turns each except 0 into 1, and prints which it was.
const (
	exitClean      = 0
	exitViolations = 1
	exitInvalid    = 2
)

func main() {
	if encoded := os.Getenv(roleVariable); encoded != "" {
		if err := runRole(encoded); err != nil {
			fmt.Fprintln(os.Stderr, "campaign:", err)
			os.Exit(5)
		}
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	ctx, orphaned := context.WithCancel(ctx)
	go watchParent(orphaned)
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// watchParent ends the run when go run dies, because that does not kill its
// child.
func watchParent(orphaned func()) {
	for parent := os.Getppid(); os.Getppid() == parent; {
		time.Sleep(time.Second)
	}
	orphaned()
}

// command is the whole program except for the process around it.
func command(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("campaign", flag.ContinueOnError)
	flags.SetOutput(errs)
	var opts options
	flags.Uint64Var(&opts.Seed, "seed", 1, "seed of the schedule")
	flags.DurationVar(&opts.Duration, "duration", time.Minute, "how long the nemesis rages at least")
	flags.DurationVar(&opts.Patience, "patience", 5*time.Minute, "how much longer it may rage while the run has not shown what it must")
	flags.BoolVar(&opts.First, "first", false, "stop at the first violation that the resources' log shows")
	flags.StringVar(&opts.Guards, "guards", guardsOn, "on, naive or off")
	flags.IntVar(&opts.Workers, "workers", 3, "worker processes a surface")
	flags.BoolVar(&opts.Skew, "skew", true, "step PostgreSQL's clock; needs libfaketime")
	flags.StringVar(&opts.Dir, "artefacts", "", "directory for histories, logs and the schedule; default: a temporary one, kept if the run fails")
	flags.StringVar(&opts.Expect, "expect", expectClean, "clean, or violations: exit with 0 only if every surface shows some")
	asJSON := flags.Bool("json", false, "end with the summary as one line of JSON")
	asShort := flags.Bool("short", false, "the gate's form: half a minute with the guards on, then both controls")
	asLong := flags.Bool("long", false, "eight seeds of five minutes, the controls and all mutants; about an hour")
	if err := flags.Parse(args); err != nil {
		return exitInvalid
	}
	if err := check(opts, flags.NArg()); err != nil {
		fmt.Fprintln(errs, "campaign:", err)
		return exitInvalid
	}
	switch {
	case *asShort:
		return short(ctx, opts, out, errs)
	case *asLong:
		return long(ctx, opts, out, errs)
	}
	v := job{opts}.do(ctx)
	code := v.print(out, errs)
	if *asJSON && v.err == nil {
		if err := json.NewEncoder(out).Encode(v.s); err != nil {
			return exitInvalid
		}
	}
	return code
}

func check(opts options, rest int) error {
	switch {
	case rest > 0:
		return errors.New("unexpected arguments; only flags are allowed")
	case opts.Guards != guardsOn && opts.Guards != guardsNaive && opts.Guards != guardsOff:
		return fmt.Errorf("-guards: %q is not on, naive or off", opts.Guards)
	case opts.Expect != expectClean && opts.Expect != expectViolations:
		return fmt.Errorf("-expect: %q is not clean or violations", opts.Expect)
	case opts.Duration < time.Second || opts.Duration > time.Hour:
		return fmt.Errorf("-duration: %v is not between 1s and 1h", opts.Duration)
	case opts.Patience < 0 || opts.Patience > time.Hour:
		return fmt.Errorf("-patience: %v is not between 0s and 1h", opts.Patience)
	case opts.Workers < 2 || opts.Workers > 9:
		return fmt.Errorf("-workers: %d is not between 2 and 9", opts.Workers)
	}
	return nil
}

// exit returns the exit code of the run.
func (s *summary) exit(out io.Writer) int {
	missing := unreached(s.shows())
	switch expected := s.Options.Expect == expectViolations; {
	case expected && len(missing) > 0:
		fmt.Fprintln(out, "verdict: too few violations were seen:", strings.Join(missing, "; "))
		return exitViolations
	case expected:
		fmt.Fprintln(out, "verdict: as expected, without the guards every surface was damaged")
	case len(s.Violations) > 0:
		fmt.Fprintf(out, "verdict: %d violations\n", len(s.Violations))
		return exitViolations
	case len(s.Invalid) > 0:
		fmt.Fprintln(out, "verdict: no violation, but too little was done to tell")
		return exitInvalid
	default:
		fmt.Fprintln(out, "verdict: no violation")
	}
	return exitClean
}

// withHost returns a connection URL with another host and port.
func withHost(database, host string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", err
	}
	u.Host = host
	return u.String(), nil
}
