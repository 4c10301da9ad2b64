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

// figures are those of one surface.
type figures struct {
	Surface  string `json:"surface"`
	Grants   int    `json:"grants"`
	Acked    int    `json:"acknowledged"`
	Stale    int    `json:"stale"`
	Failed   int    `json:"unavailable"`
	Unknown  int    `json:"unknown"`
	Resolved int    `json:"unknownApplied"` // of Unknown, those that took effect
	Pauses   int    `json:"pauses"`
	Aimed    int    `json:"aimedResumes"`
	Older    int    `json:"olderTokens"`
	Lost     int    `json:"lostUpdates"`
	Other    int    `json:"otherViolations"`
}

// summary is the verdict on one run.
type summary struct {
	Options options `json:"options"`
	Seconds float64 `json:"seconds"` // how long the nemesis was really active
	// Awaited is what the run had not shown when its duration was over, so that
	// it went on.
	Awaited    []string           `json:"awaited,omitempty"`
	Floors     []floor            `json:"floors"`
	Surfaces   []figures          `json:"surfaces"`
	Injected   injected           `json:"injected"`
	Violations []oracle.Violation `json:"violations"`
	Undecided  []oracle.Undecided `json:"undecided,omitempty"`
	Invalid    []string           `json:"invalid,omitempty"`
	OK         bool               `json:"ok"`
	Artefacts  string             `json:"artefacts,omitempty"`
}

func newSummary(r *run, h *oracle.History, active time.Duration) *summary {
	s := r.soFar()
	s.Seconds, s.Awaited = active.Seconds(), r.awaited
	applied := map[string]bool{}
	for _, l := range h.Log {
		applied[l.Write] = true
	}
	for i := range s.Surfaces {
		f := &s.Surfaces[i]
		f.Acked, f.Stale = 0, 0 // the histories are more accurate than the reports
		for _, o := range h.Ops {
			if oracle.Surface(o.Resource) == f.Surface {
				f.add(o, applied)
			}
		}
	}
	return s
}

func (f *figures) add(o *oracle.Op, applied map[string]bool) {
	switch {
	case o.Kind == oracle.Acquire && o.Outcome == oracle.OK:
		f.Grants++
	case o.Kind != oracle.Write && o.Kind != oracle.Raise:
	case o.Return == 0 || o.Outcome == oracle.Unknown:
		f.Unknown++
		if o.Kind == oracle.Write && applied[o.Write] {
			f.Resolved++
		}
	case o.Outcome == oracle.Stale:
		f.Stale++
	case o.Outcome == oracle.OK && o.Kind == oracle.Write:
		f.Acked++
	case o.Outcome == oracle.Unavailable:
		f.Failed++
	}
}

// finish counts the violations by surface and decides whether the run counts.
func (s *summary) finish() {
	s.tally(s.Violations)
	s.Floors = s.floors()
	if s.Options.Expect == expectViolations {
		s.Floors = s.shows()
	} else {
		s.Invalid = append(s.Invalid, unreached(s.Floors)...)
	}
	if s.Options.Guards == guardsOn {
		for _, u := range s.Undecided {
			s.Invalid = append(s.Invalid, fmt.Sprintf("%s: %d operations were too many to be judged in time", u.Resource, u.Ops))
		}
	}
	s.OK = len(s.Violations) == 0 && len(s.Invalid) == 0
}

// tally counts violations by surface.
func (s *summary) tally(violations []oracle.Violation) {
	for i := range s.Surfaces {
		f := &s.Surfaces[i]
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

// print writes the table.
func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "seed %d, guards %s, %.0f s", s.Options.Seed, s.Options.Guards, s.Seconds)
	if len(s.Awaited) > 0 {
		fmt.Fprintf(out, "; asked for were %v, and it went on for: %s", s.Options.Duration, strings.Join(s.Awaited, "; "))
	}
	fmt.Fprint(out, "\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "surface\tgrants\tacked\tstale\tunavailable\tunknown\t(applied)\tpauses\taimed\tolder tokens\tlost updates\tother\t")
	for _, f := range s.Surfaces {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", f.Surface, f.Grants, f.Acked, f.Stale, f.Failed, f.Unknown, f.Resolved,
			f.Pauses, f.Aimed, f.Older, f.Lost, f.Other)
	}
	w.Flush()
	i := s.Injected
	fmt.Fprintf(out, "\n%d pauses (%d resumed on the successor), kills: %d workers, %d PostgreSQL, %d replicas, %d S3; %d network faults, %d steps of the clock\n",
		i.Pauses, i.Aimed, i.WorkerKills, i.ServerKills, i.ReplicaKills, i.ObjectKills, i.Network, i.ClockSteps)
	s.printFloors(out)
	s.printViolations(out)
	for _, v := range s.Invalid {
		fmt.Fprintln(out, "INVALID:", v)
	}
}

// printViolations shows three of each kind on each surface.
func (s *summary) printViolations(out io.Writer) {
	shown := map[string]int{}
	for _, v := range s.Violations {
		k := v.Check + "\x00" + v.Surface
		if shown[k]++; shown[k] <= 3 && s.Options.Guards == guardsOn {
			fmt.Fprintf(out, "VIOLATION: %s: %s: %s\n", v.Check, v.Resource, v.Detail)
		}
	}
	if len(shown) == 0 {
		return
	}
	var lines []string
	for k, n := range shown {
		check, surface, _ := strings.Cut(k, "\x00")
		lines = append(lines, fmt.Sprintf("%s: %s: %d", surface, check, n))
	}
	slices.Sort(lines)
	fmt.Fprintln(out, "\nviolations:\n  "+strings.Join(lines, "\n  "))
}
