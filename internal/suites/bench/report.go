package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Report is what a suite measured.
type Report struct {
	Suite    string    `json:"suite"`
	Sections []Section `json:"sections"`
}

// Section is one experiment, with where and how it was made.
type Section struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	About   string   `json:"about"`
	Columns []string `json:"columns"` // of the values, in order
	Rows    []Row    `json:"rows"`

	Machine Machine `json:"machine"`
	Seconds float64 `json:"seconds"`
}

// Row is one line of a section's table.
type Row struct {
	Case string `json:"case"`
	Way  string `json:"way"`
	// Ratio is the way's rate divided by the floor's: first quartile, median,
	// third quartile; none for rows without a comparison.
	Ratio []float64 `json:"ratio,omitempty"`
	// Bar is the error bar of the comparison.
	Bar    float64            `json:"bar,omitempty"`
	Values map[string]float64 `json:"values,omitempty"`
	Note   string             `json:"note,omitempty"`
}

// Machine describes what the figures depend on.
type Machine struct {
	At         string `json:"at"`
	Commit     string `json:"commit"`
	Command    string `json:"command"`
	Processor  string `json:"processor"`
	Cores      int    `json:"cores"`
	MemoryGiB  int    `json:"memoryGiB"`
	System     string `json:"system"`
	Go         string `json:"go"`
	PostgreSQL string `json:"postgresql"`
	Load       string `json:"load"` // over the last minute, when the section began
}

// thisMachine describes where the program runs. A commit with changes in the
// work tree, other than those of this program's results, ends in "+".
func thisMachine(command string) Machine {
	first := func(file, prefix string) string {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return strings.Trim(rest, " \t\n:=\"")
			}
		}
		return ""
	}
	git := func(args ...string) string {
		out, _ := exec.Command("git", args...).Output()
		return strings.TrimSpace(string(out))
	}
	m := Machine{
		At: time.Now().UTC().Format(time.RFC3339), Command: command, Cores: runtime.NumCPU(), Go: runtime.Version(),
		Processor: first("/proc/cpuinfo", "model name"), System: runtime.GOOS + "/" + runtime.GOARCH + " " + first("/etc/os-release", "PRETTY_NAME"),
		Commit: git("rev-parse", "--short=12", "HEAD"),
	}
	kib, _ := strconv.Atoi(strings.TrimSuffix(first("/proc/meminfo", "MemTotal"), " kB"))
	m.MemoryGiB = int(math.Round(float64(kib) / (1 << 20)))
	m.Load, _, _ = strings.Cut(first("/proc/loadavg", ""), " ")
	if git("status", "--porcelain", "--", ":(top)", ":(top,exclude)internal/suites/bench/results") != "" {
		m.Commit += "+"
	}
	return m
}

// What a calm machine stays below: processes that ran per core, over the last
// minute, and how far the floor's rate is from itself.
const (
	maxLoad = 0.5
	maxBar  = 0.25
)

// calm is an error if other work runs on the machine.
func (m Machine) calm() error {
	load, err := strconv.ParseFloat(m.Load, 64)
	if err != nil {
		return fmt.Errorf("the machine's load is unknown (%q), so nothing is measured", m.Load)
	}
	if load > maxLoad*float64(m.Cores) {
		return fmt.Errorf("the machine is busy: a load of %v on %d cores, where %v is the limit; nothing is measured", load, m.Cores, maxLoad*float64(m.Cores))
	}
	return nil
}

// calm is an error if the floor differed from itself by too much in a comparison.
func (s *Section) calm() error {
	for _, row := range s.Rows {
		if row.Way == again && row.Bar > maxBar {
			return fmt.Errorf("%s, %s: the floor's rate differed from itself by %v, where %v is the limit; the section is not stored", s.Name, row.Case, row.Bar, maxBar)
		}
	}
	return nil
}

// add turns a comparison into rows with the columns of perCall.
func (s *Section) add(cas string, figures []Figure) {
	for k, f := range figures {
		row := Row{Case: cas, Way: f.Way, Bar: round(bar(figures), 3), Values: map[string]float64{}}
		if f.Err != nil {
			row.Note, row.Bar = "failed: "+f.Err.Error(), 0
			s.Rows = append(s.Rows, row)
			continue
		}
		row.Values["a second"] = round(f.Rate, 4)
		row.Values["p50 µs"], row.Values["p99 µs"] = micros(f.P50), micros(f.P99)
		if k > 0 {
			row.Ratio = []float64{round(f.Ratio.Q1, 3), round(f.Ratio.Median, 3), round(f.Ratio.Q3, 3)}
		}
		s.Rows = append(s.Rows, row)
	}
}

// round keeps that many significant digits.
func round(v float64, digits int) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	out, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64)
	return out
}

func micros(d time.Duration) float64 { return round(float64(d.Nanoseconds())/1e3, 3) }

// load reads a suite's stored report; there may be none.
func load(dir, suite string) Report {
	r := Report{Suite: suite}
	if text, err := os.ReadFile(filepath.Join(dir, suite+".json")); err == nil {
		_ = json.Unmarshal(text, &r) // an unreadable report is replaced
	}
	return r
}

// section returns the section of that name, a new one if there is none.
func (r *Report) section(name string) *Section {
	for i := range r.Sections {
		if r.Sections[i].Name == name {
			return &r.Sections[i]
		}
	}
	r.Sections = append(r.Sections, Section{Name: name})
	return &r.Sections[len(r.Sections)-1]
}

// write stores the report as JSON and as tables in Markdown.
func (r *Report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, r.Suite+".json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	var md strings.Builder
	fmt.Fprintf(&md, "# %s\n\nWritten by `go -C internal/suites/bench run . -suite %s`; do not edit.\n", r.Suite, r.Suite)
	for _, s := range r.Sections {
		md.WriteString("\n" + s.markdown())
	}
	return os.WriteFile(filepath.Join(dir, r.Suite+".md"), []byte(md.String()), 0o644)
}

func (s Section) markdown() string {
	var b strings.Builder
	m := s.Machine
	fmt.Fprintf(&b, "## %s\n\n%s", s.Title, s.About)
	ratios := slices.ContainsFunc(s.Rows, func(r Row) bool { return r.Ratio != nil })
	notes := slices.ContainsFunc(s.Rows, func(r Row) bool { return r.Note != "" })
	head := []string{"case", "way"}
	if ratios {
		head = append(head, "ratio to the floor", "error bar")
		b.WriteString(" The ratio is of rates, with its quartiles.")
	}
	head = append(head, s.Columns...)
	if notes {
		head = append(head, "")
	}
	b.WriteString("\n\n")
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(head)
	line(slices.Repeat([]string{"---"}, len(head)))
	for _, row := range s.Rows {
		if row.Way == again {
			continue // it is the error bar of the others
		}
		cells := []string{row.Case, row.Way}
		switch {
		case row.Ratio != nil:
			cells = append(cells, fmt.Sprintf("**%s** (%s-%s)", number(row.Ratio[1]), number(row.Ratio[0]), number(row.Ratio[2])), "± "+number(row.Bar))
		case ratios:
			cells = append(cells, "", "")
		}
		for _, c := range s.Columns {
			cell := ""
			if v, ok := row.Values[c]; ok {
				cell = number(v)
			}
			cells = append(cells, cell)
		}
		if notes {
			cells = append(cells, row.Note)
		}
		line(cells)
	}
	fmt.Fprintf(&b, "\n`%s` at %s, %s, load %s before, %.0f s: %d cores of %s, %d GiB, %s, %s, PostgreSQL %s.\n",
		m.Command, m.Commit, m.At, m.Load, s.Seconds, m.Cores, m.Processor, m.MemoryGiB, m.System, m.Go, m.PostgreSQL)
	return b.String()
}

// number writes a figure with separators between thousands.
func number(v float64) string {
	if math.Abs(v) >= 1000 {
		v = math.Round(v)
	}
	return humanize.Commaf(v)
}
