package httpfence

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// The default names of the header fields.
const (
	// TokenHeader carries the fencing token: exactly one field line whose
	// value is accepted by [guard.ParseToken].
	TokenHeader = "X-Fencing-Token"
	// LeaseHeader carries the lease ID: exactly one field line, or none if
	// [Options.TokenOnly] allows it.
	LeaseHeader = "X-Fencing-Lease"
	// ResourceHeader carries the name of the resource that the claim is for,
	// percent-encoded ([EncodeResource]): exactly one field line, or none if
	// [Options.InsecureAnyResource] allows it.
	ResourceHeader = "X-Fencing-Resource"
	// ReasonHeader is in the answer to each refused request: the
	// [guard.Reason], for clients that get no body (HEAD) or cannot read it.
	ReasonHeader = "X-Fencing-Reason"
)

// presented reads into claim what r presents, up to the first error; claim must
// be zero. It looks at all lines of a field, not just the first as Header.Get
// does: with two lines, the proxy in front and the handler behind might each
// use a different one. No error contains a field's value, because errors are
// logged, and a bearer token in the wrong field must not be.
//
// The token comes before the resource: it is cheap, and a request without a
// token must not make the resource function query a database.
func (m *Middleware) presented(r *http.Request, claim *guard.Claim) error {
	lines := r.Header[m.names.token]
	if len(lines) != 1 {
		return notOne(m.names.token, lines)
	}
	token, err := guard.ParseToken(lines[0])
	if err != nil {
		return malformed(m.names.token, lines[0],
			"must be a decimal number from 1 to "+guard.MaxToken.String()+" without sign, space or leading zero")
	}
	claim.Token = token
	if lines = r.Header[m.names.lease]; len(lines) == 1 {
		// An empty value does not mean "none", so that there is only one way to
		// say it. Spaces at its ends are removed over HTTP/1.1 alone.
		if lines[0] == "" || strings.Trim(lines[0], " ") != lines[0] || guard.ValidateLeaseID(lines[0]) != nil {
			return malformed(m.names.lease, lines[0],
				"must be 1 to "+strconv.Itoa(guard.MaxLeaseIDLen)+" bytes of UTF-8 without control characters or spaces at its ends")
		}
		claim.LeaseID = lines[0]
	} else if len(lines) > 1 || !m.opts.TokenOnly {
		return notOne(m.names.lease, lines)
	}
	named := r.Header[m.names.resource]
	if len(named) > 1 || len(named) == 0 && !m.opts.InsecureAnyResource {
		return notOne(m.names.resource, named)
	}
	resource, err := m.resource(r)
	if err != nil {
		return &resourceError{err}
	}
	claim.Resource = resource
	if len(named) != 1 || named[0] != resource || !plain(resource) { // nearly never
		// An empty or malformed name came from the request, so it is the
		// client's mistake. It stops here and never becomes a mark.
		if err := guard.ValidateResource(resource); err != nil {
			claim.Resource = ""
			return err
		}
		if len(named) == 1 && !encodes(named[0], resource) {
			claimed, ok := decodeResource(named[0])
			if !ok {
				return malformed(m.names.resource, named[0], "must be the percent-encoded name of a resource")
			}
			return &guard.MisdirectedError{Claimed: claimed, Guarded: resource}
		}
	}
	if m.opts.Verify != nil {
		return m.opts.Verify(*claim, r)
	}
	return nil
}

func notOne(name string, lines []string) error {
	if len(lines) == 0 {
		return guard.Missing(name)
	}
	return guard.Invalid(name, "", "is given "+strconv.Itoa(len(lines))+" times")
}

func malformed(name, value, problem string) error {
	return guard.Invalid(name, "", problem+"; its value has "+strconv.Itoa(len(value))+" bytes and is not shown")
}

// EncodeResource returns the value of [ResourceHeader] for a resource: every
// byte except ASCII letters, digits and "-._~:" becomes "%" with two upper-case
// hexadecimal digits (RFC 3986, section 2.1).
//
// A server reads any percent-encoding of the same bytes as the same name, so
// the results of encodeURIComponent (JavaScript), quote (Python) and PathEscape
// (Go) will do; "%3a", "%3A" and ":" are the same. A space, a comma, a quote
// and bytes outside ASCII must be encoded: a proxy that joins two lines with a
// comma makes the value malformed. "+" is a plus sign. Nothing is decoded
// twice: "%2541" is the name "%41".
func EncodeResource(resource string) string {
	var b strings.Builder
	b.Grow(len(resource))
	for i := range len(resource) {
		if c := resource[i]; classes[c] == unreserved {
			b.WriteByte(c)
		} else {
			b.WriteString("%" + string(hexDigits[c>>4]) + string(hexDigits[c&15]))
		}
	}
	return b.String()
}

const hexDigits = "0123456789ABCDEF"

// The bytes that need no encoding in a ResourceHeader: the unreserved ones of
// RFC 3986 and ":", and the others that it allows in paths except the comma.
const unreserved, allowed = 1, 2

var classes = func() (t [256]byte) {
	for c := range t {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~:", byte(c)) >= 0:
			t[c] = unreserved
		case strings.IndexByte("/@!$&'()*+;=", byte(c)) >= 0:
			t[c] = allowed
		}
	}
	return t
}()

// plain reports whether name is a valid resource that is its own encoding.
func plain(name string) bool {
	for i := range len(name) {
		if classes[name[i]] == 0 {
			return false
		}
	}
	return name != "" && len(name) <= guard.MaxResourceLen
}

// encodes reports whether value is an encoding of resource. It allocates
// nothing.
func encodes(value, resource string) bool {
	at := 0
	for i := 0; i < len(value); i++ {
		c := value[i]
		if classes[c] == 0 {
			high, low, ok := escapeAt(value, i)
			if !ok {
				return false
			}
			c = high<<4 | low
			i += 2
		}
		if at == len(resource) || resource[at] != c {
			return false
		}
		at++
	}
	return at == len(resource)
}

// decodeResource returns the valid name that value encodes.
func decodeResource(value string) (string, bool) {
	if len(value) > 3*guard.MaxResourceLen {
		return "", false
	}
	b := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		c := value[i]
		if classes[c] == 0 {
			high, low, ok := escapeAt(value, i)
			if !ok {
				return "", false
			}
			c = high<<4 | low
			i += 2
		}
		b = append(b, c)
	}
	name := string(b)
	return name, guard.ValidateResource(name) == nil
}

// escapeAt reads "%3A" at i.
func escapeAt(s string, i int) (high, low byte, ok bool) {
	if s[i] != '%' || i+2 >= len(s) {
		return 0, 0, false
	}
	high, ok = unhex(s[i+1])
	low, also := unhex(s[i+2])
	return high, low, ok && also
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
