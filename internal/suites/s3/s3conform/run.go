// Package s3conform tests what s3fence relies on in an S3 store: conditional
// writes that hold under concurrency, ETags, metadata, ranges at both ends,
// listings, keys of all kinds, checksums, errors.
//
// The same cases run against the in-process server of package s3test and
// against real stores, so that tests on the former say something about the
// latter:
//
//	s3conform.Run(t, s3conform.Target{Endpoint: url, AccessKeyID: "...", SecretAccessKey: "..."})
//
// The suite speaks HTTP itself, so that no client hides what a store does. It makes a bucket of its own, and leaves it.
//
// [Check] runs the cases without a [testing.T] and returns the failures, to show
// that a store that is known to be broken does not pass.
package s3conform

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go/encoding/httpbinding"
)

// Failure is a case that did not pass.
type Failure struct {
	Case string
	Err  error
}

func (f Failure) String() string { return f.Case + ": " + f.Err.Error() }

// testCase is one statement about a store. run fails through the methods of trial,
// or fatal.
type testCase struct {
	name string
	run  func(*trial)
}

func cases() []testCase {
	return slices.Concat(objectCases, conditionCases, listCases, keyCases, checksumCases, raceCases)
}

// Races are the names of the cases that only concurrency can fail.
func Races() []string {
	var names []string
	for _, c := range raceCases {
		names = append(names, c.name)
	}
	return names
}

// Run fails the test for each failure that [Check] finds.
func Run(t *testing.T, target Target) {
	t.Helper()
	failures, err := Check(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range failures {
		t.Error(f)
	}
}

// Check runs all cases and returns the failures, cases that pass though they are
// among Differs included. An error means that the suite could not be run.
func Check(ctx context.Context, target Target) ([]Failure, error) {
	target.defaults()
	bucket, err := target.makeBucket(ctx)
	if err != nil {
		return nil, err
	}
	var failures []Failure
	differs := maps.Clone(target.Differs)
	for _, c := range cases() {
		err := target.try(ctx, bucket, c)
		if reason, known := differs[c.name]; known {
			if delete(differs, c.name); err != nil {
				continue
			}
			err = fmt.Errorf("it passes, although this is said to differ: %s", reason)
		}
		if err != nil {
			failures = append(failures, Failure{c.name, err})
		}
	}
	for name := range differs {
		failures = append(failures, Failure{name, errors.New("there is no such case")})
	}
	// The bucket stays: a broken store may be unable to remove it.
	return failures, ctx.Err()
}

// trial is one run of one case, with keys of its own.
type trial struct {
	*Target
	ctx    context.Context
	bucket string
	prefix string
}

// failed is the panic by which a trial's methods end it.
type failed struct{ err error }

func (t *Target) try(ctx context.Context, bucket string, c testCase) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failed)
			if !ok {
				panic(r)
			}
			err = f.err
		}
	}()
	prefix := strings.NewReplacer(" ", "-", ",", "-").Replace(c.name) + "/"
	c.run(&trial{Target: t, ctx: ctx, bucket: bucket, prefix: prefix})
	return nil
}

func (t *Target) makeBucket(ctx context.Context) (string, error) {
	name := "s3conform-" + strings.ToLower(rand.Text())
	r, err := t.do(ctx, ask{method: http.MethodPut, bucket: name})
	if err != nil {
		return "", err
	}
	if r.status != http.StatusOK {
		return "", fmt.Errorf("s3conform: bucket not made: %s", r)
	}
	return name, nil
}

// Target is a store to be tested.
type Target struct {
	// Endpoint is the URL under which buckets are addressed by path.
	Endpoint string
	// Region is the region that requests are signed for. The zero value is
	// us-east-1.
	Region          string
	AccessKeyID     string
	SecretAccessKey string
	// Client sends the requests. Nil means a client that keeps enough
	// connections.
	Client *http.Client

	// Rounds is the number of rounds of each race, and Writers the number of
	// writers in each. The zero values are 500 and 16.
	Rounds  int
	Writers int

	// Differs names the cases in which the store is known to differ, with the
	// reason. They must fail: a reason that no longer holds is also an error.
	Differs map[string]string
}

func (t *Target) defaults() {
	if t.Region == "" {
		t.Region = "us-east-1"
	}
	if t.Rounds == 0 {
		t.Rounds = 500
	}
	if t.Writers == 0 {
		t.Writers = 16
	}
	if t.Client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 2 * t.Writers
		t.Client = &http.Client{Transport: transport}
	}
}

// ask is one request of the suite.
type ask struct {
	method string
	bucket string
	key    string
	query  url.Values
	header http.Header
	body   []byte
	// payload, if not empty, is sent as the body's hash.
	payload string
}

// reply is the response.
type reply struct {
	status int
	header http.Header
	body   []byte
	code   string // of the error document, if it is one
}

func (r *reply) etag() string { return r.header.Get("Etag") }

// do sends a request. An error means that there was no response.
func (t *Target) do(ctx context.Context, a ask) (*reply, error) {
	path := "/" + a.bucket
	if a.key != "" {
		path += "/" + a.key
	}
	r, err := http.NewRequestWithContext(ctx, a.method, t.Endpoint, bytes.NewReader(a.body))
	if err != nil {
		return nil, err
	}
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery = path, httpbinding.EscapePath(path, false), a.query.Encode()
	for name, values := range a.header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	payload := a.payload
	if payload == "" {
		sum := sha256.Sum256(a.body)
		payload = hex.EncodeToString(sum[:])
	}
	r.Header.Set("X-Amz-Content-Sha256", payload)
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	credentials := aws.Credentials{AccessKeyID: t.AccessKeyID, SecretAccessKey: t.SecretAccessKey}
	if err := signer.SignHTTP(ctx, credentials, r, payload, "s3", t.Region, time.Now()); err != nil {
		return nil, err
	}
	answer, err := t.Client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	out := &reply{status: answer.StatusCode, header: answer.Header, body: body}
	var document struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if bytes.HasPrefix(body, []byte("<")) && xml.Unmarshal(body, &document) == nil {
		out.code = document.Code
	}
	return out, nil
}

// fatal ends the trial.
func fatal(format string, args ...any) {
	panic(failed{fmt.Errorf(format, args...)})
}

func (r *reply) String() string {
	body := r.body
	if len(body) > 300 {
		body = body[:300]
	}
	return fmt.Sprintf("%d %s %q", r.status, r.code, body)
}

// want ends the trial unless the reply has the status, and the error code if one
// is given.
func (r *reply) want(status int, code string) *reply {
	if r.status != status || code != "" && r.code != code && len(r.body) > 0 {
		fatal("want %d %s, got %s", status, code, r)
	}
	return r
}

// send sends a request to the trial's bucket.
func (k *trial) send(a ask) *reply {
	if a.bucket == "" {
		a.bucket = k.bucket
	}
	r, err := k.do(k.ctx, a)
	if err != nil {
		fatal("%s %q: %w", a.method, a.key, err)
	}
	return r
}

// put writes an object of the trial; pairs are headers.
func (k *trial) put(key, body string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodPut, key: k.prefix + key, header: headers(pairs), body: []byte(body)})
}

func (k *trial) get(key string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodGet, key: k.prefix + key, header: headers(pairs)})
}

func (k *trial) remove(key string) *reply {
	return k.send(ask{method: http.MethodDelete, key: k.prefix + key})
}

// holds ends the trial unless the object has the body, and the ETag if one is
// given.
func (k *trial) holds(key, body, etag string) *reply {
	r := k.get(key).want(http.StatusOK, "")
	if !bytes.Equal(r.body, []byte(body)) {
		fatal("%s holds %.100q, want %.100q", key, r.body, body)
	}
	if etag != "" && r.etag() != etag {
		fatal("%s has the ETag %s, want %s", key, r.etag(), etag)
	}
	return r
}

// absent ends the trial if there is an object.
func (k *trial) absent(key string) { k.get(key).want(http.StatusNotFound, "NoSuchKey") }

type listing struct {
	IsTruncated           bool
	NextContinuationToken string
	KeyCount              int
	Contents              []struct {
		Key, ETag string
		Size      int64
	}
}

func (k *trial) list(values url.Values) listing {
	q := url.Values{"list-type": {"2"}}
	maps.Copy(q, values)
	r := k.send(ask{method: http.MethodGet, query: q}).want(http.StatusOK, "")
	return decode[listing](r)
}

func decode[T any](r *reply) T {
	var v T
	if err := xml.Unmarshal(r.body, &v); err != nil {
		fatal("%v in %s", err, r)
	}
	return v
}

func headers(pairs []string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}
