package lockhttp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/wire"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// request is one request of an identity. Its fields are read and checked before its
// handler runs; a field that was not given is zero.
type request struct {
	*http.Request
	s  *Server
	id *Identity

	claim                    guard.Claim
	ttl, wait                time.Duration
	owner, metadata          string
	notAfter                 time.Time
	waiting                  bool
	actor, reason, requestID string
	prefix, after            string // what a page is of, and the resource before its first
	before                   int64  // what all IDs of a page of the audit are below
	limit                    int64  // how long a page is at most
	state                    lockadmin.LeaseState
	idle, lockTimeout        time.Duration // of a purge
	batch                    int64
}

// set decodes one field.
func (q *request) set(name string, raw json.RawMessage) error {
	must := "must be one string, without half a surrogate pair"
	var into any
	switch name {
	case "resource":
		into = (*text)(&q.claim.Resource)
	case "leaseId":
		into = (*text)(&q.claim.LeaseID)
	case "fencingToken":
		into, must = (*token)(&q.claim.Token), "must be a decimal number from 1 to "+guard.MaxToken.String()
	case "ttlSeconds":
		into, must = (*seconds)(&q.ttl), aDuration
	case "waitSeconds":
		into, must = (*seconds)(&q.wait), aDuration
	case "notAfter":
		into, must = &q.notAfter, "must be a time as in RFC 3339"
	case "waiting":
		into, must = &q.waiting, "must be true or false"
	case "ownerId":
		into = (*text)(&q.owner)
	case "metadata":
		into = (*text)(&q.metadata)
	case "actorId":
		into = (*text)(&q.actor)
	case "reason":
		into = (*text)(&q.reason)
	case "requestId":
		into = (*text)(&q.requestID)
	case "prefix":
		into = (*text)(&q.prefix)
	case "after":
		into = (*text)(&q.after)
	case "olderThanSeconds":
		into, must = (*seconds)(&q.idle), aDuration
	case "lockTimeoutSeconds":
		into, must = (*seconds)(&q.lockTimeout), aDuration
	case "batch":
		into, must = (*count)(&q.batch), aNumber
	case "before":
		into, must = (*count)(&q.before), aNumber
	case "limit":
		into, must = (*count)(&q.limit), aNumber
	case "state":
		into = (*text)(&q.state)
	}
	if json.Unmarshal(raw, into) != nil {
		return guard.Invalid(name, string(raw), must)
	}
	return nil
}

const (
	aDuration = "must be a number of seconds, from 0 to a billion"
	aNumber   = "must be a number, in digits"
)

// check checks one field that was given.
func (q *request) check(name string) error {
	switch name {
	case "resource":
		return q.mayName(q.claim.Resource)
	case "leaseId":
		return guard.ValidateLeaseID(q.claim.LeaseID)
	case "ttlSeconds":
		return q.mayLast(q.ttl)
	case "waitSeconds":
		return input.Between(name, q.wait, 0, q.s.opts.MaxWait)
	case "notAfter":
		if q.notAfter.IsZero() { // it means that there is none
			return driver.ErrLate
		}
	case "ownerId":
		if q.id.Owner != "" && q.owner != q.id.Owner {
			return &httpError{kind: &kindForbidden, err: errors.New("the ownerId is another's")}
		}
		return guard.ValidateOwner(q.owner)
	case "metadata":
		return input.Plain(name, q.metadata, q.s.limits.MetadataBytes)
	case "actorId":
		if strings.TrimSpace(q.actor) == "" {
			return guard.Invalid(name, q.actor, "must be more than spaces")
		}
		return guard.ValidateOwner(q.actor)
	case "after":
		return guard.ValidateResource(q.after)
	case "limit":
		if q.limit < 1 || q.limit > pageMost {
			return guard.Invalid(name, strconv.FormatInt(q.limit, 10), "must be 1 to "+strconv.Itoa(pageMost))
		}
	case "olderThanSeconds":
		return input.Between(name, q.idle, time.Millisecond, wire.SecondsMost) // 0 would be the default, not at once
	case "lockTimeoutSeconds":
		return input.Between(name, q.lockTimeout, time.Millisecond, time.Second)
	case "batch":
		if q.batch < 1 || q.batch > pageMost {
			return guard.Invalid(name, strconv.FormatInt(q.batch, 10), "must be 1 to "+strconv.Itoa(pageMost))
		}
	case "state":
		if q.state != lockadmin.StateHeld && q.state != lockadmin.StateExpired && q.state != lockadmin.StateFree {
			return guard.Invalid(name, string(q.state), "must be held, expired or free")
		}
	}
	return nil
}

// pageMost is how long a page is at most.
const pageMost = 1000

// text is a string. Half a surrogate pair becomes U+FFFD in encoding/json, so that two
// texts would become the same.
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	err := json.Unmarshal(raw, (*string)(t))
	raw = bytes.ReplaceAll(raw, []byte(`\\`), nil) // `\\ufffd` is not U+FFFD
	if n := strings.Count(string(*t), "\ufffd"); n > 0 && n != bytes.Count(raw, []byte("\ufffd"))+bytes.Count(bytes.ToLower(raw), []byte(`\ufffd`)) {
		return errors.New("half a surrogate pair")
	}
	return err
}

// token is a token as text or as a number, which is read digit by digit.
type token guard.Token

func (t *token) UnmarshalJSON(raw []byte) error {
	parsed, err := guard.ParseToken(strings.Trim(string(raw), `"`))
	*t = token(parsed)
	return err
}

// count is a number in a query, where every value is text.
type count int64

func (n *count) UnmarshalJSON(raw []byte) error {
	parsed, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 10, 62)
	*n = count(parsed)
	return err
}

// mayName checks a resource's name, and that the identity may name it.
func (q *request) mayName(resource string) error {
	if err := guard.ValidateResource(resource); err != nil {
		return err
	}
	if !q.id.may(resource) {
		return &httpError{kind: &kindForbidden}
	}
	if most := q.s.limits.ResourceBytes; most > 0 && len(resource) > most {
		return guard.Invalid("resource", resource, fmt.Sprintf("is %d bytes long, this server's issuer takes %d", len(resource), most))
	}
	return nil
}

// mayLast checks a TTL against the limits of the identity and the issuer.
func (q *request) mayLast(ttl time.Duration) error {
	low := max(cmp.Or(q.id.Limits.MinTTL, defaultMinTTL), q.s.limits.MinTTL)
	high := cmp.Or(q.id.Limits.MaxTTL, defaultMaxTTL)
	if q.s.limits.MaxTTL > 0 {
		high = min(high, q.s.limits.MaxTTL)
	}
	if err := input.Between("ttlSeconds", ttl, low, high); err != nil {
		return err
	}
	if step := q.s.limits.TTLStep; step > time.Microsecond && ttl%step != 0 {
		return guard.Invalid("ttlSeconds", ttl.String(), "must be a multiple of "+step.String())
	}
	return nil
}

// read reads the request: the body of a POST, the query of any other, and the field in its
// path that has this name.
func (q *request) read(w http.ResponseWriter, inPath string, required, optional []string) error {
	place := "query"
	in, err := parseQuery(q.URL.RawQuery)
	switch {
	case err != nil:
		return err
	case q.Method != http.MethodPost && q.ContentLength != 0: // nobody would look at it
		return guard.Invalid("body", "", "must be empty: the fields of this request are in its path and query")
	case q.Method == http.MethodPost:
		if err := q.parse(in, place, nil, nil); err != nil {
			return err
		}
		place = "body"
		if in, err = readBody(w, q.Request); err != nil {
			return err
		}
	}
	if inPath != "" {
		value := chi.URLParam(q.Request, inPath)
		if q.URL.RawPath != "" { // else net/http has decoded it: "%2F" is a slash, "%61" an a
			value, _ = url.PathUnescape(value) // net/http has checked it
		}
		if err := in.put(inPath, value); err != nil {
			return err
		}
	}
	return q.parse(in, place, required, optional)
}

// parse decodes the fields that a request may have, and then checks them. null counts as
// not given, and so does the empty text of a field that is a text.
func (q *request) parse(in members, place string, required, optional []string) error {
	names := slices.Concat(required, optional)
	given := map[string]bool{}
	for _, name := range names {
		raw := in[name]
		delete(in, name)
		if raw == nil || string(raw) == "null" {
			continue
		}
		if err := q.set(name, raw); err != nil {
			return err
		}
		given[name] = string(raw) != `""`
	}
	if len(in) > 0 {
		return guard.Invalid(place, slices.Min(slices.Collect(maps.Keys(in))), "is not a field of this request")
	}
	for n, name := range names {
		if !given[name] && n < len(required) {
			return guard.Missing(name)
		}
		if given[name] {
			if err := q.check(name); err != nil {
				return renamed(err, name)
			}
		}
	}
	return nil
}

// members are those of a JSON object.
type members map[string]json.RawMessage

// put adds a text, or a list of several.
func (in members) put(name string, values ...string) error {
	for _, value := range values {
		if !utf8.ValidString(value) { // json.Marshal would change it
			return guard.Invalid(name, value, "must be UTF-8")
		}
	}
	if _, twice := in[name]; twice {
		return guard.Invalid(name, values[0], "is given twice")
	}
	var member any = values
	if len(values) == 1 {
		member = values[0]
	}
	in[name], _ = json.Marshal(member) // texts can be encoded
	return nil
}

func parseQuery(raw string) (members, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, guard.Invalid("query", raw, "is malformed")
	}
	in := members{}
	for name, values := range query {
		if err := in.put(name, values...); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// readBody reads JSON that arrives in time and is not too long; no body is an empty object.
func readBody(w http.ResponseWriter, r *http.Request) (members, error) {
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
		return members{}, nil
	}
	return parseObject(body)
}

// parseObject reads an object member by member: encoding/json would accept "RESOURCE" for
// "resource", take the last of two members with the same name, and change text that is not
// UTF-8.
func parseObject(body []byte) (members, error) {
	bad := guard.Invalid("body", string(body), "must be one JSON object in UTF-8, and nothing else")
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') || !utf8.Valid(body) {
		return nil, bad
	}
	in := members{}
	for d.More() {
		key, err := d.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if err != nil || !ok || d.Decode(&value) != nil {
			return nil, bad
		}
		if _, twice := in[name]; twice {
			return nil, guard.Invalid(name, string(value), "is given twice")
		}
		in[name] = value
	}
	_, closed := d.Token()
	if _, end := d.Token(); closed != nil || end != io.EOF {
		return nil, bad
	}
	return in, nil
}
