package s3test

import (
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"
)

// Server is an S3 server on the loopback interface. Its methods may be called
// at any time from any goroutine, hooks of faults included.
type Server struct {
	opts   Options
	http   *httptest.Server
	closed chan struct{}
	once   sync.Once

	// mu makes deciding a condition and applying the write one step.
	mu      sync.Mutex
	buckets map[string]*bucket
	history []Mutation
	seq     int64
	etags   ETagMode
	rng     *rand.Rand // for ETags and upload IDs

	rulesMu  sync.Mutex
	rules    []*Injection
	pauses   []*Pause
	injected uint64

	countMu  sync.Mutex
	received int64
	counts   map[Op]int
	answers  map[Op]map[int]int
}

// New starts a server. Nil options are the zero value. It panics if there is no
// loopback interface to listen on, or if a bucket's name is not valid.
func New(opts *Options) *Server {
	s := &Server{
		closed:  make(chan struct{}),
		buckets: map[string]*bucket{},
		counts:  map[Op]int{},
		answers: map[Op]map[int]int{},
	}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	if s.opts.MinPartSize == 0 {
		s.opts.MinPartSize = defaultMinPartSize
	}
	s.etags = s.opts.ETags
	s.rng = rand.New(rand.NewPCG(s.opts.Seed, 0))
	for _, name := range s.opts.Buckets {
		s.CreateBucket(name)
	}
	s.http = httptest.NewUnstartedServer(s)
	if s.opts.TLS {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	if t, ok := s.http.Client().Transport.(*http.Transport); ok {
		// The default of two makes racing clients dial for every request.
		t.MaxIdleConnsPerHost = 64
	}
	return s
}

// URL is the server's endpoint. Buckets are addressed by path.
func (s *Server) URL() string { return s.http.URL }

// Client returns a client that trusts the server's certificate and keeps enough
// connections for tests with many goroutines.
func (s *Server) Client() *http.Client { return s.http.Client() }

// Certificate is the server's certificate, nil without [Options.TLS].
func (s *Server) Certificate() *x509.Certificate { return s.http.Certificate() }

// Close lets paused and delayed requests go without an answer, waits for all
// requests to end and stops the server. The history stays readable.
func (s *Server) Close() {
	s.once.Do(func() { close(s.closed) })
	s.http.Close()
}

// CreateBucket makes a bucket, unless it exists. It panics if the name is not
// valid.
func (s *Server) CreateBucket(name string) {
	if !validBucketName(name) {
		panic(fmt.Sprintf("s3test: %q is not a valid name for a bucket", name))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buckets[name] == nil {
		s.buckets[name] = newBucket(s.opts.Now())
	}
}

// SetETags changes how the ETags of objects written from now on are made.
func (s *Server) SetETags(mode ETagMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.etags = mode
}

// call is a request in the course of being served.
type call struct {
	*Request
	r *http.Request
	// header is what the server looks at: without what a fault ignores.
	header http.Header
	body   *body
	plan   plan
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := parse(r)
	req.ID = s.count(req.Op)
	// The body comes first: an answer that overtakes it would reach the client
	// as a broken connection.
	body, refusal, err := s.readBody(r, req.Op)
	if err != nil {
		s.abort(req)
	}
	req.Body, req.Size = body.data, body.size
	c := &call{Request: req, r: r, header: r.Header, body: body, plan: s.plan(req)}
	s.sleep(c.plan.delayBefore())
	for _, f := range c.plan {
		if f.Before != nil {
			f.Before(req)
		}
	}
	if s.isClosed() {
		s.abort(req)
	}
	if f := c.plan.end(false); f != nil {
		s.finish(w, c, f, nil)
		return
	}
	c.ignoreHeaders()
	a := refusal
	if refused := s.authorize(c); refused != nil {
		a = refused
	}
	if a == nil {
		a = s.dispatch(c)
	}
	for _, f := range c.plan {
		if f.After != nil {
			f.After(req, a.status)
		}
	}
	s.sleep(c.plan.delayAfter())
	if s.isClosed() {
		s.abort(req)
	}
	s.finish(w, c, c.plan.end(true), a)
}

// finish answers, or does what the fault says instead.
func (s *Server) finish(w http.ResponseWriter, c *call, f *Fault, a *answer) {
	if f != nil {
		if f.Lose {
			s.abort(c.Request)
		}
		a = f.answer()
	}
	s.countAnswer(c.Op, a.status)
	if a.code == "" {
		c.plan.spoil(a)
		if c.plan.has(func(f *Fault) bool { return f.Cut }) && len(a.body) > 0 && c.r.Method != http.MethodHead {
			a.cut(w, c.Request)
		}
	}
	a.write(w, c.Request, c.r.Method)
}

// abort closes the connection.
func (s *Server) abort(req *Request) {
	s.countAnswer(req.Op, 0)
	panic(http.ErrAbortHandler)
}

func (c *call) ignoreHeaders() {
	var ignored []string
	for _, f := range c.plan {
		ignored = append(ignored, f.Ignore...)
	}
	if len(ignored) == 0 {
		return
	}
	c.header = c.header.Clone()
	for name := range c.header {
		if slices.ContainsFunc(ignored, func(i string) bool { return http.CanonicalHeaderKey(i) == name }) {
			delete(c.header, name)
		}
	}
}

func (s *Server) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// sleep waits, but not beyond the end of the server.
func (s *Server) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.closed:
	}
}
