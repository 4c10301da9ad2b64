package httpfence

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	chimw "github.com/go-chi/chi/v5/middleware"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// newFence is New for tests that are not about the lease ID and the resource's
// name: neither has to be sent. See newStrict.
func newFence(store guard.Store, resource ResourceFunc, opts *Options) *Middleware {
	return guard.Must(New(store, resource, lax(opts)))
}

// newTx is NewTx, as newFence is New.
func newTx(t Transactor, resource ResourceFunc, opts *Options) *TxMiddleware {
	return guard.Must(NewTx(t, resource, lax(opts)))
}

func lax(opts *Options) *Options {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.TokenOnly, o.InsecureAnyResource = true, true
	if o.MaxWait == 0 {
		o.MaxWait = testkit.Patience // for a machine that is slow
	}
	if o.Logger == nil {
		o.Logger = silent
	}
	return &o
}

// silent keeps refusals out of the log of the tests.
var silent = slog.New(slog.DiscardHandler)

// quietly has chi's Recoverer print no stack for r.
func quietly(r *http.Request) *http.Request { return chimw.WithLogEntry(r, noEntry{}) }

type noEntry struct{}

func (noEntry) Write(int, int, http.Header, time.Duration, any) {}
func (noEntry) Panic(any, []byte)                               {}

// ok is a handler that only succeeds.
func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

func literal(name string) ResourceFunc {
	return guard.Must(Named(guard.Must(guard.NewTemplate(name)), nil))
}

// countingStore counts the calls, so that a test can show that a refused
// request did not even reach the store, and can fail in the store's place.
type countingStore struct {
	guard.Store
	admits, reads atomic.Int64
	first         atomic.Pointer[func(context.Context) error] // called before each, in place of it if it fails
}

func newStore() *countingStore { return &countingStore{Store: guard.NewMemory()} }

func (s *countingStore) before(first func(context.Context) error) { s.first.Store(&first) }

func (s *countingStore) failWith(err error) { s.before(func(context.Context) error { return err }) }

func (s *countingStore) call(ctx context.Context, count *atomic.Int64, next func() (guard.Mark, error)) (guard.Mark, error) {
	count.Add(1)
	if first := s.first.Load(); first != nil {
		if err := (*first)(ctx); err != nil {
			return guard.Mark{}, err
		}
	}
	return next()
}

func (s *countingStore) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	return s.call(ctx, &s.admits, func() (guard.Mark, error) { return s.Store.Admit(ctx, c) })
}

func (s *countingStore) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	return s.call(ctx, &s.reads, func() (guard.Mark, error) { return s.Store.Mark(ctx, resource) })
}

func (s *countingStore) calls() int64 { return s.admits.Load() + s.reads.Load() }

// mark reads the mark behind the counters.
func (s *countingStore) mark(t testing.TB, resource string) guard.Mark {
	t.Helper()
	m, err := s.Store.Mark(t.Context(), resource)
	if err != nil {
		t.Fatalf("mark of %q: %v", resource, err)
	}
	return m
}

// service is a chi router behind a real socket, guarded at
// /acct/{id}/close, with a handler that counts.
type service struct {
	*httptest.Server
	store   *countingStore
	fence   *Middleware
	tx      *TxMiddleware // has fence
	work    *fakeTx       // of tx
	invoked atomic.Int64
	claim   atomic.Pointer[guard.Claim] // of the last invocation; nil if it had none
}

// handler counts requests and notes the claim, and then calls h, or responds.
func (s *service) handler(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.invoked.Add(1)
		s.claim.Store(nil)
		if c, ok := guard.ClaimFrom(r.Context()); ok {
			s.claim.Store(&c)
		}
		if h != nil {
			h(w, r)
			return
		}
		write(r.Context(), "work")
		_, _ = io.WriteString(w, "done")
	})
}

// newService is for tests that are not about the lease ID and the resource's name.
func newService(t testing.TB, opts *Options) *service {
	return newServiceAt(t, (*service).admit, ChiParam("id"), opts)
}

// newServiceAt is newService with another way to guard the handler.
func newServiceAt(t testing.TB, guarded func(*service, http.Handler) http.Handler, resource ResourceFunc, opts *Options) *service {
	return serviceOf(t, guarded, resource, lax(opts), nil)
}

// newStrict is newService with the defaults of Options that are not given.
func newStrict(t testing.TB, opts *Options) *service { return strictAt(t, (*service).admit, opts) }

// strictAt is newStrict with another way to guard the handler.
func strictAt(t testing.TB, guarded func(*service, http.Handler) http.Handler, opts *Options) *service {
	return serviceOf(t, guarded, ChiParam("id"), opts, nil)
}

// inTxService is newService behind InTx instead of Admit, with a handler of its own.
func inTxService(t testing.TB, opts *Options, h http.HandlerFunc) *service {
	return serviceOf(t, (*service).inTx, ChiParam("id"), lax(opts), h)
}

// serviceOf serves h, or without one a handler that reports what it was given,
// until the test has ended.
func serviceOf(t testing.TB, guarded func(*service, http.Handler) http.Handler, resource ResourceFunc, opts *Options, h http.HandlerFunc) *service {
	s := &service{store: newStore()}
	s.work = &fakeTx{store: s.store}
	s.tx = guard.Must(NewTx(s.work, resource, opts))
	s.fence = s.tx.Middleware
	router := chi.NewRouter()
	router.Handle("/acct/{id}/close", guarded(s, s.handler(h)))
	s.Server = httptest.NewServer(router)
	t.Cleanup(s.Close)
	return s
}

func (s *service) admit(next http.Handler) http.Handler { return s.fence.Admit(next) }

func (s *service) inTx(next http.Handler) http.Handler { return s.tx.InTx(next) }

// answer is a response with its body read and, if it is a problem, decoded.
type answer struct {
	status  int
	header  http.Header
	body    string
	problem map[string]any
}

func (a answer) reason() string {
	uri, _ := a.problem["type"].(string)
	return strings.TrimPrefix(uri, problemPrefix)
}

func read(t testing.TB, resp *http.Response) answer {
	t.Helper()
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("reading the body: %v", err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: string(b)}
	if len(b) > 0 && resp.Header.Get("Content-Type") == problemType { // HEAD has no body
		if err := json.Unmarshal(b, &a.problem); err != nil {
			t.Fatalf("problem body %q: %v", b, err)
		}
	}
	return a
}

// do sends a request with Go's client. header is name, value, name, value.
func do(t testing.TB, method, url string, header ...string) answer {
	t.Helper()
	req := guard.Must(http.NewRequestWithContext(t.Context(), method, url, nil))
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // no redirects, no cookies
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return read(t, resp)
}

// post sends token and, if not empty, lease to /acct/{id}/close.
func (s *service) post(t testing.TB, id, token, lease string) answer {
	t.Helper()
	header := []string{TokenHeader, token}
	if lease != "" {
		header = append(header, LeaseHeader, lease)
	}
	return do(t, http.MethodPost, s.URL+"/acct/"+id+"/close", header...)
}

// raw writes bytes to the server and reads one response. A server that closes
// the connection without one gives status 0.
func (s *service) raw(t testing.TB, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience)) // ends a hang
	// The server may answer and close before it has read a megabyte.
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = io.WriteString(conn, request)
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return answer{}
		}
		t.Fatalf("reading the answer: %v", err)
	}
	a := read(t, resp)
	_ = conn.Close()
	<-written
	return a
}

// rawPost is a POST over a raw connection with the given header lines.
func rawPost(path string, lines ...string) string {
	var b strings.Builder
	b.WriteString("POST " + path + " HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nContent-Length: 0\r\n")
	for _, l := range lines {
		b.WriteString(l + "\r\n")
	}
	return b.String() + "\r\n"
}

// fakeTx is a Transactor in memory: it admits to a store, and its transactions
// collect what they write until it commits.
type fakeTx struct {
	store     guard.Store
	commitErr error
	commit    func()        // called while the COMMIT is in flight
	twice     bool          // broken: calls fn again
	swallow   bool          // broken: hides fn's error and its panic
	begun     chan struct{} // signalled at each BEGIN
	slow      time.Duration // how long a BEGIN takes, even if the context ends

	mu        sync.Mutex
	told      error // what the handler asked for
	committed []string
	rolled    int
}

type fakeTxKey struct{}

// write is called by a handler on its transaction.
func write(ctx context.Context, s string) bool {
	work, ok := ctx.Value(fakeTxKey{}).(*[]string)
	if ok {
		*work = append(*work, s)
	}
	return ok
}

func (f *fakeTx) Marks() guard.Store { return f.store }

func (f *fakeTx) InTx(ctx context.Context, claim guard.Claim, fn func(context.Context) error) error {
	if _, err := f.store.Admit(ctx, claim); err != nil {
		return err
	}
	return f.run(ctx, fn)
}

func (f *fakeTx) run(ctx context.Context, fn func(context.Context) error) (err error) {
	if f.begun != nil {
		f.begun <- struct{}{}
	}
	time.Sleep(f.slow)
	var work []string
	ended := false
	defer func() {
		if !ended {
			f.mu.Lock()
			f.rolled++
			f.mu.Unlock()
		}
		if f.swallow {
			recover()
			err = nil
		}
	}()
	ctx = context.WithValue(ctx, fakeTxKey{}, &work)
	err = fn(ctx)
	f.told = err
	if f.twice {
		err = fn(ctx)
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return guard.Unavailable("fake", guard.Claim{}, ctx.Err())
	}
	if f.commit != nil {
		f.commit()
	}
	if f.commitErr != nil {
		return f.commitErr
	}
	ended = true
	f.mu.Lock()
	f.committed = append(f.committed, work...)
	f.mu.Unlock()
	return nil
}

// lockedLog is what several goroutines log to.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
