package main

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// sleeper is a child that is only a process.
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
		d := &director{note: func(string, ...any) {}, rng: rand.New(rand.NewPCG(1, 1)), gates: []string{phaseWrite}, spare: make(chan struct{}, 1), hold: time.Hour}
		e := &episode{at: phaseWrite, until: phaseWrite, hold: hold, blind: time.Hour, over: make(chan struct{})}
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
		if !e.isOver() {
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

// TestDirectorBlind: without a successor the victim is resumed anyway.
func TestDirectorBlind(t *testing.T) {
	t.Parallel()
	d := &director{note: func(string, ...any) {}, spare: make(chan struct{}, 1)}
	e := &episode{at: phaseWrite, until: phaseWritten, over: make(chan struct{})}
	d.current = e
	victim := sleeper(t, "victim")
	d.report(victim, report{Phase: phaseWrite, Resource: "r", Token: 5, Gate: true})
	select {
	case <-e.over:
	case <-time.After(time.Minute):
		t.Fatal("it is stopped for ever")
	}
	for end := time.Now().Add(time.Minute); victim.isStopped(); time.Sleep(time.Millisecond) { // just after the episode is over
		if time.Now().After(end) {
			t.Fatal("it is still stopped")
		}
	}
}

// TestBlindTimeIsLearned: where no successor comes in time, the next victim is
// stopped for longer, up to a limit; where one does, for the usual time.
func TestBlindTimeIsLearned(t *testing.T) {
	d := &director{}
	end := func(resumed bool) time.Duration {
		d.finish(&episode{victim: &child{}, resumed: resumed, over: make(chan struct{})})
		return d.blind
	}
	if got := end(false); got <= blindTime {
		t.Errorf("%v after one that was blind", got)
	}
	for range 100 {
		end(false)
	}
	if d.blind != maxBlindTime {
		t.Errorf("%v after many", d.blind)
	}
	if got := end(true); got != blindTime {
		t.Errorf("%v after a successor came", got)
	}
}

// TestGoOnAppliesToOneLife: the word to go on does not apply to a child that
// was restarted meanwhile.
func TestGoOnAppliesToOneLife(t *testing.T) {
	in := &pipe{}
	c := &child{role: role{Life: 1}, in: in}
	if c.goOn(0); in.String() != "" {
		t.Errorf("another life was told %q", in)
	}
	if c.goOn(1); in.String() != "go\n" {
		t.Errorf("it was told %q", in)
	}
}

// TestHeldInOneLife: a successor that was killed while it was held, and was
// restarted, passes its gates.
func TestHeldInOneLife(t *testing.T) {
	in := &pipe{}
	next := &child{role: role{Life: 1}, in: in}
	d := &director{note: func(string, ...any) {}, spare: make(chan struct{}, 1)}
	d.current = &episode{at: phaseWrite, until: phaseWrite, over: make(chan struct{}), victim: &child{}, resumed: true, held: next, heldLife: 1}
	gate := report{Phase: phaseGranted, Resource: "r", Token: 7, Gate: true, life: 1}
	if d.report(next, gate); in.String() != "" {
		t.Errorf("the held one was told %q", in)
	}
	next.role.Life, gate.life = 2, 2
	if d.report(next, gate); in.String() != "go\n" {
		t.Errorf("it was told %q", in)
	}
}

type pipe struct{ strings.Builder }

func (*pipe) Close() error { return nil }

// TestWaitIsLearned: a client whose answers come late waits for longer, within
// limits, and for as short as before once they come soon again.
func TestWaitIsLearned(t *testing.T) {
	s := &remote{wait: firstWait}
	for range 100 {
		s.learn(s.wait, true)
	}
	if s.wait != longestWait {
		t.Errorf("%v after many that did not come", s.wait)
	}
	if s.learn(time.Second, false); s.wait != 3*time.Second {
		t.Errorf("%v after one that took a second", s.wait)
	}
	for range 100 {
		s.learn(time.Millisecond, false)
	}
	if s.wait > firstWait+time.Microsecond {
		t.Errorf("%v after many that came at once", s.wait)
	}
}
