package s3conform

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

func md5ETag(body string) string {
	sum := md5.Sum([]byte(body))
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// described ends the trial unless a header has the value.
func described(r *reply, name, value string) {
	if got := r.header.Get(name); got != value {
		fatal("%s is %q, want %q", name, got, value)
	}
}

var objectCases = []testCase{
	{"object is read as written", func(k *trial) error {
		begin := time.Now().Add(-2 * time.Second)
		written := k.put("a", "body", "Content-Type", "text/plain; charset=utf-8", "Cache-Control", "max-age=7",
			"Content-Disposition", "attachment", "Content-Language", "de", "Content-Encoding", "identity",
			"x-amz-meta-fencing-token", "42", "X-Amz-Meta-Other", "two words").want(http.StatusOK, "")
		read := k.holds("a", "body", written.etag())
		head := k.head("a").want(http.StatusOK, "")
		for _, r := range []*reply{read, head} {
			described(r, "Etag", written.etag())
			described(r, "Content-Length", "4")
			described(r, "Content-Type", "text/plain; charset=utf-8")
			described(r, "Cache-Control", "max-age=7")
			described(r, "Content-Disposition", "attachment")
			described(r, "Content-Language", "de")
			described(r, "Content-Encoding", "identity")
			described(r, "X-Amz-Meta-Fencing-Token", "42")
			described(r, "X-Amz-Meta-Other", "two words")
			at, err := http.ParseTime(r.header.Get("Last-Modified"))
			if err != nil || at.Before(begin) || at.After(time.Now().Add(time.Second)) {
				return fmt.Errorf("Last-Modified is %q", r.header.Get("Last-Modified"))
			}
		}
		return nil
	}},
	{"empty object", func(k *trial) error {
		k.put("a", "").want(http.StatusOK, "")
		described(k.holds("a", "", md5ETag("")), "Content-Length", "0")
		return nil
	}},
	{"object of the size of a part", func(k *trial) error {
		body := strings.Repeat("x", k.PartSize)
		r := k.put("a", body).want(http.StatusOK, "")
		k.holds("a", body, r.etag())
		return nil
	}},
	{"ETag is the MD5 of the body", func(k *trial) error {
		for _, body := range []string{"x", "y"} {
			if r := k.put("a", body).want(http.StatusOK, ""); r.etag() != md5ETag(body) {
				return fmt.Errorf("the ETag of %q is %s", body, r.etag())
			}
		}
		return nil
	}},
	{"ETag ignores metadata", func(k *trial) error {
		one := k.put("a", "body", "x-amz-meta-fencing-token", "1").want(http.StatusOK, "")
		two := k.put("a", "body", "x-amz-meta-fencing-token", "2").want(http.StatusOK, "")
		if one.etag() != two.etag() {
			return fmt.Errorf("%s and %s", one.etag(), two.etag())
		}
		described(k.head("a"), "X-Amz-Meta-Fencing-Token", "2")
		return nil
	}},
	{"overwriting replaces metadata and headers", func(k *trial) error {
		k.put("a", "1", "x-amz-meta-one", "1", "Cache-Control", "no-store", "Content-Language", "de").want(http.StatusOK, "")
		k.put("a", "2", "x-amz-meta-two", "2").want(http.StatusOK, "")
		r := k.holds("a", "2", "")
		described(r, "X-Amz-Meta-Two", "2")
		described(r, "X-Amz-Meta-One", "")
		described(r, "Cache-Control", "")
		described(r, "Content-Language", "")
		return nil
	}},
	{"content type has a default", func(k *trial) error {
		k.put("a", "x").want(http.StatusOK, "")
		described(k.head("a"), "Content-Type", "binary/octet-stream")
		return nil
	}},
	{"metadata over 2 KiB is refused", func(k *trial) error {
		k.put("a", "x", "x-amz-meta-large", strings.Repeat("x", 2048)).want(http.StatusBadRequest, "MetadataTooLarge")
		k.absent("a")
		k.put("a", "x", "x-amz-meta-large", strings.Repeat("x", 2000)).want(http.StatusOK, "")
		return nil
	}},
	{"missing object is NoSuchKey", func(k *trial) error {
		k.absent("a")
		k.head("a").want(http.StatusNotFound, "")
		return nil
	}},
	{"delete removes, and may be repeated", func(k *trial) error {
		k.put("a", "x").want(http.StatusOK, "")
		k.remove("a").want(http.StatusNoContent, "")
		k.absent("a")
		k.remove("a").want(http.StatusNoContent, "")
		k.put("a", "y", "If-None-Match", "*").want(http.StatusOK, "")
		k.holds("a", "y", "")
		return nil
	}},
}

var bucketCases = []testCase{
	{"bucket is found", func(k *trial) error {
		k.send(ask{method: http.MethodHead}).want(http.StatusOK, "")
		return nil
	}},
	{"missing bucket is NoSuchBucket", func(k *trial) error {
		missing := k.bucket + "-missing"
		for _, a := range []ask{
			{method: http.MethodPut, key: "k", body: []byte("x")},
			{method: http.MethodPut, key: "k", body: []byte("x"), header: headers([]string{"If-None-Match", "*"})},
			{method: http.MethodGet, key: "k"},
			{method: http.MethodDelete, key: "k"},
			{method: http.MethodGet, query: url.Values{"list-type": {"2"}}},
		} {
			a.bucket = missing
			r := k.send(a).want(http.StatusNotFound, "NoSuchBucket")
			if r.code == "" || r.requestID == "" {
				return fmt.Errorf("%s: the error has no code or request ID: %s", a.method, r)
			}
		}
		k.send(ask{method: http.MethodHead, bucket: missing}).want(http.StatusNotFound, "")
		return nil
	}},
}

var conditionCases = []testCase{
	{"create only once", func(k *trial) error {
		first := k.put("a", "1", "If-None-Match", "*", "x-amz-meta-token", "1").want(http.StatusOK, "")
		k.put("a", "2", "If-None-Match", "*", "x-amz-meta-token", "2").want(http.StatusPreconditionFailed, "PreconditionFailed")
		// Equal bytes make no difference.
		k.put("a", "1", "If-None-Match", "*", "x-amz-meta-token", "3").want(http.StatusPreconditionFailed, "PreconditionFailed")
		described(k.holds("a", "1", first.etag()), "X-Amz-Meta-Token", "1")
		return nil
	}},
	{"replace only the version that was read", func(k *trial) error {
		one := k.put("a", "1", "x-amz-meta-token", "1").want(http.StatusOK, "")
		two := k.put("a", "2", "If-Match", one.etag(), "x-amz-meta-token", "2").want(http.StatusOK, "")
		k.put("a", "3", "If-Match", one.etag(), "x-amz-meta-token", "3").want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.put("a", "3", "If-Match", `"00000000000000000000000000000000"`).want(http.StatusPreconditionFailed, "PreconditionFailed")
		described(k.holds("a", "2", two.etag()), "X-Amz-Meta-Token", "2")
		return nil
	}},
	{"replace of a missing object is NoSuchKey", func(k *trial) error {
		k.put("a", "1", "If-Match", md5ETag("1")).want(http.StatusNotFound, "NoSuchKey")
		k.absent("a")
		gone := k.put("a", "1").want(http.StatusOK, "")
		k.remove("a").want(http.StatusNoContent, "")
		k.put("a", "2", "If-Match", gone.etag()).want(http.StatusNotFound, "NoSuchKey")
		k.absent("a")
		return nil
	}},
	{"unknown conditions of writes are refused", func(k *trial) error {
		one := k.put("a", "1").want(http.StatusOK, "")
		k.put("a", "2", "If-None-Match", `"00000000000000000000000000000000"`).want(http.StatusNotImplemented, "NotImplemented")
		k.put("a", "2", "If-None-Match", "*", "If-Match", one.etag()).want(http.StatusNotImplemented, "NotImplemented")
		k.holds("a", "1", one.etag())
		return nil
	}},
	{"delete only the version that was read", func(k *trial) error {
		one := k.put("a", "1").want(http.StatusOK, "")
		two := k.put("a", "2").want(http.StatusOK, "")
		k.remove("a", "If-Match", one.etag()).want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.holds("a", "2", two.etag())
		k.remove("a", "If-Match", two.etag()).want(http.StatusNoContent, "")
		k.absent("a")
		// Stores disagree about deleting a missing object; it must stay
		// missing.
		switch r := k.remove("a", "If-Match", two.etag()); r.status {
		case http.StatusNoContent, http.StatusNotFound, http.StatusPreconditionFailed:
		default:
			return fmt.Errorf("got %s", r)
		}
		k.absent("a")
		return nil
	}},
	{"read only the version that is meant", func(k *trial) error {
		one := k.put("a", "1").want(http.StatusOK, "")
		for _, read := range []func(string, ...string) *reply{k.get, k.head} {
			read("a", "If-Match", one.etag()).want(http.StatusOK, "")
			read("a", "If-Match", md5ETag("other")).want(http.StatusPreconditionFailed, "PreconditionFailed")
			read("a", "If-None-Match", md5ETag("other")).want(http.StatusOK, "")
			unmodified := read("a", "If-None-Match", one.etag()).want(http.StatusNotModified, "")
			if len(unmodified.body) > 0 {
				return fmt.Errorf("304 has a body: %s", unmodified)
			}
			read("missing", "If-Match", one.etag()).want(http.StatusNotFound, "NoSuchKey")
			read("missing", "If-None-Match", one.etag()).want(http.StatusNotFound, "NoSuchKey")
		}
		return nil
	}},
}

var rangeCases = []testCase{
	{"ranges", func(k *trial) error {
		const body = "0123456789"
		k.put("a", body).want(http.StatusOK, "")
		for _, c := range []struct{ header, want, content string }{
			{"bytes=0-0", "0", "bytes 0-0/10"},
			{"bytes=2-4", "234", "bytes 2-4/10"},
			{"bytes=7-", "789", "bytes 7-9/10"},
			{"bytes=-3", "789", "bytes 7-9/10"},
			{"bytes=8-100", "89", "bytes 8-9/10"},
			{"bytes=-100", body, "bytes 0-9/10"},
		} {
			r := k.get("a", "Range", c.header).want(http.StatusPartialContent, "")
			if string(r.body) != c.want {
				return fmt.Errorf("%s is %q, want %q", c.header, r.body, c.want)
			}
			described(r, "Content-Range", c.content)
			described(r, "Etag", md5ETag(body))
		}
		k.get("a", "Range", "bytes=10-").want(http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
		k.get("a", "Range", "bytes=-0").want(http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
		if r := k.get("a", "Range", "nonsense").want(http.StatusOK, ""); string(r.body) != body {
			return fmt.Errorf("nonsense is %q", r.body)
		}
		return nil
	}},
}

// names returns the keys that a listing shows, without the trial's prefix.
func (k *trial) names(l listing) string {
	var names []string
	for _, o := range l.Contents {
		names = append(names, strings.TrimPrefix(o.Key, k.prefix))
	}
	return strings.Join(names, " ")
}

var listCases = []testCase{
	{"list by prefix and start", func(k *trial) error {
		for _, key := range []string{"b", "a", "d/2", "d/1", "d/e/3", "é", "f", "Z"} {
			k.put(key, "body of "+key).want(http.StatusOK, "")
		}
		for _, c := range []struct {
			prefix, after, want string
		}{
			{"", "", "Z a b d/1 d/2 d/e/3 f é"},
			{"d/", "", "d/1 d/2 d/e/3"},
			{"d", "", "d/1 d/2 d/e/3"},
			{"", "b", "d/1 d/2 d/e/3 f é"},
			{"", "ba", "d/1 d/2 d/e/3 f é"},
			{"nothing", "", ""},
		} {
			q := url.Values{"prefix": {k.prefix + c.prefix}}
			if c.after != "" {
				q.Set("start-after", k.prefix+c.after)
			}
			l := k.list(q)
			if got := k.names(l); got != c.want || l.IsTruncated {
				return fmt.Errorf("prefix %q, start-after %q: %q, want %q (truncated: %v)", c.prefix, c.after, got, c.want, l.IsTruncated)
			}
		}
		one := k.list(url.Values{"prefix": {k.prefix + "a"}}).Contents[0]
		if one.ETag != md5ETag("body of a") || one.Size != int64(len("body of a")) {
			return fmt.Errorf("entry %+v", one)
		}
		return nil
	}},
	{"list by pages", func(k *trial) error {
		var want []string
		for i := range 7 {
			key := fmt.Sprintf("k%d", i)
			k.put(key, "x").want(http.StatusOK, "")
			want = append(want, key)
		}
		var got []string
		q := url.Values{"prefix": {k.prefix}, "max-keys": {"2"}}
		for range 20 {
			l := k.list(q)
			if n := len(l.Contents); n > 2 || l.KeyCount != n {
				return fmt.Errorf("%d entries on a page of 2, KeyCount %d", n, l.KeyCount)
			}
			got = append(got, strings.Fields(k.names(l))...)
			if l.IsTruncated != (l.NextContinuationToken != "") {
				return fmt.Errorf("truncated: %v, token %q", l.IsTruncated, l.NextContinuationToken)
			}
			if !l.IsTruncated {
				break
			}
			q.Set("continuation-token", l.NextContinuationToken)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	}},
}

// keeps ends the trial unless an object can be written, read, listed and
// removed under exactly that key.
func (k *trial) keeps(key string) {
	body := "body of " + key
	k.send(ask{method: http.MethodPut, key: key, body: []byte(body)}).want(http.StatusOK, "")
	if r := k.send(ask{method: http.MethodGet, key: key}).want(http.StatusOK, ""); string(r.body) != body {
		fatal("%q holds %.100q", key, r.body)
	}
	l := k.list(url.Values{"prefix": {key}})
	if len(l.Contents) != 1 || l.Contents[0].Key != key {
		fatal("%q is listed as %+v", key, l.Contents)
	}
	k.send(ask{method: http.MethodDelete, key: key}).want(http.StatusNoContent, "")
	k.send(ask{method: http.MethodGet, key: key}).want(http.StatusNotFound, "NoSuchKey")
}

// long makes a key of exactly n bytes, in segments that a file system can hold.
func (k *trial) long(n int) string {
	key := k.prefix
	for len(key)+101 < n {
		key += strings.Repeat("x", 100) + "/"
	}
	return key + strings.Repeat("y", n-len(key))
}

var keyCases = []testCase{
	{"keys with spaces, signs and unicode", func(k *trial) error {
		for _, key := range []string{
			"two words", "plus+plus", "100%", "%2F", "a&b=c", "q?x=1", "hash#hash", "quote\"'", "semi;colon", "(a)!*~@$,:",
			"Rechnung März 2026 – Ω", "日本語/発票", "🔒", "a.b", ".hidden", "back\\slash", "<xml>&amp;",
		} {
			k.keeps(k.prefix + key)
		}
		return nil
	}},
	{"key of 1024 bytes", func(k *trial) error {
		k.keeps(k.long(1024))
		return nil
	}},
	{"longer key is refused", func(k *trial) error {
		k.send(ask{method: http.MethodPut, key: k.long(1025), body: []byte("x")}).want(http.StatusBadRequest, "KeyTooLongError")
		return nil
	}},
	{"key with a leading slash", func(k *trial) error {
		k.keeps("/" + k.prefix + "a")
		return nil
	}},
	{"key with two slashes", func(k *trial) error {
		k.keeps(k.prefix + "a//b")
		return nil
	}},
	{"key with dots for segments", func(k *trial) error {
		for _, key := range []string{"a/../b", "a/./b"} {
			k.keeps(k.prefix + key)
		}
		return nil
	}},
	{"key that escapes the bucket stays inside or is refused", func(k *trial) error {
		for _, key := range []string{"../escaped", k.prefix + "../../../escaped"} {
			r := k.send(ask{method: http.MethodPut, key: key, body: []byte("x")})
			if r.status == http.StatusOK {
				k.keeps(key)
			} else if r.status >= 500 {
				return fmt.Errorf("%q: %s", key, r)
			}
		}
		return nil
	}},
	{"key and what is below it", func(k *trial) error {
		k.put("a", "1").want(http.StatusOK, "")
		k.put("a/b", "2").want(http.StatusOK, "")
		k.holds("a", "1", "")
		k.holds("a/b", "2", "")
		return nil
	}},
}
