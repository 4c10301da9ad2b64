package s3conform

import (
	"fmt"
	"net/http"
	"time"
)

var conditionCases = []testCase{
	{"create only once", func(k *trial) error {
		first := k.put("a", "1", "If-None-Match", "*", "x-amz-meta-token", "1").want(http.StatusOK, "")
		k.put("a", "2", "If-None-Match", "*", "x-amz-meta-token", "2").want(http.StatusPreconditionFailed, "PreconditionFailed")
		// The same bytes are no excuse.
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
		// Stores disagree about deleting what is not there; it must stay so.
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
	{"read by date", func(k *trial) error {
		k.put("a", "1").want(http.StatusOK, "")
		before, after := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
		k.get("a", "If-Modified-Since", before).want(http.StatusOK, "")
		k.get("a", "If-Unmodified-Since", before).want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.get("a", "If-Unmodified-Since", after).want(http.StatusOK, "")
		return nil
	}},
}
