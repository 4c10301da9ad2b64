package httpfence

import (
	"bytes"
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

// InTx lets no write of a stale holder take effect, provided that the handler
// writes through the transaction in its context. Each request's handler runs in
// a transaction of the Transactor that is fenced by the request's claim;
// the transaction is committed when the handler has returned, and only then is
// its response sent. A newer holder's raise waits for it, or it is refused.
//
// The handler gets its transaction from the Transactor, for example by the
// TxFrom method of sqlfence's DB, and the claim by [guard.ClaimFrom]. It must
// not end the transaction, and must use it only until it returns.
//
// The request's body is read before BEGIN, up to [Options.MaxBody]: only
// a complete request takes a connection. Waiting for one, or for a lock, ends
// after [Options.MaxWait] with 503.
//
// The transaction is rolled back
//
//   - if the handler panics; the panic continues, including
//     [http.ErrAbortHandler],
//   - if its response has a status of 400 or above; that response is sent, unless it
//     is 500 or above and a newer holder has ended the transaction: then stale,
//   - if it has called [Rollback], or returned an error to
//     [TxMiddleware.InTxFunc]; a response below 400 is replaced by the one of the
//     status table for that error,
//   - if it wrote nothing, not even a status ([ErrResponseBroken]): 500. echo,
//     gin and others render a handler's error after their middleware, and net/http
//     would send 200 for that; see the package documentation,
//   - if its response is one of gRPC or of a stream of Connect, whose status is not that
//     of HTTP ([ErrResponseBroken]): 500. Put an interceptor of package grpcfence in
//     front of the method, and begin the fenced transaction inside,
//   - if it sets a status of 400 or above after its response has begun, as
//     a Recoverer does for a panic after the first byte, or if its
//     Content-Length does not match ([ErrResponseBroken]), if its response is
//     larger than [Options.MaxBody] ([ErrResponseTooLarge]), or if it
//     hijacked ([ErrResponseHeld]): 500, and nothing of the handler's response,
//   - if the request's context has ended, by the Transactor.
//
// A panic that something inside InTx has silently recovered leaves no trace:
// such middleware must call [Rollback] or set a status. Nor does a late status
// that middleware inside InTx keeps to itself: chi's Logger, and whatever else
// wraps the ResponseWriter to record the status, drops all but the first. Put
// loggers, metrics and Recoverers around InTx, where they see the final response.
// "Connection: Upgrade" is removed from the request, as it cannot be granted.
//
// If the COMMIT fails the response is the one of the status table: 503 if
// nothing was committed, 500 outcome_unknown if that is unknown; never the
// handler's. Header fields that the handler set are discarded with its
// response. Flush does nothing, however it is called: the response is still
// held back.
//
// Requests with [Options.UnguardedMethods] pass without a claim and without
// a transaction.
//
// A status of 400 or above that something sets after InTx has sent a response is
// reported to the observer as [ErrResponseBroken]: its work may be committed.
//
// A raise of the mark stays if the handler then responds with 404: let middleware
// in front, or the ResourceFunc, check what exists. Put [http.TimeoutHandler]
// around InTx, never inside: see the package documentation.
//
// InTx panics if next is nil, as http.Handle does.
func (m *TxMiddleware) InTx(next http.Handler) http.Handler {
	if next == nil {
		panic("httpfence: InTx needs a handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(m.opts.UnguardedMethods, r.Method) {
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
		if held, ok := w.(*heldResponse); ok && err == nil {
			held.Flush()
		}
		if err != nil && !Rollback(r.Context(), err) {
			m.Reject(w, r, err) // an unguarded method
		}
	}))
}

type voteKey struct{}

// Rollback marks the transaction of [TxMiddleware.InTx] that ctx belongs to, so
// that it is rolled back when the handler returns, whatever it responds, and
// reports whether there is one. The client never sees a success: a response
// below 400 is replaced by the one in the status table for reason, 500 for an
// error that is not one of package guard's. The first call counts; it is safe
// for concurrent use, but has no effect after the handler has returned.
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

func (m *TxMiddleware) inTx(run *handling) {
	start := m.clock()
	r := run.r
	ignoreUpgrade(r.Header)
	var claim guard.Claim
	err := m.presented(r, &claim)
	if err == nil {
		err = run.readBody()
	}
	if err == nil {
		err = run.in(m.opts.MaxWait, claim, func(ctx context.Context) error {
			return m.transactor.InTx(ctx, claim, run.handle)
		})
	}
	event := guard.Event{Op: guard.OpTransaction, Claim: claim, Mark: markOf(claim, err), Err: err}
	if run.response != nil {
		run.response.late = func(status int) {
			if status >= 400 {
				event.Err = fmt.Errorf("%w: it set %d after its transaction had ended", ErrResponseBroken, status)
				m.observe(r, start, event)
			}
		}
	}
	own := run.sends(err)
	if own { // the handler's own error response is not a refusal by a fence
		event.Err, event.Reason = nil, guard.ReasonOther
	}
	if m.opts.Observer != nil || event.Err != nil {
		m.observe(r, start, event)
	}
	if err == nil || own {
		run.response.release()
	} else {
		m.reject(run.w, r, claim, err)
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

// handling is one call to a handler inside a transaction.
type handling struct {
	next      http.Handler
	w         http.ResponseWriter
	r         *http.Request
	limit     int64           // of the body and of the response
	body      io.ReadCloser   // the request's, in memory; nil if it has none
	wait      *time.Timer     // until the handler is called
	called    bool            // the handler
	finished  bool            // the handler has returned and asked for a COMMIT
	responded *respondedError // the handler has returned and asked for a ROLLBACK
	vote      atomic.Pointer[rolledBack]
	response  *heldResponse
}

var (
	errCalledTwice = errors.New("httpfence: the Transactor called the handler twice")
	errWaited      = errors.New("httpfence: the transaction did not begin within Options.MaxWait")
)

// errSilent is for a handler whose silence may be a success or a failure.
var errSilent = fmt.Errorf("%w: it wrote nothing. If its framework renders errors after middleware, as echo and gin do, use the recipe for it in examples/thirdparty/frameworks; else call WriteHeader, or use InTxFunc", ErrResponseBroken)

// in runs a transaction whose handler must be called within wait.
func (h *handling) in(wait time.Duration, claim guard.Claim, tx func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(h.r.Context())
	defer cancel(nil)
	h.wait = time.AfterFunc(wait, func() { cancel(errWaited) })
	defer h.wait.Stop()
	err := h.outcome(tx(ctx))
	if err != nil && !h.called && context.Cause(ctx) == errWaited {
		switch reasonOf(err) {
		case guard.ReasonOther, guard.ReasonUnavailable, guard.ReasonSetup, guard.ReasonOutcomeUnknown:
			// Whatever the outcome of the raise, the handler has written
			// nothing.
			return guard.Unavailable("begin of a fenced transaction", claim, fmt.Errorf("%w: %v", errWaited, err))
		}
	}
	return err
}

func (h *handling) handle(ctx context.Context) error {
	if h.called {
		h.finished = false
		return errCalledTwice
	}
	if !h.wait.Stop() {
		return errWaited
	}
	h.called = true
	h.response = newHeld(h.w, h.r, h.limit)
	serve(h.next, h.response, h.r, context.WithValue(ctx, voteKey{}, h), h.body)
	vote := h.vote.Load()
	if h.response.status == 0 && vote == nil {
		h.response.fail(errSilent)
	}
	h.response.end()
	switch {
	case h.response.err != nil:
		return h.response.err
	case h.response.status >= 400:
		h.responded = &respondedError{h.response.status, vote}
		return h.responded
	case vote != nil:
		return vote
	}
	h.finished = true
	return nil
}

// ignoreUpgrade removes a request to upgrade the connection from header, in
// place, so that middleware in front does not find it either. A server may ignore
// it (RFC 9110, section 7.8), and a held response must; chi's Recoverer sets no
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

// outcome corrects what a Transactor returned. Its success counts only if the
// handler asked for a COMMIT: otherwise a Transactor that hides an error or a
// panic would have a 200 sent. And a claim that was already validated is not
// malformed, so what the Transactor calls invalid, such as a second InTx around
// the first, is the server's mistake and not the client's.
func (h *handling) outcome(err error) error {
	switch {
	case err == nil && !h.finished:
		return fmt.Errorf("httpfence: the Transactor reports a COMMIT that the handler did not ask for: %w", guard.ErrOutcomeUnknown)
	case !h.called && errors.Is(err, guard.ErrInvalid):
		return fmt.Errorf("httpfence: the Transactor refused a well-formed claim: %v", err)
	}
	return err
}

// sends reports whether the client gets the handler's own response despite err. It
// does not if the Transactor refused the claim after all, because a newer holder ended
// the transaction: then a status of 500 or above is only the consequence, and the
// client must see the cause.
func (h *handling) sends(err error) bool {
	if h.responded == nil || !errors.Is(err, h.responded) {
		return false
	}
	return h.responded.status < 500 || !errors.As(err, new(*guard.RejectedError))
}

// respondedError says that the handler itself responded with an error, so that
// its work was rolled back. It is not a refusal by a fence.
type respondedError struct {
	status int
	vote   *rolledBack // nil if there was none
}

func (e *respondedError) Error() string {
	why := ""
	if e.vote != nil {
		why = ": " + e.vote.Error()
	}
	return fmt.Sprintf("httpfence: the handler responded with %d and an error, its transaction was rolled back%s", e.status, why)
}

// markOf returns the mark that a claim was compared with, as far as it is known.
func markOf(claim guard.Claim, err error) guard.Mark {
	var rejected *guard.RejectedError
	switch {
	case err == nil:
		return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}
	case errors.As(err, &rejected):
		return rejected.Mark
	}
	return guard.Mark{}
}
