package httpfence

import (
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// consumed are fields that never reach a handler as the client sent them: a
// proxy removes them or net/http takes them out of the map. A token sent there
// would be missing for ever, or worse, sometimes.
var consumed = []string{
	"Connection", "Content-Length", "Host", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// headerNames returns the canonical names, defaults filled in. It panics if
// one cannot work; where names the options struct in the message.
func headerNames(where, token, lease string) (tokenHeader, leaseHeader string) {
	check := func(field, name, fallback string) string {
		if name == "" {
			name = fallback
		}
		if !isToken(name) {
			panic(fmt.Sprintf("httpfence: %s.%s is %q, which is no field name", where, field, name))
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if slices.Contains(consumed, name) {
			panic(fmt.Sprintf("httpfence: %s.%s is %q, which does not reach a handler unchanged", where, field, name))
		}
		return name
	}
	tokenHeader = check("TokenHeader", token, TokenHeader)
	leaseHeader = check("LeaseHeader", lease, LeaseHeader)
	if tokenHeader == leaseHeader {
		panic(fmt.Sprintf("httpfence: %s.TokenHeader and LeaseHeader are both %q", where, tokenHeader))
	}
	return tokenHeader, leaseHeader
}

// isToken reports whether s is a token by RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '!', c == '#', c == '$', c == '%', c == '&', c == '\'', c == '*', c == '+',
			c == '-', c == '.', c == '^', c == '_', c == '`', c == '|', c == '~':
		default:
			return false
		}
	}
	return s != ""
}

// presented reads into claim what r presents, as far as it goes; claim is zero
// before. It looks at all lines of a field, not at the first as Header.Get
// does: with two lines, the proxy in front and the handler behind might each
// believe another one.
//
// The header comes before the resource: it is cheap, and a request without
// a token must not make the resource function ask a database.
func (m *Middleware) presented(r *http.Request, claim *guard.Claim) error {
	lines := r.Header[m.tokenHeader]
	if len(lines) != 1 {
		return notOne(m.tokenHeader, lines)
	}
	token, err := guard.ParseToken(lines[0])
	if err != nil {
		return guard.Invalid(m.tokenHeader, lines[0],
			"must be a decimal number from 1 to "+guard.MaxToken.String()+" without sign, space or leading zero")
	}
	claim.Token = token
	if lines = r.Header[m.leaseHeader]; len(lines) == 1 {
		claim.LeaseID = lines[0]
		if claim.LeaseID == "" || guard.ValidateLeaseID(claim.LeaseID) != nil {
			claim.LeaseID = ""
			return m.invalidLease(lines[0])
		}
	} else if len(lines) > 1 || m.requireLease {
		return notOne(m.leaseHeader, lines)
	}
	resource, err := m.resource(r)
	if err != nil {
		return &resourceError{err}
	}
	// A name that is empty or malformed came out of the request, so it is the
	// client's mistake. It stops here and never becomes a mark.
	if err := guard.ValidateResource(resource); err != nil {
		return err
	}
	claim.Resource = resource
	return nil
}

// invalidLease refuses an empty field rather than let it be read as "no lease
// ID", so that there is one way to say it and RequireLease cannot be met with
// nothing.
func (m *Middleware) invalidLease(leaseID string) error {
	if leaseID == "" {
		return guard.Invalid(m.leaseHeader, "", "must not be empty; leave the field out")
	}
	return guard.Invalid(m.leaseHeader, leaseID,
		"must be at most "+strconv.Itoa(guard.MaxLeaseIDLen)+" bytes of UTF-8 without control characters")
}

func notOne(name string, lines []string) error {
	if len(lines) == 0 {
		return guard.Missing(name)
	}
	return guard.Invalid(name, lines[0], "is given "+strconv.Itoa(len(lines))+" times")
}
