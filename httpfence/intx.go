package httpfence

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TxMiddleware is a [Middleware] whose handlers run in fenced transactions. Make
// one with [NewTx]; the zero value is not usable. It is safe for concurrent use.
type TxMiddleware struct {
	*Middleware
	transactor Transactor
}

// InTx runs each request's handler in a transaction of the Transactor that only the current
// holder can commit, and sends the response after COMMIT. A newer holder's raise waits.
//
// A request that is refused never reaches next, as with [Middleware.Admit], and methods in
// [Options.UnguardedMethods] pass without a claim and without a transaction. The body is
// read before BEGIN, up to [Options.MaxBody].
//
// The handler takes its transaction from the Transactor, for example by the TxFrom method
// of sqlfence's DB, and the claim by [guard.ClaimFrom]. It must not end the transaction, and
// must use it only until it returns. It reports a failure by a status of 400 or above, by
// [Rollback], by an error ([TxMiddleware.InTxFunc]) or by a panic. Put loggers, Recoverers
// and [http.TimeoutHandler] around InTx, never inside. The package documentation has more.
//
// What is sent and done:
//   - a status below 400: COMMIT, then the handler's response.
//   - a status of 400 or above: ROLLBACK, then the handler's response; but a newer holder
//     that has ended the transaction turns 500 and above into stale.
//   - Rollback or an error: ROLLBACK; a response below 400 is replaced by the status table's.
//   - a response that does not say whether it succeeded ([ErrResponseBroken]), that is
//     larger than MaxBody ([ErrResponseTooLarge]), or a hijack ([ErrResponseHeld]): ROLLBACK, 500.
//   - a panic: ROLLBACK, and the panic continues.
//   - a COMMIT that fails: 503 if nothing was committed, 500 outcome_unknown if that is
//     unknown; never the handler's response.
//
// InTx panics if next is nil, as http.Handle does.
func (m *TxMiddleware) InTx(next http.Handler) http.Handler {
	if next == nil {
		panic("httpfence: InTx needs a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.guards(r) {
			next.ServeHTTP(w, r)
			return
		}
		m.inTx(&handling{next: next, w: w, r: r, limit: m.opts.MaxBody})
	})
}

// InTxFunc is [TxMiddleware.InTx] around a handler that returns an error to have
// the work rolled back. If its response is below 400, or absent, the error is
// rendered as by [Middleware.Reject]. If it returns nil it need not write a
// response: that is a 200.
func (m *TxMiddleware) InTxFunc(next func(http.ResponseWriter, *http.Request) error) http.Handler {
	if next == nil {
		panic("httpfence: InTxFunc needs a handler")
	}
	return m.InTx(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := next(w, r)
		if buffered, ok := w.(*bufferedResponse); ok && err == nil {
			buffered.Flush()
		}
		if err != nil && !Rollback(r.Context(), err) {
			m.Reject(w, r, err) // an unguarded method
		}
	}))
}

type voteKey struct{}

// Rollback marks the transaction of [TxMiddleware.InTx] that ctx belongs to, so
// that it is rolled back when the handler returns, and reports whether there is one. The
// client never sees a success: a response below 400 is replaced by the one in the status
// table for reason, as far as it speaks of the request's claim ([guard.ReasonFor]), 500
// otherwise. The first call counts; it is safe for concurrent use, but has no effect after
// the handler has returned.
func Rollback(ctx context.Context, reason error) bool {
	h, ok := ctx.Value(voteKey{}).(*handling)
	if !ok {
		return false
	}
	h.vote.CompareAndSwap(nil, &rolledBack{reason})
	return true
}

// rolledBack says that the handler asked for the rollback.
type rolledBack struct{ reason error }

func (e *rolledBack) Error() string {
	return fmt.Sprintf("httpfence: the handler rolled its transaction back: %v", e.reason)
}
func (e *rolledBack) Unwrap() error { return e.reason }

// outcome is how a request has ended. What is sent and what is reported follow from it.
type outcome struct {
	sends  bool         // the handler's own response is sent, else the status table's
	reason guard.Reason // of the event and of the status table's response
	err    error        // of the same; nil if the handler responded for itself
}

// committed is the outcome of a COMMIT.
var committed = outcome{sends: true}

func (m *TxMiddleware) inTx(h *handling) {
	start := m.clock()
	ignoreUpgrade(h.r.Header)
	reason, err := m.presented(h.r, &h.claim)
	if err == nil {
		reason, err = guard.ReasonInvalid, h.readBody()
	}
	out := outcome{reason: reason, err: err}
	if err == nil {
		out = h.in(m.transactor, m.opts.MaxWait)
	}
	event := guard.Event{Op: guard.OpTransaction, Claim: h.claim, Mark: markOf(h.claim, out.err), Reason: out.reason, Err: out.err}
	if h.response != nil {
		h.response.late = func(status int) {
			if status >= 400 {
				event.Reason, event.Err = guard.ReasonOther, fmt.Errorf("%w: it set %d after its transaction had ended", ErrResponseBroken, status)
				m.observe(h.r, start, event)
			}
		}
	}
	m.observe(h.r, start, event)
	if out.sends {
		h.response.release()
	} else {
		m.reject(h.w, h.r, &verdict{m.Middleware, h.claim, out.reason, out.err})
	}
}

// bodyError says that a request's body did not arrive properly. No transaction
// was begun.
type bodyError struct {
	status int
	detail string
	cause  error
}

func (e *bodyError) Error() string {
	return "httpfence: " + e.detail + ": " + e.cause.Error()
}
func (e *bodyError) Unwrap() []error { return []error{guard.ErrInvalid, e.cause} }

var errTooLong = errors.New("its Content-Length exceeds the limit")

// readBody puts the whole body of the request into memory.
func (h *handling) readBody() error {
	r := h.r
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	tooLong := func(limit int64, cause error) error {
		return &bodyError{http.StatusRequestEntityTooLarge, "the body may have " + strconv.FormatInt(limit, 10) + " bytes", cause}
	}
	if r.ContentLength > h.limit {
		return tooLong(h.limit, errTooLong)
	}
	// The buffer grows with what has arrived, not with what was announced.
	body, err := io.ReadAll(http.MaxBytesReader(h.w, r.Body, h.limit))
	var tooLarge *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &tooLarge):
		return tooLong(tooLarge.Limit, err) // the limit of middleware in front may be lower
	case errors.As(err, &timeout) && timeout.Timeout():
		return &bodyError{http.StatusRequestTimeout, "the body did not arrive in time", err}
	case err != nil:
		return &bodyError{http.StatusBadRequest, "the body did not arrive", err}
	}
	h.body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(body), r.Body}
	return nil
}

// handling is one request behind InTx.
type handling struct {
	next     http.Handler
	w        http.ResponseWriter
	r        *http.Request
	claim    guard.Claim
	limit    int64             // of the body and of the response
	body     io.ReadCloser     // the request's, in memory; nil if it has none
	wait     *time.Timer       // until the handler is called
	response *bufferedResponse // nil until the handler is called
	vote     atomic.Pointer[rolledBack]
	asked    *asked // nil until the handler has returned
}

// asked is the outcome that a handler has asked for by what it did, as the error for the
// Transactor if that is not a COMMIT. It has no Unwrap: whatever of package guard is in an
// error of the Transactor is the Transactor's own word.
type asked struct {
	outcome
	text string
}

func (a *asked) Error() string { return a.text }

var (
	errCalledTwice = errors.New("httpfence: the Transactor called the handler twice")
	errWaited      = errors.New("httpfence: the transaction did not begin within Options.MaxWait")
)

// errSilent is for a handler whose silence may be a success or a failure.
var errSilent = fmt.Errorf("%w: it wrote nothing. If its framework renders errors after middleware, as echo and gin do, use the recipe for it in examples/thirdparty/frameworks; else call WriteHeader, or use InTxFunc", ErrResponseBroken)

// in runs the transaction, whose handler must be called within wait.
func (h *handling) in(transactor Transactor, wait time.Duration) outcome {
	ctx, cancel := context.WithCancelCause(h.r.Context())
	defer cancel(nil)
	h.wait = time.AfterFunc(wait, func() { cancel(errWaited) })
	defer h.wait.Stop()
	err := transactor.InTx(ctx, h.claim, h.handle)
	reason := guard.ReasonOf(err) // the Transactor's word: that of the handler is hidden
	var own *asked
	switch {
	case err == nil && h.asked != nil && h.asked.outcome == committed:
		return committed
	case err == nil: // it hides an error or a panic
		return outcome{reason: guard.ReasonOutcomeUnknown, err: fmt.Errorf("httpfence: the Transactor reports a COMMIT that the handler did not ask for: %w", guard.ErrOutcomeUnknown)}
	case h.response == nil && context.Cause(ctx) == errWaited && reason.Outcome() == guard.Failed:
		// Whatever the outcome of the raise, the handler has written nothing.
		return outcome{reason: guard.ReasonUnavailable, err: guard.Unavailable("begin of a fenced transaction", h.claim, fmt.Errorf("%w: %v", errWaited, err))}
	case h.response == nil && errors.Is(err, guard.ErrInvalid):
		// The claim is well formed: a second InTx around the first, or another
		// mistake of the server, and not of the client.
		return outcome{reason: guard.ReasonOther, err: fmt.Errorf("httpfence: the Transactor refused a well-formed claim: %v", err)}
	case errors.As(err, &own):
		refused := errors.As(err, new(*guard.RejectedError)) // a newer holder ended the transaction
		if !refused || own.sends && h.response.status < 500 {
			return own.outcome
		}
	}
	return outcome{reason: reason, err: err}
}

// handle is what the Transactor calls.
func (h *handling) handle(ctx context.Context) error {
	if h.response != nil {
		h.asked = &asked{outcome{reason: guard.ReasonOther, err: errCalledTwice}, errCalledTwice.Error()}
		return h.asked
	}
	if !h.wait.Stop() {
		return errWaited
	}
	h.response = newBuffered(h.w, h.r, h.limit)
	serve(h.next, h.response, h.r, context.WithValue(guard.WithClaim(ctx, h.claim), voteKey{}, h), h.body)
	vote := h.vote.Load()
	if h.response.status == 0 && vote == nil {
		h.response.fail(errSilent)
	}
	h.response.end()
	switch broken := h.response.err; {
	case broken != nil:
		h.asked = &asked{outcome{reason: guard.ReasonOther, err: broken}, broken.Error()}
	case h.response.status >= 400:
		h.asked = &asked{outcome{sends: true, reason: guard.ReasonOther}, fmt.Sprintf("httpfence: the handler responded with %d, its transaction was rolled back", h.response.status)}
		if vote != nil {
			h.asked.text += ": " + vote.Error()
		}
	case vote != nil:
		h.asked = &asked{outcome{reason: cmp.Or(guard.ReasonFor(h.claim, vote.reason), guard.ReasonOther), err: vote}, vote.Error()}
	default:
		h.asked = &asked{outcome: committed}
		return nil
	}
	return h.asked
}

// ignoreUpgrade removes a request to upgrade the connection from header, in
// place, so that middleware in front does not find it either. A server may ignore
// it (RFC 9110, section 7.8), and a buffered response must; chi's Recoverer sets no
// status for such a request, as if it were upgraded, and a client could have a
// panic pass as a success. What else Connection names stays: a reverse proxy removes it.
func ignoreUpgrade(header http.Header) {
	others := slices.DeleteFunc(strings.Split(strings.Join(header["Connection"], ","), ","), func(field string) bool {
		return field == "" || strings.EqualFold(strings.TrimSpace(field), "Upgrade")
	})
	if delete(header, "Connection"); len(others) > 0 {
		header["Connection"] = []string{strings.Join(others, ",")}
	}
}
