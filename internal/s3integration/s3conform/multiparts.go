package s3conform

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

type completedPart struct {
	PartNumber int
	ETag       string
}

type uploadList struct {
	Upload []struct{ Key, UploadId string }
}

func (k *trial) start(key string, pairs ...string) string {
	r := k.send(ask{method: http.MethodPost, key: k.prefix + key, query: url.Values{"uploads": {""}}, header: headers(pairs)})
	id := decode[struct{ UploadId string }](r.want(http.StatusOK, "")).UploadId
	if id == "" {
		fatal("no upload ID: %s", r)
	}
	return id
}

func (k *trial) part(key, id string, number int, body string) *reply {
	return k.send(ask{method: http.MethodPut, key: k.prefix + key, body: []byte(body),
		query: url.Values{"uploadId": {id}, "partNumber": {strconv.Itoa(number)}}})
}

// completion is the request that completes an upload.
func (k *trial) completion(key, id string, parts []completedPart, pairs ...string) ask {
	body, err := xml.Marshal(struct {
		XMLName xml.Name        `xml:"CompleteMultipartUpload"`
		Part    []completedPart `xml:"Part"`
	}{Part: parts})
	if err != nil {
		fatal("%v", err)
	}
	return ask{method: http.MethodPost, bucket: k.bucket, key: k.prefix + key, query: url.Values{"uploadId": {id}}, header: headers(pairs), body: body}
}

func (k *trial) complete(key, id string, parts []completedPart, pairs ...string) *reply {
	return k.send(k.completion(key, id, parts, pairs...))
}

// abort takes the whole key.
func (k *trial) abort(key, id string) *reply {
	return k.send(ask{method: http.MethodDelete, key: key, query: url.Values{"uploadId": {id}}})
}

func (k *trial) uploads(prefix string) uploadList {
	q := url.Values{"uploads": {""}}
	if prefix != "" {
		q.Set("prefix", prefix)
	}
	return decode[uploadList](k.send(ask{method: http.MethodGet, query: q}).want(http.StatusOK, ""))
}

// prepare starts an upload and sends one part.
func (k *trial) prepare(key, body string, pairs ...string) (string, []completedPart) {
	id := k.start(key, pairs...)
	r := k.part(key, id, 1, body).want(http.StatusOK, "")
	return id, []completedPart{{1, r.etag()}}
}

var multipartCases = []testCase{
	{"multipart upload", func(k *trial) error {
		id := k.start("a", "Content-Type", "text/csv", "Cache-Control", "no-store", "x-amz-meta-token", "7")
		bodies := []string{strings.Repeat("a", k.PartSize), strings.Repeat("b", k.PartSize+1), "the end"}
		var parts []completedPart
		var sums []byte
		// The order of arrival does not matter, nor a part that was sent twice.
		for _, n := range []int{3, 1, 2, 1} {
			r := k.part("a", id, n, bodies[n-1]).want(http.StatusOK, "")
			if r.etag() != md5ETag(bodies[n-1]) {
				return fmt.Errorf("ETag of part %d: %s", n, r.etag())
			}
		}
		for i, body := range bodies {
			parts = append(parts, completedPart{i + 1, md5ETag(body)})
			sum := md5.Sum([]byte(body))
			sums = append(sums, sum[:]...)
		}
		k.absent("a")
		if l := k.uploads(k.prefix + "a"); len(l.Upload) != 1 || l.Upload[0].UploadId != id || l.Upload[0].Key != k.prefix+"a" {
			return fmt.Errorf("uploads: %+v", l)
		}
		listed := decode[struct{ Part []completedPart }](k.send(ask{method: http.MethodGet, key: k.prefix + "a", query: url.Values{"uploadId": {id}}}).want(http.StatusOK, ""))
		if fmt.Sprint(listed.Part) != fmt.Sprint(parts) {
			return fmt.Errorf("parts: %v, want %v", listed.Part, parts)
		}
		total := md5.Sum(sums)
		want := `"` + hex.EncodeToString(total[:]) + `-3"`
		done := decode[struct{ ETag string }](k.complete("a", id, parts).want(http.StatusOK, ""))
		if done.ETag != want {
			return fmt.Errorf("ETag %s, want %s", done.ETag, want)
		}
		r := k.holds("a", strings.Join(bodies, ""), want)
		described(r, "Content-Type", "text/csv")
		described(r, "Cache-Control", "no-store")
		described(r, "X-Amz-Meta-Token", "7")
		if l := k.uploads(k.prefix + "a"); len(l.Upload) != 0 {
			return fmt.Errorf("uploads after completion: %+v", l)
		}
		k.part("a", id, 1, "x").want(http.StatusNotFound, "NoSuchUpload")
		return nil
	}},
	{"multipart upload with wrong parts is refused", func(k *trial) error {
		id := k.start("a")
		one := k.part("a", id, 1, "small").want(http.StatusOK, "").etag()
		two := k.part("a", id, 2, "last").want(http.StatusOK, "").etag()
		k.complete("a", id, []completedPart{{1, one}, {2, two}}).want(http.StatusBadRequest, "EntityTooSmall")
		k.complete("a", id, []completedPart{{1, two}}).want(http.StatusBadRequest, "InvalidPart")
		k.complete("a", id, []completedPart{{1, one}, {3, two}}).want(http.StatusBadRequest, "")
		k.complete("a", id, nil).want(http.StatusBadRequest, "MalformedXML")
		k.part("a", id, 0, "x").want(http.StatusBadRequest, "InvalidArgument")
		k.part("a", id, 10001, "x").want(http.StatusBadRequest, "InvalidArgument")
		k.absent("a")
		k.complete("a", id, []completedPart{{2, two}}).want(http.StatusOK, "")
		k.holds("a", "last", "")
		return nil
	}},
	{"multipart upload with parts out of order is refused", func(k *trial) error {
		body := strings.Repeat("x", k.PartSize)
		id, parts := k.prepare("a", body)
		parts = append([]completedPart{{2, k.part("a", id, 2, body).want(http.StatusOK, "").etag()}}, parts...)
		k.complete("a", id, parts).want(http.StatusBadRequest, "InvalidPartOrder")
		k.complete("a", id, []completedPart{parts[1], parts[1]}).want(http.StatusBadRequest, "InvalidPartOrder")
		k.absent("a")
		return nil
	}},
	{"multipart upload is aborted", func(k *trial) error {
		id, parts := k.prepare("a", "body")
		k.abort(k.prefix+"a", id).want(http.StatusNoContent, "")
		k.part("a", id, 2, "x").want(http.StatusNotFound, "NoSuchUpload")
		k.complete("a", id, parts).want(http.StatusNotFound, "NoSuchUpload")
		k.abort(k.prefix+"a", id).want(http.StatusNotFound, "NoSuchUpload")
		k.absent("a")
		if l := k.uploads(k.prefix + "a"); len(l.Upload) != 0 {
			return fmt.Errorf("uploads: %+v", l)
		}
		return nil
	}},
}

var multipartConditionCases = []testCase{
	{"multipart upload creates only once", func(k *trial) error {
		id, parts := k.prepare("a", "1")
		k.complete("a", id, parts, "If-None-Match", "*").want(http.StatusOK, "")
		id, parts = k.prepare("a", "2")
		k.complete("a", id, parts, "If-None-Match", "*").want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.holds("a", "1", "")
		k.abort(k.prefix+"a", id).want(http.StatusNoContent, "")
		return nil
	}},
	{"multipart upload replaces only the version that was read", func(k *trial) error {
		one := k.put("a", "1").want(http.StatusOK, "")
		two := k.put("a", "2").want(http.StatusOK, "")
		id, parts := k.prepare("a", "3")
		k.complete("a", id, parts, "If-Match", one.etag()).want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.holds("a", "2", two.etag())
		id, parts = k.prepare("a", "3")
		k.complete("a", id, parts, "If-Match", two.etag()).want(http.StatusOK, "")
		k.holds("a", "3", "")
		id, parts = k.prepare("missing", "4")
		k.complete("missing", id, parts, "If-Match", two.etag()).want(http.StatusNotFound, "NoSuchKey")
		k.absent("missing")
		return nil
	}},
}
