package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// busy is the summary of a minute with the minimum activity that counts.
func busy(guards string) *summary {
	s := &summary{Options: options{Guards: guards, Duration: time.Minute}, Seconds: 300, Injected: injected{Pauses: floorPauses, ServerKills: floorKills}}
	for _, surface := range surfaces {
		s.Surfaces = append(s.Surfaces, figures{Surface: surface.name, Acked: floorAcked, Stale: 3, Aimed: floorAimed})
	}
	return s
}

// TestFloors: a run with less than each floor is invalid, not clean.
func TestFloors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *summary)
		want   string // "" if the run counts
	}{
		"just enough":       {func(*summary) {}, ""},
		"few writes":        {func(s *summary) { s.Surfaces[2].Acked-- }, "acknowledged writes"},
		"few aimed resumes": {func(s *summary) { s.Surfaces[0].Aimed-- }, "aimed resumes"},
		"no refusal on one": {func(s *summary) { s.Surfaces[1].Stale = 1 }, "stale rejections"},
		"few refusals": {func(s *summary) {
			s.Surfaces[0].Stale, s.Surfaces[1].Stale, s.Surfaces[2].Stale, s.Surfaces[3].Stale, s.Surfaces[4].Stale, s.Surfaces[5].Stale, s.Surfaces[6].Stale = 2, 2, 2, 2, 2, 2, 2
		}, "INVALID: stale rejections"},
		"few pauses":            {func(s *summary) { s.Injected.Pauses-- }, "holder pauses"},
		"few kills":             {func(s *summary) { s.Injected.ServerKills-- }, "PostgreSQL kills"},
		"undecided":             {func(s *summary) { s.Undecided = []oracle.Undecided{{Resource: "r"}} }, "too many"},
		"half of it":            {func(s *summary) { s.Options.Duration /= 2; s.Surfaces[2].Acked /= 2 }, ""},
		"a second of it":        {func(s *summary) { s.Options.Duration = time.Second; s.Surfaces[2].Acked = 3 }, ""},
		"a second with nothing": {func(s *summary) { s.Options.Duration = time.Second; s.Surfaces[2].Acked = 2 }, "acknowledged writes"},
	} {
		s := busy(guardsOn)
		c.change(s)
		var out strings.Builder
		switch code := s.exit(&out); {
		case c.want == "" && code != exitClean:
			t.Errorf("%s: %s", name, &out)
		case c.want != "" && (code != exitInvalid || !strings.Contains(out.String(), c.want)):
			t.Errorf("%s: exit %d, %s", name, code, &out)
		}
	}
}

// TestExpectation: violations fail a run, and are what a control must show, on
// every surface.
func TestExpectation(t *testing.T) {
	s := busy(guardsOn)
	for _, surface := range surfaces {
		for range shownAtLeast {
			s.Violations = append(s.Violations, oracle.Violation{Check: oracle.OlderToken, Surface: surface.name},
				oracle.Violation{Check: oracle.LostUpdate, Surface: surface.name})
		}
	}
	s.tally(s.Violations)
	var out strings.Builder
	if code := s.exit(&out); code != exitViolations || !s.damaged() {
		t.Errorf("violations: exit %d", code)
	}
	s.print(&out)
	for _, want := range []string{"seed 0, guards on, 300 s\n", s.Surfaces[0].Surface, "VIOLATION: lost update: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
	s.Options.Guards = guardsOff
	if code := s.exit(&out); code != exitClean {
		t.Errorf("expected violations: exit %d, %s", code, &out)
	}
	s.Surfaces[3].Lost--
	if code := s.exit(&out); code != exitViolations || !strings.Contains(out.String(), s.Surfaces[3].Surface+": lost updates: 3, the floor is 4") {
		t.Errorf("three lost updates on a surface without guards: exit %d, %s", code, &out)
	}
	s.Options.Guards = guardsNaive
	s.Surfaces[3].Lost = 0
	if code := s.exit(&out); code != exitClean {
		t.Errorf("the naive guard need not show both: exit %d", code)
	}
	s.Surfaces[3].Older = 3
	if code := s.exit(&out); code != exitViolations {
		t.Errorf("a surface that shows too little: exit %d", code)
	}
}
