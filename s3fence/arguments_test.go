package s3fence_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// invalid checks the field that an ErrInvalid names, and that the message is
// safe to print.
func invalid(t *testing.T, err error, field string) {
	t.Helper()
	var i *guard.InvalidError
	if !errors.As(err, &i) || i.Field != field {
		t.Errorf("got %v, want it invalid by %q", err, field)
		return
	}
	if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r > '~' }) {
		t.Errorf("the value is not escaped: %q", err)
	}
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Sealed, 0)
	for name, bad := range map[string]string{
		"empty": "", "too long": strings.Repeat("k", 1025), "far too long": strings.Repeat("k", 1<<20),
		"leading slash": "/a", "trailing slash": "a/", "two slashes": "a//b", "only a slash": "/",
		"dots": "a/../b", "dots at the start": "../a", "dots alone": "..", "dot": "./a", "dot within": "a/./b",
		"not UTF-8": "a\xff", "control": "a\nb", "nul": "a\x00b", "C1 control": "a\u0085b",
		"reserved": ".fencepost", "reserved folder": ".fencepost/data/x", "reserved within": "a/.fencepost/b",
	} {
		for verb, call := range calls(o, claim(5, "a"), bad) {
			t.Run(name+"/"+verb, func(t *testing.T) { invalid(t, call(t.Context()), "key") })
		}
	}
	if n := server.Count(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// Unusual but valid keys work in every mode, and are listed as given.
func TestGoodKeys(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		_, _, o := setup(t, mode, 0)
		keys := map[string]bool{}
		for _, k := range []string{
			"a", "a b", " a", "a ", "a+b", "a%20b", "%2e%2e", "a?b=c&d", "a#b", "a&b<c>\"'", "é", "e\u0301", "日本語/\U0001f600",
			"...", "a/..b/c", ".fencepost2/x", "a\\b", "A", strings.Repeat("k", 1024), strings.Repeat("語", 341), "k/x",
		} {
			keys[k] = true
			if err := o.Put(t.Context(), claim(5, "a"), k, strings.NewReader("of "+k), nil); err != nil {
				t.Fatalf("%q: %v", k, err)
			}
		}
		for k := range keys {
			if got, _ := content(t, o, k); got != "of "+k {
				t.Errorf("%q has %q", k, got)
			}
		}
		for e, err := range o.List(t.Context(), "") {
			must(t, err)
			if !keys[e.Key] {
				t.Errorf("%q is listed", e.Key)
			}
			delete(keys, e.Key)
		}
		if len(keys) != 0 {
			t.Errorf("not listed: %v", keys)
		}
	})
}

func TestBadClaims(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Sealed, 0)
	for _, c := range []struct {
		field string
		bad   guard.Claim
	}{
		{"token", guard.Claim{Resource: resource}}, {"token", claim(-1, "")},
		{"resource", guard.Claim{Token: 5}}, {"lease ID", claim(5, strings.Repeat("l", 129))},
	} {
		all := calls(o, c.bad, key)
		for _, name := range []string{"put", "raise", "delete", "adopt"} {
			invalid(t, all[name](t.Context()), c.field)
		}
	}
	if n := server.Count(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestBadHeaders(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Sealed, 0)
	meta := func(name, value string) s3fence.Headers {
		return s3fence.Headers{Metadata: map[string]string{name: value}}
	}
	for name, c := range map[string]struct {
		h     s3fence.Headers
		field string
	}{
		"reserved":             {meta("fencing-token", "99"), "Headers.Metadata name"},
		"reserved, upper case": {meta("Fencing-Token", "99"), "Headers.Metadata name"},
		"reserved, new":        {meta("fencing-anything", "99"), "Headers.Metadata name"},
		"empty name":           {meta("", "x"), "Headers.Metadata name"},
		"space in a name":      {meta("a b", "x"), "Headers.Metadata name"},
		"line in a name":       {meta("a\r\nx-amz-meta-fencing-token", "x"), "Headers.Metadata name"},
		"name not ASCII":       {meta("é", "x"), "Headers.Metadata name"},
		"twice":                {s3fence.Headers{Metadata: map[string]string{"A": "1", "a": "2"}}, "Headers.Metadata name"},
		"line in a value":      {meta("a", "x\r\nfencing-token: 9"), "Headers.Metadata[a]"},
		"value not ASCII":      {meta("a", "é"), "Headers.Metadata[a]"},
		"space around a value": {meta("a", " x"), "Headers.Metadata[a]"},
		"too much":             {meta("a", strings.Repeat("x", 2048)), "Headers.Metadata"},
		"content type":         {s3fence.Headers{ContentType: "text/csv\r\nx: y"}, "Headers.ContentType"},
		"cache control":        {s3fence.Headers{CacheControl: "\x00"}, "Headers.CacheControl"},
		"disposition":          {s3fence.Headers{ContentDisposition: "\n"}, "Headers.ContentDisposition"},
		"encoding":             {s3fence.Headers{ContentEncoding: "\x7f"}, "Headers.ContentEncoding"},
		"language":             {s3fence.Headers{ContentLanguage: " de"}, "Headers.ContentLanguage"},
		"storage class":        {s3fence.Headers{StorageClass: "\n"}, "Headers.StorageClass"},
		"archived":             {s3fence.Headers{StorageClass: "GLACIER"}, "Headers.StorageClass"},
		"deeply archived":      {s3fence.Headers{StorageClass: "DEEP_ARCHIVE"}, "Headers.StorageClass"},
	} {
		t.Run(name, func(t *testing.T) {
			invalid(t, o.Put(t.Context(), claim(5, "a"), key, nil, &c.h), c.field)
		})
	}
	if n := server.Count(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

type testLease struct {
	claim guard.Claim
	valid bool
}

func (l *testLease) Claim() guard.Claim { return l.claim }
func (l *testLease) Valid() bool        { return l.valid }

// TestEndedContext: nothing is sent, and a context that ended with its lease says
// which one was lost. The control is a lease that is still valid.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		lease := &testLease{claim: claim(5, "a"), valid: true}
		ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
		why := errors.New("the hold ended")
		cancel(why)
		all := calls(o, claim(5, "a"), key)
		if mode == s3fence.Pointer {
			all["collect"] = func(ctx context.Context) error { _, err := o.Collect(ctx, ""); return err }
		}
		for _, want := range []guard.Reason{guard.ReasonUnavailable, guard.ReasonLeaseLost} {
			for name, call := range all {
				var lost *guard.LostError
				err := call(ctx)
				if guard.ReasonOf(err) != want || !errors.Is(err, why) {
					t.Errorf("%s: %v, want %s", name, err, want)
				}
				if errors.As(err, &lost) == lease.valid || lost != nil && lost.Claim != lease.claim || errors.As(err, new(*guard.RejectedError)) {
					t.Errorf("%s: %v", name, err)
				}
			}
			lease.valid = false
		}
		if n := server.Count(); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

// TestBadListings: a prefix that no key can have is refused by its field, and nothing is
// sent; one that is as long as a key is fine.
func TestBadListings(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Sealed, 0)
	for _, bad := range []string{"\xff", strings.Repeat("x", 1025)} {
		pairs := 0
		for _, err := range o.List(t.Context(), bad) {
			pairs++
			invalid(t, err, "prefix")
		}
		if pairs != 1 || server.Count() != 0 {
			t.Errorf("%d pairs, %d requests", pairs, server.Count())
		}
	}
	for _, err := range o.List(t.Context(), strings.Repeat("x", 1024)) {
		t.Errorf("a prefix that is as long as a key: %v", err)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	for _, c := range []struct {
		field string
		opts  s3fence.Options
	}{
		{"Options.MaxBody", s3fence.Options{MaxBody: -1}},
		{"Options.MaxBody", s3fence.Options{MaxBody: 5 << 30}},
		{"Options.GracePeriod", s3fence.Options{GracePeriod: -time.Second}},
		{"Options.RequestTimeout", s3fence.Options{RequestTimeout: -time.Second}},
		{"Options.Prefix", s3fence.Options{Prefix: "/a"}},
		{"Options.Prefix", s3fence.Options{Prefix: "a/../b"}},
		{"Options.Prefix", s3fence.Options{Prefix: ".fencepost"}},
		{"Options.Prefix", s3fence.Options{Prefix: strings.Repeat("p", 513)}},
	} {
		_, err := s3fence.Open(t.Context(), newClient(server), bucketName, &c.opts)
		invalid(t, err, c.field)
	}
	_, err := s3fence.Open(t.Context(), nil, bucketName, nil)
	invalid(t, err, "client")
	for _, name := range []string{"", "ab", "a\nb"} {
		_, err := s3fence.Open(t.Context(), newClient(server), name, nil)
		invalid(t, err, "bucket")
	}
	if server.Count() != 0 {
		t.Error("requests were sent")
	}
}

// encrypting is a client that adds what a bucket's policy demands, as S3 says.
type encrypting struct{ *s3.Client }

func (c encrypting) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	in.ServerSideEncryption, in.SSEKMSKeyId = "aws:kms", aws.String("alias/invoices")
	return c.Client.PutObject(ctx, in, opts...)
}

// A bucket whose policy refuses every write that is not as it demands can be used whole:
// the probe and all modes. What a client adds is in every write; its endpoint is known,
// so that a report on it counts. The control is a write of a program that knows of
// neither.
func TestBucketPolicies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuses func(http.Header) bool
		client  func(*s3.Client) s3fence.S3
	}{
		"no write without a condition, no copy": {func(h http.Header) bool {
			match, none := h.Get("If-Match"), h.Get("If-None-Match")
			return match == "" && none == "" || match == "*" || h.Get("X-Amz-Copy-Source") != ""
		}, func(c *s3.Client) s3fence.S3 { return c }},
		"no write without encryption": {func(h http.Header) bool {
			return h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "alias/invoices"
		}, func(c *s3.Client) s3fence.S3 { return encrypting{c} }},
	} {
		server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
		server.Inject(s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool { return c.refuses(r.Header) }, Fault: s3test.Respond(403)})
		if _, err := newClient(server).PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucketName), Key: aws.String("any")}); err == nil {
			t.Errorf("%s: the policy refuses nothing", name)
		}
		client := c.client(newClient(server))
		for _, report := range []*s3fence.Report{nil, s3fence.KnownReport(client, bucketName)} {
			b, err := s3fence.Open(t.Context(), client, bucketName, &s3fence.Options{Report: report})
			must(t, err)
			b.SetOpaque(true)
			eachMode(t, func(t *testing.T, mode s3fence.Mode) {
				o := objects(t, b, mode, nil)
				for range 2 {
					put(t, o, claim(5, "a"), "body")
				}
				must(t, o.Raise(t.Context(), claim(6, "b"), key))
				want(t, o, "body", guard.Mark{Token: 6, LeaseID: "b"})
				must(t, o.Delete(t.Context(), claim(6, "b"), key))
				must(t, o.InsecureDelete(t.Context(), key))
			})
		}
	}
}

// Every write is observed, admitted or refused, also one that is refused before it is sent.
func TestObserver(t *testing.T) {
	t.Parallel()
	var events []guard.Event
	server := newServer(t, nil)
	b := open(t, server, &s3fence.Options{Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) })})
	for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.Pointer} {
		events = nil
		o := objects(t, b, mode, &s3fence.ObjectsOptions{
			Resource: guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}")), KeyPattern: s3fence.NameOf(mode) + "/{tenant}/{period}"})
		name := s3fence.NameOf(mode) + "/tenant_123/2026-04"
		_ = o.Put(t.Context(), claim(5, "a"), name, nil, nil)
		_ = o.Put(t.Context(), claim(4, "a"), name, nil, nil)
		_ = o.Raise(t.Context(), claim(6, "b"), name)
		_ = o.Delete(t.Context(), claim(6, "c"), name)
		_ = o.Put(t.Context(), claim(7, "d"), strings.ReplaceAll(name, "123", "124"), nil, nil)
		if len(events) != 5 {
			t.Fatalf("%s: %d events: %+v", name, len(events), events)
		}
		for i, want := range []guard.Event{
			{Op: guard.OpWrite, Mark: guard.Mark{Token: 5, LeaseID: "a"}},
			{Op: guard.OpWrite, Mark: guard.Mark{Token: 5, LeaseID: "a"}, Reason: guard.ReasonStale},
			{Op: guard.OpRaise, Mark: guard.Mark{Token: 6, LeaseID: "b"}},
			{Op: guard.OpWrite, Mark: guard.Mark{Token: 6, LeaseID: "b"}, Reason: guard.ReasonConflict},
			{Op: guard.OpWrite, Reason: guard.ReasonMisdirected},
		} {
			e := events[i]
			if e.Surface != "s3" || e.Op != want.Op || e.Reason != want.Reason || e.Mark != want.Mark || e.Claim.Resource != resource || e.Duration <= 0 {
				t.Errorf("%s: event %d is %+v, want %+v", name, i, e, want)
			}
		}
	}
}

// got is the result of reading an object.
func got(t *testing.T, o *s3fence.Handle, key string) error {
	t.Helper()
	object, err := o.Get(t.Context(), key)
	if err == nil {
		object.Body.Close()
	}
	return err
}
