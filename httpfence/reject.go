package httpfence

import (
	"bufio"
	"errors"
	"net"
	"net/http"

	"github.com/fencepost-go/fencepost/guard"
)

// Rejection is what [Options.OnReject] is told about a refused request.
type Rejection struct {
	// Reason says why.
	Reason guard.Reason
	// Status is the status of the default answer, overrides applied.
	Status int
	// Type is the type URI of the default answer, for a hook that renders its
	// own body; [ErrorFrom] recognises an answer by it.
	Type string
	// Claim is what was presented, as far as it could be read before the
	// request was refused; it may be zero or incomplete.
	Claim guard.Claim
	// Err is the error. Its message may name the mark, which is not for
	// clients outside the trust boundary.
	Err error
}

// Reject answers r as [Middleware.Admit] would have for err: with the status
// table, the hook, the overrides and the problem body. It is for handlers that
// call [Middleware.Check] or present the claim to a fenced write themselves.
// An error that no sentinel of package guard describes is answered with 500,
// and so is nil: a refusal is never a success.
func (m *Middleware) Reject(w http.ResponseWriter, r *http.Request, err error) {
	var claim guard.Claim
	var rejected *guard.RejectedError
	var failed *guard.FailedError
	switch {
	case errors.As(err, &rejected):
		claim = rejected.Claim
	case errors.As(err, &failed):
		claim = failed.Claim
	}
	m.reject(w, r, claim, err)
}

func (m *Middleware) reject(w http.ResponseWriter, r *http.Request, claim guard.Claim, err error) {
	reason := reasonOf(err)
	p := m.problem(reason)
	if m.onReject != nil {
		// A hook that only counts must not turn a refusal into the empty 200
		// that net/http sends for a handler that writes nothing.
		t := &tracker{ResponseWriter: w}
		m.onReject(t, r, &Rejection{Reason: reason, Status: p.status, Type: typeURI(reason), Claim: claim, Err: err})
		if t.answered {
			return
		}
	}
	body := p.body
	if m.discloseMark {
		var rejected *guard.RejectedError
		if errors.As(err, &rejected) && rejected.Reason == reason {
			body = p.withMark(rejected)
		}
	}
	h := w.Header()
	if len(h) > 0 {
		for _, name := range otherAnswers {
			delete(h, name)
		}
	}
	// One allocation for both.
	values := [...]string{problemType, "no-store"}
	h["Content-Type"], h["Cache-Control"] = values[0:1:1], values[1:2:2]
	if reason == guard.ReasonUnavailable {
		h.Set("Retry-After", m.retryAfter)
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(body) // the client is gone if this fails; there is nobody to tell
}

// otherAnswers are fields that a handler may have set for the answer that is
// not going to be given, and that would be wrong about this one.
var otherAnswers = [...]string{"Content-Length", "Content-Encoding", "Content-Range", "Etag", "Last-Modified"}

// tracker learns whether a hook has answered. It is used for hooks alone:
// handlers get the server's own ResponseWriter.
type tracker struct {
	http.ResponseWriter
	answered bool
}

func (t *tracker) Write(b []byte) (int, error) {
	t.answered = true
	return t.ResponseWriter.Write(b)
}

func (t *tracker) WriteHeader(status int) {
	// Informational answers come before the final one (RFC 9110, section 15.2).
	t.answered = t.answered || status >= 200 || status == http.StatusSwitchingProtocols
	t.ResponseWriter.WriteHeader(status)
}

// FlushError and Hijack answer too; http.ResponseController finds them here
// before it looks behind Unwrap.

func (t *tracker) FlushError() error {
	t.answered = true
	return http.NewResponseController(t.ResponseWriter).Flush()
}

func (t *tracker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(t.ResponseWriter).Hijack()
	t.answered = t.answered || err == nil
	return c, rw, err
}

func (t *tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }
