package s3test

import (
	"context"
	"encoding/xml"
	"fmt"
	"maps"
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
	opts Options
	http *httptest.Server

	// mu makes deciding a condition and applying the write one step.
	mu      sync.Mutex
	buckets map[string]*bucket
	history []Mutation
	seq     int64
	etags   ETagMode
	rng     *rand.Rand // for ETags

	rulesMu  sync.Mutex
	rules    []*Injection
	injected uint64

	countMu  sync.Mutex
	received int64
	counts   map[Op]int
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
		buckets: map[string]*bucket{},
		counts:  map[Op]int{},
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
	if s.http = httptest.NewUnstartedServer(s); s.opts.TLS {
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

// Close waits for all requests to end and stops the server. The history stays readable.
func (s *Server) Close() { s.http.Close() }

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
	method string
	// header is what the server examines, without what a fault ignores.
	header http.Header
	plan   plan
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := parse(r)
	req.ID = s.count(req.Op)
	w.Header().Set("Date", s.opts.Now().UTC().Format(http.TimeFormat))
	// The body is read first: to the client, an earlier response would look like
	// a broken connection.
	body, refusal, err := readBody(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req.Body = body
	c := &call{Request: req, method: r.Method, header: r.Header, plan: s.plan(req)}
	for _, f := range c.plan {
		if f.Before != nil {
			f.Before(req)
		}
	}
	if f := c.plan.end(false); f != nil {
		c.finish(w, f, nil)
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
	c.finish(w, c.plan.end(true), a)
}

// finish sends the response, or does what the fault says instead.
func (c *call) finish(w http.ResponseWriter, f *Fault, a *response) {
	if f != nil {
		if f.Lose {
			panic(http.ErrAbortHandler)
		}
		a = f.response()
	}
	if a.code == "" && !a.foreign {
		c.plan.spoil(a)
	}
	cut := a.code == "" && len(a.body) > 0 && c.plan.has(func(f *Fault) bool { return f.Cut })
	a.write(w, c.Request, c.method, cut)
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

// dispatch lets a request take effect.
func (s *Server) dispatch(c *call) *response {
	if c.Key != "" {
		if !utf8.ValidString(c.Key) {
			return fail("InvalidURI")
		}
		if len(c.Key) > maxKeyLength {
			return fail("KeyTooLongError")
		}
	}
	switch c.Op {
	case CreateBucket:
		return s.createBucket(c)
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
	foreign bool // it is not S3's
}

// failures are the errors that handlers respond with.
var failures = map[string]struct {
	status  int
	message string
}{
	"AccessDenied":               {403, "Access Denied"},
	"BadDigest":                  {400, "The checksum that you specified did not match what was received."},
	"BucketAlreadyOwnedByYou":    {409, "Your previous request to create the named bucket succeeded and you already own it."},
	"ConditionalRequestConflict": {409, "A conflicting operation occurred during processing of the conditional request."},
	"IncompleteBody":             {400, "You did not provide the number of bytes specified by the Content-Length HTTP header."},
	"InternalError":              {500, "We encountered an internal error. Please try again."},
	"InvalidArgument":            {400, "Invalid Argument"},
	"InvalidBucketName":          {400, "The specified bucket is not valid."},
	"InvalidRange":               {416, "The requested range is not satisfiable"},
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

// fail makes an error.
func fail(code string) *response {
	f, ok := failures[code]
	if !ok {
		f.status = http.StatusInternalServerError
	}
	return &response{status: f.status, code: code, message: f.message}
}

// document makes a response with an XML body.
func document(v any) *response {
	body, err := xml.Marshal(v)
	if err != nil {
		return fail("InternalError")
	}
	return &response{
		status: http.StatusOK,
		header: http.Header{"Content-Type": {"application/xml"}},
		body:   append([]byte(xml.Header), body...),
	}
}

type errorDocument struct {
	XMLName    xml.Name `xml:"Error"`
	Code       string
	Message    string
	Key        string `xml:",omitempty"`
	BucketName string `xml:",omitempty"`
	RequestID  string `xml:"RequestId"`
}

// write sends the response. With cut it sends half of the body and ends the connection.
func (a *response) write(w http.ResponseWriter, req *Request, method string, cut bool) {
	body, h := a.body, w.Header()
	maps.Copy(h, a.header)
	if !a.foreign {
		h.Set("X-Amz-Request-Id", req.ID)
		h.Set("Server", "s3test")
	}
	if a.code != "" {
		d := document(errorDocument{Code: a.code, Message: a.message, Key: req.Key, BucketName: req.Bucket, RequestID: req.ID})
		maps.Copy(h, d.header)
		body = d.body
	}
	if a.status != http.StatusNoContent && a.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(a.status)
	switch {
	case method == http.MethodHead:
	case cut:
		w.Write(body[:len(body)/2])
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	default:
		w.Write(body) // a client that is gone, or a status without a body, does not matter
	}
}
