package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// job is one run of a suite.
type job struct{ opts options }

// below gives the run its own directory in the one that the caller named.
func (j job) below() job {
	if j.opts.Dir != "" {
		j.opts.Dir = filepath.Join(j.opts.Dir, fmt.Sprintf("%s-%d", j.opts.Guards, j.opts.Seed))
	}
	return j
}

// verdict is the result of a job.
type verdict struct {
	job
	s   *summary
	err error
}

// short is what the gate runs: guards on, and the two controls, one after the
// other. Three at once need more than two slow cores, and then connections time
// out, which costs more than it saves. Each has the floors of half a minute and
// goes on until it has reached them; the controls go on until each surface has
// shown its damage.
func short(ctx context.Context, opts options, out, errs io.Writer) int {
	code := exitClean
	for _, guards := range []string{guardsOn, guardsNaive, guardsOff} {
		j := job{opts}
		j.opts.Guards, j.opts.Duration, j.opts.Expect = guards, 30*time.Second, expectClean
		if guards != guardsOn {
			j.opts.Duration, j.opts.Expect = 20*time.Second, expectViolations
		}
		code = max(code, j.below().do(ctx).print(out, errs))
	}
	return code
}

// long is eight seeds of five minutes, the controls and all mutants, one after
// the other. A failure does not stop it.
func long(ctx context.Context, opts options, out, errs io.Writer) int {
	code := exitClean
	for i := range uint64(8) {
		j := job{opts}
		j.opts.Expect = expectClean
		j.opts.Seed, j.opts.Guards, j.opts.Duration = opts.Seed+i, guardsOn, 5*time.Minute
		code = max(code, j.below().do(ctx).print(out, errs))
	}
	for _, guards := range []string{guardsOff, guardsNaive} {
		j := job{opts}
		j.opts.Guards, j.opts.Duration, j.opts.Expect = guards, time.Minute, expectViolations
		code = max(code, j.below().do(ctx).print(out, errs))
	}
	return max(code, hunt(ctx, out, errs))
}

func (j job) do(ctx context.Context) verdict {
	if ctx.Err() != nil {
		return verdict{job: j, err: ctx.Err()}
	}
	s, err := campaign(ctx, j.opts)
	return verdict{j, s, err}
}

// print writes the verdict and returns its exit code.
func (v verdict) print(out, errs io.Writer) int {
	if v.err != nil {
		fmt.Fprintf(errs, "campaign: seed %d, guards %s: %v\n", v.opts.Seed, v.opts.Guards, v.err)
		return exitInvalid
	}
	v.s.print(out)
	if v.s.Artefacts != "" {
		fmt.Fprintln(out, "artefacts:", v.s.Artefacts)
	}
	fmt.Fprintln(out)
	return v.s.exit(out)
}

// hunt runs the mistakes of internal/mutants, a program of its own.
func hunt(ctx context.Context, out, errs io.Writer) int {
	cmd := exec.CommandContext(ctx, "go", "-C", "../../..", "run", "./internal/mutants", "-named")
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitClean
	case errors.As(err, &exit):
		return exitViolations
	}
	fmt.Fprintln(errs, "campaign: mutants:", err)
	return exitInvalid
}

// campaign does one run in its directory, which is kept if the run failed or
// the caller named it.
func campaign(ctx context.Context, opts options) (*summary, error) {
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
	if err := empty(opts.Dir); err != nil {
		return nil, err
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

// empty refuses a directory with the histories of another run, which would be
// mistaken for this one's.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("-artefacts: %s is not empty", dir)
	}
	return err
}
