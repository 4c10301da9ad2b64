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

// What time or new credentials cure is not a setup error, after which a worker would end:
// a session that is over is followed by another, for which the next request is signed.
func TestP6WhatTimeCuresIsNotSetup(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "SlowDown"} {
		eachMode(t, func(t *testing.T, mode s3fence.Mode) {
			server, b, o := setup(t, mode, 0)
			for _, warm := range []bool{true, false} {
				put(t, o, claim(5, "a"), "x")
				for op, call := range calls(o, claim(5, "a"), key) {
					if op == "remove" {
						continue
					}
					if !warm {
						b.Forget()
					}
					in := server.Inject(s3test.Rule{Fault: s3test.Fault{Status: 403, Code: code}})
					err := call(t.Context())
					if refused(t, err, guard.ReasonUnavailable); err != nil && !strings.Contains(err.Error(), code) {
						t.Errorf("%s %s: %v", op, code, err)
					}
					in.Remove()
				}
				// The next request is signed anew, which is all that it takes.
				server.Inject(s3test.Rule{Ops: puts, Key: key, Times: 1, Fault: s3test.Fault{Status: 400, Code: code}})
				put(t, o, claim(5, "a"), "y")
			}
		})
	}
}

// With a remembered version nothing is unknown where nothing was sent, or where the store
// says that it has not processed it. The control is a connection that breaks.
func TestP6NothingSentIsNotUnknown(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		put(t, o, claim(5, "a"), "x")
		for name, c := range map[string]struct {
			change func(*s3.Options)
			fault  *s3test.Fault
			reason guard.Reason
		}{
			"connection refused": {func(o *s3.Options) { o.BaseEndpoint = aws.String("http://127.0.0.1:1") }, nil, guard.ReasonUnavailable},
			"no such host":       {func(o *s3.Options) { o.BaseEndpoint = aws.String("http://store.invalid") }, nil, guard.ReasonUnavailable},
			"busy":               {nil, new(s3test.Respond(503)), guard.ReasonUnavailable},
			"connection refused unseen": {func(o *s3.Options) {
				o.HTTPClient = httpFunc(func(*http.Request) (*http.Response, error) { return nil, refusedConnection })
			}, nil, guard.ReasonOutcomeUnknown},
			"a page of a front": {nil, &s3test.Fault{Foreign: true, Status: 503, Page: "<html>"}, guard.ReasonOutcomeUnknown},
			"connection lost":   {nil, new(s3test.LoseRequest()), guard.ReasonOutcomeUnknown},
		} {
			client := newClient(server)
			if c.change != nil {
				client = newClient(server, c.change)
			}
			warm := b.On(client, bucketName)
			warm.CopyCache(b)
			if c.fault != nil {
				in := server.Inject(s3test.Rule{Key: key, Fault: *c.fault})
				defer in.Remove()
			}
			err := objects(t, warm, mode, nil).Delete(t.Context(), claim(6, "b"), key)
			if guard.ReasonOf(err) != c.reason {
				t.Errorf("%s: %v, want %s", name, err, c.reason)
			}
			server.ClearFaults()
			want(t, o, "x", guard.Mark{Token: 5, LeaseID: "a"})
		}
	})
}

// What is not there is named as what it is: an object, by its key, with the resource that the
// key belongs to if that is known. No token was given, so none is shown.
func TestP6NotFoundNamesTheObject(t *testing.T) {
	t.Parallel()
	_, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	for _, c := range []struct {
		opts *s3fence.ObjectsOptions
		says string
	}{
		{nil, `fencepost: resource not found: object "tenant_123/2026-04.csv" does not exist`},
		{&s3fence.ObjectsOptions{Resource: template, KeyPattern: "{tenant}/{period}.csv"},
			`fencepost: resource not found: for "tenant_123:billing-close:2026-04": object "tenant_123/2026-04.csv" does not exist`},
	} {
		o := objects(t, b, s3fence.Sealed, c.opts)
		if err := got(t, o, key); err == nil || err.Error() != c.says {
			t.Errorf("Get = %v\nwant  %s", err, c.says)
		}
	}
}

// A key that is not of the pattern is no key of these objects, whatever is done with it.
func TestP9EveryCallHasThePattern(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.Pointer} {
		o := objects(t, b, mode, &s3fence.ObjectsOptions{Resource: template, KeyPattern: "{tenant}/{period}.csv"})
		for name, call := range calls(o, claim(5, "a"), "other/2026-04.txt") {
			if err := call(t.Context()); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n := server.Count(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// A reader needs no probe and no right to write, and reads whatever any writer wrote.
func TestReaderNeedsNoWriting(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Plain, 0) // all modes are possible here
	writes := []s3test.Op{s3test.PutObject, s3test.DeleteObject}
	server.ResetCounts()
	r, err := s3fence.NewReader(newClient(server), bucketName, nil)
	must(t, err)
	if server.Count() != 0 {
		t.Errorf("it sent %d requests", server.Count())
	}
	for _, mode := range allModes {
		name := s3fence.NameOf(mode)
		must(t, objects(t, b, mode, nil).Put(t.Context(), claim(5, "a"), name, strings.NewReader("of "+name), nil))
	}
	must(t, objects(t, b, s3fence.Sealed, nil).Delete(t.Context(), claim(5, "a"), "deleted"))
	bypass(t, server, "foreign", []byte("x"), nil)
	before := server.Count(writes...)
	for _, mode := range allModes {
		name := s3fence.NameOf(mode)
		object, err := r.Get(t.Context(), name)
		must(t, err)
		if got, mark := all(t, object); got != "of "+name || mark.Token != 5 {
			t.Errorf("%s: %q at %+v", name, got, mark)
		}
	}
	for name, want := range map[string]guard.Reason{"deleted": guard.ReasonNotFound, "missing": guard.ReasonNotFound, "foreign": guard.ReasonUnfenced, "": guard.ReasonInvalid} {
		_, err := r.Get(t.Context(), name)
		refused(t, err, want)
	}
	if m, err := r.Mark(t.Context(), "deleted"); err != nil || m.Token != 5 {
		t.Errorf("the mark is %+v, %v", m, err)
	}
	keys := 0
	for _, err := range r.List(t.Context(), "") {
		must(t, err)
		keys++
	}
	if n := server.Count(writes...) - before; keys != 5 || n != 0 {
		t.Errorf("%d keys are listed; it wrote %d times", keys, n)
	}
	_, err = s3fence.NewReader(nil, bucketName, nil)
	invalid(t, err, "client")
}

// An Expires that is no date, as another program may have stored it, cannot be written
// back: adopting the object says so, and does not drop it.
func TestAdoptKeepsExpires(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL()+"/"+bucketName+"/"+key, strings.NewReader("theirs"))
		must(t, err)
		request.Header.Set("Expires", "0")
		answer, err := server.HTTPClient().Do(request)
		must(t, err)
		answer.Body.Close()
		invalid(t, o.Adopt(t.Context(), claim(5, "a"), key), "Headers.Expires")
		if at := stored(t, server, key); at.Header.Get("Expires") != "0" || string(at.Body) != "theirs" {
			t.Errorf("stored is %+v", at)
		}
	})
}

// A hidden copy of a write takes effect, the original is refused with 412, and more writes
// follow than a list holds before the writer reads: whether it was written is unknown, which is
// not said as stale. If what is there was stored long before the write was sent, it is stale.
func TestP6UnknownIsNotStale(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		for _, fresh := range []bool{true, false} {
			server, b, o := setup(t, mode, 0)
			other := objects(t, b.On(newClient(server), bucketName), mode, nil)
			put(t, o, claim(4, "z"), "before")
			if fresh {
				b.Forget()
			}
			hidden := s3test.RespondApplied(http.StatusPreconditionFailed)
			hidden.After = func(*s3test.Request, int) {
				for token := guard.Token(6); token < 6+34; token++ {
					put(t, other, claim(token, "b"), "after")
				}
			}
			server.Inject(firstPut(hidden))
			refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonOutcomeUnknown)
			refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonStale) // it is known by now
		}
	})
}

// A holder that wakes up long after others took over is told that it is stale, though more
// writes followed than a list holds: the store's times show it.
func TestP6LateIsStale(t *testing.T) {
	t.Parallel()
	_, b, o := setup(t, s3fence.Plain, 0)
	put(t, o, claim(4, "z"), "before")
	late := later(t, o, time.Minute)
	late.Bucket().CopyCache(b)
	for token := guard.Token(6); token < 20; token++ {
		put(t, o, claim(token, "b"), "after")
	}
	refused(t, late.Put(t.Context(), claim(5, "a"), key, strings.NewReader("mine"), nil), guard.ReasonStale)
}
