package httpfence

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Rejection describes a refused request to [Options.OnReject].
type Rejection struct {
	// Reason is why the request was refused.
	Reason guard.Reason
	// Status is the status of the default response.
	Status int
	// Type is the type URI of the default response, for a hook that renders its
	// own body; [ErrorFrom] recognises a refusal by it.
	Type string
	// Claim is what was presented, as far as it could be read before the
	// request was refused; it may be zero or incomplete.
	Claim guard.Claim
	// Err is the error. Its message may name the mark, which must not reach
	// clients outside the trust boundary.
	Err error
}

// Reject responds to r as [Middleware.Admit] would have for err: with the status
// table, the hook, the problem body and an event for the observer. It is for
// handlers that call [Middleware.Check] or present the claim to a fenced write
// themselves. An error that matches no sentinel of package guard gets 500, and
// so does nil: a refusal is never a success.
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
	if err == nil {
		err = errNoError
	}
	m.observe(r, time.Time{}, guard.Event{Op: guard.OpReject, Claim: claim, Mark: markOf(claim, err), Err: err})
	m.reject(w, r, claim, err)
}

var errNoError = errors.New("httpfence: Reject was called without an error")

func (m *Middleware) reject(w http.ResponseWriter, r *http.Request, claim guard.Claim, err error) {
	reason := reasonOf(err)
	p := outcomeOf(reason).problem(err, m.opts.DiscloseMark)
	if m.opts.OnReject != nil {
		// A hook that only counts must not turn a refusal into the empty 200
		// that net/http sends for a handler that writes nothing.
		hook := newHeld(w, r, m.opts.MaxBody)
		m.opts.OnReject(hook, r, &Rejection{Reason: reason, Status: p.Status, Type: p.Type, Claim: claim, Err: err})
		if hook.status != 0 && hook.err == nil {
			hook.release()
			return
		}
		clear(w.Header())
		maps.Copy(w.Header(), hook.Header())
	}
	h := w.Header()
	for _, name := range otherResponses {
		h.Del(name)
	}
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", "no-store")
	h.Set(ReasonHeader, string(reason))
	if reason == guard.ReasonUnavailable && h.Get("Retry-After") == "" { // else the hook has set it
		h.Set("Retry-After", retryAfter)
	}
	w.WriteHeader(p.Status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // if this fails the client is gone, so the error is dropped
}

// otherResponses are fields that a handler may have set for the response that will
// not be sent, and that would be wrong for this one.
var otherResponses = [...]string{"Content-Length", "Content-Encoding", "Content-Range", "Etag", "Last-Modified"}

// problemType is the media type of RFC 9457.
const problemType = "application/problem+json"

// problemBody is a problem details object (RFC 9457, section 3.1). Those from
// token on are extension members (section 3.2).
type problemBody struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail"`
	Token   string `json:"token,omitempty"`
	Mark    string `json:"mark,omitempty"`
	Floor   bool   `json:"floor,omitempty"`
	Claimed string `json:"claimed,omitempty"`
	Guarded string `json:"guarded,omitempty"`
}

// problem returns the response for an outcome with the facts of err that the
// client may know: the mark only if disclose is set. For a misdirected claim it
// includes both names: one is what the client sent, the other is what its own
// path means. It has nothing else of the request.
func (o *outcome) problem(err error, disclose bool) problemBody {
	p := problemBody{Type: typeURI(o.reason), Title: o.title, Status: o.status, Detail: o.detail}
	var body *bodyError
	var rejected *guard.RejectedError
	var misdirected *guard.MisdirectedError
	switch {
	case errors.As(err, &body):
		p.Title, p.Status, p.Detail = http.StatusText(body.status), body.status, "Nothing was changed: "+body.detail+"."
	case disclose && errors.As(err, &rejected) && rejected.Reason == o.reason && rejected.Mark.Token != guard.NoToken:
		p.Token, p.Mark, p.Floor = rejected.Claim.Token.String(), rejected.Mark.Token.String(), rejected.Mark.Floor
	case o.reason == guard.ReasonMisdirected && errors.As(err, &misdirected):
		p.Claimed, p.Guarded = misdirected.Claimed, misdirected.Guarded
	}
	return p
}
