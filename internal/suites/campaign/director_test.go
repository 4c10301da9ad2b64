package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// sleeper is a child that is only a process.
func sleeper(t *testing.T, name string) *child {
	t.Helper()
	c := newChild(role{Kind: "worker", Name: name}, nil)
	cmd := exec.Command("cat")
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if c.process, err = process.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *child) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// testDirector waits for ever, unless the test says otherwise.
func testDirector(e *episode) *director {
	return &director{note: func(string, ...any) {}, spare: make(chan struct{}, 1), hold: time.Hour, blind: time.Hour, pace: &pace{}, current: e}
}

// TestDirector: the victim is stopped at its gate, and resumed by the
// successor's phase: not by its own, not by an older holder's and not by one on
// another resource.
func TestDirector(t *testing.T) {
	for _, hold := range []bool{false, true} {
		e := &episode{at: phaseWrite, until: phaseWrite, hold: hold, over: make(chan struct{})}
		d := testDirector(e)
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
		if !closed(e.over) {
			t.Error("the successor is held though the victim has acted")
		}
		d.report(next, report{Phase: phaseFailed, Resource: "r", Token: 6, Outcome: "stale"})
		d.report(next, report{Phase: phaseWritten, Resource: "r", Token: 6})
		if f := d.counts(); f.Pauses != 1 || f.Aimed != 1 || f.Stale != 1 || f.Acked != 1 {
			t.Errorf("%+v", f)
		}
	}
}

// TestDirectorBlind: without a successor the victim is resumed anyway.
func TestDirectorBlind(t *testing.T) {
	t.Parallel()
	e := &episode{at: phaseWrite, until: phaseWritten, over: make(chan struct{})}
	d := testDirector(e)
	d.blind = time.Millisecond
	victim := sleeper(t, "victim")
	d.report(victim, report{Phase: phaseWrite, Resource: "r", Token: 5, Gate: true})
	testkit.Receive(t, "the end of the episode", e.over)
	testkit.Eventually(t, "the victim to go on", func() bool { return !victim.isStopped() })
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
	d := testDirector(&episode{at: phaseWrite, until: phaseWrite, over: make(chan struct{}), victim: &child{}, resumed: true, held: next, heldLife: 1})
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
