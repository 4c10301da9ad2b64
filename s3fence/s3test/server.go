package s3test

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
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
	rng     *rand.Rand // for ETags

	rulesMu  sync.Mutex
	rules    []*Injection
	pauses   []*Pause
	injected uint64

	countMu   sync.Mutex
	received  int64
	counts    map[Op]int
	responses map[Op]map[int]int
}

// New starts a server that is closed when the test ends. Nil options are the
// zero value.
func New(t testing.TB, opts *Options) *Server {
	t.Helper()
	s := Start(opts)
	t.Cleanup(s.Close)
	return s
}

// Start starts a server that runs until [Server.Close], for use outside of
// tests. Nil options are the zero value. It panics if there is no loopback
// interface to listen on, or if a bucket's name is not valid.
func Start(opts *Options) *Server {
	s := &Server{
		closed:    make(chan struct{}),
		buckets:   map[string]*bucket{},
		counts:    map[Op]int{},
		responses: map[Op]map[int]int{},
	}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	s.etags = s.opts.ETags
	s.rng = rand.New(rand.NewPCG(s.opts.Seed, 0))
	if len(s.opts.Buckets) == 0 {
		s.opts.Buckets = []string{DefaultBucket}
	}
	for _, name := range s.opts.Buckets {
		s.CreateBucket(name)
	}
	for _, rule := range s.opts.Rules {
		s.Inject(rule)
	}
	s.http = httptest.NewServer(s)
	if t, ok := s.http.Client().Transport.(*http.Transport); ok {
		// The default of two makes racing clients dial for every request.
		t.MaxIdleConnsPerHost = 64
	}
	return s
}

// URL is the server's endpoint. Buckets are addressed by path.
func (s *Server) URL() string { return s.http.URL }

// Client returns Amazon's client for this server, with an application's usual
// retries and checksums, and some credentials.
func (s *Server) Client(change ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(s.URL()), UsePathStyle: true, Region: region, HTTPClient: s.HTTPClient(),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
		Retryer:                    retry.AddWithMaxBackoffDelay(retry.NewStandard(), 5*time.Millisecond), // a test does not wait for seconds
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "s3test", SecretAccessKey: "secret"}, nil
		}),
	}, change...)
}

// HTTPClient returns a client that keeps enough connections for tests with many
// goroutines.
func (s *Server) HTTPClient() *http.Client { return s.http.Client() }

// Close releases paused and delayed requests without a response, waits for all
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

// call is a request that is being served.
type call struct {
	*Request
	r *http.Request
	// header is what the server examines, without what a fault ignores.
	header http.Header
	body   *body
	plan   plan
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := parse(r)
	req.ID = s.count(req.Op)
	// The body is read first: to the client, an earlier response would look like
	// a broken connection.
	body, refusal, err := readBody(r)
	if err != nil {
		s.abort(req)
	}
	req.Body = body.data
	c := &call{Request: req, r: r, header: r.Header, body: body, plan: s.plan(req)}
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
	if a == nil {
		a = s.dispatch(c)
	}
	for _, f := range c.plan {
		if f.After != nil {
			f.After(req, a.status)
		}
	}
	if s.isClosed() {
		s.abort(req)
	}
	s.finish(w, c, c.plan.end(true), a)
}

// finish sends the response, or does what the fault says instead.
func (s *Server) finish(w http.ResponseWriter, c *call, f *Fault, a *response) {
	if f != nil {
		if f.Lose {
			s.abort(c.Request)
		}
		a = f.response()
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

// dispatch lets a request take effect.
func (s *Server) dispatch(c *call) *response {
	if c.Key != "" {
		if !utf8.ValidString(c.Key) {
			return fail("InvalidURI")
		}
		if len(c.Key) > maxKeyLength {
			return fail("KeyTooLongError", "Size", strconv.Itoa(len(c.Key)), "MaxSizeAllowed", strconv.Itoa(maxKeyLength))
		}
	}
	switch c.Op {
	case CreateBucket:
		return s.createBucket(c)
	case HeadBucket:
		return s.headBucket(c)
	case ListObjectsV2:
		return s.listObjects(c)
	case PutObject:
		return s.putObject(c)
	case GetObject, HeadObject:
		return s.getObject(c)
	case DeleteObject:
		return s.deleteObject(c)
	default:
		return fail("NotImplemented")
	}
}

// response is the response to a request. With a code it is an error.
type response struct {
	status  int
	header  http.Header
	body    []byte
	code    string
	message string
	fields  [][2]string // more elements of the error document
}

// failures are the errors that handlers respond with.
var failures = map[string]struct {
	status  int
	message string
}{
	"AccessDenied":               {403, "Access Denied"},
	"BadDigest":                  {400, "The Content-MD5 or checksum value that you specified did not match what the server received."},
	"BucketAlreadyOwnedByYou":    {409, "Your previous request to create the named bucket succeeded and you already own it."},
	"ConditionalRequestConflict": {409, "A conflicting operation occurred during processing of the conditional request."},
	"IncompleteBody":             {400, "You did not provide the number of bytes specified by the Content-Length HTTP header."},
	"InternalError":              {500, "We encountered an internal error. Please try again."},
	"InvalidArgument":            {400, "Invalid Argument"},
	"InvalidBucketName":          {400, "The specified bucket is not valid."},
	"InvalidDigest":              {400, "The Content-MD5 you specified is not valid."},
	"InvalidRange":               {416, "The requested range is not satisfiable"},
	"InvalidRequest":             {400, "Invalid Request"},
	"InvalidURI":                 {400, "Couldn't parse the specified URI."},
	"KeyTooLongError":            {400, "Your key is too long"},
	"MetadataTooLarge":           {400, "Your metadata headers exceed the maximum allowed metadata size"},
	"MissingContentLength":       {411, "You must provide the Content-Length HTTP header."},
	"NoSuchBucket":               {404, "The specified bucket does not exist"},
	"NoSuchKey":                  {404, "The specified key does not exist."},
	"NotImplemented":             {501, "A header or parameter you provided implies functionality that is not implemented"},
	"PreconditionFailed":         {412, "At least one of the pre-conditions you specified did not hold"},
	"RequestTimeout":             {400, "Your socket connection to the server was not read from or written to within the timeout period."},
	"SlowDown":                   {503, "Please reduce your request rate."},
	"XAmzContentSHA256Mismatch":  {400, "The provided 'x-amz-content-sha256' header does not match what was computed."},
}

// fail makes an error; name and value pairs become elements of its document.
func fail(code string, pairs ...string) *response {
	f, ok := failures[code]
	if !ok {
		f.status = http.StatusInternalServerError
	}
	a := &response{status: f.status, code: code, message: f.message}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "Message" {
			a.message = pairs[i+1]
			continue
		}
		a.fields = append(a.fields, [2]string{pairs[i], pairs[i+1]})
	}
	return a
}

// document makes a response with an XML body.
func document(v any) *response {
	body, err := xml.Marshal(v)
	if err != nil {
		return fail("InternalError", "Message", err.Error())
	}
	return &response{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {"application/xml"}},
		body:   append([]byte(xml.Header), body...),
	}
}

func (a *response) write(w http.ResponseWriter, req *Request, method string) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h.Set("X-Amz-Request-Id", req.ID)
	h.Set("X-Amz-Id-2", req.ID+"/s3test")
	h.Set("Server", "s3test")
	body := a.body
	if a.code != "" {
		h.Set("Content-Type", "application/xml")
		body = a.errorDocument(req)
	}
	if method != http.MethodHead && a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	} else {
		body = nil
	}
	w.WriteHeader(a.status)
	w.Write(body) // a client that is gone does not matter
}

// cut sends half of the body and ends the connection.
func (a *response) cut(w http.ResponseWriter, req *Request) {
	h := w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h.Set("X-Amz-Request-Id", req.ID)
	h.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	w.Write(a.body[:len(a.body)/2])
	http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func (a *response) errorDocument(req *Request) []byte {
	var b bytes.Buffer
	b.WriteString(xml.Header + "<Error>")
	element := func(name, value string) {
		b.WriteString("<" + name + ">")
		xml.EscapeText(&b, []byte(value))
		b.WriteString("</" + name + ">")
	}
	element("Code", a.code)
	element("Message", a.message)
	if req.Key != "" {
		element("Key", req.Key)
	}
	if req.Bucket != "" {
		element("BucketName", req.Bucket)
	}
	for _, f := range a.fields {
		element(f[0], f[1])
	}
	element("RequestId", req.ID)
	element("HostId", req.ID+"/s3test")
	b.WriteString("</Error>")
	return b.Bytes()
}

// stamp formats a time as in S3's documents.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
