package lockhttp

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/inflight"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/report"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// Authenticate returns who sent a request: by its bearer token, its client
// certificate, its cookie. An error becomes a 401, one that is guard.ErrSetup a 500
// and one that is guard.ErrUnavailable a 503; its text is logged and not shown. It is
// called once for every request below /v1, and for no other, from many goroutines.
type Authenticate func(*http.Request) (*Identity, error)

// Signer makes a proof that this server issued a claim. The Signer of
// guard/proof is one.
type Signer interface {
	Sign(claim guard.Claim, audience string, expiry time.Time) (string, error)
}

// Options configures [New]. The zero value is the default.
type Options struct {
	// Admin lists, force-unlocks, reads the audit and does the other operators' calls: on PostgreSQL an Operator of package
	// pgadmin, on other engines the issuer itself. If nil, and for what the engine cannot do,
	// these requests get a 501, and /ui says so. One lease is read without it, by a watch.
	Admin lockadmin.Admin
	// ShowHolders shows everybody who may name a resource who holds it: its ownerId and
	// metadata, which often name hosts and processes. By default only operators see them, and
	// others only until when it runs.
	ShowHolders bool
	// Signer signs each claim that is granted or extended, for the identity's
	// Audience, until the lease's end; nil signs nothing. A claim that cannot be
	// signed is not returned.
	Signer Signer
	// Raise raises the claim that a force unlock invalidated at the resource, after
	// which the cut holder can no longer write there; nil leaves that to the
	// operator, whom the page asks to do so. It is called within Timeout.
	Raise func(ctx context.Context, invalidated guard.Claim) error
	// Timeout bounds each exchange with the issuer; 0 means 1.5 s. An exchange
	// without a response is abandoned a tenth of a second later. Most requests are one
	// exchange; a renewal without a token, one that finds its lease over, a force unlock
	// with Raise and what has to be signed are two.
	Timeout time.Duration
	// MaxWait bounds waitSeconds and how long one stream of events lasts; 0
	// means a minute.
	MaxWait time.Duration
	// ReadyWithin is how long the acquire and release of /readyz may take together; a server
	// that needs longer is not ready. 0 means 500 ms. Servers that share a slow issuer become
	// unready together: raise it where that leaves a load balancer nobody.
	ReadyWithin time.Duration
	// Logger gets lock_acquired, lock_released and lock_force_unlocked, with their
	// subjects, and as warnings lock_request_failed for each response of 500 and more,
	// lock_raise_failed, lock_unauthenticated and lock_events_dropped; each name is also
	// the attribute event. It is called from a queue, which drops what does not fit.
	// nil means slog.Default() for the warnings and none for the rest.
	Logger *slog.Logger
	// Observer gets every acquire, renewal, release and force unlock, from the same
	// queue; nil means none.
	Observer guard.Observer
}

const (
	defaultTimeout = 1500 * time.Millisecond
	defaultMaxWait = time.Minute
	defaultReady   = 500 * time.Millisecond
	// readTimeout bounds how long a request's body may take to arrive.
	readTimeout = 10 * time.Second
	// writeTimeout bounds how long a response or an event may take to be read. It
	// is longer, since a response waits for the body.
	writeTimeout = 15 * time.Second
	// bodyMost is the longest body of a request in bytes. The longest names fit, however
	// JSON escapes them.
	bodyMost = 64 << 10
)

// Server is the lock server's [http.Handler]. Make one with [New]. It is safe
// for concurrent use, and starts nothing until there are requests. Close it
// after the http.Server was asked to shut down.
type Server struct {
	issuer       driver.Issuer
	limits       driver.Limits
	now          func() time.Duration // the clock that the issuer's leases count by
	authenticate Authenticate
	opts         Options
	router       chi.Router
	waits        counts // of the requests that wait
	releases     counts // of what acquires may have left behind
	waiters      waiting.Queues
	quotas       quotas
	ready        readiness

	closeOnce sync.Once
	closed    chan struct{}
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	reports   report.Queue
	work      inflight.Count // what Close waits for: acquires and exchanges with the issuer
}

var _ http.Handler = (*Server)(nil)

//go:embed openapi.json
var description []byte

// New returns a server of the issuer's leases. The caller closes the issuer
// after the server. opts may be nil.
//
// The error is a [*guard.InvalidError] that names the argument.
func New(issuer driver.Issuer, authenticate Authenticate, opts *Options) (*Server, error) {
	switch {
	case issuer == nil:
		return nil, guard.Invalid("issuer", "nil", "must not be nil")
	case authenticate == nil:
		return nil, guard.Invalid("authenticate", "nil", "must not be nil: who may ask has to be decided")
	}
	s := &Server{issuer: issuer, limits: issuer.Limits(), now: driver.Now, authenticate: authenticate, closed: make(chan struct{})}
	if own, ok := issuer.(driver.Clock); ok {
		s.now = own.Now
	}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	if err := input.Fill("Options.Timeout", &o.Timeout, defaultTimeout, time.Hour); err != nil {
		return nil, err
	}
	if err := input.Fill("Options.MaxWait", &o.MaxWait, defaultMaxWait, 24*time.Hour); err != nil {
		return nil, err
	}
	if err := input.Fill("Options.ReadyWithin", &o.ReadyWithin, defaultReady, time.Hour); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.reports.Lost = func(n int) {
		if logger := input.Logger(s.opts.Logger, slog.LevelWarn); logger != nil {
			logger.Warn("lock_events_dropped", "event", "lock_events_dropped", "count", n)
		}
	}
	s.router = s.routes()
	return s, nil
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		// Even if nobody reads the body: net/http waits for it before it responds.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout)) // a test's recorder has none
	}
	s.router.ServeHTTP(w, r)
	writeInTime(w)
}

// writeInTime bounds how long what is written next may take to be read.
func writeInTime(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's recorder has none
}

// Close ends waiting requests and streams, refuses new acquires, with 503, and then
// waits for the exchanges in flight and for what is to be logged until ctx ends. After
// that nothing is sent to the issuer, and requests get a 503.
//
// The error is guard.ErrUnavailable: ctx has ended while exchanges were in flight.
func (s *Server) Close(ctx context.Context) error {
	s.closeOnce.Do(func() { close(s.closed) })
	defer s.cancel()
	if err := s.work.Drain(ctx); err != nil {
		return guard.Unavailable("close", guard.Claim{}, err)
	}
	s.reports.Drain(ctx)
	return nil
}

// handler serves a request, or returns why not.
type handler func(http.ResponseWriter, *request) error

func (s *Server) routes() chi.Router {
	top := chi.NewRouter()
	top.NotFound(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, "", &httpError{kind: &kindNotFound}) })
	top.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		path := cmp.Or(chi.RouteContext(r.Context()).RoutePath, r.URL.RawPath, r.URL.Path) // below another router
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if top.Match(chi.NewRouteContext(), method, path) {
				w.Header().Add("Allow", method)
			}
		}
		s.fail(w, r, "", &httpError{kind: &kindMethod})
	})
	top.Get("/health", func(w http.ResponseWriter, _ *http.Request) { s.respond(w, map[string]bool{"ok": true}) })
	top.Get("/readyz", s.readyz)
	top.Get("/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		writeInTime(w)
		_, _ = w.Write(description)
	})
	for _, route := range []struct {
		method, path       string
		handler            handler
		required, optional string // its fields
	}{
		{"GET", "/v1/time", s.time, "", ""},
		{"POST", "/v1/locks/acquire", s.acquire, "resource ttlSeconds", "ownerId leaseId waitSeconds metadata notAfter waiting"},
		{"POST", "/v1/locks/{leaseId}/renew", s.renew, "leaseId", "resource fencingToken ttlSeconds"},
		{"DELETE", "/v1/locks/{leaseId}", s.release, "leaseId", "resource fencingToken"},
		{"POST", "/v1/locks/renew", s.renew, "leaseId", "resource fencingToken ttlSeconds"}, // for lease IDs such as "..",
		{"POST", "/v1/locks/release", s.release, "leaseId", "resource fencingToken"},        // which proxies change in a path
		{"GET", "/v1/locks", s.list, "", "prefix after limit state"},
		{"GET", "/v1/resources/{resource}", s.get, "resource", ""},
		{"POST", "/v1/resources/{resource}/force-unlock", s.forceUnlock, "resource reason", "actorId leaseId requestId"},
		{"POST", "/v1/resources/{resource}/advance", s.advance, "resource fencingToken", ""},
		{"GET", "/v1/audit", s.audit, "", "prefix before limit"},
		{"POST", "/v1/advance", s.advanceFloor, "fencingToken", ""},
		{"GET", "/v1/epoch", s.epoch, "", ""},
		{"POST", "/v1/epoch/raise", s.raiseEpoch, "", ""},
		{"POST", "/v1/purge", s.purge, "", "olderThanSeconds batch lockTimeoutSeconds"},
		{"GET", "/v1/watch", s.watch, "resource", "leaseId"},
	} {
		_, inPath, _ := strings.Cut(route.path, "{") // the one name in the path, if any
		inPath, _, _ = strings.Cut(inPath, "}")
		required, optional := strings.Fields(route.required), strings.Fields(route.optional)
		top.MethodFunc(route.method, route.path, func(w http.ResponseWriter, r *http.Request) {
			q := &request{Request: r, s: s, id: &Identity{}}
			err := q.identify()
			if err == nil {
				err = q.read(w, inPath, required, optional)
			}
			if err == nil {
				err = route.handler(w, q)
			}
			if err != nil {
				s.fail(w, r, q.id.Subject, err)
			}
		})
	}
	servePage(top)
	return top
}

// identify finds out who sent the request.
func (q *request) identify() error {
	id, err := q.s.authenticate(q.Request)
	switch {
	case errors.Is(err, guard.ErrSetup):
		return &httpError{kind: &kindSetup, err: err}
	case errors.Is(err, guard.ErrUnavailable):
		return &httpError{kind: &kindUnavailable, err: err}
	case err == nil && id == nil:
		err = errors.New("no identity")
	case err == nil:
		err = guard.ValidateOwner(id.Subject)
	}
	if err != nil {
		q.s.log(q.Context(), slog.LevelWarn, "lock_unauthenticated", slog.String("remote", q.RemoteAddr), slog.String("error", err.Error()))
		return &httpError{kind: &kindUnauthorized}
	}
	q.id = id
	return nil
}

// renamed gives an error the field's name on the wire.
func renamed(err error, field string) error {
	if invalid, is := errors.AsType[*guard.InvalidError](err); is {
		invalid.Field = field
	}
	return err
}

// onTheWire renames the field that an issuer or an operator's call found wrong.
func onTheWire(err error) error {
	if invalid, is := errors.AsType[*guard.InvalidError](err); is {
		switch invalid.Field {
		case "LeaseID", "ExpectedLeaseID":
			invalid.Field = "leaseId"
		case "RequestID":
			invalid.Field = "requestId"
		case "actor":
			invalid.Field = "actorId"
		case "token":
			invalid.Field = "fencingToken"
		case "PurgeOptions.OlderThan":
			invalid.Field = "olderThanSeconds"
		case "PurgeOptions.Batch":
			invalid.Field = "batch"
		case "PurgeOptions.LockTimeout":
			invalid.Field = "lockTimeoutSeconds"
		}
	}
	return err
}

// within carries out one exchange with the issuer and returns in time even if
// the issuer does not. abandoned gets what arrives later; it may be nil.
func within[T any](ctx context.Context, s *Server, op string, claim guard.Claim, run func(context.Context) (T, error), abandoned func(T, error)) (v T, err error) {
	return bounded(ctx, s, s.opts.Timeout, op, claim, run, abandoned)
}

// bounded is within for an exchange that may take another time.
func bounded[T any](ctx context.Context, s *Server, most time.Duration, op string, claim guard.Claim, run func(context.Context) (T, error), abandoned func(T, error)) (v T, err error) {
	type result struct {
		v   T
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	done, gone := make(chan result), make(chan struct{})
	if !s.work.Go(func() {
		defer cancel()
		v, err := run(ctx)
		select {
		case done <- result{v, err}:
		case <-gone:
			if abandoned != nil {
				abandoned(v, err)
			}
		}
	}) {
		cancel()
		return v, guard.Unavailable(op, claim, errors.New("the server is closed"))
	}
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	patience := time.NewTimer(pause.Grace)
	defer patience.Stop()
	select {
	case r := <-done:
		return r.v, r.err
	case <-patience.C:
	}
	close(gone)
	return v, guard.OutcomeUnknown(op, claim, context.Cause(ctx))
}

// none is an exchange without a result.
type none struct{}

// observe tells the observer, later: it may block, and nobody waits for it.
func (s *Server) observe(ctx context.Context, op guard.Op, claim guard.Claim, began time.Duration, err error) {
	if s.opts.Observer == nil {
		return
	}
	event := guard.Event{
		Op: op, Surface: guard.SurfaceLock, Claim: claim, Reason: guard.ReasonOf(err), Duration: s.now() - began, Err: err,
	}
	s.reports.Add(func() { s.opts.Observer.Observe(context.WithoutCancel(ctx), event) })
}

// left is what a TTL that the issuer counts from `from` leaves of itself when it is
// counted from the start of the exchange, as clients do. An issuer may date a lease
// back, such as one that it grants under an older lease of its engine.
func left(ttl, began, from time.Duration) time.Duration { return ttl - max(0, began-from) }

// log writes a line, later, as observe.
func (s *Server) log(ctx context.Context, level slog.Level, name string, attrs ...slog.Attr) {
	logger := input.Logger(s.opts.Logger, level)
	if logger == nil {
		return
	}
	line := slog.NewRecord(time.Now(), level, name, 0)
	line.AddAttrs(attrs...)
	line.AddAttrs(slog.String("event", name))
	s.reports.Add(func() {
		if ctx := context.WithoutCancel(ctx); logger.Enabled(ctx, level) {
			_ = logger.Handler().Handle(ctx, line)
		}
	})
}

// mayBeSigned checks that the identity's claims can be signed, if there is a signer.
func (q *request) mayBeSigned() error {
	if q.s.opts.Signer != nil && q.id.Audience == "" {
		return &httpError{kind: &kindSetup, err: errors.New("Identity.Audience is empty, and Options.Signer needs it")}
	}
	return nil
}

// sign adds a proof of the claim, if there is a signer.
func (s *Server) sign(ctx context.Context, id *Identity, claim guard.Claim, until time.Time) (string, error) {
	if s.opts.Signer == nil {
		return "", nil
	}
	return within(ctx, s, "sign", claim, func(context.Context) (string, error) { return s.opts.Signer.Sign(claim, id.Audience, until) }, nil)
}

func (s *Server) time(w http.ResponseWriter, _ *request) error {
	s.respond(w, timeBody{time.Now()})
	return nil
}
