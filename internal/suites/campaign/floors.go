package main

import (
	"fmt"
	"io"
)

// The floors of activity for one minute, below which a run proves nothing. They
// are amounts, not rates: a machine that needs longer gets longer.
const (
	floorAcked   = 200 // a surface
	floorStale   = 2   // a surface, with guards on
	floorAimed   = 3   // a surface
	floorPauses  = 20
	floorRefused = 15
	floorKills   = 2
)

// shownAtLeast is how many violations of a kind a control must show on each
// surface.
const shownAtLeast = 4

// floor is one thing that a run must show, and how much of it was shown.
type floor struct {
	What  string `json:"what"`
	Where string `json:"where,omitempty"` // a surface
	Got   int    `json:"got"`
	Need  int    `json:"need"`
}

func (f floor) String() string {
	if f.Where != "" {
		return fmt.Sprintf("%s: %s: %d, the floor is %d", f.Where, f.What, f.Got, f.Need)
	}
	return fmt.Sprintf("%s: %d, the floor is %d", f.What, f.Got, f.Need)
}

// unreached lists the floors that were not reached.
func unreached(floors []floor) []string {
	var missing []string
	for _, f := range floors {
		if f.Got < f.Need {
			missing = append(missing, f.String())
		}
	}
	return missing
}

// floors returns the floors of activity. They are for a minute; a shorter or
// longer run owes its proportion, rounded down.
func (s *summary) floors() []floor {
	var all []floor
	add := func(what, where string, got, perMinute int) {
		need := int(float64(perMinute) * s.Options.Duration.Minutes())
		all = append(all, floor{what, where, got, need})
	}
	stale := 0
	for _, f := range s.Surfaces {
		stale += f.Stale
		add("acknowledged writes", f.Surface, f.Acked, floorAcked)
	}
	for _, f := range s.Surfaces {
		add("aimed resumes", f.Surface, f.Aimed, floorAimed)
	}
	if s.Options.Guards == guardsOn {
		for _, f := range s.Surfaces {
			add("stale rejections", f.Surface, f.Stale, floorStale)
		}
		add("stale rejections", "", stale, floorRefused)
	}
	add("holder pauses", "", s.Injected.Pauses, floorPauses)
	add("PostgreSQL kills", "", s.Injected.ServerKills, floorKills)
	return all
}

// shows returns what a control must show on each surface, however long it
// takes: with the naive guards some broken promise, P1 or P2; with no guards
// both.
func (s *summary) shows() []floor {
	var all []floor
	if s.Options.Guards == guardsNaive {
		for _, f := range s.Surfaces {
			all = append(all, floor{"older tokens and lost updates", f.Surface, f.Older + f.Lost, shownAtLeast})
		}
		return all
	}
	for _, f := range s.Surfaces {
		all = append(all, floor{"older tokens", f.Surface, f.Older, shownAtLeast})
	}
	for _, f := range s.Surfaces {
		all = append(all, floor{"lost updates", f.Surface, f.Lost, shownAtLeast})
	}
	return all
}

// printFloors prints by how much each floor was exceeded, one line per kind.
func (s *summary) printFloors(out io.Writer) {
	for i, f := range s.Floors {
		if i == 0 || s.Floors[i-1].What != f.What || s.Floors[i-1].Need != f.Need {
			fmt.Fprintf(out, "\nfloor %d, %s:", f.Need, f.What)
		}
		if f.Where != "" {
			fmt.Fprint(out, " ", f.Where)
		}
		fmt.Fprintf(out, " %d", f.Got)
		if f.Need > 0 {
			fmt.Fprintf(out, " (%.1fx)", float64(f.Got)/float64(f.Need))
		}
	}
	fmt.Fprintln(out)
}
