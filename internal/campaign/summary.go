package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fencepost-go/fencepost/internal/campaign/oracle"
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
	Options    options            `json:"options"`
	Seconds    float64            `json:"seconds"`
	Surfaces   []figures          `json:"surfaces"`
	Injected   injected           `json:"injected"`
	Violations []oracle.Violation `json:"violations"`
	Undecided  []oracle.Undecided `json:"undecided,omitempty"`
	Invalid    []string           `json:"invalid,omitempty"`
	OK         bool               `json:"ok"`
	Artefacts  string             `json:"artefacts,omitempty"`
}

func newSummary(r *run, h *oracle.History, active time.Duration) *summary {
	s := &summary{Options: r.opts, Seconds: active.Seconds(), Injected: r.nemesis.count}
	applied := map[string]bool{}
	for _, l := range h.Log {
		applied[l.Write] = true
	}
	for _, surface := range surfaces {
		f := figures{Surface: surface.name}
		f.Pauses, f.Aimed = r.stage[surface.name].counts()
		s.Injected.Pauses += f.Pauses
		s.Injected.Aimed += f.Aimed
		for _, o := range h.Ops {
			if oracle.Surface(o.Resource) == surface.name {
				f.add(o, applied)
			}
		}
		s.Surfaces = append(s.Surfaces, f)
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

// The floors of activity a minute, below which a run proves nothing.
const (
	floorAcked   = 200 // a surface
	floorStale   = 2   // a surface, with guards on
	floorAimed   = 3   // a surface
	floorPauses  = 20
	floorRefused = 15
	floorKills   = 2
)

// finish counts the violations by surface and decides whether the run counts.
func (s *summary) finish() {
	stale := 0
	for i := range s.Surfaces {
		f := &s.Surfaces[i]
		for _, v := range s.Violations {
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
		stale += f.Stale
		s.floor(f.Surface+": acknowledged writes", f.Acked, floorAcked)
		s.floor(f.Surface+": aimed resumes", f.Aimed, floorAimed)
		if s.Options.Guards == guardsOn {
			s.floor(f.Surface+": stale rejections", f.Stale, floorStale)
		}
	}
	s.floor("holder pauses", s.Injected.Pauses, floorPauses)
	s.floor("PostgreSQL kills", s.Injected.ServerKills, floorKills)
	if s.Options.Guards == guardsOn {
		s.floor("stale rejections", stale, floorRefused)
		for _, u := range s.Undecided {
			s.Invalid = append(s.Invalid, fmt.Sprintf("%s: %d operations were too many to be judged in time", u.Resource, u.Ops))
		}
	}
	s.OK = len(s.Violations) == 0 && len(s.Invalid) == 0
}

// floor notes too little activity. A floor is for a minute; a shorter run owes
// its part, rounded down, and one that shares the machine with others half.
func (s *summary) floor(what string, got, perMinute int) {
	need := int(float64(perMinute) * s.Seconds / 60)
	if s.Options.Shared {
		need /= 2
	}
	if got < need {
		s.Invalid = append(s.Invalid, fmt.Sprintf("%s: %d in %.0f s, the floor is %d", what, got, s.Seconds, need))
	}
}

// unshown are the surfaces on which a control did not show what it must: with
// the naive guards some broken promise, P1 or P2; with none, both of them, four
// times a minute.
func (s *summary) unshown() []string {
	need := max(1, int(4*s.Seconds/60))
	var names []string
	for _, f := range s.Surfaces {
		if f.Older+f.Lost == 0 || s.Options.Guards == guardsOff && (f.Older < need || f.Lost < need) {
			names = append(names, f.Surface)
		}
	}
	return names
}

// print writes the table.
func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "seed %d, guards %s, %.0f s\n\n", s.Options.Seed, s.Options.Guards, s.Seconds)
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
