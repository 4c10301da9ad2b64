package httpfence

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// ResourceFunc names the resource that a request writes to. Any function of
// this type will do; it is called once per guarded request, after the header
// was found well formed, and must be safe for concurrent use.
//
// Two requests that write to one thing must give one name, whatever their
// spelling; otherwise one row has two marks and neither guards it. Where the
// column reads several spellings as one value, let one through: [Integer],
// [UUID], and strings.ToLower for a column that ignores case. Have the handler
// name its row by the same function, or by the claim's resource, and not by
// chi.URLParam, which may still be escaped. Take the
// tenant from the authenticated identity, never from the path, a header or the
// body: a client that may choose the tenant may raise another tenant's marks.
//
// Errors are answered by their sentinel: [guard.ErrInvalid] 400,
// [guard.ErrNotFound] 404, [guard.ErrUnavailable] 503, any other 500. A name
// that is not a valid resource ([guard.ValidateResource]), the empty one
// included, is answered with 400: it was read from the request.
type ResourceFunc func(*http.Request) (string, error)

// ChiParam returns a [ResourceFunc] that gives the chi URL parameter name, as
// chi.URLParam finds it, unescaped exactly once: chi matches the escaped path
// when the client's spelling is unusual ("/acct/%61/close" gives "%61") and the
// unescaped one otherwise.
//
// Errors: [guard.ErrInvalid] for an empty value, a malformed escape, or
// a value of which it cannot be told whether it has been unescaped already
// (middleware such as chi's StripSlashes makes chi match the other form). A
// request whose route has no such parameter is answered with 500: the
// middleware stands where chi has not routed yet, as with Use on the root
// router, or the name is wrong; no client can mend that.
//
// It panics if name is empty. A value without escapes costs no allocation.
func ChiParam(name string) ResourceFunc {
	if name == "" {
		panic("httpfence: ChiParam needs a name")
	}
	return func(r *http.Request) (string, error) {
		value, ok := chiParam(r, name)
		if !ok {
			return "", fmt.Errorf("httpfence: the route has no chi parameter %q; the middleware must run behind routing (With, Route), not in the root's Use", name)
		}
		if value != "" && strings.IndexByte(value, '%') < 0 {
			return value, nil // nearly always, and worth a call
		}
		return unescapeOnce(r.URL, name, value)
	}
}

// PathValue returns a [ResourceFunc] that gives the request's path value name,
// unescaped exactly once. [http.ServeMux] has unescaped it already; chi sets
// path values too, and leaves them as it matched them (see [ChiParam]). For
// another router that sets path values, write a ResourceFunc that knows
// whether it unescapes.
//
// Errors are those of [ChiParam]. It panics if name is empty. A value without
// escapes costs no allocation.
func PathValue(name string) ResourceFunc {
	if name == "" {
		panic("httpfence: PathValue needs a name")
	}
	return func(r *http.Request) (string, error) {
		value := r.PathValue(name)
		if value == "" && !hasWildcard(r.Pattern, name) {
			return "", fmt.Errorf("httpfence: the route %q has no path value %q; the middleware must run behind routing", r.Pattern, name)
		}
		if strings.IndexByte(value, '%') >= 0 {
			// Only a value that chi set can still be escaped.
			if v, ok := chiParam(r, name); !ok || v != value {
				return value, nil
			}
		}
		return unescapeOnce(r.URL, name, value)
	}
}

// hasWildcard reports whether pattern has {name}, {name...} or chi's {name:...}.
func hasWildcard(pattern, name string) bool {
	for {
		_, rest, ok := strings.Cut(pattern, "{"+name)
		if !ok {
			return false
		}
		if rest != "" && strings.IndexByte("}.:", rest[0]) >= 0 {
			return true
		}
		pattern = rest
	}
}

// Literal returns a [ResourceFunc] that gives s, as a component for [Join] or
// for a handler that guards one thing. It panics if s is no valid resource.
func Literal(s string) ResourceFunc {
	if err := guard.ValidateResource(s); err != nil {
		panic("httpfence: Literal: " + err.Error())
	}
	return func(*http.Request) (string, error) { return s, nil }
}

// Join returns a [ResourceFunc] that joins what parts give with
// [guard.JoinResource], "tenant_123:billing-close:2026-04", so that different
// components never give one name: inside a component ":" becomes "%3A" and "%"
// becomes "%25". The first error of a part is returned as it is; an empty
// component is [guard.ErrInvalid]. It panics if there is no part or one is nil.
func Join(parts ...ResourceFunc) ResourceFunc {
	if len(parts) == 0 {
		panic("httpfence: Join needs parts")
	}
	for i, part := range parts {
		if part == nil {
			panic(fmt.Sprintf("httpfence: Join: part %d is nil", i+1))
		}
	}
	parts = slices.Clone(parts)
	return func(r *http.Request) (string, error) {
		var space [4]string // few names have more; this keeps them off the heap
		components := space[:0]
		for _, part := range parts {
			c, err := part(r)
			if err != nil {
				return "", err
			}
			components = append(components, c)
		}
		return guard.JoinResource(components...)
	}
}

// chiParam is chi.URLParam, but tells an empty value from none.
func chiParam(r *http.Request, name string) (string, bool) {
	if rctx := chi.RouteContext(r.Context()); rctx != nil {
		p := &rctx.URLParams
		for i := len(p.Keys) - 1; i >= 0; i-- {
			if p.Keys[i] == name && i < len(p.Values) {
				return p.Values[i], true
			}
		}
	}
	return "", false
}

// unescapeOnce returns value unescaped, if it was cut out of the escaped path,
// and as it is, if it was cut out of the unescaped one.
//
// Which of the two a router matched is not said anywhere, and it is not enough
// to know that RawPath is set: chi's StripSlashes and URLFormat then route by
// Path all the same. Unescaping that again would let "/acct/%2561/x%2F" act
// under the mark of "a" and write to "%61". So the value is looked for in both.
func unescapeOnce(u *url.URL, name, value string) (string, error) {
	if value == "" {
		return "", guard.Invalid(name, value, "must not be empty")
	}
	if strings.IndexByte(value, '%') < 0 {
		return value, nil // the same in both
	}
	escaped, unescaped := strings.Contains(u.RawPath, value), strings.Contains(u.Path, value)
	switch {
	case unescaped && !escaped:
		return value, nil
	case escaped && !unescaped:
		v, err := url.PathUnescape(value)
		if err != nil {
			return "", guard.Invalid(name, value, "has a malformed escape")
		}
		return v, nil
	}
	return "", guard.Invalid(name, value, "may or may not have been unescaped already")
}
