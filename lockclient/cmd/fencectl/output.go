package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
)

// How much is printed at once: the first page at once.
const firstPage, nextPage = 100, 1000

// object is a small result for programs.
type object map[string]any

func (c *call) asJSON() bool { return c.cmd.String("output") == formatJSON }

// print prints one result: v for programs, the text for people.
func (c *call) print(v any, format string, args ...any) error {
	if !c.asJSON() {
		_, err := fmt.Fprintf(c.out, format, args...)
		return err
	}
	if c.confirmed { // what was changed, and where
		joined, err := wire.Join(v, object{"server": c.target})
		if err != nil {
			return err
		}
		v = joined
	}
	line, err := jsonLine(v)
	if err == nil {
		_, err = c.out.Write(line)
	}
	return err
}

// changed prints the result of a change. If it cannot be printed, the error says it.
func (c *call) changed(v any, format string, args ...any) error {
	return notPrinted(c.print(v, format+"\n", args...), format, args...)
}

// fields prints one result: v for programs, names and values below each other for
// people.
func (c *call) fields(v any, pairs ...string) error {
	if c.asJSON() {
		return c.print(v, "")
	}
	t := newTable(c.out)
	for i := 0; i < len(pairs); i += 2 {
		row(t, pairs[i]+":", pairs[i+1])
	}
	return t.Flush()
}

// newTable aligns what is added by row in columns. Cells must be printable.
func newTable(w io.Writer, titles ...string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(titles) > 0 {
		row(t, titles...)
	}
	return t
}

func row(t *tabwriter.Writer, cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }

// printAll prints items as they come, up to --limit: each as the cells of a row for
// people, or an object for programs. The first page is printed at once, and no more
// than a page is held. last, for people, is said below all of them, if it is not
// empty.
func printAll[T any](c *call, titles []string, all iter.Seq2[T, error], cells func(T) []string, last func(printed int) string) error {
	out := bufio.NewWriterSize(c.out, 64<<10)
	var t *tabwriter.Writer // nil for programs
	if !c.asJSON() {
		t = newTable(out, titles...)
	}
	flush := func() error {
		if t != nil {
			t.Flush() // out has its error
		}
		return out.Flush()
	}
	printed, limit, note := 0, c.cmd.Int("limit"), ""
	for v, err := range all {
		if err != nil {
			return err
		}
		if limit > 0 && printed == limit {
			note = "more, see --limit"
			break
		}
		if t != nil {
			row(t, cells(v)...)
		} else if line, err := jsonLine(v); err != nil {
			return err
		} else {
			out.Write(line) // flush has its error
		}
		if printed++; printed == firstPage || printed%nextPage == 0 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if note == "" {
		note = last(printed)
	}
	if t != nil && note != "" {
		t.Flush()
		fmt.Fprintf(out, "(%s)\n", note)
	}
	return flush()
}

// ifNone is what people see of an empty list.
func ifNone(text string) func(printed int) string {
	return func(printed int) string { return orNothing(printed == 0, text) }
}

func orDash(ok bool, s string) string {
	if ok {
		return s
	}
	return "-"
}

func orNothing(ok bool, s string) string {
	if ok {
		return s
	}
	return ""
}

func leaseID(id string) string { return orDash(id != "", shown(id)) }

// clockTime formats a time for people: in UTC, whatever the terminal's zone,
// since it is compared with logs.
func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// span formats a duration for people, who do not need all of its digits.
func span(d time.Duration) string {
	switch size := d.Abs(); {
	case size < time.Second:
		return d.Round(time.Millisecond).String()
	case size < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case size < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
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
	var safe []byte
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if unicode.IsPrint(r) {
			safe = utf8.AppendRune(safe, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			safe = fmt.Appendf(safe, `\u%04x`, unit)
		}
	}
	return append(safe, '\n'), nil
}

// shellWord is what no shell changes.
var shellWord = regexp.MustCompile(`^[\w.:/@%+,=][\w.:/@%+,=-]*$`)

// quoted returns s as a word of the operator's shell.
func quoted(s string) string {
	switch {
	case shellWord.MatchString(s):
		return s
	case !plain(s):
		return shown(s) // cannot be pasted, but does no harm either
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
