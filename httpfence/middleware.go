package httpfence

import (
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
	store        guard.Store
	resource     ResourceFunc
	tokenHeader  string
	leaseHeader  string
	requireLease bool
	unguarded    []string
	reportOnly   bool
	discloseMark bool
	onReject     func(http.ResponseWriter, *http.Request, *Rejection)
	observer     guard.Observer
	logger       *slog.Logger
	retryAfter   string // seconds
	problems     problems
}

// Check compares the claim of r with the resource's mark and writes nothing:
// neither an answer nor the mark. It returns the claim if a store would admit
// it now, by [guard.SameOrNewer], else the zero claim and the error, which
// [Middleware.Reject] turns into the answer that Admit would have given.
//
// It looks at the method as little as at InsecureReportOnly: whoever calls it
// has decided to ask. The answer may be old as soon as it is given, because
// nothing was raised: present the claim to a fenced write.
//
// Errors: [guard.ErrMissing] and [guard.ErrInvalid] as an *guard.InvalidError
// whose Field is the header's name or "resource", [guard.ErrStale] and
// [guard.ErrConflict] as a *guard.RejectedError, [guard.ErrUnavailable], and
// what the ResourceFunc returned. The header is read before the resource is
// asked for. A check that succeeds allocates nothing of its own.
func (m *Middleware) Check(r *http.Request) (claim guard.Claim, err error) {
	start := m.clock()
	var mark guard.Mark
	if err = m.presented(r, &claim); err == nil {
		if mark, err = m.store.Mark(r.Context(), claim.Resource); err == nil {
			err = guard.Decide(guard.SameOrNewer, mark, claim)
		}
	}
	if err != nil || m.observer != nil {
		m.report(r, guard.OpCheck, start, claim, mark, err, false)
	}
	if err != nil {
		return guard.Claim{}, err
	}
	return claim, nil
}

// Admit does not by itself stop a write already in flight; pair it with a
// fenced write. It admits the claim of each request to the store at the door,
// which raises the resource's mark, and calls next with the claim in the
// request's context ([guard.ClaimFrom]), for the fenced write to present.
// A request that was admitted and is still being handled when a newer holder
// arrives is not called back.
//
// A request that is refused never reaches next; see the package documentation
// for the answers. Methods in [Options.UnguardedMethods] pass unexamined and
// without a claim. The ResponseWriter is handed on as it is, so Flusher,
// Hijacker and http.ResponseController work.
//
// Put it behind routing, so that the resource function can see the route
// (chi: With, Route or Group with a pattern, not Use on the root), and behind
// whatever rewrites the method or the path. It panics if next is nil.
func (m *Middleware) Admit(next http.Handler) http.Handler {
	if next == nil {
		panic("httpfence: Admit needs a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(m.unguarded, r.Method) {
			next.ServeHTTP(w, r)
			return
		}
		claim, err := m.admit(r, guard.OpAdmit)
		switch {
		case err == nil:
			next.ServeHTTP(w, r.WithContext(guard.WithClaim(r.Context(), claim)))
		case m.reportOnly:
			next.ServeHTTP(w, r)
		default:
			m.reject(w, r, claim, err)
		}
	})
}

// admit returns the claim as far as it is known, also with an error.
func (m *Middleware) admit(r *http.Request, op guard.Op) (claim guard.Claim, err error) {
	start := m.clock()
	var mark guard.Mark
	if err = m.presented(r, &claim); err == nil {
		mark, err = m.store.Admit(r.Context(), claim)
	}
	if err != nil || m.observer != nil {
		m.report(r, op, start, claim, mark, err, m.reportOnly && op == guard.OpAdmit)
	}
	return claim, err
}

// resourceError marks what a [ResourceFunc] returned, because only some
// sentinels keep their meaning there: a lookup that failed as "stale" by a
// fence of its own says nothing about this request's claim.
type resourceError struct{ cause error }

func (e *resourceError) Error() string {
	return "httpfence: resource of the request: " + e.cause.Error()
}
func (e *resourceError) Unwrap() error { return e.cause }

func (e *resourceError) reason() guard.Reason {
	switch {
	case errors.Is(e.cause, guard.ErrInvalid):
		return guard.ReasonInvalid
	case errors.Is(e.cause, guard.ErrNotFound):
		return guard.ReasonNotFound
	case errors.Is(e.cause, guard.ErrUnavailable):
		return guard.ReasonUnavailable
	}
	return guard.ReasonOther
}

// reasonOf says which row of the status table err belongs to. Never success.
func reasonOf(err error) guard.Reason {
	// Guards return these two types as they are, and nearly always alone:
	// searching them for every sentinel would make a refusal cost more than
	// the work.
	switch e := err.(type) {
	case nil:
		return guard.ReasonOther
	case *guard.RejectedError:
		if e.Cause == nil {
			return outcomeOf(e.Reason).reason
		}
	case *guard.InvalidError:
		if e.Missing {
			return guard.ReasonMissing
		}
		return guard.ReasonInvalid
	}
	var re *resourceError
	if errors.As(err, &re) {
		return re.reason()
	}
	return guard.ReasonOf(err)
}

// clock returns the time only if somebody will be told how long it took.
func (m *Middleware) clock() time.Time {
	if m.observer == nil {
		return time.Time{}
	}
	return time.Now()
}

// report tells the observer what happened, and the logger what was refused;
// passed says that the request goes on although it was.
func (m *Middleware) report(r *http.Request, op guard.Op, start time.Time, claim guard.Claim, mark guard.Mark, err error, passed bool) {
	reason := guard.ReasonNone
	if err != nil {
		reason = reasonOf(err)
	}
	if m.observer != nil {
		m.observer.Observe(r.Context(), guard.Event{
			Op: op, Surface: "http", Claim: claim, Mark: mark,
			Reason: reason, Duration: time.Since(start), Err: err,
		})
	}
	if err != nil && m.logger != nil {
		m.log(r, op, claim, mark, reason, err, passed)
	}
}

func (m *Middleware) log(r *http.Request, op guard.Op, claim guard.Claim, mark guard.Mark, reason guard.Reason, err error, passed bool) {
	if answered := (*answeredError)(nil); errors.As(err, &answered) {
		return // the handler's own business
	}
	level := slog.LevelWarn
	if reason == guard.ReasonConflict || reason == guard.ReasonMarkAhead {
		level = slog.LevelError
	}
	m.logger.LogAttrs(r.Context(), level, "fencing_rejected",
		slog.String("op", string(op)),
		slog.String("reason", string(reason)),
		slog.Bool("reportOnly", passed),
		slog.String("resource", claim.Resource),
		slog.String("fencingToken", claim.Token.String()),
		slog.String("leaseId", claim.LeaseID),
		slog.String("mark", mark.Token.String()),
		slog.String("method", r.Method),
		// The route, not the path: bounded in number and in length.
		slog.String("pattern", r.Pattern),
		slog.String("error", err.Error()))
}
