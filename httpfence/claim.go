package httpfence

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// The names of the header fields.
const (
	// TokenHeader carries the fencing token: exactly one field line whose
	// value is accepted by [guard.ParseToken].
	TokenHeader = "X-Fencing-Token"
	// LeaseHeader carries the lease ID, percent-encoded ([Encode]): exactly one
	// field line, or none if [Options.TokenOnly] allows it.
	LeaseHeader = "X-Fencing-Lease"
	// ResourceHeader carries the name of the resource that the claim is for,
	// percent-encoded ([Encode]): exactly one field line, or none if
	// [Options.InsecureAnyResource] allows it.
	ResourceHeader = "X-Fencing-Resource"
	// ReasonHeader is in the response to each refused request: the
	// [guard.Reason], for clients that get no body (HEAD) or cannot read it.
	ReasonHeader = "X-Fencing-Reason"
)

// presented reads into claim what r presents, up to the first error, and returns the
// reason of that; claim must be zero. It looks at all lines of a field, not just the first
// as Header.Get does: with two lines, the proxy in front and the handler behind might
// each use a different one. No error contains a field's value, because errors are
// logged, and a bearer token in the wrong field must not be.
//
// The fields come before the resource: they are cheap, and a request that presents no
// claim must not make the resource function query a database.
func (m *Middleware) presented(r *http.Request, claim *guard.Claim) (guard.Reason, error) {
	lines := r.Header[TokenHeader]
	if len(lines) != 1 {
		return notOne(TokenHeader, lines)
	}
	token, err := guard.ParseToken(lines[0])
	if err != nil {
		return malformed(TokenHeader, lines[0],
			"must be a decimal number from 1 to "+guard.MaxToken.String()+" without sign, space or leading zero")
	}
	claim.Token = token
	if lines = r.Header[LeaseHeader]; len(lines) == 1 {
		// An empty value does not mean "none", so that there is only one way to
		// say it.
		lease, ok := decode(lines[0], guard.MaxLeaseIDLen, guard.ValidateLeaseID)
		if !ok {
			return malformed(LeaseHeader, lines[0],
				"must be a percent-encoded lease ID of 1 to "+strconv.Itoa(guard.MaxLeaseIDLen)+" bytes of UTF-8 without control characters")
		}
		claim.LeaseID = lease
	} else if len(lines) > 1 || !m.opts.TokenOnly {
		return notOne(LeaseHeader, lines)
	}
	named, claimed := r.Header[ResourceHeader], ""
	if len(named) > 1 || len(named) == 0 && !m.opts.InsecureAnyResource {
		return notOne(ResourceHeader, named)
	}
	if len(named) == 1 {
		var ok bool
		if claimed, ok = decode(named[0], guard.MaxResourceLen, guard.ValidateResource); !ok {
			return malformed(ResourceHeader, named[0], "must be the percent-encoded name of a resource")
		}
	}
	resource, err := m.resource(r)
	if err != nil {
		reason := byResource(err)
		return reason, &hookError{"resource of the request", err, reason}
	}
	// An empty or malformed name came from the request, so it is the client's
	// mistake. It stops here and never becomes a mark.
	if err := guard.ValidateResource(resource); err != nil {
		return guard.ReasonInvalid, err
	}
	claim.Resource = resource
	if len(named) == 1 && claimed != resource {
		return guard.ReasonMisdirected, &guard.MisdirectedError{Claimed: claimed, Guarded: resource}
	}
	if m.opts.Verify != nil {
		if err := m.opts.Verify(*claim, r); err != nil {
			reason := byVerify(*claim, err)
			return reason, &hookError{"Options.Verify", err, reason}
		}
	}
	return guard.ReasonNone, nil
}

func notOne(name string, lines []string) (guard.Reason, error) {
	if len(lines) == 0 {
		return guard.ReasonMissing, guard.Missing(name)
	}
	return guard.ReasonInvalid, guard.Invalid(name, "", "is given "+strconv.Itoa(len(lines))+" times")
}

func malformed(name, value, problem string) (guard.Reason, error) {
	return guard.ReasonInvalid, guard.Invalid(name, "", problem+"; its value has "+strconv.Itoa(len(value))+" bytes and is not shown")
}

// Encode returns the value of [ResourceHeader] for a resource, or of [LeaseHeader] for
// a lease ID, as [url.PathEscape] does.
//
// A server reads any percent-encoding of the same bytes as the same text, so
// the results of encodeURIComponent (JavaScript) and quote (Python) work as well;
// "%3a", "%3A" and ":" are the same. A space, a comma, a quote and bytes outside
// ASCII must be encoded: what a proxy that joins two lines with a comma, trims or folds
// a value, or changes its encoding has made of it is malformed, and not another value.
// "+" is a plus sign. Nothing is decoded twice: "%2541" is the text "%41".
func Encode(text string) string { return url.PathEscape(text) }

// decode returns the text that value encodes, and whether it is a valid one that is not
// empty and has at most limit bytes.
func decode(value string, limit int, validate func(string) error) (string, bool) {
	if value == "" || len(value) > 3*limit {
		return "", false
	}
	escaped := false
	for i := range len(value) {
		if !carried(value[i]) {
			return "", false
		}
		escaped = escaped || value[i] == '%'
	}
	if !escaped { // and so printable
		return value, len(value) <= limit
	}
	text, err := url.PathUnescape(value)
	return text, err == nil && validate(text) == nil
}

// carried reports whether c may be in an encoded field as it is.
func carried(c byte) bool { return c > ' ' && c < 0x7f && c != ',' && c != '"' }
