package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/campaign/oracle"
)

// figures are those of one surface: what its workers reported, and violations.
type figures struct {
	Surface string `json:"surface"`
	Acked   int    `json:"acknowledged"`
	Stale   int    `json:"stale"`
	Failed  int    `json:"failed"` // unavailable, or unknown
	Pauses  int    `json:"pauses"`
	Aimed   int    `json:"aimedResumes"`
	Older   int    `json:"olderTokens"`
	Lost    int    `json:"lostUpdates"`
	Other   int    `json:"otherViolations"`
}

// summary is the verdict on one run.
type summary struct {
	Options    options            `json:"options"`
	Seconds    float64            `json:"seconds"` // how long the nemesis was really active
	Surfaces   []figures          `json:"surfaces"`
	Injected   injected           `json:"injected"`
	Violations []oracle.Violation `json:"violations"`
	Undecided  []oracle.Undecided `json:"undecided,omitempty"`
	Artefacts  string             `json:"artefacts,omitempty"`
}

// The floors of activity for one minute, below which a run proves nothing. They
// are amounts, not rates: a machine that needs longer gets longer.
const (
	floorAcked   = 200 // a surface
	floorStale   = 2   // a surface
	floorAimed   = 3   // a surface
	floorPauses  = 20
	floorRefused = 15
	floorKills   = 2
)

// shownAtLeast is how many violations of a kind a control must show on each
// surface.
const shownAtLeast = 4

// unreached lists what the run must show and has not shown. With the guards on
// that is activity, in proportion to the duration, rounded down. Naive guards must
// show some broken promise on each surface, P1 or P2; no guards both.
func (s *summary) unreached() (missing []string) {
	floor := func(where, what string, got, need int) {
		if got < need {
			missing = append(missing, fmt.Sprintf("%s%s: %d, the floor is %d", where, what, got, need))
		}
	}
	share := func(perMinute int) int { return int(float64(perMinute) * s.Options.Duration.Minutes()) }
	stale := 0
	for _, f := range s.Surfaces {
		where := f.Surface + ": "
		switch s.Options.Guards {
		case guardsNaive:
			floor(where, "older tokens and lost updates", f.Older+f.Lost, shownAtLeast)
		case guardsOff:
			floor(where, "older tokens", f.Older, shownAtLeast)
			floor(where, "lost updates", f.Lost, shownAtLeast)
		default:
			floor(where, "acknowledged writes", f.Acked, share(floorAcked))
			floor(where, "aimed resumes", f.Aimed, share(floorAimed))
			floor(where, "stale rejections", f.Stale, share(floorStale))
		}
		stale += f.Stale
	}
	if s.Options.Guards == guardsOn {
		floor("", "stale rejections", stale, share(floorRefused))
		floor("", "holder pauses", s.Injected.Pauses, share(floorPauses))
		floor("", "PostgreSQL kills", s.Injected.ServerKills, share(floorKills))
	}
	return missing
}

// damaged reports whether the log shows a violation.
func (s *summary) damaged() bool {
	return slices.ContainsFunc(s.Surfaces, func(f figures) bool { return f.Older+f.Lost > 0 })
}

// judge asks the oracles.
func (s *summary) judge(h *oracle.History) {
	s.Violations = oracle.Check(h)
	// If violations were already found, there is no need for this proof.
	if len(s.Violations) == 0 {
		s.Violations, s.Undecided = oracle.Linearizable(h, time.Minute)
	}
	s.tally(s.Violations)
}

// tally counts violations by surface.
func (s *summary) tally(violations []oracle.Violation) {
	for i := range s.Surfaces {
		f := &s.Surfaces[i]
		f.Older, f.Lost, f.Other = 0, 0, 0
		for _, v := range violations {
			switch {
			case v.Surface != f.Surface:
			case v.Check == oracle.OlderToken:
				f.Older++
			case v.Check == oracle.LostUpdate:
				f.Lost++
			default:
				f.Other++
			}
		}
	}
}

// print writes the table, and three violations of each kind on each surface if
// the guards were on.
func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "\nseed %d, guards %s, %.0f s\n\n", s.Options.Seed, s.Options.Guards, s.Seconds)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "surface\tacked\tstale\tfailed\tpauses\taimed\tolder tokens\tlost updates\tother\t")
	for _, f := range s.Surfaces {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", f.Surface, f.Acked, f.Stale, f.Failed, f.Pauses, f.Aimed, f.Older, f.Lost, f.Other)
	}
	w.Flush()
	i := s.Injected
	fmt.Fprintf(out, "\n%d pauses, kills: %d workers, %d PostgreSQL, %d replicas; %d network faults, %d steps of the clock\n",
		i.Pauses, i.WorkerKills, i.ServerKills, i.ReplicaKills, i.Network, i.ClockSteps)
	if s.Options.Guards != guardsOn {
		return
	}
	shown := map[string]int{}
	for _, v := range s.Violations {
		k := v.Check + v.Surface
		if shown[k]++; shown[k] <= 3 {
			fmt.Fprintf(out, "VIOLATION: %s: %s: %s\n", v.Check, v.Resource, v.Detail)
		}
	}
}

// exit prints the verdict and returns the exit code.
func (s *summary) exit(out io.Writer) int {
	missing := s.unreached()
	if s.Options.Guards != guardsOn {
		if len(missing) > 0 {
			fmt.Fprintln(out, "verdict: too few violations were seen:", strings.Join(missing, "; "))
			return exitViolations
		}
		fmt.Fprintln(out, "verdict: as expected, without the guards every surface was damaged")
		return exitClean
	}
	for _, u := range s.Undecided {
		missing = append(missing, fmt.Sprintf("%s: %d operations were too many to be judged in time", u.Resource, u.Ops))
	}
	switch {
	case len(s.Violations) > 0:
		fmt.Fprintf(out, "verdict: %d violations\n", len(s.Violations))
		return exitViolations
	case len(missing) > 0:
		for _, m := range missing {
			fmt.Fprintln(out, "INVALID:", m)
		}
		fmt.Fprintln(out, "verdict: no violation, but too little was done to tell")
		return exitInvalid
	}
	fmt.Fprintln(out, "verdict: no violation")
	return exitClean
}
