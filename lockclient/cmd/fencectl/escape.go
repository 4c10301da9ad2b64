package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// shown returns s as it may be put on a terminal: names come out of the
// database, and whoever may write there must not move the operator's cursor.
// What is not plainly printable is quoted as in Go; so are names that would be
// mistaken for a quoted one, for nothing, or for a name without the space at
// its end.
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

// oneLine makes a message one printable line. A server's message may have
// anything in it.
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
