package httpfence

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// ResourceFunc names the resource that a request writes to, or one component
// of the name; see [Named]. It is called once per guarded request, after the
// header was found to be well formed, and must be safe for concurrent use.
//
// Two requests that write to the same thing must give the same name, whatever
// their spelling; otherwise one row has two marks and neither guards it. The
// handler should name its row by the same function, or by the claim's resource,
// and not by chi.URLParam, which may still be escaped. Take the tenant from the
// authenticated identity, never from the path, a header or the body: a client
// that may choose the tenant may raise another tenant's marks.
//
// The status of an error is the one of its sentinel: [guard.ErrInvalid] 400,
// [guard.ErrNotFound] 404, [guard.ErrUnavailable] 503, any other 500. A name
// that is not a valid resource ([guard.ValidateResource]), the empty one
// included, gets 400: it was read from the request.
type ResourceFunc func(*http.Request) (string, error)

// Bindings has the function that returns the value of each variable of a
// template.
type Bindings map[string]ResourceFunc

// Named returns the [ResourceFunc] for resources that are named by a template,
// the same one that the lease client and the tables use (promise P9):
//
//	var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
//
//	resource, err := httpfence.Named(closes, httpfence.Bindings{
//		"tenant": tenantOfSession,
//		"period": httpfence.ChiParam("period"),
//	})
//
// A value that the template refuses, such as "07" for {account:int}, is
// [guard.ErrInvalid] and not a resource: PostgreSQL and strconv read "7" and
// "07" as one number, so without the type they would be one row under two
// marks. The first error of a binding is returned as it is.
//
// The error of Named is a *guard.InvalidError (guard.ErrInvalid) for a variable
// that is missing, unknown or bound to nil. A template without variables names
// one resource and needs no bindings.
func Named(template *guard.Template, bindings Bindings) (ResourceFunc, error) {
	if template == nil {
		return nil, guard.Invalid("template", "", "must not be nil")
	}
	var bound []string
	for name, part := range bindings {
		if part == nil {
			return nil, guard.Invalid("template variable", name, "is bound to nil")
		}
		bound = append(bound, name)
	}
	slices.Sort(bound) // always report the same one of several errors
	if err := template.CheckVariables(bound...); err != nil {
		return nil, err
	}
	var parts []ResourceFunc
	for _, name := range template.Variables() {
		parts = append(parts, bindings[name])
	}
	if len(parts) == 0 {
		name, err := template.Name()
		return func(*http.Request) (string, error) { return name, nil }, err
	}
	return func(r *http.Request) (string, error) {
		var space [4]string // few names have more; this keeps them off the heap
		values := space[:0]
		for _, part := range parts {
			v, err := part(r)
			if err != nil {
				return "", err
			}
			values = append(values, v)
		}
		return template.Name(values...)
	}, nil
}

// ChiParam returns a [ResourceFunc] that returns the chi URL parameter name, as
// chi.URLParam finds it, unescaped exactly once: chi matches the escaped path
// when the client's spelling is unusual ("/acct/%61/close" gives "%61") and the
// unescaped one otherwise. "*" is the rest of a path.
//
// The middleware may be anywhere in a chi router: With, Group, or the Use of a router or
// of a Route. There chi has not finished routing yet: ChiParam looks for the rest of the
// route, which costs a walk over the routes below it. Use With where that matters.
//
// Errors:
//   - [guard.ErrInvalid]: the value is empty, has a malformed escape, or has an escape and
//     middleware such as CleanPath, StripSlashes or URLFormat has rewritten the path, so
//     that it is unknown whether the value has already been unescaped.
//   - [guard.ErrNotFound]: the request matches no route (404, 405), which raises no mark.
//   - no sentinel, 500: the route has no such parameter, or another kind of router is
//     mounted where the rest of the route would be.
//
// A value without escapes costs no allocation behind a finished route.
func ChiParam(name string) ResourceFunc {
	return func(r *http.Request) (string, error) {
		route, err := finished(r, chi.RouteContext(r.Context()))
		if err != nil {
			return "", err
		}
		value, ok := chiParam(route, name)
		if !ok {
			return "", fmt.Errorf("httpfence: the route has no chi parameter %q", name)
		}
		return unescapeOnce(route, r.URL, name, value)
	}
}

// PathValue returns a [ResourceFunc] that returns the request's path value
// name, unescaped exactly once. [http.ServeMux] has already unescaped it; chi
// sets path values too, and leaves them as it matched them (see [ChiParam]).
// For another router that sets path values, write a ResourceFunc that knows
// whether the router unescapes.
//
// Errors are those of [ChiParam]. If a ServeMux routes to another mux, the
// route is not known to be complete: put the middleware around the handler, not
// around the inner mux. A value without escapes costs no allocation.
func PathValue(name string) ResourceFunc {
	return func(r *http.Request) (string, error) {
		value := r.PathValue(name)
		if value == "" && !hasWildcard(r.Pattern, name) {
			return "", fmt.Errorf("httpfence: the route %q has no path value %q; the middleware must run behind routing", r.Pattern, name)
		}
		// Only a value that chi set can still be escaped, or belong to an
		// incomplete route.
		rctx := chi.RouteContext(r.Context())
		if v, ok := chiParam(rctx, name); ok && v == value {
			route, err := finished(r, rctx)
			if err != nil {
				return "", err
			}
			return unescapeOnce(route, r.URL, name, value)
		}
		if value == "" {
			return "", guard.Invalid(name, value, "must not be empty")
		}
		return value, nil
	}
}

var (
	errNoRoute = fmt.Errorf("httpfence: no route of the chi router matches the request: %w", guard.ErrNotFound)
	errUnknown = errors.New("httpfence: the rest of the route belongs to a router other than chi: put the middleware around its handler")
)

// finished returns the context of r's whole route. Where a router is mounted, chi has
// matched only the routers above.
func finished(r *http.Request, rctx *chi.Context) (*chi.Context, error) {
	if rctx == nil || rctx.Routes == nil {
		return nil, errors.New("httpfence: the request did not come through a chi router")
	}
	n, last, rest := len(rctx.RoutePatterns), "", ""
	if n > 0 {
		last = rctx.RoutePatterns[n-1]
	}
	mounts := strings.HasSuffix(last, "*")
	if n > 0 && !mounts && (rctx.RoutePath != "/" || last == "/") {
		return rctx, nil // the endpoint's own pattern
	}
	if values := rctx.URLParams.Values; mounts && len(values) > 0 {
		rest = values[len(values)-1] // which the Use of the router that is mounted no longer has
	}
	router := rctx.Routes
	for _, pattern := range rctx.RoutePatterns {
		routes := router.Routes()
		at := slices.IndexFunc(routes, func(route chi.Route) bool {
			return route.SubRoutes != nil && strings.TrimRight(route.Pattern, "/*") == strings.TrimRight(pattern, "/*")
		})
		switch {
		case at >= 0:
			router = routes[at].SubRoutes
		case rest != "" || rctx.RoutePath == "":
			return rctx, nil // an endpoint for the rest of a path
		default:
			return nil, errUnknown
		}
	}
	path := cmp.Or(rctx.RoutePath, r.URL.RawPath, r.URL.Path, "/")
	if n > 0 && (rest != "" || rctx.RoutePath == "") {
		path = "/" + rest // With, in front of a Route
	}
	below := chi.NewRouteContext()
	if !router.Match(below, cmp.Or(rctx.RouteMethod, r.Method), path) {
		return nil, errNoRoute
	}
	return &chi.Context{
		RoutePatterns: slices.Concat(rctx.RoutePatterns, below.RoutePatterns),
		RoutePath:     cmp.Or(below.RoutePath, path),
		URLParams: chi.RouteParams{
			Keys:   slices.Concat(rctx.URLParams.Keys, below.URLParams.Keys),
			Values: slices.Concat(rctx.URLParams.Values, below.URLParams.Values),
		},
	}, nil
}

// hasWildcard reports whether pattern has {name}, {name...} or chi's {name:...}.
func hasWildcard(pattern, name string) bool {
	if name == "*" {
		return strings.HasSuffix(pattern, "*")
	}
	return slices.ContainsFunc([]string{"}", "...}", ":"}, func(end string) bool { return strings.Contains(pattern, "{"+name+end) })
}

// chiParam is chi.URLParam, but distinguishes an empty value from none.
func chiParam(rctx *chi.Context, name string) (string, bool) {
	if rctx != nil {
		p := &rctx.URLParams
		for i := len(p.Keys) - 1; i >= 0; i-- {
			if p.Keys[i] == name && i < len(p.Values) {
				return p.Values[i], true
			}
		}
	}
	return "", false
}

// unescapeOnce returns the value of a chi parameter of a finished route, unescaped
// if it was cut out of the escaped path, and unchanged if it was cut out of the
// unescaped one. chi does not record which of the two it matched, so the route is
// spelled out with its values and compared with both; a rewritten path is neither.
func unescapeOnce(rctx *chi.Context, u *url.URL, name, value string) (string, error) {
	values := rctx.URLParams.Values
	switch {
	case value == "":
		return "", guard.Invalid(name, value, "must not be empty")
	case strings.IndexByte(value, '%') < 0:
		return value, nil // the same, escaped or not
	case u.RawPath != "" && (rctx.RoutePath == u.RawPath || spells(rctx.RoutePatterns, values, u.RawPath)):
		v, err := url.PathUnescape(value)
		if err != nil {
			return "", guard.Invalid(name, value, "has a malformed escape")
		}
		return v, nil
	case rctx.RoutePath == u.Path || spells(rctx.RoutePatterns, values, u.Path):
		return value, nil
	}
	return "", guard.Invalid(name, value, "has an escape, and the path was rewritten before it was routed")
}

// spells reports whether patterns, one mounted on the other, spell path with
// values in place of their variables. It allocates nothing.
func spells(patterns, values []string, path string) bool {
	for i, p := range patterns {
		last := i == len(patterns)-1
		if i > 0 { // the router it is mounted on has matched the slash
			p = strings.TrimPrefix(p, "/")
		}
		for p != "" {
			at := strings.IndexAny(p, "{*")
			if at < 0 {
				at = len(p)
			}
			rest, ok := strings.CutPrefix(path, p[:at])
			if !ok {
				return false
			}
			path, p = rest, p[at:]
			if p == "" {
				break
			}
			if len(values) == 0 {
				return false
			}
			value := values[0]
			values = values[1:]
			if p == "*" && !last {
				value = "" // the pattern mounted there spells it
			}
			if path, ok = strings.CutPrefix(path, value); !ok {
				return false
			}
			p = p[variableLen(p):]
		}
		if !last && !strings.HasSuffix(patterns[i], "*") {
			path = strings.TrimPrefix(path, "/")
		}
	}
	return path == "" && len(values) == 0
}

// variableLen returns the length of the variable that p begins with: "*" or
// "{name}", which may contain a pattern with braces.
func variableLen(p string) int {
	depth := 0
	for i := range len(p) {
		switch p[i] {
		case '{':
			depth++
		case '}':
			depth--
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(p)
}
