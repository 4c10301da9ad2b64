package main

import (
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"
)

// sleeper is a child that is a process and nothing else.
func sleeper(t *testing.T, name string) *child {
	t.Helper()
	c := newChild(role{Kind: "worker", Name: name}, nil)
	c.cmd = exec.Command("cat")
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.exited, c.started = in, make(chan struct{}), true
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		c.cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(c.kill)
	return c
}

func (c *child) isStopped() bool { return state(c.cmd.Process.Pid) == 'T' }

// TestDirector: the victim is stopped at its gate, and resumed by the
// successor's phase: not by its own, not by an older holder's and not by one on
// another resource.
func TestDirector(t *testing.T) {
	for _, hold := range []bool{false, true} {
		d := &director{note: func(string, ...any) {}, rng: rand.New(rand.NewPCG(1, 1)), gates: []string{phaseWrite}, spare: make(chan struct{}, 1)}
		e := &episode{at: phaseWrite, until: phaseWrite, hold: hold, over: make(chan struct{})}
		d.current = e
		victim, next := sleeper(t, "victim"), sleeper(t, "next")
		d.report(victim, report{Phase: phaseGranted, Resource: "r", Token: 5, Gate: true})
		if victim.isStopped() {
			t.Fatal("it was stopped at another gate")
		}
		d.report(victim, report{Phase: phaseWrite, Resource: "r", Token: 5, Gate: true})
		if !victim.isStopped() {
			t.Fatal("it was not stopped at its gate")
		}
		for _, r := range []report{
			{Phase: phaseGranted, Resource: "r", Token: 6, Gate: true},
			{Phase: phaseWrite, Resource: "other", Token: 6, Gate: true},
			{Phase: phaseWrite, Resource: "r", Token: 4, Gate: true},
		} {
			if d.report(next, r); !victim.isStopped() {
				t.Errorf("it was resumed by %+v", r)
			}
		}
		d.report(next, report{Phase: phaseWrite, Resource: "r", Token: 6, Gate: true})
		if victim.isStopped() {
			t.Error("it was not resumed")
		}
		select {
		case <-e.over:
			if hold {
				t.Error("the successor was not held")
			}
		default:
			if !hold {
				t.Error("the episode goes on")
			}
		}
		d.report(victim, report{Phase: phaseFailed, Resource: "r", Token: 5})
		select {
		case <-e.over:
		case <-time.After(holdTime / 2):
			t.Error("the successor is held though the victim has acted")
		}
		d.report(next, report{Phase: phaseFailed, Resource: "r", Token: 6, Outcome: "stale"})
		d.report(next, report{Phase: phaseWritten, Resource: "r", Token: 6})
		var f figures
		if d.counts(&f); f.Pauses != 1 || f.Aimed != 1 || f.Stale != 1 || f.Acked != 1 {
			t.Errorf("%+v", f)
		}
	}
}

// TestDirectorBlind: without a successor the victim is resumed all the same.
func TestDirectorBlind(t *testing.T) {
	t.Parallel()
	d := &director{note: func(string, ...any) {}, spare: make(chan struct{}, 1)}
	e := &episode{at: phaseWrite, until: phaseWritten, over: make(chan struct{})}
	d.current = e
	victim := sleeper(t, "victim")
	d.report(victim, report{Phase: phaseWrite, Resource: "r", Token: 5, Gate: true})
	select {
	case <-e.over:
	case <-time.After(blindTime * 5):
		t.Fatal("it is stopped for ever")
	}
	if victim.isStopped() {
		t.Error("it is still stopped")
	}
}
