package httpfence

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// origin is a web origin (RFC 6454, section 4) in one spelling.
type origin struct {
	scheme, host string
	port         uint16
}

// parseOrigin reads "https://ledger.internal:8443". Anything that is not part
// of an origin is an error, because somebody who writes a path there expects it
// to matter.
func parseOrigin(s string) (origin, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return origin{}, fmt.Errorf("must be scheme://host[:port]: %w", err)
	case strings.Contains(s, "*"):
		return origin{}, errors.New("wildcards are not supported")
	case u.User != nil, u.Path != "" && u.Path != "/", u.RawQuery != "", u.ForceQuery, u.Fragment != "", strings.Contains(s, "#"):
		return origin{}, errors.New("must be scheme://host[:port] and nothing else")
	}
	o, ok := originOf(u)
	if !ok {
		return origin{}, errors.New("must be http or https with a host in ASCII (punycode) and a port from 1 to 65535")
	}
	return o, nil
}

// originOf returns the origin that a request to u connects to. A URL that
// cannot be normalised with certainty has none, and so gets no token.
func originOf(u *url.URL) (origin, bool) {
	if u == nil {
		return origin{}, false
	}
	o := origin{scheme: u.Scheme}
	switch u.Scheme {
	case "https":
		o.port = 443
	case "http":
		o.port = 80
	default:
		return origin{}, false
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return origin{}, false
		}
		o.port = uint16(n)
	}
	host := u.Hostname()
	// Case folding beyond ASCII is a matter of IDNA, not of this comparison.
	ascii := !strings.ContainsFunc(host, func(c rune) bool { return c <= ' ' || c >= 0x7f })
	o.host = strings.ToLower(host)
	return o, ascii && host != ""
}
