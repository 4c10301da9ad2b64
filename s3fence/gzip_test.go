package s3fence_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
)

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
	random := make([]byte, 100_000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	server, _, o := setup(t, s3fence.SealedGzip, 0)
	token := guard.Token(0)
	for _, body := range []string{"", "x", "id;amount\n1;10\n", strings.Repeat("a line\n", 50_000), string(random)} {
		token++
		if err := o.Put(t.Context(), claim(token, "a"), key, strings.NewReader(body), &s3fence.PutOptions{
			Headers: s3fence.Headers{ContentType: "text/csv", ContentEncoding: "gzip"},
		}); err != nil {
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
	err := o.Put(t.Context(), claim(token, "b"), key, nil, &s3fence.PutOptions{Headers: s3fence.Headers{ContentEncoding: "br"}})
	invalid(t, err, "Headers.ContentEncoding")
}

// What is a gzip file already is adopted as it is.
func TestGzipAdopts(t *testing.T) {
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
