package httpfence

import (
	"context"
	"errors"
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

// Check compares the claim of r with the resource's mark, by [guard.SameOrNewer], and
// writes nothing: neither a response nor the mark.
//
// If the claim is refused, Check returns the zero claim and an error that
// [Middleware.Reject] turns into the response of Admit. Check ignores the method.
//
// The result may be out of date as soon as it is returned, because nothing was raised:
// present the claim to a fenced write.
//
// Errors:
//   - [guard.ErrMissing], [guard.ErrInvalid]: an *guard.InvalidError whose Field is the
//     header's name or "resource".
//   - [guard.ErrMisdirected]: the claim is for another resource.
//   - [guard.ErrStale], [guard.ErrConflict]: an *guard.RejectedError with the mark.
//   - [guard.ErrUnavailable]: the store could not be queried.
//   - what [Options.Verify] or the ResourceFunc returned; of package guard's sentinels
//     it matches only the one of its row in the status table.
//
// A check that succeeds on a [guard.Memory] allocates nothing itself.
func (m *Middleware) Check(r *http.Request) (guard.Claim, error) {
	claim, refused := m.compare(r, guard.OpCheck, false)
	return claim, refused.orNil()
}

// Admit admits the claim of each request to the store, which raises the resource's
// mark, and then calls next. It does not by itself stop a write already in flight: a
// request that is being handled when a newer holder arrives is not revoked.
//
// A request that is refused never reaches next; the package documentation has the
// responses. Methods in [Options.UnguardedMethods] pass unexamined and without a claim.
//
// next takes the claim from the request's context ([guard.ClaimFrom]) and presents it to
// a fenced write. The ResponseWriter is passed on unchanged. What next leaves on its
// request, such as a parsed form or the route's pattern, is on r afterwards.
//
// Put it behind authentication and whatever checks that the resource and the method
// exist, or a request that gets 404 or 405 raises a mark, and behind middleware that
// rewrites the method or the path.
//
// It panics if next is nil, as http.Handle does.
func (m *Middleware) Admit(next http.Handler) http.Handler {
	if next == nil {
		panic("httpfence: Admit needs a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.guards(r) {
			next.ServeHTTP(w, r)
			return
		}
		claim, refused := m.compare(r, guard.OpAdmit, false)
		if refused != nil {
			m.reject(w, r, refused)
			return
		}
		serve(next, w, r, guard.WithClaim(r.Context(), claim), nil)
	})
}

// AdmitRequest is [Middleware.Admit] for transports that are not handlers: it
// admits r's claim, reports it to the observer, and returns the claim or the
// error, which is as of [Middleware.Check]. It writes no response, and ignores the
// method. Package grpcfence is built on it.
func (m *Middleware) AdmitRequest(r *http.Request) (guard.Claim, error) {
	claim, refused := m.compare(r, guard.OpAdmit, false)
	return claim, refused.orNil()
}

// Raise makes the request's claim the resource's mark and calls no handler. After its
// 204 an older holder can no longer change what is read (promise P2), if the store waits
// for older writes as sqlfence's DB does. A new holder calls it before it reads:
//
//	router.Post("/accounts/{id}/raise", fence.Raise)
//
// A refusal is rendered as by [Middleware.Admit]. Methods other than POST get 405. To
// repeat a raise is safe. [RaiseAt] is the client's half.
//
// It stops only writes that are compared with the mark it raises: those of
// [TxMiddleware.InTx] and of sqlfence's InTx on the same database. A fenced single
// statement compares with the mark of the row: raise that. A store that does not know of
// the writes, such as [guard.Memory], stops only requests that are not yet admitted.
func (m *Middleware) Raise(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if _, refused := m.compare(r, guard.OpRaise, false); refused != nil {
		m.reject(w, r, refused)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// guards reports whether the method of r is guarded.
func (m *Middleware) guards(r *http.Request) bool {
	return !slices.Contains(m.opts.UnguardedMethods, r.Method)
}

// verdict is why a fence refuses a request, as an error. Of other errors it does not
// know whether they speak of the request's claim.
type verdict struct {
	by     *Middleware
	claim  guard.Claim // as far as it could be read
	reason guard.Reason
	error
}

func (v *verdict) Unwrap() error { return v.error }

// orNil returns v as an error.
func (v *verdict) orNil() error {
	if v == nil {
		return nil
	}
	return v
}

// compare compares the claim of r with the mark of its resource, in the way of op, and
// reports it. reportOnly says that a refused request proceeds.
func (m *Middleware) compare(r *http.Request, op guard.Op, reportOnly bool) (claim guard.Claim, refused *verdict) {
	start := m.clock()
	var mark guard.Mark
	reason, err := m.presented(r, &claim)
	if err == nil {
		mark, err = m.ask(r.Context(), op, &claim)
		reason = guard.ReasonOf(err)
	}
	if err != nil || m.opts.Observer != nil {
		m.observe(r, start, guard.Event{Op: op, Claim: claim, Mark: mark, Reason: reason, Err: err, ReportOnly: reportOnly && err != nil})
	}
	if err != nil {
		return guard.Claim{}, &verdict{m, claim, reason, err}
	}
	return claim, nil
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

// hookError is what a [ResourceFunc] or [Options.Verify] returned. If it means something
// else for this request's claim, as a look-up does that another fence refused as stale, only
// the text has it.
type hookError struct {
	hook   string
	cause  error
	reason guard.Reason
}

func (e *hookError) Error() string { return "httpfence: " + e.hook + ": " + e.cause.Error() }

func (e *hookError) Unwrap() error {
	if guard.ReasonOf(e.cause) != e.reason {
		return e.reason.Err()
	}
	return e.cause
}

// byResource returns the reason of a ResourceFunc's error. Nothing was compared yet, so
// it cannot be one of comparison.
func byResource(err error) guard.Reason {
	if errors.As(err, new(*guard.ElsewhereError)) && !errors.Is(err, guard.ErrUnavailable) {
		return guard.ReasonOther
	}
	for _, reason := range []guard.Reason{guard.ReasonInvalid, guard.ReasonNotFound, guard.ReasonSetup, guard.ReasonUnavailable} {
		if errors.Is(err, reason.Err()) {
			return reason
		}
	}
	return guard.ReasonOther
}

// byVerify returns the reason of an error of [Options.Verify], as far as it speaks of
// claim. Nothing was written yet, so whatever was unavailable, the request may be repeated.
func byVerify(claim guard.Claim, err error) guard.Reason {
	var misdirected *guard.MisdirectedError
	switch reason := guard.ReasonOf(err); {
	case reason == guard.ReasonUnavailable:
		return reason
	case errors.As(err, new(*guard.ElsewhereError)):
		return guard.ReasonOther
	case reason == guard.ReasonMissing, reason == guard.ReasonNotFound, reason == guard.ReasonSetup,
		errors.As(err, &misdirected) && misdirected.Guarded == claim.Resource:
		return reason
	}
	return guard.ReasonFor(claim, err)
}

// clock returns the time only if an observer will use the duration.
func (m *Middleware) clock() time.Time {
	if m.opts.Observer == nil {
		return time.Time{}
	}
	return time.Now()
}

// observe completes e, logs it and reports it.
func (m *Middleware) observe(r *http.Request, start time.Time, e guard.Event) {
	e.Surface, e.Route = guard.SurfaceHTTP, r.Pattern
	if !start.IsZero() {
		e.Duration = time.Since(start)
	}
	if e.Err != nil {
		guard.LogObserver(m.logger()).Observe(r.Context(), e)
	}
	if m.opts.Observer != nil {
		m.opts.Observer.Observe(r.Context(), e)
	}
}

func (m *Middleware) logger() *slog.Logger {
	if m.opts.Logger == nil {
		return slog.Default()
	}
	return m.opts.Logger
}
