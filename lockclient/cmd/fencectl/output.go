package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/urfave/cli/v3"
)

// table prints rows in columns as they come. A long list is printed in parts,
// so that it starts at once and is never held in memory as a whole; a column
// keeps its width and can only grow, which text/tabwriter cannot do across
// several parts.
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

// listing prints items as they come, each as a row of a table for people or an
// object for programs. It prints the first page at once and holds at most a
// thousand rows.
type listing struct {
	w              *bufio.Writer
	t              *table
	json           bool
	limit, printed int
}

// newListing takes the columns' titles. --limit 0 means no limit.
func newListing(w io.Writer, cmd *cli.Command, titles ...string) *listing {
	b := bufio.NewWriterSize(w, 64<<10)
	return &listing{w: b, t: newTable(b, titles...), json: asJSON(cmd), limit: cmd.Int("limit")}
}

// add prints one item.
func (l *listing) add(v any, cells ...string) error {
	if l.json {
		line, err := jsonLine(v)
		if err == nil {
			_, err = l.w.Write(line)
		}
		if err != nil {
			return err
		}
	} else {
		l.t.row(cells...)
	}
	if l.printed++; l.printed == pglease.FirstPage || l.printed%pglease.NextPage == 0 {
		return l.flush()
	}
	return nil
}

func (l *listing) flush() error {
	if !l.json {
		if err := l.t.flush(); err != nil {
			return err
		}
	}
	return l.w.Flush()
}

// end prints the last rows. People see empty if there were none.
func (l *listing) end(empty string) error {
	if l.printed == 0 {
		l.t.note(empty)
	}
	return l.flush()
}

// addAll prints all items, with the cells of each, up to the limit.
func addAll[T any](l *listing, all iter.Seq2[T, error], cells func(T) []string) error {
	for v, err := range all {
		if err != nil {
			return err
		}
		if l.limit > 0 && l.printed == l.limit {
			l.t.note("more, see --limit")
			return nil
		}
		if err := l.add(v, cells(v)...); err != nil {
			return err
		}
	}
	return nil
}

// printAll is addAll followed by the end of the listing.
func printAll[T any](l *listing, all iter.Seq2[T, error], empty string, cells func(T) []string) error {
	if err := addAll(l, all, cells); err != nil {
		return err
	}
	return l.end(empty)
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

// clockTime formats a time for people: in UTC, whatever the terminal's zone,
// since it is compared with logs.
func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// span formats a duration for people: two units at most.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-max(d, -math.MaxInt64))
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		d = d.Round(time.Second)
		return units(int(d/time.Minute), "m", int(d/time.Second)%60, "s")
	case d < 48*time.Hour:
		d = d.Round(time.Minute)
		return units(int(d/time.Hour), "h", int(d/time.Minute)%60, "m")
	}
	d = d.Round(time.Hour)
	return units(int(d/(24*time.Hour)), "d", int(d/time.Hour)%24, "h")
}

// units omits what is zero.
func units(high int, highUnit string, low int, lowUnit string) string {
	switch {
	case high == 0:
		return fmt.Sprintf("%d%s", low, lowUnit)
	case low == 0:
		return fmt.Sprintf("%d%s", high, highUnit)
	}
	return fmt.Sprintf("%d%s%d%s", high, highUnit, low, lowUnit)
}

// count formats a number of things, "1 lease" or "2 leases".
func count(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// shown returns s as it may be printed on a terminal: names come from the
// database, and roles that can write there must not be able to move the
// operator's cursor. What is not plainly printable is quoted as in Go; so are
// names that would be mistaken for a quoted one, for nothing, or for a name
// without the space at its end.
func shown(s string) string {
	if s == "" || s[0] == '"' || strings.TrimSpace(s) != s || !plain(s) {
		return strconv.Quote(s)
	}
	return s
}

func plain(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) { // IsPrint has no control or format character, no space but ' '
			return false
		}
	}
	return true
}

// oneLine makes a message one printable line. A server's message may contain
// anything.
func oneLine(s string) string {
	var b strings.Builder
	for _, r := range strings.Join(strings.Fields(s), " ") {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRune(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// jsonLine encodes v as one line of JSON in which every character is
// printable: encoding/json leaves C1 controls and bidirectional overrides as
// they are.
func jsonLine(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	line := b.Bytes()
	if plain(string(line[:len(line)-1])) {
		return line, nil
	}
	var safe bytes.Buffer
	for _, r := range string(line[:len(line)-1]) {
		switch {
		case unicode.IsPrint(r):
			safe.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&safe, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&safe, `\u%04x`, r)
		}
	}
	safe.WriteByte('\n')
	return safe.Bytes(), nil
}
