package s3conform

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
)

// fatal ends the trial.
func fatal(format string, args ...any) {
	panic(failed{fmt.Errorf(format, args...)})
}

func (r *reply) String() string {
	body := r.body
	if len(body) > 300 {
		body = body[:300]
	}
	return fmt.Sprintf("%d %s %q", r.status, r.code, body)
}

// want ends the trial unless the reply has the status, and the error code if one
// is given.
func (r *reply) want(status int, code string) *reply {
	if r.status != status || code != "" && r.code != code && len(r.body) > 0 {
		fatal("want %d %s, got %s", status, code, r)
	}
	return r
}

// send sends a request to the trial's bucket.
func (k *trial) send(a ask) *reply {
	if a.bucket == "" {
		a.bucket = k.bucket
	}
	r, err := k.do(k.ctx, a)
	if err != nil {
		fatal("%s %q: %w", a.method, a.key, err)
	}
	return r
}

// put writes an object of the trial; pairs are headers.
func (k *trial) put(key, body string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodPut, key: k.prefix + key, header: headers(pairs), body: []byte(body)})
}

func (k *trial) get(key string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodGet, key: k.prefix + key, header: headers(pairs)})
}

func (k *trial) head(key string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodHead, key: k.prefix + key, header: headers(pairs)})
}

func (k *trial) remove(key string, pairs ...string) *reply {
	return k.send(ask{method: http.MethodDelete, key: k.prefix + key, header: headers(pairs)})
}

// holds ends the trial unless the object has the body, and the ETag if one is
// given.
func (k *trial) holds(key, body, etag string) *reply {
	r := k.get(key).want(http.StatusOK, "")
	if !bytes.Equal(r.body, []byte(body)) {
		fatal("%s holds %.100q, want %.100q", key, r.body, body)
	}
	if etag != "" && r.etag() != etag {
		fatal("%s has the ETag %s, want %s", key, r.etag(), etag)
	}
	return r
}

// absent ends the trial if there is an object.
func (k *trial) absent(key string) { k.get(key).want(http.StatusNotFound, "NoSuchKey") }

type listing struct {
	IsTruncated           bool
	NextContinuationToken string
	KeyCount              int
	Contents              []struct {
		Key, ETag string
		Size      int64
	}
	CommonPrefixes []struct{ Prefix string }
}

func (k *trial) list(values url.Values) listing {
	q := url.Values{"list-type": {"2"}}
	maps.Copy(q, values)
	r := k.send(ask{method: http.MethodGet, query: q}).want(http.StatusOK, "")
	return decode[listing](r)
}

func decode[T any](r *reply) T {
	var v T
	if err := xml.Unmarshal(r.body, &v); err != nil {
		fatal("%v in %s", err, r)
	}
	return v
}

func headers(pairs []string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}
