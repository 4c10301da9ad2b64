package httpfence

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// serve calls next with a copy of r that has the context ctx and, unless it is
// nil, the body. Afterwards, even if next panics, all else that next has put on
// its request is on r: net/http's server deletes the files of a form that it
// finds on the request that it made itself, and middleware in front looks for
// the pattern of the route.
func serve(next http.Handler, w http.ResponseWriter, r *http.Request, ctx context.Context, body io.ReadCloser) {
	own := r.WithContext(ctx)
	if body != nil {
		own.Body = body
	}
	defer func() {
		if own.Form == nil && own.MultipartForm == nil && own.Pattern == r.Pattern && own.URL == r.URL && own.Method == r.Method {
			return
		}
		if form := own.MultipartForm; form != nil && form != r.MultipartForm {
			// A router in front may have copied the request as well, as chi does.
			// Then the server does not find the form. Middleware in front may
			// still read the files: they go with the request's context.
			context.AfterFunc(r.Context(), func() { _ = form.RemoveAll() })
		}
		back := own.WithContext(r.Context())
		back.Body = r.Body
		*r = *back
	}()
	next.ServeHTTP(w, own)
}

// shadows is how many requests of one InsecureReportOnly are compared at once.
const shadows = 64

// InsecureReportOnly lets every request through, and reports what [Middleware.Admit]
// would refuse, with [guard.Event].ReportOnly set. It is for finding the clients that
// send no token yet, and protects nothing.
//
// The comparison runs next to the handler, so that nothing that is slow or down, neither
// the store nor Verify nor the logger, delays a request. Admitted claims raise marks, or
// there would be nothing to compare with. The handler gets no claim. At most 64 requests
// are compared at a time; how many were not is reported, as unavailable, when one has
// ended. The ResourceFunc and Verify get a copy of the request without its body.
//
// When nothing is reported any more, put Admit or InTx in its place.
func (m *Middleware) InsecureReportOnly(next http.Handler) http.Handler {
	if next == nil {
		panic("httpfence: InsecureReportOnly needs a handler")
	}
	slots, skipped := make(chan struct{}, shadows), new(atomic.Int64)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.guards(r) {
			select {
			case slots <- struct{}{}:
				own := detached(r)
				go func() {
					defer func() { <-slots }()
					m.shadow(own, skipped)
				}()
			default:
				skipped.Add(1)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// shadow compares r and reports it. A hook that panics must not end the process.
func (m *Middleware) shadow(r *http.Request, skipped *atomic.Int64) {
	defer func() {
		if p := recover(); p != nil {
			m.logger().Error("fencing_failed", "op", string(guard.OpAdmit), "surface", string(guard.SurfaceHTTP), "reportOnly", true, "error", fmt.Sprint("panic: ", p))
		}
	}()
	_, _ = m.compare(r, guard.OpAdmit, true)
	if n := skipped.Swap(0); n > 0 {
		err := guard.Unavailable("admit", guard.Claim{}, fmt.Errorf("%d requests were not compared, because %d others had not ended", n, shadows))
		m.observe(r, time.Time{}, guard.Event{Op: guard.OpAdmit, ReportOnly: true, Reason: guard.ReasonUnavailable, Err: err})
	}
}

// detached returns a copy of r that may be used after its handler has returned. chi
// takes its route's context back then.
func detached(r *http.Request) *http.Request {
	ctx := context.WithoutCancel(r.Context())
	if route := chi.RouteContext(ctx); route != nil {
		own := chi.NewRouteContext()
		own.Routes, own.RoutePath, own.RouteMethod = route.Routes, route.RoutePath, route.RouteMethod
		own.RoutePatterns = slices.Clone(route.RoutePatterns)
		own.URLParams.Keys, own.URLParams.Values = slices.Clone(route.URLParams.Keys), slices.Clone(route.URLParams.Values)
		ctx = context.WithValue(ctx, chi.RouteCtxKey, own)
	}
	own := r.Clone(ctx)
	own.Body = http.NoBody
	return own
}
