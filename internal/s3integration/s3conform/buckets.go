package s3conform

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
)

var bucketCases = []testCase{
	{"bucket is found and listed", func(k *trial) error {
		k.send(ask{method: http.MethodHead}).want(http.StatusOK, "")
		r, err := k.do(k.ctx, ask{method: http.MethodGet})
		if err != nil {
			return err
		}
		if !bytes.Contains(r.want(http.StatusOK, "").body, []byte(k.bucket)) {
			return fmt.Errorf("not among the buckets: %s", r)
		}
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
