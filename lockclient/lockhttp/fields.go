package lockhttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// fields are what a request says, in its path and in its body or query, as the members of
// one JSON object; they are taken one by one. encoding/json would accept "RESOURCE" for
// "resource", take the last of two members with the same name, and change text that is
// not UTF-8.
type fields struct {
	in    map[string]json.RawMessage
	place string // of those that nobody takes: body or query
	err   error  // the first
}

// read reads a request: its body, JSON that arrives in time and is not too long, or the
// query of a request without one; and the field in its path that has this name.
func read(w http.ResponseWriter, r *http.Request, name string) (*fields, error) {
	f := parseQuery(r)
	if r.Method == http.MethodPost {
		if err := f.end(); err != nil {
			return nil, err
		}
		body, err := readBody(w, r)
		if err != nil {
			return nil, err
		}
		f = parseBody(body)
	} else if r.ContentLength != 0 { // nobody would look at it
		return nil, guard.Invalid("body", "", "must be empty: the fields of this request are in its path and query")
	}
	if name != "" {
		value := chi.URLParam(r, name)
		if r.URL.RawPath != "" { // else net/http has decoded it: "%2F" is a slash, "%61" an a
			var err error
			if value, err = url.PathUnescape(value); err != nil {
				return nil, guard.Invalid("path", chi.URLParam(r, name), "has a bad escape")
			}
		}
		f.put(name, value)
	}
	return f, f.err
}

// readBody returns an empty object if there is no body.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(media), "application/json") && r.ContentLength != 0 {
		return nil, &httpError{kind: &kindMediaType}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMost))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, &httpError{kind: &kindTooLarge}
	case err != nil:
		return nil, guard.Invalid("body", "", "did not arrive")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the request may wait now
	if len(body) == 0 {
		return []byte("{}"), nil
	}
	return body, nil
}

func parseQuery(r *http.Request) *fields {
	f := &fields{in: map[string]json.RawMessage{}, place: "query"}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		f.err = guard.Invalid("query", r.URL.RawQuery, "is malformed")
	}
	for name, values := range query {
		f.put(name, values...)
	}
	return f
}

// put adds a text, or a list of several.
func (f *fields) put(name string, values ...string) {
	for _, value := range values {
		if !utf8.ValidString(value) { // json.Marshal would change it
			f.fail(name, []byte(value), "must be UTF-8")
		}
	}
	if _, twice := f.in[name]; twice {
		f.fail(name, []byte(values[0]), "is given twice")
	}
	var member any = values
	if len(values) == 1 {
		member = values[0]
	}
	f.in[name], _ = json.Marshal(member) // texts can be encoded
}

func parseBody(body []byte) *fields {
	f := &fields{in: map[string]json.RawMessage{}, place: "body"}
	fail := func(problem string) *fields {
		f.fail("body", body, problem)
		return f
	}
	if !utf8.Valid(body) {
		return fail("must be UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fail("must be a JSON object")
	}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		if err != nil || !ok {
			return fail("must be a JSON object")
		}
		if _, twice := f.in[name]; twice {
			f.fail(name, []byte(name), "is given twice")
			return f
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fail("must be a JSON object")
		}
		f.in[name] = value
	}
	if _, err := d.Token(); err != nil {
		return fail("must be a JSON object")
	}
	if _, err := d.Token(); err != io.EOF {
		return fail("must be one JSON object and nothing else")
	}
	return f
}

// take removes a member; nil if it is absent or null.
func (f *fields) take(name string) json.RawMessage {
	v := f.in[name]
	delete(f.in, name)
	if string(v) == "null" {
		return nil
	}
	return v
}

func (f *fields) fail(name string, value []byte, problem string) {
	if f.err == nil {
		f.err = guard.Invalid(name, string(value), problem)
	}
}

// text takes a string; empty if it is absent.
func (f *fields) text(name string) string {
	raw := f.take(name)
	if raw == nil {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.fail(name, raw, "must be one string")
		return ""
	}
	// Half a surrogate pair becomes U+FFFD, so two texts would become the same.
	if n := strings.Count(s, "\ufffd"); n > 0 && n != bytes.Count(raw, []byte("\ufffd"))+bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`)) {
		f.fail(name, raw, "has half a surrogate pair")
	}
	return s
}

// texts takes a string or a list of them.
func (f *fields) texts(name string) (list []string) {
	raw := f.take(name)
	var one string
	if raw == nil || json.Unmarshal(raw, &list) == nil {
		return list
	}
	if json.Unmarshal(raw, &one) != nil {
		f.fail(name, raw, "must be strings")
	}
	return []string{one}
}

// number takes a number from 0 to most, in digits or as text; fallback if it is absent.
func (f *fields) number(name string, fallback, most int64) int64 {
	raw := f.take(name)
	if raw == nil {
		return fallback
	}
	text := strings.Trim(string(raw), `"`)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most || text[0] == '+' {
		f.fail(name, raw, "must be a number from 0 to "+strconv.FormatInt(most, 10))
	}
	return n
}

func (f *fields) seconds(name string) time.Duration {
	raw := f.take(name)
	if raw == nil {
		return 0
	}
	d, ok := parseSeconds(string(raw))
	if !ok {
		f.fail(name, raw, "must be a number of seconds, with up to six digits after the point")
	}
	return d
}

func (f *fields) flag(name string) bool {
	switch raw := f.take(name); string(raw) {
	case "true":
		return true
	case "", "false":
		return false
	default:
		f.fail(name, raw, "must be true or false")
		return false
	}
}

// moment takes a time of RFC 3339; zero if it is absent.
func (f *fields) moment(name string) time.Time {
	s := f.text(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		f.fail(name, []byte(s), "must be a time as in RFC 3339")
	}
	return t
}

// token takes a token as text or as a number, which is read digit by digit.
func (f *fields) token(name string, required bool) guard.Token {
	raw := f.take(name)
	if raw == nil {
		if required && f.err == nil {
			f.err = guard.Missing(name)
		}
		return guard.NoToken
	}
	t, err := guard.ParseToken(strings.Trim(string(raw), `"`))
	if err != nil || len(raw) > 1 && (raw[0] == '"') != (raw[len(raw)-1] == '"') {
		f.fail(name, raw, "must be a decimal number from 1 to "+guard.MaxToken.String())
	}
	return t
}

// limit takes how long a page is at most.
func (f *fields) limit() int { return int(max(1, f.number("limit", 100, pageMost))) }

// claim takes the fields of a claim.
func (f *fields) claim(tokenRequired bool) guard.Claim {
	return guard.Claim{Resource: f.text("resource"), Token: f.token("fencingToken", tokenRequired), LeaseID: f.text("leaseId")}
}

// end refuses members that were not taken.
func (f *fields) end() error {
	if f.err == nil && len(f.in) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(f.in)))
		f.err = guard.Invalid(f.place, name, "is not a field of this request")
	}
	return f.err
}
