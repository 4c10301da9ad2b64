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
	{"object is read as written", func(k *trial) {
		begin := time.Now().Add(-2 * time.Second)
		written := k.put("a", "body", "Content-Type", "text/plain; charset=utf-8", "Cache-Control", "max-age=7",
			"Content-Disposition", "attachment", "Content-Language", "de", "Content-Encoding", "identity",
			"x-amz-meta-fencing-token", "42", "X-Amz-Meta-Other", "two words").want(http.StatusOK, "")
		r := k.holds("a", "body", written.etag())
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
			fatal("Last-Modified is %q", r.header.Get("Last-Modified"))
		}
	}},
	{"empty object", func(k *trial) {
		k.put("a", "").want(http.StatusOK, "")
		described(k.holds("a", "", md5ETag("")), "Content-Length", "0")
	}},
	{"ETag is the MD5 of the body", func(k *trial) {
		for _, body := range []string{"x", "y"} {
			if r := k.put("a", body).want(http.StatusOK, ""); r.etag() != md5ETag(body) {
				fatal("the ETag of %q is %s", body, r.etag())
			}
		}
	}},
	{"ETag ignores metadata", func(k *trial) {
		one := k.put("a", "body", "x-amz-meta-fencing-token", "1").want(http.StatusOK, "")
		two := k.put("a", "body", "x-amz-meta-fencing-token", "2").want(http.StatusOK, "")
		if one.etag() != two.etag() {
			fatal("%s and %s", one.etag(), two.etag())
		}
		described(k.holds("a", "body", two.etag()), "X-Amz-Meta-Fencing-Token", "2")
	}},
	{"overwriting replaces metadata and headers", func(k *trial) {
		k.put("a", "1", "x-amz-meta-one", "1", "Cache-Control", "no-store", "Content-Language", "de").want(http.StatusOK, "")
		k.put("a", "2", "x-amz-meta-two", "2").want(http.StatusOK, "")
		r := k.holds("a", "2", "")
		described(r, "X-Amz-Meta-Two", "2")
		described(r, "X-Amz-Meta-One", "")
		described(r, "Cache-Control", "")
		described(r, "Content-Language", "")
	}},
	{"metadata over 2 KiB is refused", func(k *trial) {
		k.put("a", "x", "x-amz-meta-large", strings.Repeat("x", 2048)).want(http.StatusBadRequest, "MetadataTooLarge")
		k.absent("a")
		k.put("a", "x", "x-amz-meta-large", strings.Repeat("x", 2000)).want(http.StatusOK, "")
	}},
	{"delete removes, and may be repeated", func(k *trial) {
		k.put("a", "x").want(http.StatusOK, "")
		k.remove("a").want(http.StatusNoContent, "")
		k.absent("a")
		k.remove("a").want(http.StatusNoContent, "")
		k.put("a", "y", "If-None-Match", "*").want(http.StatusOK, "")
		k.holds("a", "y", "")
	}},
	{"missing bucket is NoSuchBucket", func(k *trial) {
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
			if r.code == "" {
				fatal("%s: the error has no code: %s", a.method, r)
			}
		}
	}},
}

var conditionCases = []testCase{
	{"create only once", func(k *trial) {
		first := k.put("a", "1", "If-None-Match", "*", "x-amz-meta-token", "1").want(http.StatusOK, "")
		k.put("a", "2", "If-None-Match", "*", "x-amz-meta-token", "2").want(http.StatusPreconditionFailed, "PreconditionFailed")
		// Equal bytes make no difference.
		k.put("a", "1", "If-None-Match", "*", "x-amz-meta-token", "3").want(http.StatusPreconditionFailed, "PreconditionFailed")
		described(k.holds("a", "1", first.etag()), "X-Amz-Meta-Token", "1")
	}},
	{"replace only the version that was read", func(k *trial) {
		one := k.put("a", "1", "x-amz-meta-token", "1").want(http.StatusOK, "")
		two := k.put("a", "2", "If-Match", one.etag(), "x-amz-meta-token", "2").want(http.StatusOK, "")
		k.put("a", "3", "If-Match", one.etag(), "x-amz-meta-token", "3").want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.put("a", "3", "If-Match", `"00000000000000000000000000000000"`).want(http.StatusPreconditionFailed, "PreconditionFailed")
		described(k.holds("a", "2", two.etag()), "X-Amz-Meta-Token", "2")
	}},
	{"replace of a missing object is NoSuchKey", func(k *trial) {
		k.put("a", "1", "If-Match", md5ETag("1")).want(http.StatusNotFound, "NoSuchKey")
		k.absent("a")
		gone := k.put("a", "1").want(http.StatusOK, "")
		k.remove("a").want(http.StatusNoContent, "")
		k.put("a", "2", "If-Match", gone.etag()).want(http.StatusNotFound, "NoSuchKey")
		k.absent("a")
	}},
	{"read only the version that is meant", func(k *trial) {
		one := k.put("a", "1").want(http.StatusOK, "")
		k.get("a", "If-Match", one.etag()).want(http.StatusOK, "")
		k.get("a", "If-Match", md5ETag("other")).want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.get("missing", "If-Match", one.etag()).want(http.StatusNotFound, "NoSuchKey")
	}},
	{"ranges at both ends", func(k *trial) {
		const body = "0123456789"
		k.put("a", body).want(http.StatusOK, "")
		for _, c := range []struct{ header, want, content string }{
			{"bytes=0-4", "01234", "bytes 0-4/10"},
			{"bytes=-3", "789", "bytes 7-9/10"},
			{"bytes=-100", body, "bytes 0-9/10"},
		} {
			r := k.get("a", "Range", c.header).want(http.StatusPartialContent, "")
			if string(r.body) != c.want {
				fatal("%s is %q, want %q", c.header, r.body, c.want)
			}
			described(r, "Content-Range", c.content)
			described(r, "Etag", md5ETag(body))
		}
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
	{"list by prefix and start", func(k *trial) {
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
				fatal("prefix %q, start-after %q: %q, want %q (truncated: %v)", c.prefix, c.after, got, c.want, l.IsTruncated)
			}
		}
		one := k.list(url.Values{"prefix": {k.prefix + "a"}}).Contents[0]
		if one.ETag != md5ETag("body of a") || one.Size != int64(len("body of a")) {
			fatal("entry %+v", one)
		}
	}},
	{"list by pages", func(k *trial) {
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
				fatal("%d entries on a page of 2, KeyCount %d", n, l.KeyCount)
			}
			got = append(got, strings.Fields(k.names(l))...)
			if l.IsTruncated != (l.NextContinuationToken != "") {
				fatal("truncated: %v, token %q", l.IsTruncated, l.NextContinuationToken)
			}
			if !l.IsTruncated {
				break
			}
			q.Set("continuation-token", l.NextContinuationToken)
		}
		if !slices.Equal(got, want) {
			fatal("got %q, want %q", got, want)
		}
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
	{"keys with spaces, signs and unicode", func(k *trial) {
		for _, key := range []string{
			"two words", "plus+plus", "100%", "%2F", "a&b=c", "q?x=1", "hash#hash", "quote\"'", "semi;colon", "(a)!*~@$,:",
			"Rechnung März 2026 – Ω", "日本語/発票", "🔒", "a.b", ".hidden", "back\\slash", "<xml>&amp;",
		} {
			k.keeps(k.prefix + key)
		}
	}},
	{"key of 1024 bytes", func(k *trial) {
		k.keeps(k.long(1024))
	}},
}
