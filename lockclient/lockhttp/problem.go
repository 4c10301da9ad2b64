package lockhttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// problemPrefix begins the type of every problem, as in package httpfence. Tag
// URIs (RFC 4151) identify without promising that there is a page to fetch.
const problemPrefix = "tag:fencepost-go.github.io,2026:problem/"

// kind is a row of the table of errors, which both sides read: the errors of issuers and
// operators, the response to them, and what the Go client makes of that.
type kind struct {
	of     error // nil if only the server itself finds it
	name   string
	status int
	client func(op string, claim guard.Claim, said error) error
	title  string
	// detail is what the response says unless the client caused the error and its
	// text says more. It reveals no internals of the server.
	detail string
}

// The kinds. Their names are the ends of the type URIs. An error of several is of the
// first in kinds.
var (
	kindUnknown = kind{guard.ErrOutcomeUnknown, "outcome_unknown", http.StatusInternalServerError, guard.OutcomeUnknown, "Outcome unknown",
		"It is unknown whether it was done. If a leaseId is named here, repeat the request under it, or release it. If none is, what may have been granted is being released: ask anew."}
	kindBehind = kind{guard.ErrMarkAhead, "issuer_behind", http.StatusServiceUnavailable, behind, "The issuer went back",
		"The issuer is behind tokens that it issued before, as after a restore. It grants nothing until an operator has raised its tokens; repeating the request does not help."}
	kindSpent = kind{driver.ErrLeaseIDSpent, "lease_spent", http.StatusGone, guard.Unavailable, "The lease ID is spent",
		"A lease under this ID was released or abandoned; nothing is granted under it any more. Use a new ID."}
	kindLate = kind{driver.ErrLate, "late", http.StatusPreconditionFailed, guard.Unavailable, "The request came too late",
		"It arrived after the moment that its notAfter names, by the server's clock. Nothing was done."}
	kindChanged = kind{lockadmin.ErrLeaseChanged, "lease_changed", http.StatusConflict, guard.Unavailable, "Another lease",
		"The resource's lease is not the expected one. Nothing was changed."}
	kindHeld = kind{driver.ErrHeld, "held", http.StatusConflict, held, "Somebody holds it",
		"Somebody holds the resource with a lower token, who would be refused. Nothing was changed."}
	kindNotFound = kind{guard.ErrNotFound, "not_found", http.StatusNotFound, guard.Setup, "Not found",
		"There is nothing here."}
	kindInvalid = kind{guard.ErrInvalid, "invalid", http.StatusBadRequest, guard.Unavailable, "Invalid request",
		"The request is malformed."}
	kindSetup = kind{guard.ErrSetup, "setup", http.StatusInternalServerError, guard.Setup, "The issuer is not set up",
		"Nothing was done. An operator must repair the server; repeating the request does not help before."}
	kindUnavailable = kind{guard.ErrUnavailable, "unavailable", http.StatusServiceUnavailable, guard.Unavailable, "The issuer is unavailable",
		"Nothing was done; repeating the request is safe."}
	kindUnauthorized = kind{nil, "unauthenticated", http.StatusUnauthorized, guard.Setup, "Not authenticated",
		"Present valid credentials."}
	kindForbidden = kind{nil, "forbidden", http.StatusForbidden, guard.Setup, "Not allowed",
		"This identity may not do that, whether the resource exists or not."}
	kindOver = kind{nil, "lease_over", http.StatusNotFound, guard.Unavailable, "The lease is over",
		"It was released, ran out, was ended by an operator, or never was. Stop, and do not write under it."}
	kindMethod = kind{nil, "method_not_allowed", http.StatusMethodNotAllowed, guard.Setup, "Method not allowed",
		"This path has other methods."}
	kindTooLarge = kind{nil, "too_large", http.StatusRequestEntityTooLarge, guard.Unavailable, "The request is too large",
		"Send less at once."}
	kindMediaType = kind{nil, "unsupported_media_type", http.StatusUnsupportedMediaType, guard.Setup, "Unsupported media type",
		"Send JSON, with Content-Type: application/json."}
	kindTooMany = kind{nil, "too_many_requests", http.StatusTooManyRequests, guard.Unavailable, "Too many requests",
		"This identity asks more often than it may, has too much in progress at once, or has leased as many resources as it may."}
	kindInternal = kind{nil, "internal", http.StatusInternalServerError, guard.OutcomeUnknown, "Internal error",
		"The request failed. Whether it was done is not known."}
	kindUnsupported = kind{errors.ErrUnsupported, "unsupported", http.StatusNotImplemented, guard.Setup, "Not supported",
		"The server has no operator API, or its issuer cannot do this, or reports no changes."}
)

var kinds = []*kind{
	&kindUnknown, &kindBehind, &kindSpent, &kindLate, &kindChanged, &kindHeld, &kindNotFound, &kindInvalid, &kindSetup, &kindUnavailable,
	&kindUnauthorized, &kindForbidden, &kindOver, &kindMethod, &kindTooLarge, &kindMediaType, &kindTooMany, &kindInternal, &kindUnsupported,
}

// kindNamed finds a kind by its word; a word of a newer server's means that nobody knows
// what was done.
func kindNamed(word string) *kind {
	for _, k := range kinds {
		if k.name == word {
			return k
		}
	}
	return &kindInternal
}

// kindOf classifies the errors of issuers and operators.
func kindOf(err error) *kind {
	if own, is := errors.AsType[*httpError](err); is {
		return own.kind
	}
	for _, k := range kinds {
		if k.of != nil && errors.Is(err, k.of) {
			return k
		}
	}
	switch {
	case err == driver.ErrNoWatch: // one that has failed is around more, and passes
		return &kindUnsupported
	case errors.Is(err, driver.ErrNoWatch):
		return &kindUnavailable
	}
	return &kindInternal
}

// refused is what the Go client makes of a refusal. field is that of an invalid request.
func (k *kind) refused(op string, claim guard.Claim, field string, said error) error {
	switch k {
	case &kindSpent:
		return driver.ErrLeaseIDSpent
	case &kindInvalid:
		return &guard.InvalidError{Field: field, Problem: said.Error()}
	case &kindUnsupported:
		if op == "watch" {
			return driver.ErrNoWatch
		}
	case &kindLate:
		said = driver.ErrLate
	}
	return k.client(op, claim, said)
}

// refusedError is what the server said, as the client quotes it.
type refusedError struct {
	kind *kind
	text string
}

func (e *refusedError) Error() string { return e.text }

// Is reports that the identity may not do it, for [fs.ErrPermission].
func (e *refusedError) Is(target error) bool {
	return target == fs.ErrPermission && (e.kind == &kindForbidden || e.kind == &kindUnauthorized)
}

// behind is the error of an issuer whose tokens went back.
func behind(op string, _ guard.Claim, said error) error {
	return fmt.Errorf("fencepost: %s: %w: %w", op, guard.ErrMarkAhead, said)
}

// held is the error of an advance beyond a holder; the server does not say whose.
func held(_ string, claim guard.Claim, _ error) error {
	return &driver.HeldError{Resource: claim.Resource}
}

// httpError is an error that becomes the response of its kind.
type httpError struct {
	*kind
	err     error
	leaseID string // for a client that has to repeat or release
	cut     *cut
}

func (e *httpError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return e.detail
}

func (e *httpError) Unwrap() error { return e.err }

// readOnly is the error of a request that has written nothing, whatever became of it.
func readOnly(err error) error {
	if failed, is := errors.AsType[*guard.FailedError](err); is && errors.Is(err, guard.ErrOutcomeUnknown) {
		return guard.Unavailable(failed.Op, failed.Claim, failed.Cause)
	}
	return err
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
	At     time.Time `json:"createdAt"`
}

// fail responds with a problem, to a subject that may not be known. Internal errors are
// logged and not shown.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, subject string, err error) {
	k := kindOf(err)
	p := problem{Type: problemPrefix + k.name, Title: k.title, Status: k.status, Detail: k.detail, ServerTime: time.Now()}
	if invalid, is := errors.AsType[*guard.InvalidError](err); is && k.status < http.StatusInternalServerError {
		p.Field, p.Detail = invalid.Field, err.Error() // the client caused it
	}
	if own, is := errors.AsType[*httpError](err); is {
		p.LeaseID, p.Cut = own.leaseID, own.cut
	}
	h := w.Header()
	switch k {
	case &kindUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case &kindUnavailable, &kindTooMany:
		h.Set("Retry-After", "1")
	}
	if k.status >= http.StatusInternalServerError && k != &kindUnsupported && r.Context().Err() == nil {
		s.log(r.Context(), slog.LevelWarn, "lock_request_failed", slog.String("method", r.Method),
			slog.String("path", r.URL.EscapedPath()), slog.String("subject", subject),
			slog.String("problem", k.name), slog.Any("error", err))
	}
	write(w, k.status, "problem+json", p)
}

// respond writes the response to a request that was carried out.
func (s *Server) respond(w http.ResponseWriter, body any) { write(w, http.StatusOK, "json", body) }

// write writes a response of application/kind.
func write(w http.ResponseWriter, status int, kind string, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		// Tokens are valid and strings can be encoded: only an issuer that
		// breaks its promises gets here.
		status, kind = http.StatusInternalServerError, "problem+json"
		text, _ = json.Marshal(problem{Type: problemPrefix + kindInternal.name, Title: kindInternal.title, Status: status, Detail: "The response could not be written."})
	}
	h := w.Header()
	h.Set("Content-Type", "application/"+kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	writeInTime(w)
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // if this fails the client has gone: there is nobody to report to
}
