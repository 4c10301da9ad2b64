package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
)

// idle is a run in which only what a test reports happens.
func idle(duration, patience time.Duration) *run {
	r := &run{
		opts:     options{Guards: guardsOn, Expect: expectClean, Duration: duration, Patience: patience},
		stage:    stage{},
		nemesis:  &nemesis{over: make(chan struct{})},
		schedule: json.NewEncoder(io.Discard),
	}
	for _, s := range surfaces {
		r.stage[s.name] = &director{surface: s.name}
	}
	return r
}

// TestGoesOn: a run that is short of a floor goes on until it has reached it,
// says so, and then ends.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	const duration = 400 * time.Millisecond // which owes one write per surface
	r := idle(duration, time.Hour)
	began := time.Now()
	time.AfterFunc(3*duration, func() {
		for _, s := range surfaces {
			r.report(nil, report{Phase: phaseWritten, Resource: s.name + ":0"})
		}
	})
	r.rage(t.Context())
	if took := time.Since(began); took < 3*duration {
		t.Errorf("it ended after %v, before it had reached its floors", took)
	}
	if len(r.awaited) != len(surfaces) || !strings.Contains(r.awaited[0], "acknowledged writes: 0, the floor is 1") {
		t.Errorf("it says that it went on for %q", r.awaited)
	}
}

// TestPatienceEnds: a run that reaches its floors at once does not go on, and
// one that never does ends.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	r := idle(100*time.Millisecond, time.Hour) // so short that it owes nothing
	if r.rage(t.Context()); len(r.awaited) != 0 {
		t.Errorf("it went on for %q", r.awaited)
	}
	r = idle(400*time.Millisecond, 200*time.Millisecond)
	if r.rage(t.Context()); len(r.awaited) != len(surfaces) {
		t.Errorf("it went on for %q", r.awaited)
	}
	if s := r.soFar(); len(unreached(s.floors())) != len(surfaces) {
		t.Errorf("the floors that it missed are %q", unreached(s.floors()))
	}
}
