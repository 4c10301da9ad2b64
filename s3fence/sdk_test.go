package s3fence

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// responding is the driver over Amazon's client, to which every request has one response.
func responding(status int, header, body string) *sdk {
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://store"), UsePathStyle: true, Region: "r", Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
		HTTPClient: httpFunc(func(r *http.Request) (*http.Response, error) {
			if r.Body != nil {
				_, _ = io.Copy(io.Discard, r.Body)
			}
			out := &http.Response{StatusCode: status, Request: r, Header: http.Header{}, ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body))}
			for line := range strings.SplitSeq(header, ";") {
				if name, value, ok := strings.Cut(line, "="); ok {
					out.Header.Set(name, value)
				}
			}
			return out, nil
		}),
	})
	return &sdk{client, "inv", time.Minute}
}

// says is a store's error document.
func says(code string) string {
	return "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>text</Message></Error>"
}

// What each store, and each thing that may be in front of one, has been seen to respond,
// and what that is taken for. Only the store's own NoSuchKey says that there is no object.
func TestResponses(t *testing.T) {
	t.Parallel()
	const (
		ok    = iota // the read succeeds
		gone         // the store says that there is none
		unit         // it cannot be seen
		fatal        // nor can it be until somebody repairs it
	)
	type row struct {
		status       int
		header, body string
		read         int
		create, over outcome // a PUT that creates, and one that replaces
		remove       outcome
		list         int
	}
	refusal := func(status int, code string, read int, write outcome) row {
		return row{status, "", says(code), read, write, write, write, read}
	}
	page := func(status int, body string, write outcome) row {
		return row{status, "Content-Type=text/html", body, unit, write, write, write, unit}
	}
	const listing = `<ListBucketResult><Name>%s</Name><Prefix>%s</Prefix><IsTruncated>false</IsTruncated></ListBucketResult>`
	for store, rows := range map[string]map[string]row{
		"Amazon S3": {
			"stored":             {200, `Etag="e"`, "", ok, applied, applied, unknown, unit},
			"deleted":            {204, "", "", unit, unknown, unknown, applied, unit},
			"listed":             {200, "", fmt.Sprintf(listing, "inv", "p"), unit, unknown, unknown, unknown, ok},
			"no object":          {404, "", says("NoSuchKey"), gone, refused, mismatch, applied, gone},
			"condition is false": refusal(412, "PreconditionFailed", unit, mismatch),
			"another write":      refusal(409, "ConditionalRequestConflict", unit, unknown), "another change": refusal(409, "OperationAborted", unit, unknown),
			"too many requests": refusal(503, "SlowDown", unit, busy), "internal": refusal(500, "InternalError", unit, unknown),
			"session over": refusal(400, "ExpiredToken", unit, busy), "signed long ago": refusal(403, "RequestExpired", unit, busy),
			"wrong clock": refusal(403, "RequestTimeTooSkewed", fatal, busy), "too slow": refusal(400, "RequestTimeout", unit, unknown),
			"no bucket": refusal(404, "NoSuchBucket", fatal, refused), "other region": refusal(301, "PermanentRedirect", fatal, refused),
			"denied": refusal(403, "AccessDenied", fatal, refused), "archived": refusal(403, "InvalidObjectState", fatal, refused),
			"too large": refusal(400, "EntityTooLarge", fatal, refused), "long key": refusal(400, "KeyTooLongError", fatal, refused),
			"wrong key ID": refusal(403, "InvalidAccessKeyId", fatal, refused), "wrong secret": refusal(403, "SignatureDoesNotMatch", fatal, refused),
			"unknown to us": refusal(400, "SomethingNew", unit, refused), "409 unknown to us": refusal(409, "InvalidBucketState", unit, refused),
			"an error in a 200": {200, `Etag="e"`, says("InternalError"), ok, unknown, unknown, unknown, unit},
		},
		"versitygw": {
			"no user":   refusal(404, "XAdminUserNotFound", fatal, refused),
			"a folder":  refusal(409, "ExistingObjectIsDirectory", fatal, refused),
			"no folder": refusal(409, "ObjectParentIsFile", fatal, refused),
		},
		"MinIO": {
			"no such thing": refusal(501, "NotImplemented", fatal, refused),
			"busy":          refusal(503, "XMinioServerNotInitialized", unit, unknown),
		},
		"R2": {"limited": refusal(429, "TooManyRequests", unit, busy)},
		"gateways without quotes": {
			"stored": {200, `Etag=e`, "", ok, applied, applied, unknown, unit},
		},
		"gateways without ETags": {
			"stored": {200, "", "", unit, unknown, unknown, unknown, unit}, "weak": {200, `Etag=W/"e"`, "", fatal, unknown, unknown, unknown, unit},
		},
		"in front": {
			"empty 404": page(404, "", unknown), "text 404": page(404, "404 page not found\n", unknown), "HTML 404": page(404, "<html><body><h1>404 Not Found</h1></body></html>", unknown),
			"JSON 404": page(404, `{"code":"NoSuchKey"}`, unknown), "a code in another 404": page(404, says("NotFound"), unknown),
			"NoSuchKey in a 403": page(403, says("NoSuchKey"), refused), "NoSuchKey in a 500": page(500, says("NoSuchKey"), unknown),
			"empty 200": {200, "", "", unit, unknown, unknown, unknown, unit}, "text 200": {200, "", "OK", unit, unknown, unknown, unknown, unit},
			"a page with an ETag": {200, `Etag="page"`, "<html>down</html>", ok, unknown, unknown, unknown, unit},
			"another's listing":   {200, "", fmt.Sprintf(listing, "other", "p"), unit, unknown, unknown, unknown, unit},
			"another prefix":      {200, "", fmt.Sprintf(listing, "inv", "q"), unit, unknown, unknown, unknown, unit},
			"429":                 page(429, "", unknown), "503": page(503, "", unknown), "502": page(502, "<html>", unknown), "408": page(408, "", unknown),
			"403": page(403, "", refused), "412": page(412, "", mismatch), "409": page(409, "", unknown), "501": page(501, "", unknown),
			"413": {413, "", "", fatal, refused, refused, refused, fatal}, "302": page(302, "", unknown), "307": page(307, "<html>", unknown), "a 307 of the store's": page(307, says("TemporaryRedirect"), refused), "301": {301, "", "", fatal, refused, refused, refused, fatal},
		},
	} {
		for name, c := range rows {
			t.Run(store+"/"+name, func(t *testing.T) {
				d := responding(c.status, c.header, c.body)
				reads := func(what string, err error, want int) {
					t.Helper()
					got := unit
					switch {
					case err == nil:
						got = ok
					case errors.Is(err, errAbsent):
						got = gone
					case errors.Is(err, guard.ErrSetup):
						got = fatal
					}
					if got != want {
						t.Errorf("%s is %d, want %d: %v", what, got, want, err)
					}
				}
				_, err := d.get(t.Context(), "k", 0, 1<<20)
				reads("get", err, c.read)
				o, err := d.open(t.Context(), "k")
				if reads("open", err, c.read); err == nil {
					o.body.Close()
				}
				_, err = d.list(t.Context(), "p", "")
				reads("list", err, c.list)
				for what, got := range map[string]result{
					"create": d.put(t.Context(), "k", noObject, payload{}), "over": d.put(t.Context(), "k", `"e"`, payload{body: []byte("x")}), "remove": d.remove(t.Context(), "k"),
				} {
					want := map[string]outcome{"create": c.create, "over": c.over, "remove": c.remove}[what]
					if got.outcome != want || (got.err == nil) != (want == applied) {
						t.Errorf("%s is %d, want %d: %v", what, got.outcome, want, got.err)
					}
				}
			})
		}
	}
}

// What an error means is said first, and the error is kept.
func TestMeaningsAreSaid(t *testing.T) {
	t.Parallel()
	const bucket = `bucket "inv"`
	for says, codes := range map[string][]string{
		bucket + " does not exist: ":                                {"404 NoSuchBucket"},
		bucket + " is in another region than the client is config":  {"301 ", "400 AuthorizationHeaderMalformed", "307 PermanentRedirect", "400 IllegalLocationConstraintException"},
		"the credentials have expired: ":                            {"400 ExpiredToken", "403 ExpiredTokenException", "403 RequestExpired", "400 TokenRefreshRequired"},
		"the credentials were refused: ":                            {"403 InvalidAccessKeyId", "400 InvalidToken", "404 XAdminUserNotFound"},
		"the signature was refused: the secret key is wrong, or so": {"403 SignatureDoesNotMatch", "400 XAmzContentSHA256Mismatch"},
		"the object is archived; restore it":                        {"403 InvalidObjectState"},
		"the body is longer than the store, or something on the wa": {"413 ", "400 EntityTooLarge"},
		"the store cannot hold an object of that name":              {"400 KeyTooLongError", "409 ExistingObjectIsDirectory", "409 ObjectParentIsFile"},
		"this machine's clock and the store's differ too much: ":    {"403 RequestTimeTooSkewed"},
		"the response is 403, for the credentials or the rights to": {"403 "},
		"access to " + bucket + " is denied":                        {"403 AccessDenied"},
		"the store does not implement the request: ":                {"501 NotImplemented"},
		"300 ": {"300 "}, "402 AccessDeniedToo": {"402 AccessDeniedToo"},
	} {
		for _, text := range codes {
			var a answered
			_, _ = fmt.Sscan(text, &a.status, &a.code)
			d := &sdk{client: storeOf{err: a}, bucket: "inv", idle: time.Minute}
			r := d.put(t.Context(), "k", noObject, payload{})
			if !strings.HasPrefix(r.err.Error(), says) || !errors.Is(r.err, a) {
				t.Errorf("%s is %q, want %q", text, r.err, says)
			}
		}
	}
	e := &UnsuitableError{Bucket: "b", Check: "c", Problem: "p"}
	if got := e.Error(); got != `c: p: the store of bucket "b" is unsuitable for fencing` {
		t.Errorf("an unsuitable store reads %q", got)
	}
	if got := damaged("k\n", "p").Error(); got != `object "k\n" is damaged: p` {
		t.Errorf("damage reads %q", got)
	}
}

// answered is an error of the SDK's kind.
type answered struct {
	status int
	code   string
}

func (a answered) Error() string       { return fmt.Sprint(a.status, " ", a.code) }
func (a answered) HTTPStatusCode() int { return a.status }
func (a answered) ErrorCode() string   { return a.code }

// storeOf is a client to which the store has one response.
type storeOf struct {
	S3
	out *s3.GetObjectOutput
	err error
}

func (s storeOf) GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	return s.out, s.err
}

func (s storeOf) PutObject(context.Context, *s3.PutObjectInput, ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	return nil, s.err
}

// No write leaves with a condition that a store may take for none.
func TestConditionsThatAreNone(t *testing.T) {
	t.Parallel()
	for _, etag := range []condition{`""`, "*", `"*"`, `W/"a"`, `"a", "b"`, "a\nb"} {
		d := &sdk{client: nil, bucket: "inv", idle: time.Minute} // which would panic
		if r := d.put(t.Context(), "k", etag, payload{}); r.outcome != refused || !strings.Contains(r.err.Error(), "was not sent") {
			t.Errorf("If-Match %q: %+v", etag, r)
		}
	}
}

// slow is a store on a line that moves one byte a minute, less a second.
type slow struct{ S3 }

func (slow) PutObject(ctx context.Context, in *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	for b := make([]byte, 1); ; time.Sleep(time.Minute - time.Second) {
		if _, err := in.Body.Read(b); err != nil {
			return &s3.PutObjectOutput{ETag: aws.String(`"e"`)}, ctx.Err()
		}
	}
}

func (slow) GetObject(ctx context.Context, _ *s3.GetObjectInput, _ ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	return &s3.GetObjectOutput{ETag: aws.String(`"e"`), Body: io.NopCloser(&trickle{ctx, 10})}, nil
}

type trickle struct {
	ctx  context.Context
	left int
}

func (r *trickle) Read(p []byte) (int, error) {
	if time.Sleep(time.Minute - time.Second); r.left == 0 {
		return 0, io.EOF
	}
	r.left--
	return 1, r.ctx.Err()
}

// slowListing is a client to which a listing of the prefix "p" comes over such a line.
func slowListing() *s3.Client {
	d := responding(http.StatusOK, "", `<ListBucketResult><Name>inv</Name><Prefix>p</Prefix></ListBucketResult>`).client.(*s3.Client)
	return s3.New(d.Options(), func(o *s3.Options) {
		before := o.HTTPClient
		o.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			out, err := before.Do(r)
			if err == nil {
				out.Body = io.NopCloser(&delayed{r.Context(), out.Body})
			}
			return out, err
		})
	})
}

// delayed has ten bytes every minute, less a second.
type delayed struct {
	ctx  context.Context
	from io.Reader
}

func (r *delayed) Read(p []byte) (int, error) {
	time.Sleep(time.Minute - time.Second)
	n, err := r.from.Read(p[:min(len(p), 10)])
	return n, cmp.Or(r.ctx.Err(), err)
}

// hanging is a store that never responds.
type hanging struct{ S3 }

func (hanging) PutObject(ctx context.Context, _ *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) GetObject(ctx context.Context, _ *s3.GetObjectInput, _ ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) ListObjectsV2(ctx context.Context, _ *s3.ListObjectsV2Input, _ ...func(*s3.Options)) (*s3.ListObjectsV2Output, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// stalling is a store whose responses begin and do not go on.
type stalling struct{ S3 }

func (stalling) GetObject(ctx context.Context, _ *s3.GetObjectInput, _ ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	return &s3.GetObjectOutput{ETag: aws.String(`"e"`), Body: io.NopCloser(io.MultiReader(strings.NewReader("x"), stalled{ctx}))}, nil
}

type stalled struct{ ctx context.Context }

func (r stalled) Read([]byte) (int, error) {
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}

// RequestTimeout is about progress: a slow line takes as long as it takes, and a store that
// does not respond is left after one timeout, which the error names.
func TestRequestTimeoutIsForIdleness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &sdk{slow{}, "inv", time.Minute}
		if r := d.put(t.Context(), "k", noObject, payload{body: make([]byte, 100)}); r.outcome != applied {
			t.Errorf("a slow upload: %+v", r)
		}
		if o, err := d.get(t.Context(), "k", 0, 1<<20); err != nil || len(o.content) != 10 {
			t.Errorf("a slow download: %+v, %v", o, err)
		}
		o, err := d.open(t.Context(), "k")
		testkit.Must(t, err)
		time.Sleep(time.Hour) // the reader is slow, too
		if text, err := io.ReadAll(o.body); err != nil || len(text) != 10 || o.body.Close() != nil {
			t.Errorf("a slow stream: %q, %v", text, err)
		}
		d.client = slowListing()
		if p, err := d.list(t.Context(), "p", ""); err != nil || p.next != "" {
			t.Errorf("a slow listing: %+v, %v", p, err)
		}
		ctx, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		d.client = hanging{}
		begin := time.Now()
		r := d.put(ctx, "k", noObject, payload{})
		_, err = d.get(ctx, "k", 0, 1<<20)
		_, opened := d.open(ctx, "k")
		_, listed := d.list(ctx, "", "")
		d.client = stalling{}
		o, body := d.open(ctx, "k")
		if body == nil {
			_, body = io.ReadAll(o.body)
			o.body.Close()
		}
		if took := time.Since(begin); took != 5*time.Minute {
			t.Errorf("it took %v", took)
		}
		for _, err := range []error{r.err, err, opened, listed, body} {
			if err == nil || !strings.Contains(err.Error(), "Options.RequestTimeout") {
				t.Errorf("it does not name the option: %v", err)
			}
		}
		if r.outcome != unknown {
			t.Errorf("it is %d", r.outcome)
		}
	})
}

func TestStrongETag(t *testing.T) {
	for etag, want := range map[string]bool{
		"": false, `""`: false, "*": false, `"*"`: false, `W/"a"`: false, `"W/a"`: false, `"`: false, `"a`: false, `a"`: false,
		`"a", "b"`: false, "a\nb": false, `" a"`: false, `"a"`: true, "a": true, "ab": true, `"ab"`: true, `"-"`: true,
	} {
		if got := strongETag(etag); got != want {
			t.Errorf("strongETag(%q) = %v", etag, got)
		}
	}
	if str("") != nil || *str("x") != "x" {
		t.Error("str")
	}
	for _, c := range []struct{ in, want string }{
		{"", `""`}, {"a\n", `"a\n"`}, {strings.Repeat("x", 64), `"` + strings.Repeat("x", 64) + `"`},
		{strings.Repeat("x", 65), `"` + strings.Repeat("x", 64) + `"...`},
	} {
		if got := quoteShort(c.in); got != c.want {
			t.Errorf("quoteShort(%q) = %s, want %s", c.in, got, c.want)
		}
	}
}

// What is made of a response by what was seen on the way: a request that did not leave, or
// found no connection, and a response that is not about all that left.
func TestTracker(t *testing.T) {
	way := func(opened, direct bool, calls, asked, given, heads int32) *tracker {
		w := &tracker{}
		w.opened.Store(opened)
		w.direct.Store(direct)
		w.calls.Store(calls)
		w.asked.Store(asked)
		w.given.Store(given)
		w.heads.Store(heads)
		return w
	}
	const asSaid = mismatch
	for _, c := range []struct {
		w    *tracker
		want outcome
	}{
		{way(false, false, 0, 0, 0, 0), asSaid}, // of a client that does not take options
		{way(true, true, 0, 0, 0, 0), refused}, {way(true, true, 1, 1, 0, 0), busy},
		{way(true, false, 1, 1, 0, 0), asSaid}, // something may have sent it unseen
		{way(true, true, 1, 2, 1, 0), asSaid}, {way(true, true, 1, 1, 1, 1), asSaid},
		{way(true, true, 2, 2, 2, 1), unknown}, {way(true, true, 1, 1, 1, 2), unknown}, {way(true, true, 1, 0, 0, 0), asSaid},
	} {
		if got := c.w.judge(mismatch); got != c.want {
			t.Errorf("%+v: %d, want %d", c.w, got, c.want)
		}
	}
	for _, again := range []bool{true, false} {
		o := &s3.Options{RetryMaxAttempts: 5, HTTPClient: &http.Client{}, Retryer: aws.NopRetryer{}}
		if (&tracker{again: again}).option(o); (o.RetryMaxAttempts == 0) == again {
			t.Errorf("again %v leaves %d attempts", again, o.RetryMaxAttempts)
		}
	}
	for name, c := range map[string]struct {
		client s3.HTTPClient
		direct bool
	}{
		"the SDK's": {awshttp.NewBuildableClient(), true}, "net/http's": {&http.Client{}, true}, "a transport": {&http.Client{Transport: &http.Transport{}}, true},
		"another's": {&http.Client{Transport: roundTripper(nil)}, false}, "any": {httpFunc(nil), false},
	} {
		w := &tracker{}
		if w.option(&s3.Options{HTTPClient: c.client}); w.direct.Load() != c.direct || !w.opened.Load() {
			t.Errorf("%s: direct is %v", name, w.direct.Load())
		}
	}
}

// A store that never responds ends a write without a deadline, after 18 times RequestTimeout
// at most: one read before, eight sendings, and a read after each and at the end.
func TestSilentStoreEndsAWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRegister(&sdk{hanging{}, "inv", time.Minute}, &Options{MaxBody: 1 << 20})
		base := version{kind: kindSealed, etag: `"1"`, id: newWriteID()}
		w := base.follow(kindSealed, guard.Claim{Resource: "r", Token: 5}, newWriteID()).sealed("k", Headers{}, nil)
		start := time.Now()
		_, o, err := r.compareAndSwap(t.Context(), "k", &base, w, false)
		if took := time.Since(start); o != unknown || took < 17*time.Minute || took > 18*time.Minute || !strings.Contains(err.Error(), "Options.RequestTimeout") {
			t.Errorf("outcome %d after %v: %v", o, took, err)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Wrong responses to a request for the end of an object, and for all of it.
func TestAnswersToReads(t *testing.T) {
	long := strings.Repeat("x", tailSize)
	get := func(out *s3.GetObjectOutput, body io.Reader, last int) (*object, error) {
		out.ETag, out.Body = aws.String(`"e"`), io.NopCloser(body)
		return (&sdk{client: storeOf{out: out}, idle: time.Minute}).get(t.Context(), "k", last, 1<<20)
	}
	for _, c := range []struct {
		given, body string
		size        int64 // -1 for an error
	}{
		{"bytes 0-3/4", "body", 4}, {"bytes 0--1/0", "", 0}, {fmt.Sprintf("bytes 0-%d/%d", tailSize-1, tailSize), long, tailSize},
		{fmt.Sprintf("bytes 4-%d/%d", tailSize+3, tailSize+4), long, tailSize + 4},
		{"bytes 0-3/5", "body", -1}, {"bytes 1-3/4", "ody", -1}, {"bytes 0-3/4", "bod", -1}, {"bytes 0-3/4", "body+", -1}, {"bytes */4", "body", -1},
		{"bytes 0-3/*", "body", -1}, {"bytes 0--2/-1", "", -1}, {"bytes 0-4/4", "body", -1},
		{fmt.Sprintf("bytes 0-%d/%d", tailSize+3, tailSize+4), long + "more", -1},
	} {
		o, err := get(&s3.GetObjectOutput{ContentRange: &c.given}, strings.NewReader(c.body), tailSize)
		if (err == nil) != (c.size >= 0) || err == nil && (string(o.content) != c.body || o.size != c.size) {
			t.Errorf("%q with %d bytes: %+v, %v", c.given, len(c.body), o, err)
		}
	}
	broken := errors.New("broken")
	if _, err := get(&s3.GetObjectOutput{ContentRange: aws.String("bytes 0-3/4")}, iotest.ErrReader(broken), tailSize); !errors.Is(err, broken) || !errors.As(err, new(*truncatedError)) {
		t.Errorf("a body that breaks: %v", err)
	}
	for _, n := range []int{0, 1, tailSize - 1, tailSize, tailSize + 1, 3*tailSize + 5} {
		body := bytes.Repeat([]byte("0123456789"), n/10+1)[:n]
		for _, c := range []struct{ size, limit int64 }{{0, 1 << 20}, {int64(n), 1 << 20}, {int64(n) + 7, 1 << 20}, {-1, 1 << 20}} {
			if got, err := readAll(iotest.OneByteReader(bytes.NewReader(body)), c.size, c.limit); err != nil || !bytes.Equal(got, body) {
				t.Errorf("all of %d bytes: %d, %v", n, len(got), err)
			}
		}
	}
	if got, err := readAll(strings.NewReader("0123456789"), 0, 4); err != nil || len(got) < 5 {
		t.Errorf("more than the limit: %q, %v", got, err)
	}
	if got, err := readAll(iotest.ErrReader(broken), 0, 4); got != nil || !errors.Is(err, broken) {
		t.Errorf("a reader that breaks: %q, %v", got, err)
	}
	for name, c := range map[string]struct {
		out  *s3.GetObjectOutput
		last int
		ok   bool
	}{
		"as announced":    {&s3.GetObjectOutput{ContentLength: aws.Int64(4)}, 0, true},
		"not announced":   {&s3.GetObjectOutput{}, 0, true},
		"longer":          {&s3.GetObjectOutput{ContentLength: aws.Int64(5)}, 0, false},
		"a range":         {&s3.GetObjectOutput{ContentRange: aws.String("bytes 0-3/4")}, tailSize, true},
		"a range instead": {&s3.GetObjectOutput{ContentRange: aws.String("bytes 0-3/4")}, 0, false},
	} {
		o, err := get(c.out, strings.NewReader("body"), c.last)
		if (err == nil) != c.ok || c.ok && (o.size != 4 || string(o.content) != "body") {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
}

// Each header of a response is kept, the SDK's own framing is not.
func TestDescribe(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	out := &s3.GetObjectOutput{
		ETag: aws.String(`"e"`), ContentLength: aws.Int64(4), LastModified: &at, Metadata: map[string]string{"Fencing-A": "b", "C": "d"}, ContentType: aws.String("t"),
		CacheControl: aws.String("c"), ContentDisposition: aws.String("d"), ContentLanguage: aws.String("l"), StorageClass: "s",
		ContentEncoding: aws.String("aws-chunked, gzip,,br"), ExpiresString: aws.String(at.Format(http.TimeFormat)),
	}
	h, err := describe(out)
	want := Headers{Metadata: map[string]string{"c": "d"}, ContentType: "t", CacheControl: "c", ContentDisposition: "d", ContentLanguage: "l", StorageClass: "s", ContentEncoding: "gzip,br"}
	got := h.headers
	got.Expires = time.Time{}
	if err != nil || h.etag != `"e"` || h.size != 4 || !h.modified.Equal(at) || h.fencing["fencing-a"] != "b" || !h.headers.Expires.Equal(at) || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("describe = %+v, %v", h, err)
	}
	out.ETag = aws.String(`W/"e"`)
	if _, err := describe(out); !errors.Is(err, guard.ErrSetup) || !errors.As(err, new(*etagError)) {
		t.Errorf("a weak ETag: %v", err)
	}
	out.ETag, out.ExpiresString = aws.String(`"e"`), aws.String("0")
	if h, err := describe(out); err != nil || h.expires != "0" || !h.headers.Expires.IsZero() {
		t.Errorf("an Expires that is no date: %+v, %v", h, err)
	}
}
