package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

const (
	bucketName = "invoices"
	key        = "tenant_123/2026-04.csv"
	resource   = "tenant_123:billing-close:2026-04"
)

func claim(token guard.Token, lease string) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: lease}
}

// opaqueServers maps servers to what a probe would find out about their ETags.
var opaqueServers sync.Map

// newServer starts a server with an empty bucket.
func newServer(t testing.TB, opts *s3test.Options) *s3test.Server {
	t.Helper()
	if opts == nil {
		opts = &s3test.Options{}
	}
	opts.Buckets = []string{bucketName}
	server := s3test.New(t, opts)
	opaqueServers.Store(server, opts.ETags == s3test.ETagOpaque)
	return server
}

// newClient returns a client as an application would configure it.
func newClient(server *s3test.Server, change ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(server.URL()), UsePathStyle: true, Region: "eu-central-1", HTTPClient: server.HTTPClient(),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}, nil
		}),
		// The SDK's own retries are on, as everywhere, but do not take seconds.
		Retryer: retry.AddWithMaxBackoffDelay(retry.NewStandard(), 5*time.Millisecond),
	}, change...)
}

// open opens the bucket with fast retries. What a probe would find is known.
func open(t testing.TB, server *s3test.Server, opts *s3fence.Options) *s3fence.Bucket {
	t.Helper()
	given := s3fence.Options{}
	if opts != nil {
		given = *opts
	}
	given.InsecureSkipProbe = true
	b, err := s3fence.Open(t.Context(), newClient(server), bucketName, &given)
	must(t, err)
	opaque, _ := opaqueServers.Load(server)
	b.SetOpaque(opaque == true)
	b.SetDelay(time.Millisecond)
	return b
}

func objects(t testing.TB, b *s3fence.Bucket, mode s3fence.Mode, opts *s3fence.ObjectsOptions) *s3fence.Handle {
	t.Helper()
	o, err := b.In(mode, opts)
	must(t, err)
	return o
}

// setup returns a server, its bucket and objects of a mode that is safe there.
// The probe's result is known, so it is not run each time.
func setup(t testing.TB, mode s3fence.Mode, rule guard.Rule) (*s3test.Server, *s3fence.Bucket, *s3fence.Handle) {
	t.Helper()
	opts := &s3test.Options{}
	if mode == s3fence.Plain {
		opts.ETags = s3test.ETagOpaque
	}
	server := newServer(t, opts)
	b := open(t, server, nil)
	return server, b, objects(t, b, mode, &s3fence.ObjectsOptions{Rule: rule})
}

var allModes = []s3fence.Mode{s3fence.Sealed, s3fence.SealedGzip, s3fence.Plain, s3fence.Pointer}

// eachBody runs f as a subtest for each mode of Objects.
func eachBody(t *testing.T, f func(t *testing.T, mode s3fence.Mode)) {
	for _, mode := range allModes[:3] {
		t.Run(s3fence.NameOf(mode), func(t *testing.T) { f(t, mode) })
	}
}

// eachMode runs f as a subtest for each mode.
func eachMode(t *testing.T, f func(t *testing.T, mode s3fence.Mode)) {
	for _, mode := range allModes {
		t.Run(s3fence.NameOf(mode), func(t *testing.T) { f(t, mode) })
	}
}

// must ends the test if a step that it needs fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, o *s3fence.Handle, c guard.Claim, body string) {
	t.Helper()
	if err := o.Put(t.Context(), c, key, bytes.NewReader([]byte(body)), nil); err != nil {
		t.Fatalf("Put under %d: %v", c.Token, err)
	}
}

// calls are the calls on an object, by name. They differ in what they do with it, and
// share all that comes before.
func calls(o *s3fence.Handle, c guard.Claim, key string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"put":    func(ctx context.Context) error { return o.Put(ctx, c, key, strings.NewReader("new"), nil) },
		"raise":  func(ctx context.Context) error { return o.Raise(ctx, c, key) },
		"delete": func(ctx context.Context) error { return o.Delete(ctx, c, key) },
		"adopt":  func(ctx context.Context) error { return o.Adopt(ctx, c, key) },
		"get": func(ctx context.Context) error {
			object, err := o.Get(ctx, key)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, object.Body)
			return errors.Join(err, object.Body.Close())
		},
		"mark":   func(ctx context.Context) error { _, err := o.Mark(ctx, key); return err },
		"remove": func(ctx context.Context) error { return o.InsecureDelete(ctx, key) },
	}
}

// firstPut is a rule for the next PUT of the tests' object.
func firstPut(fault s3test.Fault) s3test.Rule {
	return s3test.Rule{Ops: puts, Key: key, Times: 1, Fault: fault}
}

// hold starts call and returns once its first request under the rule is held.
func hold(t testing.TB, server *s3test.Server, rule s3test.Rule, call func() error) (release func(), verdict <-chan error) {
	t.Helper()
	arrived, free := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(free) })
	t.Cleanup(release)
	first := sync.OnceFunc(func() { close(arrived) })
	rule.Fault.Before = func(*s3test.Request) { first(); <-free }
	server.Inject(rule)
	done := make(chan error, 1)
	go func() { done <- call() }()
	testkit.Receive(t, "the request", arrived)
	return release, done
}

// httpFunc is an HTTP client, or what it sends by.
type httpFunc func(*http.Request) (*http.Response, error)

func (f httpFunc) Do(r *http.Request) (*http.Response, error)        { return f(r) }
func (f httpFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// response is one that no server sent.
func response(r *http.Request, status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Request: r, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// content reads an object whole.
func content(t testing.TB, o *s3fence.Handle, key string) (string, guard.Mark) {
	t.Helper()
	object, err := o.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get %q: %v", key, err)
	}
	return all(t, object)
}

// all reads what Get returned.
func all(t testing.TB, object *s3fence.Object) (string, guard.Mark) {
	t.Helper()
	defer object.Body.Close()
	body, err := io.ReadAll(object.Body)
	if err != nil {
		t.Fatalf("read %q: %v", object.Key, err)
	}
	if int64(len(body)) != object.Size {
		t.Errorf("%q has %d bytes, Size says %d", object.Key, len(body), object.Size)
	}
	return string(body), object.Mark
}

func want(t testing.TB, o *s3fence.Handle, body string, mark guard.Mark) {
	t.Helper()
	got, at := content(t, o, key)
	if got != body || at != mark {
		t.Errorf("the object is %q at %+v, want %q at %+v", got, at, body, mark)
	}
}

// refused checks the reason, and that the error has the facts.
func refused(t testing.TB, err error, reason guard.Reason) {
	t.Helper()
	if got := guard.ReasonOf(err); got != reason {
		t.Errorf("the reason is %q, want %q: %v", got, reason, err)
	}
}

// damage checks that err is a DamagedError, and one that no retry cures.
func damage(t testing.TB, err error) *s3fence.DamagedError {
	t.Helper()
	var d *s3fence.DamagedError
	if !errors.As(err, &d) || !errors.Is(err, guard.ErrSetup) || errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("got %v, want a DamagedError that is a setup error", err)
		return &s3fence.DamagedError{}
	}
	return d
}
