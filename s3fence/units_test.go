package s3fence

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

// answered is an error of the SDK's kind.
type answered struct {
	status int
	code   string
}

func (a answered) Error() string       { return fmt.Sprint(a.status, " ", a.code) }
func (a answered) HTTPStatusCode() int { return a.status }
func (a answered) ErrorCode() string   { return a.code }

// Each status and code that is distinguished, and its neighbours.
func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		want outcome
	}{
		{nil, outcomeApplied},
		{errors.New("?"), outcomeUnknown}, {context.Canceled, outcomeUnknown}, {answered{0, ""}, outcomeUnknown},
		{answered{412, ""}, outcomeNotMatched}, {answered{412, "PreconditionFailed"}, outcomeNotMatched},
		{answered{404, "NoSuchKey"}, outcomeNotMatched}, {answered{404, "NotFound"}, outcomeNotMatched},
		{answered{404, ""}, outcomeRefused}, {answered{404, "NoSuchBucket"}, outcomeRefused}, {answered{403, "NoSuchKey"}, outcomeRefused},
		{answered{501, "NotImplemented"}, outcomeRefused}, {answered{400, "NotImplemented"}, outcomeRefused},
		{answered{403, "RequestTimeTooSkewed"}, outcomeLater}, {answered{403, "AccessDenied"}, outcomeRefused},
		{answered{500, ""}, outcomeUnknown}, {answered{501, ""}, outcomeUnknown}, {answered{503, "SlowDown"}, outcomeUnknown}, {answered{599, ""}, outcomeUnknown},
		{answered{200, ""}, outcomeUnknown}, {answered{299, ""}, outcomeUnknown}, {answered{100, ""}, outcomeUnknown},
		{answered{300, ""}, outcomeRefused}, {answered{499, ""}, outcomeRefused}, {answered{400, ""}, outcomeRefused},
		{answered{400, "RequestTimeout"}, outcomeUnknown},
		{answered{407, ""}, outcomeRefused}, {answered{408, ""}, outcomeUnknown}, {answered{409, ""}, outcomeUnknown}, {answered{410, ""}, outcomeRefused},
		{answered{411, ""}, outcomeRefused}, {answered{413, ""}, outcomeRefused}, {answered{416, "InvalidRange"}, outcomeRefused},
		{answered{428, ""}, outcomeRefused}, {answered{429, ""}, outcomeUnknown}, {answered{430, ""}, outcomeRefused},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			if c.err == nil {
				err = nil
			}
			if got := classify(err); got != c.want {
				t.Errorf("classify(%v) = %d, want %d", err, got, c.want)
			}
			if got := classifyPut(err, false); got != c.want {
				t.Errorf("classifyPut(%v, false) = %d, want %d", err, got, c.want)
			}
			want := c.want
			if httpStatus(err) == 404 {
				want = outcomeRefused // what creates asks for no object
			}
			if got := classifyPut(err, true); got != want {
				t.Errorf("classifyPut(%v, true) = %d, want %d", err, got, want)
			}
			if got := missing(err); got != (httpStatus(err) == 404 && c.want == outcomeNotMatched) {
				t.Errorf("missing(%v) = %v", err, got)
			}
		}
	}
}

// The meaning of a store's error comes first, and the error is kept.
func TestExplain(t *testing.T) {
	b := &Bucket{name: "inv\noices"}
	if err := b.explain(nil); err != nil {
		t.Errorf("nil is explained: %v", err)
	}
	const bucket = `bucket "inv\noices"`
	for begins, all := range map[string][]answered{
		bucket + " does not exist: ":                                                   {{404, "NoSuchBucket"}},
		bucket + " is in another region than the client is configured for: ":           {{301, ""}, {400, "AuthorizationHeaderMalformed"}, {307, "PermanentRedirect"}, {400, "IllegalLocationConstraintException"}},
		"the credentials have expired: ":                                               {{400, "ExpiredToken"}, {403, "ExpiredTokenException"}, {403, "RequestExpired"}},
		"the credentials were refused: ":                                               {{403, "InvalidAccessKeyId"}, {400, "InvalidToken"}, {404, "XAdminUserNotFound"}},
		"the signature was refused: the secret key is wrong, or something on the way":  {{403, "SignatureDoesNotMatch"}, {400, "XAmzContentSHA256Mismatch"}},
		"the object is archived; restore it":                                           {{403, "InvalidObjectState"}},
		"the body is longer than the store, or something on the way, takes":            {{413, ""}, {400, "EntityTooLarge"}},
		"the store cannot hold an object of that name":                                 {{400, "KeyTooLongError"}, {409, "ExistingObjectIsDirectory"}, {409, "ObjectParentIsFile"}},
		"this machine's clock and the store's differ too much: ":                       {{403, "RequestTimeTooSkewed"}},
		"the store responded with 403, for the credentials or the rights to " + bucket: {{403, ""}},
		"access to " + bucket + " is denied":                                           {{403, "AccessDenied"}},
		"the store does not implement the request: ":                                   {{501, "NotImplemented"}},
		"300 ":             {{300, ""}},
		"302 ":             {{302, ""}},
		"402 AccessDenied": {{402, "AccessDenied"}},
		"404 NoSuchKey":    {{404, "NoSuchKey"}},
	} {
		for _, a := range all {
			if err := b.explain(a); !strings.HasPrefix(err.Error(), begins) || !errors.Is(err, a) {
				t.Errorf("explain(%v) = %q, want %q", a, err, begins)
			}
		}
	}
	for _, c := range []struct{ in, want string }{
		{"", `""`}, {"a\n", `"a\n"`}, {strings.Repeat("x", 64), `"` + strings.Repeat("x", 64) + `"`},
		{strings.Repeat("x", 65), `"` + strings.Repeat("x", 64) + `"...`},
	} {
		if got := quoteShort(c.in); got != c.want {
			t.Errorf("quoteShort(%q) = %s, want %s", c.in, got, c.want)
		}
	}
	if got := (&unsentError{"x"}).Error(); got != "the request was not sent: x" {
		t.Errorf("an unsent request reads %q", got)
	}
	e := &UnsuitableError{Bucket: "b", Check: "c", Problem: "p"}
	if got := e.Error(); got != `c: p: the store of bucket "b" is unsuitable for fencing` {
		t.Errorf("an unsuitable store reads %q", got)
	}
	if got := damaged("k\n", "p").Error(); got != `object "k\n" is damaged: p` {
		t.Errorf("damage reads %q", got)
	}
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
}

// When a request may have left, and when its response is not about all that did.
func TestTracker(t *testing.T) {
	calls := func(opened bool, calls, wrote int32) *tracker {
		w := &tracker{}
		w.opened.Store(opened)
		w.calls.Store(calls)
		w.wrote.Store(wrote)
		return w
	}
	for _, c := range []struct {
		w                *tracker
		err              error
		handed, repeated bool
	}{
		{calls(false, 0, 0), nil, true, false}, // of a client that does not take options
		{calls(false, 0, 0), errors.New("?"), true, false}, {calls(true, 0, 0), errors.New("?"), false, false},
		{calls(true, 1, 0), nil, true, false}, {calls(true, 1, 1), nil, true, false}, {calls(true, 2, 1), nil, true, true},
		{calls(true, 1, 2), nil, true, true}, {calls(false, 0, 0), &unsentError{}, false, false},
		{calls(true, 1, 1), fmt.Errorf("wrapped: %w", &unsentError{}), false, false},
	} {
		if c.w.handed(c.err) != c.handed || c.w.repeated() != c.repeated {
			t.Errorf("%+v with %v: handed %v, repeated %v", c, c.err, c.w.handed(c.err), c.w.repeated())
		}
	}
	o := &s3.Options{RetryMaxAttempts: 5}
	once(o)
	if _, ok := o.Retryer.(aws.NopRetryer); !ok || o.RetryMaxAttempts != 0 {
		t.Errorf("once leaves %+v", o.Retryer)
	}
}

// When a kept probe replaces a new one, and when it is an error.
func TestProbeIsUsable(t *testing.T) {
	now := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	bucket := func(endpoint string) *Bucket {
		return &Bucket{endpoint: endpoint, name: "b"}
	}
	good := Report{Version: reportVersion, Endpoint: "e", Bucket: "b", At: now, OpaqueETags: true}
	for name, c := range map[string]struct {
		b      *Bucket
		change func(*Report)
		usable bool
		says   string // of the error
	}{
		"fresh":              {bucket("e"), func(*Report) {}, true, ""},
		"as old as may be":   {bucket("e"), func(p *Report) { p.At = now.Add(-maxReportAge) }, true, ""},
		"older":              {bucket("e"), func(p *Report) { p.At = now.Add(-maxReportAge - 1) }, false, ""},
		"another's clock":    {bucket("e"), func(p *Report) { p.At = now.Add(time.Hour - 1) }, true, ""},
		"an hour ahead":      {bucket("e"), func(p *Report) { p.At = now.Add(time.Hour) }, false, ""},
		"older version":      {bucket("e"), func(p *Report) { p.Version-- }, false, ""},
		"newer version":      {bucket("e"), func(p *Report) { p.Version++ }, false, ""},
		"no endpoint":        {bucket(""), func(*Report) {}, false, "does not tell its endpoint"},
		"no endpoint at all": {bucket(""), func(p *Report) { p.Endpoint = "" }, false, "does not tell its endpoint"},
		"another endpoint":   {bucket("f"), func(*Report) {}, false, `another endpoint than the client's, "f"`},
		"another bucket":     {bucket("e"), func(p *Report) { p.Bucket = "c" }, false, `another bucket than "b"`},
	} {
		p := good
		c.change(&p)
		usable, err := p.usable(c.b, now)
		if usable != c.usable || (err != nil) != (c.says != "") || err != nil && (!errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, %v", name, usable, err)
		}
	}
	base := aws.String("https://e")
	for name, c := range map[string]struct {
		client S3
		want   string
	}{
		"no client of the SDK":    {checked{}, ""},
		"endpoint":                {s3.New(s3.Options{BaseEndpoint: base, Region: "r"}), "https://e"},
		"region":                  {s3.New(s3.Options{Region: "r"}), "aws r"},
		"resolver":                {s3.New(s3.Options{Region: "r", EndpointResolverV2: ownResolver{}}), ""},
		"resolver with an option": {s3.New(s3.Options{Region: "r", EndpointResolverV2: ownResolver{}, BaseEndpoint: base}), ""},
		//lint:ignore SA1019 clients that use the deprecated field exist
		"older resolver": {s3.New(s3.Options{Region: "r", EndpointResolver: s3.EndpointResolverFromURL("https://e")}), ""},
	} {
		if got := endpointOf(c.client); got != c.want {
			t.Errorf("%s: the endpoint is %q, want %q", name, got, c.want)
		}
	}
}

// ownResolver is an endpoint resolver of the caller's.
type ownResolver struct{ s3.EndpointResolverV2 }

// Which ETags are the MD5 of the content.
func TestIsMD5(t *testing.T) {
	sum := md5.Sum([]byte("body"))
	text := hex.EncodeToString(sum[:])
	for etag, want := range map[string]bool{
		text: true, `"` + text + `"`: true, strings.ToUpper(text): true, strings.Repeat("0", 32): false, text[1:]: false, "": false,
	} {
		if isMD5(etag, sum) != want {
			t.Errorf("isMD5(%s) = %v", etag, !want)
		}
	}
}

// A body and its trailer are read as one, in any way and from any position.
func TestJoinedBody(t *testing.T) {
	for _, c := range []struct{ body, trailer string }{{"", ""}, {"body", ""}, {"", "trailer"}, {"body", "trailer"}} {
		all := c.body + c.trailer
		w := &write{body: []byte(c.body), trailer: []byte(c.trailer)}
		b := sealedBody{io.NewSectionReader(w, 0, int64(len(all))), w}
		if err := iotest.TestReader(b, []byte(all)); err != nil {
			t.Error(err)
		}
		for from := range len(all) + 1 {
			var out strings.Builder
			_, _ = b.Seek(int64(from), io.SeekStart)
			n, err := b.WriteTo(&out)
			if rest, _ := io.ReadAll(b); err != nil || out.String() != all[from:] || int(n) != out.Len() || len(rest) != 0 {
				t.Errorf("from %d on: %q, %v, then %q", from, out.String(), err, rest)
			}
		}
	}
}

// Metadata may be as long as S3 takes next to what this package adds, to the last byte.
func TestMetadataLimit(t *testing.T) {
	long := Headers{Metadata: map[string]string{"a": strings.Repeat("x", maxMetadata-maxReserved)}}
	if _, err := long.validate(); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("one byte too many: %v", err)
	}
	h := Headers{Metadata: map[string]string{"A": strings.Repeat("x", maxMetadata-maxReserved-1)}}
	if got, err := h.validate(); err != nil || len(got.Metadata) != 1 || got.Metadata["a"] != h.Metadata["A"] {
		t.Errorf("as much as may be: %v", err)
	}
	// With all that this package adds, it stays within S3's limit.
	s := state{kind: kindPlain, mark: guard.Mark{Token: guard.MaxToken, LeaseID: strings.Repeat("é", guard.MaxLeaseIDLen/2)}, cut: true}
	s.recent = make([]writeID, maxRecentPlain)
	total := 0
	for name, value := range s.metadata(nil) {
		total += len(name) + len(value)
	}
	if total > maxReserved || total < maxReserved-12 {
		t.Errorf("the reserved metadata can have %d bytes, maxReserved is %d", total, maxReserved)
	}
}

// Wrong responses to a request for the end of an object, and for all of it.
func TestAnswersToReads(t *testing.T) {
	long := strings.Repeat("x", tailSize)
	for _, c := range []struct {
		given, body string
		size        int64 // -1 for an error
	}{
		{"bytes 0-3/4", "body", 4}, {"bytes 0--1/0", "", 0}, {fmt.Sprintf("bytes 0-%d/%d", tailSize-1, tailSize), long, tailSize},
		{fmt.Sprintf("bytes 4-%d/%d", tailSize+3, tailSize+4), long, tailSize + 4},
		{"bytes 0-3/5", "body", -1}, {"bytes 1-3/4", "ody", -1}, {"bytes 0-3/4", "bod", -1}, {"bytes 0-3/4", "body+", -1}, {"bytes */4", "body", -1},
		{"bytes 0-3/*", "body", -1}, {"bytes 0--2/-1", "", -1}, {"bytes 0-4/4", "body", -1}, {"", "body", -1},
		{fmt.Sprintf("bytes 0-%d/%d", tailSize+3, tailSize+4), long + "more", -1},
	} {
		h := head{size: -7}
		tail, err := rangedTail(strings.NewReader(c.body), &h, c.given)
		if (err == nil) != (c.size >= 0) || err == nil && (string(tail) != c.body || h.size != c.size) {
			t.Errorf("%q with %d bytes: %d of %d, %v", c.given, len(c.body), len(tail), h.size, err)
		}
	}
	broken := errors.New("broken")
	if _, err := rangedTail(iotest.ErrReader(broken), &head{}, "bytes 0-3/4"); !errors.Is(err, broken) {
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
		c.out.ETag, c.out.Body = aws.String(`"e"`), io.NopCloser(strings.NewReader("body"))
		body, h, err := (&Bucket{client: answer{out: c.out}}).grab(t.Context(), "k", c.last, 1<<20)
		if (err == nil) != c.ok || c.ok && (h.size != 4 || string(body) != "body") {
			t.Errorf("%s: %q of %d, %v", name, body, h.size, err)
		}
	}
}

// answer is a store with one response to reads.
type answer struct {
	S3
	out *s3.GetObjectOutput
}

func (a answer) GetObject(context.Context, *s3.GetObjectInput, ...func(*s3.Options)) (*s3.GetObjectOutput, error) {
	return a.out, nil
}

// Each header of a response is kept, the SDK's own framing is not.
func TestHeadOf(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	out := &s3.GetObjectOutput{
		ETag: aws.String(`"e"`), ContentLength: aws.Int64(4), LastModified: &at, Metadata: map[string]string{"Fencing-A": "b", "C": "d"}, ContentType: aws.String("t"),
		CacheControl: aws.String("c"), ContentDisposition: aws.String("d"), ContentLanguage: aws.String("l"), StorageClass: "s",
		ContentEncoding: aws.String("aws-chunked, gzip,,br"), ExpiresString: aws.String(at.Format(http.TimeFormat)),
	}
	h, err := headOf(out)
	want := Headers{Metadata: map[string]string{"c": "d"}, ContentType: "t", CacheControl: "c", ContentDisposition: "d", ContentLanguage: "l", StorageClass: "s", ContentEncoding: "gzip,br"}
	got := h.headers
	got.Expires = time.Time{}
	if err != nil || h.etag != `"e"` || h.size != 4 || !h.modified.Equal(at) || h.fencing["fencing-a"] != "b" || !h.headers.Expires.Equal(at) || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("headOf = %+v, %v", h, err)
	}
	out.ETag = aws.String(`W/"e"`)
	if h, err := headOf(out); err == nil || h.etag != "" {
		t.Errorf("a weak ETag: %+v, %v", h, err)
	}
}

// The defaults, and the options at their limits.
func TestOptionLimits(t *testing.T) {
	for maxBody, ok := range map[int64]bool{-1: false, 1: true, 5<<30 - 4096: true, 5<<30 - 4095: false} {
		if _, err := (Options{MaxBody: maxBody}).resolve(); (err == nil) != ok {
			t.Errorf("MaxBody %d: %v", maxBody, err)
		}
	}
	got, err := Options{}.resolve()
	if err != nil || got.MaxBody != 64<<20 || got.GracePeriod != time.Hour ||
		got.CacheSize != 1024 || got.RequestTimeout != time.Minute || got.Prefix != ".fencepost/" {
		t.Errorf("the defaults are %+v, %v", got, err)
	}
	for prefix, want := range map[string]string{"a": "a/.fencepost/", "a/": "a/.fencepost/", strings.Repeat("p", 512): strings.Repeat("p", 512) + "/.fencepost/"} {
		if got, err := (Options{Prefix: prefix}).resolve(); err != nil || got.Prefix != want {
			t.Errorf("the prefix is %q, %v", got.Prefix, err)
		}
	}
}
