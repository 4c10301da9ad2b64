package main

import (
	"bufio"
	"io"
	"strings"
	"unicode/utf8"
)

// table prints rows in columns as they come. A long list is printed in parts,
// so that it starts at once and is never held in memory as a whole; a column
// keeps the width that it had and can only grow, which text/tabwriter cannot do
// over more than one part.
type table struct {
	w     io.Writer
	right []bool // numbers and durations
	width []int
	rows  [][]string
	last  string // a line below, without columns
}

// newTable takes the columns' titles; one that begins with ">" is aligned to
// the right.
func newTable(w io.Writer, titles ...string) *table {
	t := &table{w: w, right: make([]bool, len(titles)), width: make([]int, len(titles))}
	head := make([]string, len(titles))
	for i, title := range titles {
		head[i], t.right[i] = strings.CutPrefix(title, ">")
	}
	t.row(head...)
	return t
}

// row adds a line; its cells must be printable.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		t.width[i] = max(t.width[i], utf8.RuneCountInString(c))
	}
	t.rows = append(t.rows, cells)
}

// note adds a line without columns below all rows.
func (t *table) note(text string) { t.last = text }

// flush prints the rows that were added since the last flush.
func (t *table) flush() error {
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", t.width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line.WriteString("  ")
			}
			if t.right[i] {
				line.WriteString(pad + c)
			} else {
				line.WriteString(c + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if t.last != "" {
		b.WriteString("(" + t.last + ")\n")
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.w, b.String())
	return err
}

// flushTo prints the rows, unless they were printed as JSON, and what is under
// way to w.
func (t *table) flushTo(w *bufio.Writer, asJSON bool) error {
	if !asJSON {
		if err := t.flush(); err != nil {
			return err
		}
	}
	return w.Flush()
}

// fields prints names and values below each other.
func fields(w io.Writer, pairs ...string) error {
	var b strings.Builder
	widest := 0
	for i := 0; i < len(pairs); i += 2 {
		widest = max(widest, len(pairs[i]))
	}
	for i := 0; i < len(pairs); i += 2 {
		b.WriteString(pairs[i] + ":" + strings.Repeat(" ", widest-len(pairs[i])+2) + pairs[i+1] + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
