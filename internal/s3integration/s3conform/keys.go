package s3conform

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

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
