package httpfence

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Middleware compares the claim of each request with the mark of the resource
// that the request names. Make one with [New]; the zero value is not usable.
// It is safe for concurrent use.
type Middleware struct {
	store    guard.Store
	resource ResourceFunc
	opts     Options // defaults filled in
	instant  bool    // calls to the store never wait
}

// Check compares the claim of r with the resource's mark and writes nothing:
// neither a response nor the mark. It returns the claim if a store would admit
// it now, by [guard.SameOrNewer], else the zero claim and the error, which
// [Middleware.Reject] turns into the response that Admit would have sent.
//
// It ignores the method and InsecureReportOnly: its caller has decided to
// check. The result may be out of date as soon as it is returned, because
// nothing was raised: present the claim to a fenced write.
//
// Errors: [guard.ErrMissing] and [guard.ErrInvalid] as an *guard.InvalidError
// whose Field is the header's name or "resource", [guard.ErrMisdirected],
// [guard.ErrStale] and [guard.ErrConflict] as a *guard.RejectedError,
// [guard.ErrUnavailable], and what [Options.Verify] or the ResourceFunc returned;
// of package guard's sentinels, an error of the latter matches only that of its row
// in the status table. The headers are read before the ResourceFunc is called. A check
// that succeeds on a [guard.Memory] allocates nothing itself.
func (m *Middleware) Check(r *http.Request) (claim guard.Claim, err error) {
	if err = m.compare(r, guard.OpCheck, &claim, false); err != nil {
		claim = guard.Claim{}
	}
	return claim, err
}

// Admit does not by itself stop a write already in flight; pair it with a
// fenced write. It first admits the claim of each request to the store, which
// raises the resource's mark, and then calls next with the claim in the
// request's context ([guard.ClaimFrom]), for the fenced write to present. A
// request that was admitted and is still being handled when a newer holder
// arrives is not revoked.
//
// Everything else that next leaves on its request, such as a parsed form or the
// route's pattern, is on r afterwards; the files of a form are deleted.
//
// A request that is refused never reaches next; see the package documentation
// for the responses. Methods in [Options.UnguardedMethods] pass unexamined and
// without a claim. The ResponseWriter is passed on unchanged, so Flusher,
// Hijacker and http.ResponseController work.
//
// Put it behind whatever checks that the resource and the method exist, or a
// request that gets 404 or 405 raises a mark: behind routing (chi:
// With, or Group with full patterns, not Use on a router), and behind
// middleware that rewrites the method or the path.
//
// It panics if next is nil, as http.Handle does.
func (m *Middleware) Admit(next http.Handler) http.Handler {
	if next == nil {
		panic("httpfence: Admit needs a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(m.opts.UnguardedMethods, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		var claim guard.Claim
		err := m.compare(r, guard.OpAdmit, &claim, m.opts.InsecureReportOnly)
		switch {
		case err == nil:
			serve(next, w, r, guard.WithClaim(r.Context(), claim), nil)
		case m.opts.InsecureReportOnly:
			next.ServeHTTP(w, r)
		default:
			m.reject(w, r, claim, err)
		}
	})
}

// AdmitRequest is [Middleware.Admit] for transports that are not handlers: it
// admits r's claim, reports it to the observer, and returns the claim or the
// error, which is as of [Middleware.Check]. It writes no response, and ignores the
// method and InsecureReportOnly. Package grpcfence is built on it.
func (m *Middleware) AdmitRequest(r *http.Request) (claim guard.Claim, err error) {
	if err = m.compare(r, guard.OpAdmit, &claim, false); err != nil {
		claim = guard.Claim{}
	}
	return claim, err
}

// Raise makes the request's claim the resource's mark and calls no handler: an
// older holder can no longer change what is read after its 204, if the store
// waits for older writes as sqlfence's DB does (promise P2). It is the endpoint
// that a new holder calls before it reads:
//
//	router.Post("/accounts/{id}/raise", fence.Raise)
//
// It stops only writes that are compared with the mark it raises: those of
// [TxMiddleware.InTx] and of sqlfence's InTx on the same database. A handler that
// writes by a fenced single statement compares with the mark of the row
// instead; take over there by raising the row's mark. A store that does not
// know of the writes, such as [guard.Memory], stops only requests that are not
// yet admitted: an admitted request may still be writing.
//
// It is idempotent. A refusal is rendered as by [Middleware.Admit], even with
// [Options.InsecureReportOnly]: its caller wants to know. GET, HEAD, OPTIONS
// and TRACE, which must not change anything, get 405.
func (m *Middleware) Raise(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if slices.Contains(defaultUnguarded, r.Method) {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var claim guard.Claim
	if err := m.compare(r, guard.OpRaise, &claim, false); err != nil {
		m.reject(w, r, claim, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// compare compares the claim of r with the mark of its resource, in the way of
// op. It puts into claim what is known of it, even with an error. reportOnly says
// that its caller lets a refused request through.
func (m *Middleware) compare(r *http.Request, op guard.Op, claim *guard.Claim, reportOnly bool) (err error) {
	start := m.clock()
	var mark guard.Mark
	if err = m.presented(r, claim); err == nil {
		mark, err = m.ask(r.Context(), op, claim)
	}
	if m.opts.Observer != nil || err != nil {
		m.observe(r, start, guard.Event{Op: op, Claim: *claim, Mark: mark, Err: err, ReportOnly: err != nil && reportOnly})
	}
	return err
}

// ask compares claim with the mark in the store, which is raised unless op is
// OpCheck. If the time for that is over the error is ErrUnavailable, unless the
// store knows better: at most a raise was requested, which may be repeated.
func (m *Middleware) ask(ctx context.Context, op guard.Op, claim *guard.Claim) (mark guard.Mark, err error) {
	if !m.instant {
		wait := m.opts.MaxWait
		if op == guard.OpRaise {
			wait *= raiseWaits
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	if op != guard.OpCheck {
		mark, err = m.store.Admit(ctx, *claim)
	} else if mark, err = m.store.Mark(ctx, claim.Resource); err == nil {
		err = guard.Decide(guard.SameOrNewer, mark, *claim)
	}
	if err != nil && ctx.Err() != nil && guard.ReasonOf(err) == guard.ReasonOther {
		err = guard.Unavailable(string(op), *claim, err)
	}
	return mark, err
}

// resourceError is what a [ResourceFunc] returned. Only some sentinels keep their
// meaning there: a lookup that its own fence refused as "stale" says nothing about
// this request's claim. It has no Unwrap, which would match them all.
type resourceError struct{ cause error }

func (e *resourceError) Error() string {
	return "httpfence: resource of the request: " + e.cause.Error()
}

func (e *resourceError) Is(target error) bool {
	for _, reason := range guard.Reasons() {
		if reason.Err() == target {
			return reason == e.reason()
		}
	}
	return errors.Is(e.cause, target)
}

func (e *resourceError) As(target any) bool { return errors.As(e.cause, target) }

func (e *resourceError) reason() guard.Reason {
	for _, reason := range []guard.Reason{guard.ReasonInvalid, guard.ReasonNotFound, guard.ReasonSetup, guard.ReasonUnavailable} {
		if errors.Is(e.cause, reason.Err()) {
			return reason
		}
	}
	return guard.ReasonOther
}

// reasonOf returns the reason whose row of the status table err belongs to. It
// never returns success.
func reasonOf(err error) guard.Reason { return cmp.Or(guard.ReasonOf(err), guard.ReasonOther) }

// clock returns the time only if an observer will use the duration.
func (m *Middleware) clock() time.Time {
	if m.opts.Observer == nil {
		return time.Time{}
	}
	return time.Now()
}

// observe completes e and reports it. See [Options.Observer].
func (m *Middleware) observe(r *http.Request, start time.Time, e guard.Event) {
	observer := m.opts.Observer
	if observer == nil {
		observer = guard.LogObserver(slog.Default())
	}
	e.Surface, e.Route = guard.SurfaceHTTP, r.Pattern
	if e.Err != nil {
		e.Reason = reasonOf(e.Err)
	}
	if !start.IsZero() {
		e.Duration = time.Since(start)
	}
	observer.Observe(r.Context(), e)
}

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
			// Then nobody else finds the form.
			_ = form.RemoveAll()
		}
		back := own.WithContext(r.Context())
		back.Body = r.Body
		*r = *back
	}()
	next.ServeHTTP(w, own)
}
