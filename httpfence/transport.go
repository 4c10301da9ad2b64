package httpfence

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"sync/atomic"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
)

// TransportOptions configures [NewTransport]. The zero value of every field is
// its default. The struct is read once, by NewTransport.
type TransportOptions struct {
	// Proof returns the proof that claim was issued, which is sent in the field
	// [proof.Header]; nil sends none. It is called for each request that
	// carries a claim; its error fails the request before anything is sent. It
	// must be safe for concurrent use.
	Proof func(ctx context.Context, claim guard.Claim) (string, error)
}

// Transport is an [http.RoundTripper] that attaches the claim in a request's
// context ([guard.WithClaim], [guard.WithLease]) to requests for configured
// origins, and to no others. Make one with [NewTransport]; the zero value is
// not usable. It is safe for concurrent use.
//
// It decides by origin, not by resource: every request with that context
// presents the claim, and names its resource in [ResourceHeader]. A server
// refuses a claim that was sent to the route of another resource
// ([guard.ErrMisdirected]).
type Transport struct {
	base    http.RoundTripper
	origins map[origin]struct{}
	proof   func(context.Context, guard.Claim) (string, error)
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a [Transport] that sends with base; nil means
// [http.DefaultTransport]. origins are the servers that receive tokens, such as
// "https://ledger.internal:8443": scheme, host and port, where ports 80 and 443
// are the defaults of their schemes; no path, no wildcard. opts may be nil.
//
// The error is a *guard.InvalidError (guard.ErrInvalid): origins is empty or
// has an element that is not an origin.
func NewTransport(base http.RoundTripper, origins []string, opts *TransportOptions) (*Transport, error) {
	if base == nil {
		base = http.DefaultTransport
	}
	var o TransportOptions
	if opts != nil {
		o = *opts
	}
	if len(origins) == 0 {
		return nil, guard.Invalid("origins", "", "must name the servers that tokens may be sent to")
	}
	t := &Transport{base: base, origins: make(map[origin]struct{}, len(origins)), proof: o.Proof}
	for _, s := range origins {
		parsed, err := parseOrigin(s)
		if err != nil {
			return nil, guard.Invalid("origin", s, err.Error())
		}
		t.origins[parsed] = struct{}{}
	}
	return t, nil
}

// RoundTrip implements [http.RoundTripper]: it sends a copy of the request with the claim
// in its context. It never retries, and does not turn a response into an error, as
// net/http requires; [Do] and [ErrorFrom] do that.
//
// A request for another origin is sent without the fields, and so is one that another
// origin has redirected: a server that receives no tokens must not choose what one is used
// for. A redirect within an origin carries the claim to the new path. base does not repeat
// a write: it gets no body that it could send again, unless it keeps a copy itself.
//
// The lease is checked once, at the beginning: use the context of lockclient's Hold, which
// ends with the lease. [http.Client.Timeout] puts an error of its own in place of these;
// [Do] does not lose them.
//
// Errors before anything is sent; the body is closed:
//   - [guard.ErrLeaseLost]: the lease in the context is no longer valid.
//   - [guard.ErrInvalid]: the claim is invalid.
//   - the error of [TransportOptions.Proof].
//
// Errors of a write, an *guard.FailedError with the error of base as its cause:
//   - [guard.ErrUnavailable]: the server has certainly not handled it, and it may be
//     repeated: base, an [http.Transport], got no connection, or over HTTP/2 the server
//     said by GOAWAY or REFUSED_STREAM that it would not.
//   - [guard.ErrOutcomeUnknown]: everything else.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.configured(r.URL) || t.sentByOthers(r) {
		return t.base.RoundTrip(bare(r))
	}
	claim, ok := guard.ClaimFrom(r.Context())
	if !ok {
		return t.base.RoundTrip(r) // a server that guards the method responds with 428
	}
	evidence, err := t.prove(r.Context(), claim)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	out := bare(r)
	out.Header[TokenHeader] = []string{claim.Token.String()}
	out.Header[ResourceHeader] = []string{Encode(claim.Resource)}
	if claim.LeaseID != "" {
		out.Header[LeaseHeader] = []string{Encode(claim.LeaseID)}
	}
	if evidence != "" {
		out.Header[proof.Header] = []string{evidence}
	}
	if slices.Contains(defaultUnguarded, method(out)) {
		return t.base.RoundTrip(out)
	}
	return t.write(out, claim)
}

// write sends r, a copy with its own header, once. http.Transport repeats a POST with an
// Idempotency-Key when a reused connection ends before the response, and over HTTP/2 any
// request that the server resets with PROTOCOL_ERROR. Both need a body that can be sent
// again: so GetBody is removed, and an empty body is one that net/http does not see to be
// empty. Over HTTP/1.1 that one is sent in chunks, or without a length, and over HTTP/2
// without a length.
func (t *Transport) write(r *http.Request, claim guard.Claim) (*http.Response, error) {
	r.GetBody = nil
	if r.Body == http.NoBody || r.Body == nil && r.ContentLength == 0 { // base refuses nil with a length
		r.Body, r.ContentLength = struct{ io.ReadCloser }{http.NoBody}, 0
	}
	var asked, given atomic.Int64 // connections
	resp, err := t.base.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { asked.Add(1) },
		GotConn: func(httptrace.GotConnInfo) { given.Add(1) },
	})))
	if err == nil {
		return resp, nil
	}
	op := method(r) + " " + r.URL.Host
	_, direct := t.base.(*http.Transport) // else base may have sent it in a way that cannot be seen here
	switch {
	case direct && asked.Load() > 0 && given.Load() == 0,
		(direct || given.Load() == 1) && unhandled.MatchString(err.Error()):
		err = guard.Unavailable(op, claim, err)
	default:
		err = guard.OutcomeUnknown(op, claim, err)
	}
	err = &requestError{err}
	if told, ok := r.Context().Value(toldKey{}).(*error); ok {
		*told = err
	}
	return nil, err
}

// unhandled matches the errors of net/http for a request that the server has
// said not to have processed (RFC 9113, sections 6.8 and 8.7). Their values
// cannot be reached; a text that changes makes the outcome unknown.
var unhandled = regexp.MustCompile(`^http2: Transport: cannot retry err \[(http2: Transport received Server's graceful shutdown GOAWAY|stream error: stream ID [0-9]+; REFUSED_STREAM; received from peer)\] after Request\.Body was written; `)

// requestError is what is known of a write to another service, with the method that
// net/url looks for in the cause of its own error.
type requestError struct{ err error }

func (e *requestError) Error() string { return e.err.Error() }
func (e *requestError) Unwrap() error { return &guard.ElsewhereError{Err: e.err} }
func (e *requestError) Timeout() bool {
	var failed *guard.FailedError
	var timeout net.Error
	return errors.As(e.err, &failed) && errors.As(failed.Cause, &timeout) && timeout.Timeout()
}

// prove returns the proof of claim, "" if t sends none, or why claim must not be
// sent.
func (t *Transport) prove(ctx context.Context, claim guard.Claim) (string, error) {
	if lost := guard.Lost(ctx); lost != nil {
		return "", lost
	}
	if err := claim.Validate(); err != nil {
		return "", err
	}
	if t.proof == nil {
		return "", nil
	}
	return t.proof(ctx, claim)
}

// configured reports whether tokens may be sent to the origin of u.
func (t *Transport) configured(u *url.URL) bool {
	o, ok := originOf(u)
	if ok {
		_, ok = t.origins[o]
	}
	return ok
}

// sentByOthers reports whether a server that is not configured has chosen where r
// goes. http.Client keeps the response that redirected the request in the request.
func (t *Transport) sentByOthers(r *http.Request) bool {
	for resp := r.Response; resp != nil; resp = resp.Request.Response {
		if resp.Request == nil || !t.configured(resp.Request.URL) {
			return true // nil: the server that responded is unknown
		}
	}
	return false
}

// CloseIdleConnections forwards [http.Client.CloseIdleConnections] to base.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// bare returns a copy of r with its own header, without the fields of a claim and
// its proof, in any spelling.
func bare(r *http.Request) *http.Request {
	out := r.WithContext(r.Context())
	if out.Header = r.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header, 3)
	}
	for name := range out.Header {
		switch textproto.CanonicalMIMEHeaderKey(name) {
		case TokenHeader, LeaseHeader, ResourceHeader, proof.Header:
			delete(out.Header, name)
		}
	}
	return out
}

// method returns the method of a client's request, where "" means GET.
func method(r *http.Request) string {
	if r.Method == "" {
		return http.MethodGet
	}
	return r.Method
}
