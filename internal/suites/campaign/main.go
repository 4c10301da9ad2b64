package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
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

// options are those of one run.
type options struct {
	Seed     uint64        `json:"seed"`
	Duration time.Duration `json:"duration"` // requested, in nanoseconds
	First    bool          `json:"first,omitempty"`
	Guards   string        `json:"guards"`
	Skew     bool          `json:"skew"`
	Dir      string        `json:"-"`
}

// command is the whole program except for the process around it.
func command(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("campaign", flag.ContinueOnError)
	flags.SetOutput(errs)
	var opts options
	flags.Uint64Var(&opts.Seed, "seed", 1, "seed of the schedule")
	flags.DurationVar(&opts.Duration, "duration", time.Minute, "how long the nemesis rages at least; what the run must show grows with it")
	flags.BoolVar(&opts.First, "first", false, "stop at the first violation that the resources' log shows")
	flags.StringVar(&opts.Guards, "guards", guardsOn, "on; or naive or off, which must show violations on every surface")
	flags.BoolVar(&opts.Skew, "skew", true, "step PostgreSQL's clock; needs libfaketime")
	flags.StringVar(&opts.Dir, "artefacts", "", "directory for histories, logs and the schedule; default: a temporary one, kept if the run fails")
	short := flags.Bool("short", false, "the gate's form: half a minute with the guards on, then both controls")
	if err := flags.Parse(args); err != nil {
		return exitInvalid
	}
	if err := check(opts, flags.NArg()); err != nil {
		fmt.Fprintln(errs, "campaign:", err)
		return exitInvalid
	}
	if !*short {
		return judged(ctx, opts, out, errs)
	}
	// One after the other: three at once need more than two slow cores. The
	// controls go on until each surface has shown its damage.
	code := exitClean
	for _, guards := range []string{guardsOn, guardsNaive, guardsOff} {
		one := opts
		one.Guards, one.Duration = guards, 30*time.Second
		if guards != guardsOn {
			one.Duration = 10 * time.Second
		}
		if opts.Dir != "" {
			one.Dir = filepath.Join(opts.Dir, guards)
		}
		code = max(code, judged(ctx, one, out, errs))
	}
	return code
}

func check(opts options, rest int) error {
	switch {
	case rest > 0:
		return errors.New("unexpected arguments; only flags are allowed")
	case opts.Guards != guardsOn && opts.Guards != guardsNaive && opts.Guards != guardsOff:
		return fmt.Errorf("-guards: %q is not on, naive or off", opts.Guards)
	case opts.Duration < time.Second || opts.Duration > time.Hour:
		return fmt.Errorf("-duration: %v is not between 1s and 1h", opts.Duration)
	}
	return nil
}

// judged does one run, prints its verdict and returns the exit code.
func judged(ctx context.Context, opts options, out, errs io.Writer) int {
	s, err := campaign(ctx, opts)
	if err != nil {
		fmt.Fprintf(errs, "campaign: seed %d, guards %s: %v\n", opts.Seed, opts.Guards, err)
		return exitInvalid
	}
	s.print(out)
	if s.Artefacts != "" {
		fmt.Fprintln(out, "artefacts:", s.Artefacts)
	}
	return s.exit(out)
}

// campaign does one run in its directory, which is kept if the run failed or
// the caller named it.
func campaign(ctx context.Context, opts options) (*summary, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	named := opts.Dir != ""
	var err error
	if named {
		err = os.MkdirAll(opts.Dir, 0o700)
	} else {
		opts.Dir, err = os.MkdirTemp("", "fencepost-campaign-")
	}
	if err != nil {
		return nil, err
	}
	// The histories of another run would be mistaken for this one's.
	if entries, err := os.ReadDir(opts.Dir); err != nil || len(entries) > 0 {
		return nil, errors.Join(err, fmt.Errorf("-artefacts: %s is not empty", opts.Dir))
	}
	s, err := execute(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("%w (artefacts: %s)", err, opts.Dir)
	}
	if !named && s.exit(io.Discard) == exitClean {
		return s, os.RemoveAll(opts.Dir)
	}
	s.Artefacts = opts.Dir
	return s, nil
}
