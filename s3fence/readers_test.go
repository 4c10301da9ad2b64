package s3fence_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// What is as long as a tombstone is read. If the store does not let it be read, or it is
// damaged, its entry has an error that names it, and the listing goes on; without an
// answer it ends.
func TestListGoesOn(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		for i, name := range []string{"a", "b", "d"} {
			must(t, o.Put(t.Context(), claim(guard.Token(i+5), "l"), name, strings.NewReader("x"), nil))
		}
		must(t, o.Delete(t.Context(), claim(9, "l"), "b"))
		bypass(t, server, "c", bytesOf(1277), map[string]string{"fencing-token": "7"})
		for name, c := range map[string]struct {
			fault s3test.Fault
			keys  string // a capital one has an error
		}{
			"damaged":        {s3test.Fault{}, "aCd"},
			"denied":         {s3test.Fault{Status: 403, Code: "AccessDenied"}, "aBCd"},
			"archived":       {s3test.Fault{Status: 403, Code: "InvalidObjectState"}, "aBCd"},
			"of another key": {s3test.Fault{Status: 400, Code: "InvalidRequest"}, "aBCd"},
			"no credentials": {s3test.Fault{Status: 403, Code: "InvalidAccessKeyId"}, "a-"},
			"no answer":      {s3test.Respond(503), "a-"},
		} {
			in := server.Inject(s3test.Rule{Ops: gets, Fault: c.fault})
			seen := ""
			for e, err := range o.List(t.Context(), "") {
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
					if c.fault.Status == 403 || name == "damaged" {
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

// A claim for another resource than the key's is refused before anything is sent. Objects
// without a template need the word that any resource will do.
func TestP9KeyPattern(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Sealed, 0)
	template := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
	o := objects(t, b, s3fence.Sealed, &s3fence.ObjectsOptions{Resource: template, KeyPattern: "exports/{tenant}/at-{period}.csv"})
	good := "exports/tenant_123/at-2026-04.csv"
	must(t, o.Put(t.Context(), claim(5, "a"), good, nil, nil))
	sent := server.Count()
	var m *guard.MisdirectedError
	for _, call := range []string{"put", "raise", "delete", "adopt"} {
		f := func(key string) error { return calls(o, claim(6, "a"), key)[call](t.Context()) }
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
	// What is not a variable stands for itself.
	o = objects(t, b, s3fence.Sealed, &s3fence.ObjectsOptions{Resource: template, KeyPattern: `a.b\{tenant}+/{period}`})
	testkit.Check(t, o.Raise(t.Context(), claim(5, "a"), `a.b\tenant_123+/2026-04`))
	invalid(t, o.Raise(t.Context(), claim(5, "a"), `axb\tenant_123+/2026-04`), "key")
	for _, bad := range []*s3fence.ObjectsOptions{
		nil, {}, {Resource: template, KeyPattern: "{tenant}/{period}", InsecureAnyResource: true}, {Resource: template}, {KeyPattern: "{tenant}/{period}"}, {Resource: template, KeyPattern: "{tenant}"}, {Resource: template, KeyPattern: "{tenant/period}"},
		{Resource: template, KeyPattern: "{tenant}/{tenant}/{period}"}, {Resource: template, KeyPattern: "{tenant}/{period}/{other}"},
		{Resource: template, KeyPattern: "{tenant}-{period}"}, {Resource: template, KeyPattern: "{tenant}/{period"},
		{Resource: template, KeyPattern: "{tenant}/{period}/{}"}, {Resource: template, KeyPattern: "/{tenant}/{period}"}, {Resource: template, KeyPattern: "{tenant}/period}/{period}"},
	} {
		_, err := b.Objects(s3fence.Sealed, bad)
		_, pointers := b.Pointers(bad)
		if !errors.Is(err, guard.ErrInvalid) || !errors.Is(pointers, guard.ErrInvalid) {
			t.Errorf("%+v is taken: %v, %v", bad, err, pointers)
		}
	}
}

func gunzip(t *testing.T, file []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(file))
	must(t, err)
	content, err := io.ReadAll(r)
	must(t, err)
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
		must(t, o.Put(t.Context(), claim(token, "a"), key, strings.NewReader(body), &s3fence.Headers{ContentType: "text/csv", ContentEncoding: "gzip"}))
		token++
		must(t, o.Raise(t.Context(), claim(token, "b"), key))
		if got := gunzip(t, stored(t, server, key).Body); got != body {
			t.Errorf("compress/gzip reads %d bytes, want %d", len(got), len(body))
		}
		zcat := exec.Command("gzip", "-dc")
		zcat.Stdin = bytes.NewReader(stored(t, server, key).Body)
		if got, err := zcat.Output(); err != nil || string(got) != body {
			t.Errorf("gzip -dc reads %d bytes, want %d: %v", len(got), len(body), err)
		}
		answer, err := http.Get(server.URL() + "/" + bucketName + "/" + key)
		must(t, err)
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

// An adopted gzip file has one member of content, however it was made, so that readers
// of only the first member see all of it. What is not a gzip file is packed.
func TestGzipAdopts(t *testing.T) {
	t.Parallel()
	member := func(text string) string {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write([]byte(text))
		_ = w.Close()
		return out.String()
	}
	cut := member("content")[:20]
	longest := strings.Repeat("x", 1000) // Options.MaxBody
	for name, c := range map[string]struct{ file, encoding, content, invalid string }{
		"text":                  {"content", "", "content", ""},
		"one member":            {member("content"), "gzip", "content", ""},
		"no encoding":           {member("content"), "", "content", ""},
		"two members":           {member("con") + member("tent"), "gzip", "content", ""},
		"zeros behind it":       {member("content") + strings.Repeat("\x00", 512), "gzip", "", "Headers.ContentEncoding"},
		"an empty member first": {member("") + member("content"), "gzip", "content", ""},
		"cut":                   {cut, "", cut, ""},
		"no gzip file":          {"content", "gzip", "", "Headers.ContentEncoding"},
		"the longest":           {member(longest), "gzip", longest, ""},
		"too long":              {member(longest + "x"), "gzip", "", "body"},
	} {
		server := newServer(t, nil)
		o := objects(t, open(t, server, &s3fence.Options{MaxBody: 1000}), s3fence.SealedGzip, nil)
		in := &s3.PutObjectInput{Bucket: aws.String(bucketName), Key: aws.String(key), Body: strings.NewReader(c.file)}
		if c.encoding != "" {
			in.ContentEncoding = &c.encoding
		}
		if _, err := newClient(server).PutObject(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		err := o.Adopt(t.Context(), claim(5, "a"), key)
		if c.invalid != "" {
			invalid(t, err, c.invalid)
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want(t, o, c.content, guard.Mark{Token: 5, LeaseID: "a"})
		if got := gunzip(t, stored(t, server, key).Body); got != c.content {
			t.Errorf("%s: a reader of gzip sees %.40q", name, got)
		}
		first, err := gzip.NewReader(bytes.NewReader(stored(t, server, key).Body))
		must(t, err)
		first.Multistream(false)
		if got, err := io.ReadAll(first); err != nil || string(got) != c.content {
			t.Errorf("%s: the first member has %.40q, %v", name, got, err)
		}
	}
}

func list(t *testing.T, o *s3fence.Handle, prefix string) (keys []string) {
	t.Helper()
	for e, err := range o.List(t.Context(), prefix) {
		must(t, err)
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
			must(t, o.Put(t.Context(), claim(5, "a"), k, strings.NewReader("x"), nil))
			if i%2 == 0 {
				must(t, o.Delete(t.Context(), claim(5, "a"), k))
			}
		}
		must(t, o.Raise(t.Context(), claim(5, "a"), "a/raised"))
		bypass(t, server, "b/unfenced", bytes.Repeat([]byte("x"), 1277), nil)
		if got := list(t, o, ""); !slices.Equal(got, []string{"a/1", "a/3", "a/5", "b/unfenced"}) {
			t.Errorf("listed: %q", got)
		}
		if got := list(t, o, "a/"); !slices.Equal(got, []string{"a/1", "a/3", "a/5"}) {
			t.Errorf("listed: %q", got)
		}
		for e, err := range o.List(t.Context(), "") { // and stops when the loop does
			if err != nil || e.Key != "a/1" || e.ETag == "" || e.StoredSize == 0 || e.LastModified.IsZero() {
				t.Errorf("%+v, %v", e, err)
			}
			break
		}
		server.Close()
		for _, err := range o.List(t.Context(), "") {
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
		must(t, o.Put(t.Context(), claim(5, "a"), fmt.Sprintf("%04d", i), nil, nil))
	}
	if got := list(t, o, ""); len(got) != 35 || !slices.IsSorted(got) || server.Count(s3test.ListObjectsV2) != 4 {
		t.Errorf("%d listed in %d pages", len(got), server.Count(s3test.ListObjectsV2))
	}
}

// repeating is a store whose listings all have one continuation token, or none, and no end.
type repeating struct {
	s3fence.S3
	token *string
	asked int
}

func (c *repeating) ListObjectsV2(_ context.Context, in *s3.ListObjectsV2Input, _ ...func(*s3.Options)) (*s3.ListObjectsV2Output, error) {
	c.asked++
	return &s3.ListObjectsV2Output{Name: in.Bucket, IsTruncated: aws.Bool(true), NextContinuationToken: c.token}, nil
}

// A listing that cannot go on is not complete, and does not begin again.
func TestRepeatedContinuationToken(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Pointer, 0)
	for want, token := range map[int]*string{4: aws.String("same"), 2: nil} {
		store := &repeating{S3: newClient(server), token: token}
		o := objects(t, b.On(store, bucketName), s3fence.Pointer, nil)
		for _, err := range o.List(t.Context(), "") {
			refused(t, err, guard.ReasonUnavailable)
		}
		_, err := o.Collect(t.Context(), "")
		if refused(t, err, guard.ReasonUnavailable); store.asked != want {
			t.Errorf("%d requests, want %d", store.asked, want)
		}
	}
}

// The vectors of FORMAT.md. internal/suites/s3/format has the tests of a reader and
// writer in Python that was made from that page.
func TestFormatVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/vectors.json")
	must(t, err)
	var vectors []struct {
		Name, Key, Damaged, Resource string
		Object, Body, Content        []byte
		Metadata                     map[string]string
		State                        struct {
			Kind, Lease string
			Token       int64
		}
		Data *struct {
			Key    string
			Object []byte
		}
	}
	must(t, json.Unmarshal(text, &vectors))
	if len(vectors) < 70 {
		t.Errorf("%d vectors", len(vectors))
	}
	modes := map[string]s3fence.Mode{
		"sealed": s3fence.Sealed, "gzip": s3fence.SealedGzip, "plain": s3fence.Plain, "pointer": s3fence.Pointer,
		"tombstone": s3fence.Sealed, "unfenced": s3fence.Sealed,
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
			bypass(t, server, v.Key, v.Object, v.Metadata)
			if v.Data != nil {
				bypass(t, server, v.Data.Key, v.Data.Object, nil)
			}
			b := open(t, server, nil)
			b.SetOpaque(true)
			o := objects(t, b, modes[v.State.Kind], nil)
			mark, err := o.Mark(t.Context(), v.Key)
			if v.Damaged != "" {
				// What only the body shows is seen only by those who read it.
				if err == nil {
					_, err = o.Get(t.Context(), v.Key)
				}
				t.Logf("%v", damage(t, err))
				return
			}
			if v.State.Kind == "unfenced" {
				refused(t, err, guard.ReasonUnfenced)
				return
			}
			if want := (guard.Mark{Token: guard.Token(v.State.Token), LeaseID: v.State.Lease}); err != nil || mark != want {
				t.Fatalf("the mark is %+v, %v; want %+v", mark, err, want)
			}
			if v.State.Kind == "tombstone" {
				_, err := o.Get(t.Context(), v.Key)
				refused(t, err, guard.ReasonNotFound)
				return
			}
			want := v.Body
			if v.Data != nil {
				want = v.Data.Object
			} else if v.State.Kind == "gzip" {
				want = v.Content
			}
			if got, _ := content(t, o, v.Key); got != string(want) {
				t.Errorf("the content is %.40q, want %.40q", got, want)
			}
		})
	}
}
