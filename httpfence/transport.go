package httpfence

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
)

// TransportOptions configures [NewTransport]. The zero value of every field is
// its default. The struct is read once, by NewTransport.
type TransportOptions struct {
	// TokenHeader, LeaseHeader and ResourceHeader name the fields, as in
	// [Options]; "" means [TokenHeader], [LeaseHeader] and [ResourceHeader].
	TokenHeader, LeaseHeader, ResourceHeader string
	// RequireClaim fails a request to a configured origin whose method is not
	// GET, HEAD, OPTIONS or TRACE and whose context carries no claim, with
	// [guard.ErrMissing], before anything is sent. By default it is sent
	// unchanged: a server that guards the method answers 428, and one that does
	// not needs no claim.
	RequireClaim bool
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
	base         http.RoundTripper
	origins      map[origin]struct{}
	names        headers
	requireClaim bool
	proof        func(context.Context, guard.Claim) (string, error)
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a [Transport] that sends with base; nil means
// [http.DefaultTransport]. origins are the servers that receive tokens, such as
// "https://ledger.internal:8443": scheme, host and port, where ports 80 and 443
// are the defaults of their schemes; no path, no wildcard. opts may be nil.
//
// The error is a *guard.InvalidError (guard.ErrInvalid): origins is empty or
// has an element that is not an origin, or the options are bad.
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
	t := &Transport{base: base, origins: make(map[origin]struct{}, len(origins)), requireClaim: o.RequireClaim, proof: o.Proof}
	for _, s := range origins {
		parsed, err := parseOrigin(s)
		if err != nil {
			return nil, guard.Invalid("origin", s, err.Error())
		}
		t.origins[parsed] = struct{}{}
	}
	var err error
	if t.names, err = headerNames("TransportOptions", o.TokenHeader, o.LeaseHeader, o.ResourceHeader); err != nil {
		return nil, err
	}
	return t, nil
}

// RoundTrip implements [http.RoundTripper]. The request is not modified:
// a copy carries the fields. It never retries, and does not turn an answer into
// an error, as net/http requires; [ErrorFrom] does that.
//
// Nor does it let base retry a write: http.Transport repeats a POST with an
// Idempotency-Key when a reused connection ends before the answer, and under
// a live token both are admitted. The fields Idempotency-Key and
// X-Idempotency-Key are therefore handed to base in lower case, where it does
// not look for them; on the wire the names are the same. Over HTTP/2 it repeats
// any request that the server resets with PROTOCOL_ERROR, if it can send the
// body again. So the body of a write can be sent again only before its header was
// sent, or over HTTP/1.1, where base repeats a write only if none of it was sent;
// whether it is HTTP/1.1 is known of an [http.Transport]. A request that base still
// repeats was not sent, or is a GET, HEAD, OPTIONS or TRACE, which must not cause a
// fenced write. The price: over HTTP/2, and through a base that wraps an
// http.Transport, [guard.ErrOutcomeUnknown] is returned for some writes that base
// could have repeated safely, such as one that meets the server's GOAWAY; and over
// HTTP/2 a write without a body is sent without a length.
//
// A request for another origin is sent without the fields, even if its header
// has them: after a redirect, [http.Client] copies the header to wherever the
// server pointed. Nor is a claim attached once another origin has redirected
// the request: a server that receives no tokens must not choose what one is
// used for. A redirect within an origin carries the claim to the new path,
// which is right if that names the same resource; see
// [http.Client.CheckRedirect] if it may not.
//
// Errors before anything is sent, for a configured origin:
// [guard.ErrLeaseLost] as a *guard.RejectedError once the lease in the context
// is no longer valid by the holder's clock, whatever the method;
// [guard.ErrInvalid] for an invalid claim, or a lease ID that begins or ends
// with a space, which HTTP would cut off; [guard.ErrMissing] with RequireClaim;
// the error of Proof.
// The request's body is closed in every case.
//
// The lease is checked once, at the beginning: a request that then waits for a
// connection, or takes long, ends with its context. Use the context of
// lockclient's Hold, which ends with the lease.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	o, ok := t.configured(r.URL)
	if !ok || t.sentByOthers(r) {
		return t.base.RoundTrip(t.bare(r))
	}
	claim, ok := guard.ClaimFrom(r.Context())
	if !ok {
		if t.requireClaim && !slices.Contains(defaultUnguarded, method(r)) {
			closeBody(r)
			return nil, guard.Missing("claim in the context of " + method(r) + " " + o.host)
		}
		return t.base.RoundTrip(r)
	}
	if err := sendable(r.Context(), claim); err != nil {
		closeBody(r)
		return nil, err
	}
	evidence, err := t.prove(r.Context(), claim)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	out := t.bare(r)
	if out == r {
		out = withHeader(r)
	}
	out.Header[t.names.token] = []string{claim.Token.String()}
	out.Header[t.names.resource] = []string{EncodeResource(claim.Resource)}
	if claim.LeaseID != "" {
		out.Header[t.names.lease] = []string{claim.LeaseID}
	}
	if evidence != "" {
		out.Header[proof.Header] = []string{evidence}
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := out.Header[name]; ok {
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = values
		}
	}
	if !slices.Contains(defaultUnguarded, method(out)) {
		out = t.sendOnce(out)
	}
	return t.base.RoundTrip(out)
}

var errSentOnce = fmt.Errorf("httpfence: the connection failed when the write may have been sent, which is not repeated: %w", guard.ErrOutcomeUnknown)

// sendOnce gives r, a copy with its own header, a body that base asks for again
// before it repeats r, and that is refused once a header was sent over anything but
// HTTP/1.1.
func (t *Transport) sendOnce(r *http.Request) *http.Request {
	again := r.GetBody
	if r.Body == nil && r.ContentLength != 0 {
		return r // base refuses it
	}
	if r.Body == nil || r.Body == http.NoBody {
		again = func() (io.ReadCloser, error) { return struct{ io.ReadCloser }{http.NoBody}, nil } // net/http does not see that it is empty
		r.Body, _ = again()
		// So that HTTP/1.1 does not send it chunked. It would write no length
		// then; in lower case it takes ours as it is. HTTP/2 ignores both.
		r.TransferEncoding = []string{"identity"}
		r.Header["content-length"] = []string{"0"}
		r.ContentLength = 0
	}
	if again == nil {
		return r
	}
	var http1, sent atomic.Bool // of the connection that it was given last
	trace := &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			http1.Store(t.isHTTP1(c.Conn))
			sent.Store(false)
		},
		WroteHeaders: func() { sent.Store(true) },
	}
	r.GetBody = func() (io.ReadCloser, error) {
		if sent.Load() && !http1.Load() {
			return nil, errSentOnce
		}
		return again()
	}
	return r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
}

// isHTTP1 reports whether a connection of base is known to speak HTTP/1.1.
func (t *Transport) isHTTP1(c net.Conn) bool {
	if secure, ok := c.(*tls.Conn); ok {
		return secure.ConnectionState().NegotiatedProtocol != "h2"
	}
	base, ok := t.base.(*http.Transport)
	return ok && (base.Protocols == nil || !base.Protocols.UnencryptedHTTP2())
}

func (t *Transport) prove(ctx context.Context, claim guard.Claim) (string, error) {
	if t.proof == nil {
		return "", nil
	}
	return t.proof(ctx, claim)
}

// configured returns the origin of u, and whether tokens may be sent to it.
func (t *Transport) configured(u *url.URL) (origin, bool) {
	o, ok := originOf(u)
	if ok {
		_, ok = t.origins[o]
	}
	return o, ok
}

// sentByOthers reports whether a server that is not configured has chosen where r
// goes. http.Client keeps the answer that redirected the request in the request.
func (t *Transport) sentByOthers(r *http.Request) bool {
	for answer := r.Response; answer != nil; answer = answer.Request.Response {
		if answer.Request == nil {
			return true // the server that answered is unknown
		}
		if _, ok := t.configured(answer.Request.URL); !ok {
			return true
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

// sendable returns why claim must not be sent, or nil.
func sendable(ctx context.Context, claim guard.Claim) error {
	if lease, ok := guard.LeaseFrom(ctx); ok && !lease.Valid() {
		return &guard.RejectedError{Reason: guard.ReasonLeaseLost, Claim: claim}
	}
	if err := claim.Validate(); err != nil {
		return err
	}
	if strings.Trim(claim.LeaseID, " ") != claim.LeaseID {
		return guard.Invalid("lease ID", claim.LeaseID, "begins or ends with a space, which a header field cannot carry")
	}
	return nil
}

// bare returns r without the fields of a claim and its proof, in any spelling:
// a copy if r has such a field, else r itself.
func (t *Transport) bare(r *http.Request) *http.Request {
	out := r
	for name := range r.Header {
		if c := textproto.CanonicalMIMEHeaderKey(name); c == t.names.token || c == t.names.lease || c == t.names.resource || c == proof.Header {
			if out == r {
				out = withHeader(r)
			}
			delete(out.Header, name)
		}
	}
	return out
}

// withHeader returns a copy of r with its own header.
func withHeader(r *http.Request) *http.Request {
	out := r.WithContext(r.Context())
	if out.Header = r.Header.Clone(); out.Header == nil {
		out.Header = make(http.Header, 3)
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

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}
