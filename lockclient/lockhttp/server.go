package lockhttp

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"iter"
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
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
)

// Authenticate returns who sent a request: by its bearer token, its client
// certificate, its cookie. An error becomes a 401, one that is
// guard.ErrUnavailable with 503; its text is logged and not shown. It is called
// once for every request but those for health and the description, from many
// goroutines.
type Authenticate func(*http.Request) (*Identity, error)

// Admin is what the operators' requests need. An Operator of package lockadmin without a
// namespace is one.
type Admin interface {
	List(ctx context.Context, pattern string, opts *driver.ListOptions) iter.Seq2[driver.LeaseInfo, error]
	Get(ctx context.Context, resource string) (driver.LeaseInfo, error)
	ForceUnlock(ctx context.Context, resource, actor, reason string, opts *driver.ForceUnlockOptions) (driver.ForceUnlocked, error)
	Audit(ctx context.Context, pattern string, opts *driver.AuditOptions) iter.Seq2[driver.AuditRecord, error]
}

// Signer makes a proof that this server issued a claim. The Signer of
// guard/proof is one.
type Signer interface {
	Sign(claim guard.Claim, audience string, expiry time.Time) (string, error)
}

// Options configures [New]. The zero value is the default.
type Options struct {
	// Admin lists, force-unlocks and reads the audit; if nil, these requests
	// get a 501, and /ui shows nothing.
	Admin Admin
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
	// exchange; a renewal of a lease that is over, a force unlock with Raise, /readyz
	// and /ui are several.
	Timeout time.Duration
	// MaxWait bounds waitSeconds and how long one stream of events lasts; 0
	// means a minute.
	MaxWait time.Duration
	// Logger gets lock_acquired, lock_released and lock_force_unlocked, also as the
	// attribute event, with their subjects, lock_request_failed for each response of 500 and more and
	// lock_unauthenticated; nil means slog.Default() for the last two and none
	// for the rest.
	Logger *slog.Logger
	// Observer gets every acquire, renewal, release and force unlock; nil means
	// none.
	Observer guard.Observer
}

const (
	defaultTimeout = 1500 * time.Millisecond
	defaultMaxWait = time.Minute
	// grace is how long an exchange may go on after its time: the response is
	// nearly always in flight.
	grace = 100 * time.Millisecond
	// readTimeout bounds how long a request's body may take to arrive.
	readTimeout = 10 * time.Second
	// writeTimeout bounds how long a response or an event may take to be read. It
	// is longer, since a response waits for the body.
	writeTimeout = 15 * time.Second
	// batchMost is how many renewals one request may have.
	batchMost = 100
	// bodyMost is the longest body of a request in bytes. A batch of the longest names
	// fits, however JSON escapes them.
	bodyMost = 512 << 10
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
	events       *slog.Logger // of what succeeds; may be nil
	router       chi.Router
	waits        waits
	granted      granted
	finding      chan struct{} // has room for the one that looks for a lease by its ID
	finders      finders
	waiters      waiting.Queues
	ready        readiness

	closeOnce sync.Once
	closed    chan struct{}
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
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
	s := &Server{issuer: issuer, limits: issuer.Limits(), now: driver.Now, authenticate: authenticate, closed: make(chan struct{}), finding: make(chan struct{}, 1)}
	if own, ok := issuer.(driver.Clock); ok {
		s.now = own.Now
	}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	o.Timeout, o.MaxWait = cmp.Or(o.Timeout, defaultTimeout), cmp.Or(o.MaxWait, defaultMaxWait)
	if err := input.Between("Options.Timeout", o.Timeout, time.Millisecond, time.Hour); err != nil {
		return nil, err
	}
	if err := input.Between("Options.MaxWait", o.MaxWait, time.Millisecond, 24*time.Hour); err != nil {
		return nil, err
	}
	if s.events = o.Logger; o.Logger == nil {
		o.Logger = slog.Default()
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
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
// waits for the exchanges in flight until ctx ends. After that nothing is sent to the issuer, and
// requests get a 503.
func (s *Server) Close(ctx context.Context) error {
	s.closeOnce.Do(func() { close(s.closed) })
	defer s.cancel()
	if err := s.work.Drain(ctx); err != nil {
		return guard.Unavailable("close", guard.Claim{}, err)
	}
	return nil
}

// handler serves a request of an identity, or returns why not. It takes what it knows of
// in and refuses the rest.
type handler func(w http.ResponseWriter, r *http.Request, id *Identity, in *fields) error

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
		method, path string
		handler      handler
	}{
		{"GET", "/v1/time", s.time},
		{"POST", "/v1/locks/acquire", s.acquire},
		{"POST", "/v1/locks/renew", s.renewBatch},
		{"POST", "/v1/locks/release", s.release}, // lease IDs such as "..", which proxies change in a path
		{"POST", "/v1/locks/why", s.why},
		{"POST", "/v1/locks/{leaseId}/renew", s.renewOne},
		{"DELETE", "/v1/locks/{leaseId}", s.release},
		{"GET", "/v1/locks", s.list},
		{"GET", "/v1/locks/{resource}", s.get},
		{"POST", "/v1/locks/{resource}/force-unlock", s.forceUnlock},
		{"GET", "/v1/audit", s.audit},
		{"GET", "/v1/watch", s.watch},
	} {
		_, name, _ := strings.Cut(route.path, "{") // of the one name in the path, if any
		name, _, _ = strings.Cut(name, "}")
		top.MethodFunc(route.method, route.path, s.authenticated(route.handler, name))
	}
	s.page(top)
	return top
}

// authenticated makes h serve the identity that sent the request. name is the field that
// the path has.
func (s *Server) authenticated(h handler, name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, err := s.identify(r)
		if err != nil {
			s.fail(w, r, "", err)
			return
		}
		in, err := read(w, r, name)
		if err == nil {
			err = h(w, r, id, in)
		}
		if err != nil {
			s.fail(w, r, id.Subject, err)
		}
	}
}

func (s *Server) identify(r *http.Request) (*Identity, error) {
	id, err := s.authenticate(r)
	switch {
	case errors.Is(err, guard.ErrSetup):
		return nil, &httpError{kind: &kindSetup, err: err}
	case errors.Is(err, guard.ErrUnavailable):
		return nil, &httpError{kind: &kindUnavailable, err: err}
	case err == nil && id == nil:
		err = errors.New("no identity")
	case err == nil:
		err = guard.ValidateOwner(id.Subject)
	}
	if err != nil {
		s.opts.Logger.LogAttrs(r.Context(), slog.LevelWarn, "lock_unauthenticated",
			slog.String("remote", r.RemoteAddr), slog.String("error", err.Error()))
		return nil, &httpError{kind: &kindUnauthorized}
	}
	return id, nil
}

// allowed checks a resource's name, and that the identity may name it.
func allowed(id *Identity, resource string) error {
	if resource == "" {
		return guard.Missing("resource")
	}
	if err := guard.ValidateResource(resource); err != nil {
		return err
	}
	if !id.may(resource) {
		return &httpError{kind: &kindForbidden}
	}
	return nil
}

// leaseID checks a lease ID that a request names.
func leaseID(text string) error {
	if text == "" {
		return guard.Missing("leaseId")
	}
	return renamed(guard.ValidateLeaseID(text), "leaseId")
}

// renamed gives an error the field's name on the wire.
func renamed(err error, field string) error {
	if invalid, is := errors.AsType[*guard.InvalidError](err); is {
		invalid.Field = field
	}
	return err
}

// within carries out one exchange with the issuer and returns in time even if
// the issuer does not. abandoned gets what arrives later; it may be nil.
func within[T any](ctx context.Context, s *Server, op string, claim guard.Claim, run func(context.Context) (T, error), abandoned func(T, error)) (v T, err error) {
	type result struct {
		v   T
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
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
	patience := time.NewTimer(grace)
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

func (s *Server) observe(ctx context.Context, op guard.Op, claim guard.Claim, began time.Duration, err error) {
	if s.opts.Observer != nil {
		s.opts.Observer.Observe(ctx, guard.Event{
			Op: op, Surface: guard.SurfaceLock, Claim: claim, Reason: guard.ReasonOf(err), Duration: s.now() - began, Err: err,
		})
	}
}

// left is what a TTL that the issuer counts from `from` leaves of itself when it is
// counted from the start of the exchange, as clients do. An issuer may date a lease
// back, such as one that it grants under an older lease of its engine.
func left(ttl, began, from time.Duration) time.Duration { return ttl - max(0, began-from) }

func (s *Server) log(ctx context.Context, name string, attrs ...slog.Attr) {
	if s.events != nil {
		s.events.LogAttrs(ctx, slog.LevelInfo, name, append(attrs, slog.String("event", name))...)
	}
}

// sign adds a proof of the claim, if there is a signer.
func (s *Server) sign(id *Identity, claim guard.Claim, until time.Time) (string, error) {
	if s.opts.Signer == nil {
		return "", nil
	}
	return s.opts.Signer.Sign(claim, id.Audience, until)
}

func (s *Server) time(w http.ResponseWriter, _ *http.Request, _ *Identity, in *fields) error {
	if err := in.end(); err != nil {
		return err
	}
	s.respond(w, timeBody{time.Now()})
	return nil
}
