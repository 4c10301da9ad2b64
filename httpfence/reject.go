package httpfence

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
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

// Reject responds to r for err, as [Middleware.Admit] would have, and reports it. It is
// for handlers that call [Middleware.Check] or present the claim to a fenced write.
//
// err counts as far as it speaks of the request's claim ([guard.ReasonFor]): what another
// service said is 500, because r's sender must not stop, or repeat, for it. So is an error
// that matches no sentinel of package guard, and nil: a refusal is never a success.
func (m *Middleware) Reject(w http.ResponseWriter, r *http.Request, err error) {
	v := &verdict{by: m, error: err}
	if err == nil {
		v.error, v.reason = errNoError, guard.ReasonOther
	} else if own := (*verdict)(nil); errors.As(err, &own) && own.by == m {
		v.claim, v.reason = own.claim, own.reason
	} else {
		v.claim = m.claimOf(r)
		v.reason = guard.ReasonFor(v.claim, err)
	}
	m.report(w, r, v)
}

// Relay is [Middleware.Reject] for a gateway, which passes on what the service behind it
// said of the same claim, such as an error of [ErrorFrom].
func (m *Middleware) Relay(w http.ResponseWriter, r *http.Request, err error) {
	m.report(w, r, &verdict{m, m.claimOf(r), cmp.Or(guard.ReasonOf(err), guard.ReasonOther), cmp.Or(err, errNoError)})
}

var errNoError = errors.New("httpfence: there is no error to respond for")

func (m *Middleware) report(w http.ResponseWriter, r *http.Request, v *verdict) {
	m.observe(r, time.Time{}, guard.Event{Op: guard.OpReject, Claim: v.claim, Mark: markOf(v.claim, v.error), Reason: v.reason, Err: v.error})
	m.reject(w, r, v)
}

// claimOf returns the claim that r's handler works under: the one that was admitted, or
// that r presents.
func (m *Middleware) claimOf(r *http.Request) guard.Claim {
	claim, ok := guard.ClaimFrom(r.Context())
	if !ok && len(r.Header[TokenHeader]) > 0 {
		unverified := *m
		unverified.opts.Verify = nil
		_, _ = unverified.presented(r, &claim)
	}
	return claim
}

func (m *Middleware) reject(w http.ResponseWriter, r *http.Request, v *verdict) {
	p := rowOf(v.reason).problem(v.error, m.opts.DiscloseMark)
	if m.opts.OnReject != nil {
		// A hook that only counts must not turn a refusal into the empty 200
		// that net/http sends for a handler that writes nothing.
		hook := newBuffered(w, r, m.opts.MaxBody)
		m.opts.OnReject(hook, r, &Rejection{Reason: v.reason, Status: p.Status, Type: p.Type, Claim: v.claim, Err: v.error})
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
	h.Set(ReasonHeader, string(v.reason))
	if v.reason == guard.ReasonUnavailable && h.Get("Retry-After") == "" { // else the hook has set it
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
	Field   string `json:"field,omitempty"`
	Token   string `json:"token,omitempty"`
	Mark    string `json:"mark,omitempty"`
	Floor   bool   `json:"floor,omitempty"`
	Claimed string `json:"claimed,omitempty"`
	Guarded string `json:"guarded,omitempty"`
}

// bodyField is the member "field" of a problem with the request's body.
const bodyField = "body"

// problem returns the response of a row with the facts of err that the client may know:
// the mark only if disclose is set, and the name of what is missing or invalid, but never
// its value. For a misdirected claim it includes both names: one is what the client sent,
// the other is what its own path means.
func (o *row) problem(err error, disclose bool) problemBody {
	p := problemBody{Type: typeURI(o.reason), Title: o.title, Status: o.status, Detail: o.detail}
	var body *bodyError
	var rejected *guard.RejectedError
	var misdirected *guard.MisdirectedError
	var invalid *guard.InvalidError
	switch {
	case errors.As(err, &body):
		p.Title, p.Status, p.Detail, p.Field = http.StatusText(body.status), body.status, "Nothing was changed: "+body.detail+".", bodyField
	case disclose && errors.As(err, &rejected) && rejected.Reason == o.reason && rejected.Mark.Token != guard.NoToken:
		p.Token, p.Mark, p.Floor = rejected.Claim.Token.String(), rejected.Mark.Token.String(), rejected.Mark.Floor
	case o.reason == guard.ReasonMisdirected && errors.As(err, &misdirected):
		p.Claimed, p.Guarded = misdirected.Claimed, misdirected.Guarded
	case (o.reason == guard.ReasonMissing || o.reason == guard.ReasonInvalid) && errors.As(err, &invalid):
		switch p.Field = invalid.Field; {
		case p.Field == proof.Header && invalid.Missing:
			p.Detail = "Send the proof that the claim was issued, in " + proof.Header + "."
		case p.Field != TokenHeader && p.Field != LeaseHeader && p.Field != ResourceHeader:
			p.Title, p.Detail = "Invalid request", "Nothing was changed: "+p.Field+" is missing or invalid."
		}
	}
	return p
}

// markOf returns the mark that a claim was compared with, as far as it is known.
func markOf(claim guard.Claim, err error) guard.Mark {
	var rejected *guard.RejectedError
	switch {
	case err == nil:
		return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}
	case errors.As(err, &rejected) && rejected.Claim == claim:
		return rejected.Mark
	}
	return guard.Mark{}
}
