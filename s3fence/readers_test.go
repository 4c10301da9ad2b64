package s3fence_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

func TestListMarks(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		for i, name := range []string{"a", "b", "e"} {
			if err := o.Put(t.Context(), claim(guard.Token(i+5), "l"), name, strings.NewReader("x"), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.Delete(t.Context(), claim(9, "l"), "b"); err != nil {
			t.Fatal(err)
		}
		bypass(t, server, "c", []byte("x"), nil)
		bypass(t, server, "d", []byte("x"), map[string]string{"fencing-token": "7"})
		var seen []string
		for e, err := range o.List(t.Context(), &s3fence.ListOptions{Marks: true}) {
			text := e.Key + " " + e.Mark.Token.String()
			if e.Deleted {
				text += " deleted"
			}
			if err != nil {
				text += " " + string(guard.ReasonOf(err))
			}
			seen = append(seen, text)
		}
		if want := []string{"a 5", "b 9 deleted", "c 0 unfenced", "d 0 unavailable", "e 7"}; !slices.Equal(seen, want) {
			t.Errorf("listed %q, want %q", seen, want)
		}
		// What the store does not let be read comes with an error that names it, and the
		// listing goes on; without an answer it ends.
		for name, c := range map[string]struct {
			opts  *s3fence.ListOptions
			fault s3test.Fault
			keys  string // a capital one has an error
		}{
			"denied":           {&s3fence.ListOptions{Marks: true}, s3test.Fault{Status: 403, Code: "AccessDenied"}, "ABCDE"},
			"archived":         {&s3fence.ListOptions{Marks: true}, s3test.Fault{Status: 403, Code: "InvalidObjectState"}, "ABCDE"},
			"of another key":   {&s3fence.ListOptions{Marks: true}, s3test.Fault{Status: 400, Code: "InvalidRequest"}, "ABCDE"},
			"only a tombstone": {nil, s3test.Fault{Status: 403, Code: "InvalidObjectState"}, "aBcde"},
			"no credentials":   {&s3fence.ListOptions{Marks: true}, s3test.Fault{Status: 403, Code: "InvalidAccessKeyId"}, "-"},
			"no answer":        {nil, s3test.Answer(503), "a-"},
		} {
			in := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.GetObject}, Fault: c.fault})
			seen := ""
			for e, err := range o.List(t.Context(), c.opts) {
				switch {
				case err == nil:
					seen += e.Key
				case e.Key == "":
					seen += "-"
				default:
					seen += strings.ToUpper(e.Key)
					if !strings.Contains(err.Error(), `list "`+e.Key+`"`) {
						t.Errorf("%s: %v does not name %q", name, err, e.Key)
					}
				}
				if err != nil {
					reason := guard.ReasonUnavailable
					if c.fault.Status == 403 {
						reason = guard.ReasonSetup
					}
					refused(t, err, reason)
				}
			}
			in.Remove()
			if seen != c.keys {
				t.Errorf("%s: listed %q, want %q", name, seen, c.keys)
			}
		}
	})
}

// A claim for another resource than the key's is refused before anything is sent.
func TestP9KeyPattern(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	o := objects(t, b, s3fence.Sealed, &s3fence.ObjectsOptions{Resource: template, KeyPattern: "exports/{tenant}/at-{period}.csv"})
	good := "exports/tenant_123/at-2026-04.csv"
	if err := o.Put(t.Context(), claim(5, "a"), good, nil, nil); err != nil {
		t.Fatal(err)
	}
	sent := server.Count()
	var m *guard.MisdirectedError
	for call, f := range map[string]func(key string) error{
		"put":    func(key string) error { return o.Put(t.Context(), claim(5, "a"), key, nil, nil) },
		"raise":  func(key string) error { return o.Raise(t.Context(), claim(6, "a"), key) },
		"delete": func(key string) error { return o.Delete(t.Context(), claim(5, "a"), key) },
		"adopt":  func(key string) error { return o.Adopt(t.Context(), claim(5, "a"), key) },
	} {
		if err := f("exports/tenant_124/at-2026-04.csv"); !errors.As(err, &m) || m.Guarded != "tenant_124:billing-close:2026-04" || m.Claimed != resource {
			t.Errorf("%s: %v, want it misdirected", call, err)
		}
		for _, key := range []string{"exports/tenant_123/at-2026-04", "exports/tenant_123/2026-04.csv", "exports/tenant_123/at-.csv", "tenant_123/at-2026-04.csv", "export/tenant_123/at-2026-04.csv", "exports/x/tenant_123/at-2026-04.csv"} {
			invalid(t, f(key), "key")
		}
	}
	if n := server.Count() - sent; n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	for _, bad := range []s3fence.ObjectsOptions{
		{Resource: template}, {KeyPattern: "{tenant}/{period}"}, {Resource: template, KeyPattern: "{tenant}"},
		{Resource: template, KeyPattern: "{tenant}/{tenant}/{period}"}, {Resource: template, KeyPattern: "{tenant}/{period}/{other}"},
		{Resource: template, KeyPattern: "{tenant}-{period}"}, {Resource: template, KeyPattern: "{tenant}/{period"},
		{Resource: template, KeyPattern: "{tenant}/{period}/{}"}, {Resource: template, KeyPattern: "/{tenant}/{period}"}, {Resource: template, KeyPattern: "{tenant}/period}/{period}"},
	} {
		if _, err := b.In(s3fence.Sealed, &bad); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%q is taken: %v", bad.KeyPattern, err)
		}
	}
}

func gunzip(t *testing.T, file []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A foreign reader of a gzip object sees the content and nothing else, whatever
// was written, raised or adopted; and Get sees the same.
func TestGzipIsReadByAnybody(t *testing.T) {
	t.Parallel()
	random := make([]byte, 100_000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	server, _, o := setup(t, s3fence.SealedGzip, 0)
	token := guard.Token(0)
	for _, body := range []string{"", "x", "id;amount\n1;10\n", strings.Repeat("a line\n", 50_000), string(random)} {
		token++
		if err := o.Put(t.Context(), claim(token, "a"), key, strings.NewReader(body), &s3fence.Headers{ContentType: "text/csv", ContentEncoding: "gzip"}); err != nil {
			t.Fatal(err)
		}
		token++
		if err := o.Raise(t.Context(), claim(token, "b"), key); err != nil {
			t.Fatal(err)
		}
		if got := gunzip(t, stored(t, server, key).Body); got != body {
			t.Errorf("compress/gzip reads %d bytes, want %d", len(got), len(body))
		}
		zcat := exec.Command("gzip", "-dc")
		zcat.Stdin = bytes.NewReader(stored(t, server, key).Body)
		if got, err := zcat.Output(); err != nil || string(got) != body {
			t.Errorf("gzip -dc reads %d bytes, want %d: %v", len(got), len(body), err)
		}
		answer, err := http.Get(server.URL() + "/" + bucketName + "/" + key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(got) != body || !answer.Uncompressed {
			t.Errorf("an HTTP client reads %d bytes, want %d: %v", len(got), len(body), err)
		}
		want(t, o, body, guard.Mark{Token: token, LeaseID: "b"})
	}
	err := o.Put(t.Context(), claim(token, "b"), key, nil, &s3fence.Headers{ContentEncoding: "br"})
	invalid(t, err, "Headers.ContentEncoding")
}

// An object that is already a gzip file is adopted unchanged.
func TestGzipAdopts(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write([]byte("content"))
	w.Close()
	for name, body := range map[string]string{"text": "content", "gzip": packed.String(), "cut gzip": packed.String()[:packed.Len()-1]} {
		server, _, o := setup(t, s3fence.SealedGzip, 0)
		bypass(t, server, key, []byte(body), nil)
		if err := o.Adopt(t.Context(), claim(5, "a"), key); err != nil {
			t.Fatal(err)
		}
		content := "content"
		if name == "cut gzip" {
			content = body
		}
		if got := gunzip(t, stored(t, server, key).Body); got != content {
			t.Errorf("%s: a foreign reader sees %q", name, got)
		}
		want(t, o, content, guard.Mark{Token: 5, LeaseID: "a"})
	}
}

func list(t *testing.T, o *s3fence.Handle, opts *s3fence.ListOptions) (keys []string) {
	t.Helper()
	for e, err := range o.List(t.Context(), opts) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

// Neither tombstones nor internal objects are listed; an object that happens to
// be as long as a tombstone is.
func TestListHides(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
		b := open(t, server, &s3fence.Options{Prefix: "state"})
		o := objects(t, b, mode, nil)
		for i := range 6 {
			k := fmt.Sprintf("a/%d", i)
			if err := o.Put(t.Context(), claim(5, "a"), k, strings.NewReader("x"), nil); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				if err := o.Delete(t.Context(), claim(5, "a"), k); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := o.Raise(t.Context(), claim(5, "a"), "a/raised"); err != nil {
			t.Fatal(err)
		}
		bypass(t, server, "b/unfenced", bytes.Repeat([]byte("x"), 1277), nil)
		if got := list(t, o, nil); !slices.Equal(got, []string{"a/1", "a/3", "a/5", "b/unfenced"}) {
			t.Errorf("listed: %q", got)
		}
		if got := list(t, o, &s3fence.ListOptions{Prefix: "a/", After: "a/1"}); !slices.Equal(got, []string{"a/3", "a/5"}) {
			t.Errorf("listed: %q", got)
		}
		for e, err := range o.List(t.Context(), nil) { // and stops when told
			if err != nil || e.Key != "a/1" || e.ETag == "" || e.StoredSize == 0 || e.LastModified.IsZero() {
				t.Errorf("%+v, %v", e, err)
			}
			break
		}
		for _, bad := range []string{"\xff", strings.Repeat("x", 1025)} {
			for field, opts := range map[string]s3fence.ListOptions{"ListOptions.Prefix": {Prefix: bad}, "ListOptions.After": {After: bad}} {
				for _, err := range o.List(t.Context(), &opts) {
					invalid(t, err, field)
				}
			}
		}
		for _, err := range o.List(t.Context(), &s3fence.ListOptions{Prefix: strings.Repeat("x", 1024), After: strings.Repeat("x", 1024)}) {
			t.Errorf("a prefix that is as long as a key: %v", err)
		}
		server.Close()
		for _, err := range o.List(t.Context(), nil) {
			refused(t, err, guard.ReasonUnavailable)
		}
	})
}

// paged asks for pages of ten.
type paged struct{ s3fence.S3 }

func (c paged) ListObjectsV2(ctx context.Context, in *s3.ListObjectsV2Input, opts ...func(*s3.Options)) (*s3.ListObjectsV2Output, error) {
	in.MaxKeys = aws.Int32(10)
	return c.S3.ListObjectsV2(ctx, in, opts...)
}

func TestListPages(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Sealed, 0)
	o := objects(t, b.On(paged{newClient(server)}, bucketName), s3fence.Sealed, nil)
	for i := range 35 {
		if err := o.Put(t.Context(), claim(5, "a"), fmt.Sprintf("%04d", i), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := list(t, o, nil); len(got) != 35 || !slices.IsSorted(got) || server.Count(s3test.ListObjectsV2) != 4 {
		t.Errorf("%d listed in %d pages", len(got), server.Count(s3test.ListObjectsV2))
	}
}
