package httpfence

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
)

// DefaultMaxResponse is how many bytes of an answer's body [Middleware.InTx]
// holds back, unless [TxOptions.MaxResponse] says otherwise.
const DefaultMaxResponse = 1 << 20

// TxOptions configures [Middleware.InTx]. The zero value is the default.
type TxOptions struct {
	// MaxResponse is how many bytes of body an answer may have; a larger one
	// rolls the work back. Each request in flight may hold that many in
	// memory. 0 means [DefaultMaxResponse]; it must not be negative.
	MaxResponse int
}

// InTx lets no write of a stale holder take effect, as long as the handler
// writes through the transaction in its context. Each request's handler runs
// in a transaction that is fenced by the request's claim; the transaction is
// committed when the handler has returned, and only then is its answer sent. A
// newer holder's raise waits for it, or it is refused.
//
// The handler finds its transaction by the Transactor's means, such as the
// TxFrom method of sqlfence's DB, and the claim by [guard.ClaimFrom]. It must
// not end the transaction, and must use it only until it returns.
//
// The transaction is rolled back
//
//   - if the handler panics; the panic goes on,
//   - if its answer has a status of 400 or above; that answer is sent,
//   - if its answer is larger than [TxOptions.MaxResponse], or it flushed or
//     hijacked ([ErrResponseTooLarge], [ErrResponseHeld]): 500, and nothing of
//     the handler's answer,
//   - if the request's context has ended, by the Transactor.
//
// If the COMMIT fails the answer is the one of the status table: 503 if
// nothing was committed, 500 outcome_unknown if that could not be learned;
// never the handler's. Header fields that the handler set go with its answer.
//
// The mark is the Transactor's; the store given to [New] is not asked. Both
// must be one, or the resource has two marks: give sqlfence's DB to New and
// its Transactor to InTx. Requests with [Options.UnguardedMethods] pass
// without a claim and without a transaction.
//
// With [Options.InsecureReportOnly] a request that would have been refused is
// handled in a transaction without a fence and without a claim, and reported;
// t must then be an [UnfencedTransactor]. Whether the work is committed
// depends on the handler's answer and on COMMIT all the same.
//
// A client that sends its body slowly keeps the transaction open, and a newer
// holder waiting: set http.Server.ReadTimeout. Put [http.TimeoutHandler]
// around InTx, never inside: see the package documentation.
//
// InTx panics if t is nil or the configuration is bad. opts may be nil.
func (m *Middleware) InTx(t Transactor, opts *TxOptions) func(http.Handler) http.Handler {
	if t == nil {
		panic("httpfence: InTx needs a Transactor")
	}
	limit := DefaultMaxResponse
	if opts != nil && opts.MaxResponse != 0 {
		limit = opts.MaxResponse
	}
	if limit < 0 {
		panic(fmt.Sprintf("httpfence: TxOptions.MaxResponse is %d, must not be negative", limit))
	}
	unfenced, ok := t.(UnfencedTransactor)
	if m.reportOnly && !ok {
		panic("httpfence: InTx with Options.InsecureReportOnly needs an UnfencedTransactor")
	}
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic("httpfence: InTx needs a handler")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if slices.Contains(m.unguarded, r.Method) {
				next.ServeHTTP(w, r)
				return
			}
			m.inTx(t, unfenced, limit, next, w, r)
		})
	}
}

func (m *Middleware) inTx(t Transactor, unfenced UnfencedTransactor, limit int, next http.Handler, w http.ResponseWriter, r *http.Request) {
	start := m.clock()
	var claim guard.Claim
	err := m.presented(r, &claim)
	run := &handling{next: next, w: w, r: r, limit: limit}
	if err == nil {
		err = run.outcome(t.InTx(r.Context(), claim, run.handle))
	}
	if err != nil || m.observer != nil {
		m.report(r, guard.OpTransaction, start, claim, markOf(claim, err), err, m.reportOnly && !run.called)
	}
	if err != nil && m.reportOnly && !run.called {
		err = run.outcome(unfenced.InsecureTx(r.Context(), run.handle))
	}
	switch {
	case err == nil, run.answered != nil && errors.Is(err, run.answered):
		run.answer.release()
	default:
		m.reject(w, r, claim, err)
	}
}

// handling is one call of a handler inside a transaction.
type handling struct {
	next     http.Handler
	w        http.ResponseWriter
	r        *http.Request
	limit    int
	called   bool
	finished bool           // the handler has returned and asked for a COMMIT
	answered *answeredError // the handler has returned and asked for a ROLLBACK
	answer   *heldAnswer
}

var errCalledTwice = errors.New("httpfence: the Transactor called the handler twice")

func (h *handling) handle(ctx context.Context) error {
	if h.called {
		h.finished = false
		return errCalledTwice
	}
	h.called = true
	h.answer = newHeld(h.w, h.limit)
	h.next.ServeHTTP(h.answer, h.r.WithContext(ctx))
	switch {
	case h.answer.err != nil:
		return h.answer.err
	case h.answer.status >= 400:
		h.answered = &answeredError{h.answer.status}
		return h.answered
	}
	h.finished = true
	return nil
}

// outcome corrects what a Transactor returned. Its success counts only for
// a handler that asked for it: one that hides an error or a panic would
// otherwise have a 200 sent. And a claim that was presented well is not
// malformed, so what the Transactor calls invalid, such as a second InTx
// around the first, is the server's mistake and not the client's.
func (h *handling) outcome(err error) error {
	switch {
	case err == nil && !h.finished:
		return fmt.Errorf("httpfence: the Transactor reports a COMMIT that the handler did not ask for: %w", guard.ErrOutcomeUnknown)
	case !h.called && errors.Is(err, guard.ErrInvalid):
		return fmt.Errorf("httpfence: the Transactor refused a well-formed claim: %v", err)
	}
	return err
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
