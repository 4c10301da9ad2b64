package lockhttp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// problemPrefix begins the type of every problem, as in package httpfence. Tag
// URIs (RFC 4151) identify without promising that there is a page to fetch.
const problemPrefix = "tag:fencepost-go.github.io,2026:problem/"

// kind is a row of the table of errors: the response, and its meaning to the Go
// client.
type kind struct {
	name   string
	status int
	title  string
	// detail is what the response says unless the client caused the error and its
	// text says more. It reveals no internals of the server.
	detail string
	// nothing says that nothing was written and nothing will be.
	nothing bool
}

// The kinds. Their names are the ends of the type URIs.
var (
	kindInvalid      = kind{"invalid", http.StatusBadRequest, "Invalid request", "The request is malformed.", true}
	kindUnauthorized = kind{"unauthenticated", http.StatusUnauthorized, "Not authenticated", "Present valid credentials.", true}
	kindForbidden    = kind{"forbidden", http.StatusForbidden, "Not allowed", "This identity may not do that, whether the resource exists or not.", true}
	kindNotFound     = kind{"not_found", http.StatusNotFound, "Not found", "There is nothing here.", true}
	kindOver         = kind{"lease_over", http.StatusNotFound, "The lease is over", "It was released, ran out, was ended by an operator, or never was. Stop, and do not write under it.", true}
	kindMethod       = kind{"method_not_allowed", http.StatusMethodNotAllowed, "Method not allowed", "This path has other methods.", true}
	kindChanged      = kind{"lease_changed", http.StatusConflict, "Another lease", "The resource's lease is not the expected one. Nothing was changed.", true}
	kindSpent        = kind{"lease_spent", http.StatusGone, "The lease ID is spent", "A lease under this ID was released or abandoned; nothing is granted under it any more. Use a new ID.", true}
	kindLate         = kind{"late", http.StatusPreconditionFailed, "The request came too late", "It arrived after the moment that its notAfter names, by the server's clock. Nothing was done.", true}
	kindTooLarge     = kind{"too_large", http.StatusRequestEntityTooLarge, "The request is too large", "Send less at once.", true}
	kindMediaType    = kind{"unsupported_media_type", http.StatusUnsupportedMediaType, "Unsupported media type", "Send JSON, with Content-Type: application/json.", true}
	kindTooMany      = kind{"too_many_requests", http.StatusTooManyRequests, "Too many requests", "This identity asks more often, or waits for more at once, than it may.", true}
	kindUnknown      = kind{"outcome_unknown", http.StatusInternalServerError, "Outcome unknown", "It is unknown whether it was done. Repeat it with the same leaseId, or release that.", false}
	kindInternal     = kind{"internal", http.StatusInternalServerError, "Internal error", "The request failed. Whether it was done is not known.", false}
	kindUnsupported  = kind{"unsupported", http.StatusNotImplemented, "Not supported", "The server has no operator API, or its issuer reports no changes.", true}
	kindBehind       = kind{"issuer_behind", http.StatusServiceUnavailable, "The issuer went back", "The issuer is behind tokens that it issued before, as after a restore. It grants nothing until an operator has raised its tokens; repeating the request does not help.", false}
	kindSetup        = kind{"setup", http.StatusInternalServerError, "The issuer is not set up", "Nothing was done. An operator must repair the server; repeating the request does not help before.", true}
	kindUnavailable  = kind{"unavailable", http.StatusServiceUnavailable, "The issuer is unavailable", "Nothing was done; repeating the request is safe.", true}
)

var kinds = []*kind{
	&kindInvalid, &kindUnauthorized, &kindForbidden, &kindNotFound, &kindOver, &kindMethod, &kindChanged, &kindSpent,
	&kindLate, &kindTooLarge, &kindMediaType, &kindTooMany, &kindUnknown, &kindInternal,
	&kindUnsupported, &kindBehind, &kindSetup, &kindUnavailable,
}

// httpError is an error that becomes the response of its kind.
type httpError struct {
	*kind
	err     error
	leaseID string // for a client that has to repeat or release
	cut     *driver.ForceUnlockedError
}

func (e *httpError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return e.detail
}

func (e *httpError) Unwrap() error { return e.err }

// kindOf classifies the errors of issuers and operators.
func kindOf(err error) *kind {
	var own *httpError
	switch {
	case errors.As(err, &own):
		return own.kind
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return &kindUnknown
	case errors.Is(err, guard.ErrMarkAhead):
		return &kindBehind
	case errors.Is(err, driver.ErrLeaseIDSpent):
		return &kindSpent
	case errors.Is(err, driver.ErrLate):
		return &kindLate
	case errors.Is(err, driver.ErrLeaseChanged):
		return &kindChanged
	case errors.Is(err, guard.ErrNotFound):
		return &kindNotFound
	case errors.Is(err, guard.ErrInvalid):
		return &kindInvalid
	case errors.Is(err, guard.ErrSetup):
		return &kindSetup
	case errors.Is(err, guard.ErrUnavailable), errors.Is(err, driver.ErrNoWatch):
		return &kindUnavailable
	}
	return &kindInternal
}

// problem is the body of every error (RFC 9457).
type problem struct {
	Type       string    `json:"type"`
	Title      string    `json:"title"`
	Status     int       `json:"status"`
	Detail     string    `json:"detail"`
	Field      string    `json:"field,omitempty"`
	LeaseID    string    `json:"leaseId,omitempty"`
	Cut        *cut      `json:"forceUnlocked,omitempty"`
	ServerTime time.Time `json:"serverTime"`
}

// cut says who ended a lease.
type cut struct {
	Actor  string    `json:"actorId"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

func cutOf(e *driver.ForceUnlockedError) *cut {
	if e == nil {
		return nil
	}
	return &cut{e.Actor, e.Reason, e.At}
}

// fail responds with a problem. Internal errors are logged and not shown.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	k := kindOf(err)
	p := problem{Type: problemPrefix + k.name, Title: k.title, Status: k.status, Detail: k.detail, ServerTime: time.Now()}
	var invalid *guard.InvalidError
	var own *httpError
	if errors.As(err, &invalid) && k.status < http.StatusInternalServerError {
		p.Field, p.Detail = invalid.Field, err.Error()
	}
	if errors.As(err, &own) {
		p.LeaseID = own.leaseID
		p.Cut = cutOf(own.cut)
	}
	h := w.Header()
	switch k {
	case &kindUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case &kindUnavailable, &kindTooMany:
		h.Set("Retry-After", "1")
	}
	if k.status >= http.StatusInternalServerError && k != &kindUnsupported && r.Context().Err() == nil {
		s.opts.Logger.LogAttrs(r.Context(), slog.LevelWarn, "lock_request_failed", slog.String("method", r.Method),
			slog.String("path", r.URL.EscapedPath()), slog.String("subject", identityOf(r.Context()).Subject),
			slog.String("problem", k.name), slog.Any("error", err))
	}
	h.Set("Content-Type", "application/problem+json")
	s.write(w, k.status, p)
}

// respond writes every other response but the refusal of a lease that another has.
func (s *Server) respond(w http.ResponseWriter, body any) { s.answerWith(w, http.StatusOK, body) }

func (s *Server) answerWith(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	s.write(w, status, body)
}

func (s *Server) write(w http.ResponseWriter, status int, body any) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	text, err := json.Marshal(body)
	if err != nil {
		// Tokens are valid and strings can be encoded: only an issuer that
		// breaks its promises gets here.
		status, text = http.StatusInternalServerError, []byte(`{"type":"`+problemPrefix+kindInternal.name+`","title":"Internal error","status":500,"detail":"The response could not be written."}`)
		h.Set("Content-Type", "application/problem+json")
	}
	writeInTime(w)
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // if this fails the client has gone: there is nobody to report to
}

type identityKey struct{}

func withIdentity(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// identityOf returns who asks, or before that is known an identity that may do
// nothing.
func identityOf(ctx context.Context) *Identity {
	if id, ok := ctx.Value(identityKey{}).(*Identity); ok {
		return id
	}
	return &Identity{}
}
