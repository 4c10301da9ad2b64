package explore

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// WriteModels writes the table of the protocols as they are built.
func WriteModels(w io.Writer, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "model\tworkers\tstates\ttransitions\ttime\tviolations")
	var states, transitions int
	var total time.Duration
	for _, r := range results {
		violations := "0"
		if r.Broken != "" {
			violations = string(r.Broken) + ": " + r.Says
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%v\t%s\n", r.Model, r.Workers, r.States, r.Transitions, r.Time.Round(time.Millisecond), violations)
		states, transitions, total = states+r.States, transitions+r.Transitions, total+r.Time
	}
	fmt.Fprintf(t, "all\t\t%d\t%d\t%v\t\n", states, transitions, total.Round(time.Millisecond))
	return t.Flush()
}

// WriteMutants writes the table of mutants and what detected them.
func WriteMutants(w io.Writer, mutants []Mutant, results []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "mutant\tbreaks\tsteps\tstates\twhat was taken away")
	for i, m := range mutants {
		broken, steps := "nothing", "-"
		if r := results[i]; r.Broken != "" {
			broken, steps = string(r.Broken), fmt.Sprint(len(r.Trace)-1)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", m.Name, broken, steps, results[i].States, m.What)
	}
	return t.Flush()
}

// WriteTrace writes a counterexample: a line for each step, and the state after
// it where it has changed.
func WriteTrace(w io.Writer, r Result) error {
	if r.Broken == "" {
		_, err := fmt.Fprintf(w, "%s: no violation in %d states\n", r.Model, r.States)
		return err
	}
	fmt.Fprintf(w, "%s violates %s: %s; a shortest way, in %d steps:\n", r.Model, r.Broken, r.Says, len(r.Trace)-1)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, step := range r.Trace {
		state := step.State
		if i > 0 && state == r.Trace[i-1].State {
			state = ""
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", i, step.Actor, step.What, state)
	}
	return t.Flush()
}
