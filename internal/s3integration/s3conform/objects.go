package s3conform

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"net/http"
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
