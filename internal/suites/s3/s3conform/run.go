// Package s3conform tests what this module relies on in an S3 store:
// conditional writes that hold under concurrency, ETags, metadata, ranges,
// listings, keys of all kinds, checksums, multipart uploads, errors.
//
// The same cases run against the in-process server of package s3test and
// against real stores, so that tests on the former say something about the
// latter:
//
//	s3conform.Run(t, s3conform.Target{Endpoint: url, AccessKeyID: "...", SecretAccessKey: "..."})
//
// The suite speaks HTTP itself, and signs its requests, so that no SDK hides
// what a store does. It makes a bucket of its own, and leaves it.
//
// [Check] runs the cases without a [testing.T] and returns the failures, to show
// that a store that is known to be broken does not pass.
package s3conform

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// Failure is a case that did not pass.
type Failure struct {
	Case string
	Err  error
}

func (f Failure) String() string { return f.Case + ": " + f.Err.Error() }

// testCase is one statement about a store. run fails by returning an error, or
// through the methods of trial.
type testCase struct {
	name string
	run  func(*trial) error
}

func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{bucketCases, objectCases, conditionCases, rangeCases, listCases, keyCases, checksumCases, multipartCases, multipartConditionCases, raceCases} {
		all = append(all, group...)
	}
	return all
}

// Races are the names of the cases that only concurrency can fail.
func Races() []string {
	var names []string
	for _, c := range raceCases {
		names = append(names, c.name)
	}
	return names
}

// Run runs each case as a subtest.
func Run(t *testing.T, target Target) {
	target.defaults()
	bucket, err := target.makeBucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, c := range cases() {
		known[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			err := target.try(t.Context(), bucket, c)
			reason, differs := target.Differs[c.name]
			sometimes := target.Sometimes[c.name]
			switch {
			case err != nil && !differs && sometimes == "":
				t.Error(err)
			case err == nil && differs:
				t.Errorf("passes, although this is said to differ: %s", reason)
			case err != nil:
				t.Logf("differs, as known (%s): %v", reason+sometimes, err)
			}
		})
	}
	for _, names := range []map[string]string{target.Differs, target.Sometimes} {
		for name := range names {
			if !known[name] {
				t.Errorf("there is no case named %q", name)
			}
		}
	}
}

// Check runs all cases but those among Differs and Sometimes, and returns the
// failures.
// An error means that the suite could not be run.
func Check(ctx context.Context, target Target) ([]Failure, error) {
	target.defaults()
	bucket, err := target.makeBucket(ctx)
	if err != nil {
		return nil, err
	}
	var failures []Failure
	for _, c := range cases() {
		if target.Differs[c.name]+target.Sometimes[c.name] != "" {
			continue
		}
		if err := target.try(ctx, bucket, c); err != nil {
			failures = append(failures, Failure{c.name, err})
		}
	}
	// A broken store may be unable to remove it.
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
	prefix := strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' {
			return '-'
		}
		return r
	}, c.name) + "/"
	return c.run(&trial{Target: t, ctx: ctx, bucket: bucket, prefix: prefix})
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

	// PartSize is the minimum size of a part that the store accepts, except for
	// the last. The zero value is 5 MiB.
	PartSize int

	// Differs names the cases in which the store is known to differ, with the
	// reason. They must fail: a reason that no longer holds is an error, too.
	Differs map[string]string
	// Sometimes names cases that the store is known to fail now and then.
	Sometimes map[string]string
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
	if t.PartSize == 0 {
		t.PartSize = 5 << 20
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

// reply is the answer.
type reply struct {
	status int
	header http.Header
	body   []byte
	// code is that of the error document, if it is one.
	code      string
	requestID string
}

func (r *reply) etag() string { return r.header.Get("Etag") }

// do sends a request. An error means that there was no answer.
func (t *Target) do(ctx context.Context, a ask) (*reply, error) {
	path := "/" + a.bucket
	if a.key != "" {
		path += "/" + a.key
	}
	u, err := url.Parse(t.Endpoint)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath, u.RawQuery = path, escape(path, true), query(a.query)
	r, err := http.NewRequestWithContext(ctx, a.method, u.String(), bytes.NewReader(a.body))
	if err != nil {
		return nil, err
	}
	// NewRequest may have chosen another encoding, and a URL without a path.
	r.URL = u
	for name, values := range a.header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	payload := a.payload
	if payload == "" {
		sum := sha256.Sum256(a.body)
		payload = hex.EncodeToString(sum[:])
	}
	t.sign(r, payload, time.Now())
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
		XMLName   xml.Name `xml:"Error"`
		Code      string
		RequestID string `xml:"RequestId"`
	}
	if bytes.HasPrefix(body, []byte("<")) && xml.Unmarshal(body, &document) == nil {
		out.code, out.requestID = document.Code, document.RequestID
	}
	return out, nil
}

// sign adds a signature of version 4 to a request. payload is the hash of the
// body in hex, or one of the words that replace it.
func (t *Target) sign(r *http.Request, payload string, now time.Time) {
	stamp := now.UTC().Format("20060102T150405Z")
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("X-Amz-Content-Sha256", payload)

	var names []string
	for name := range r.Header {
		names = append(names, strings.ToLower(name))
	}
	names = append(names, "host")
	slices.Sort(names)
	var headers strings.Builder
	for _, name := range names {
		value := r.URL.Host
		if name != "host" {
			value = strings.Join(r.Header.Values(name), ",")
		}
		headers.WriteString(name + ":" + strings.TrimSpace(value) + "\n")
	}
	signed := strings.Join(names, ";")
	canonical := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), r.URL.RawQuery, headers.String(), signed, payload,
	}, "\n")

	scope := strings.Join([]string{stamp[:8], t.Region, "s3", "aws4_request"}, "/")
	digest := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", stamp, scope, hex.EncodeToString(digest[:])}, "\n")
	key := []byte("AWS4" + t.SecretAccessKey)
	for part := range strings.SplitSeq(scope, "/") {
		key = mac(key, part)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+t.AccessKeyID+"/"+scope+
		", SignedHeaders="+signed+", Signature="+hex.EncodeToString(mac(key, text)))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// escape encodes a path or a part of a query exactly as it is signed.
func escape(s string, slash bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0, c == '/' && slash:
			b.WriteByte(c)
		default:
			b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
		}
	}
	return b.String()
}

// query encodes parameters, sorted, as signing requires.
func query(values url.Values) string {
	var parts []string
	for name, list := range values {
		for _, value := range list {
			parts = append(parts, escape(name, false)+"="+escape(value, false))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, "&")
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

func (k *trial) head(key string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodHead, key: k.prefix + key, header: headers(pairs)})
}

func (k *trial) remove(key string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodDelete, key: k.prefix + key, header: headers(pairs)})
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
