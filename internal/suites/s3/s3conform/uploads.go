package s3conform

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// sumHeader is the checksum that Amazon's SDK sends.
const sumHeader = "x-amz-checksum-crc32"

func sum(body string) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(body))))
}

// chunked writes a body as aws-chunked, in chunks of the given size, with a
// checksum in the trailer.
func chunked(body string, size int, checksum string) []byte {
	var b bytes.Buffer
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	fmt.Fprintf(&b, "0\r\n%s:%s\r\n\r\n", sumHeader, checksum)
	return b.Bytes()
}

// stream writes an object as aws-chunked.
func (k *trial) stream(key string, length int, body []byte, pairs ...string) *reply {
	h := headers(append(pairs, "Content-Encoding", "aws-chunked", "X-Amz-Trailer", sumHeader,
		"X-Amz-Decoded-Content-Length", strconv.Itoa(length)))
	return k.send(ask{
		method: http.MethodPut, key: k.prefix + key, header: h, body: body,
		payload: "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
	})
}

var checksumCases = []testCase{
	{"checksum in a header is verified", func(k *trial) {
		k.put("a", "body", sumHeader, sum("other")).want(http.StatusBadRequest, "BadDigest")
		k.absent("a")
		k.put("a", "body", sumHeader, sum("body")).want(http.StatusOK, "")
		k.holds("a", "body", "")
	}},
	{"chunked body with a checksum in the trailer", func(k *trial) {
		body := string(bytes.Repeat([]byte("chunks of a body, "), 10000))
		k.stream("a", len(body), chunked(body, 64<<10, sum(body)), "x-amz-meta-token", "1").want(http.StatusOK, "")
		r := k.holds("a", body, md5ETag(body))
		described(r, "X-Amz-Meta-Token", "1")
		described(k.get("a", "x-amz-checksum-mode", "ENABLED"), http.CanonicalHeaderKey(sumHeader), sum(body))
		k.stream("a", len(body), chunked(body, 64<<10, sum("other"))).want(http.StatusBadRequest, "BadDigest")
		k.holds("a", body, "")
		k.stream("a", 0, chunked("", 64<<10, sum(""))).want(http.StatusOK, "")
		k.holds("a", "", "")
	}},
	{"aws-chunked is not kept as an encoding", func(k *trial) {
		k.stream("a", 4, chunked("body", 64<<10, sum("body"))).want(http.StatusOK, "")
		described(k.holds("a", "body", ""), "Content-Encoding", "")
	}},
	{"chunked body on a condition", func(k *trial) {
		write := func(body string, pairs ...string) *reply {
			return k.stream("a", len(body), chunked(body, 64<<10, sum(body)), pairs...)
		}
		one := write("1", "If-None-Match", "*").want(http.StatusOK, "")
		write("2", "If-None-Match", "*").want(http.StatusPreconditionFailed, "PreconditionFailed")
		write("2", "If-Match", one.etag()).want(http.StatusOK, "")
		write("3", "If-Match", one.etag()).want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.holds("a", "2", "")
	}},
	{"truncated chunked body is refused", func(k *trial) {
		const body = "a body of some length"
		whole := chunked(body, 8, sum(body))
		for _, n := range []int{0, 1, 5, 12, len(whole) / 2} {
			if r := k.stream("a", len(body), whole[:n]); r.status < 400 || r.status >= 500 {
				fatal("cut after %d bytes: %s", n, r)
			}
		}
		if r := k.stream("a", len(body)+1, whole); r.status < 400 || r.status >= 500 {
			fatal("one byte less than declared: %s", r)
		}
		k.absent("a")
	}},
}

type completedPart struct {
	PartNumber int
	ETag       string
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

func (k *trial) complete(key, id string, parts []completedPart, pairs ...string) *reply {
	body, err := xml.Marshal(struct {
		XMLName xml.Name        `xml:"CompleteMultipartUpload"`
		Part    []completedPart `xml:"Part"`
	}{Part: parts})
	if err != nil {
		fatal("%v", err)
	}
	return k.send(ask{method: http.MethodPost, key: k.prefix + key, query: url.Values{"uploadId": {id}}, header: headers(pairs), body: body})
}

func (k *trial) abort(key, id string) *reply {
	return k.send(ask{method: http.MethodDelete, key: k.prefix + key, query: url.Values{"uploadId": {id}}})
}

// prepare starts an upload and sends one part.
func (k *trial) prepare(key, body string, pairs ...string) (string, []completedPart) {
	id := k.start(key, pairs...)
	r := k.part(key, id, 1, body).want(http.StatusOK, "")
	return id, []completedPart{{1, r.etag()}}
}

var multipartCases = []testCase{
	{"multipart upload", func(k *trial) {
		id := k.start("a", "Content-Type", "text/csv", "Cache-Control", "no-store", "x-amz-meta-token", "7")
		bodies := []string{strings.Repeat("a", k.PartSize), strings.Repeat("b", k.PartSize+1), "the end"}
		var parts []completedPart
		var sums []byte
		// The order of arrival does not matter, nor does a part that is sent
		// twice.
		for _, n := range []int{3, 1, 2, 1} {
			r := k.part("a", id, n, bodies[n-1]).want(http.StatusOK, "")
			if r.etag() != md5ETag(bodies[n-1]) {
				fatal("ETag of part %d: %s", n, r.etag())
			}
		}
		for i, body := range bodies {
			parts = append(parts, completedPart{i + 1, md5ETag(body)})
			sum := md5.Sum([]byte(body))
			sums = append(sums, sum[:]...)
		}
		k.absent("a")
		total := md5.Sum(sums)
		want := `"` + hex.EncodeToString(total[:]) + `-3"`
		done := decode[struct{ ETag string }](k.complete("a", id, parts).want(http.StatusOK, ""))
		if done.ETag != want {
			fatal("ETag %s, want %s", done.ETag, want)
		}
		r := k.holds("a", strings.Join(bodies, ""), want)
		described(r, "Content-Type", "text/csv")
		described(r, "Cache-Control", "no-store")
		described(r, "X-Amz-Meta-Token", "7")
		k.part("a", id, 1, "x").want(http.StatusNotFound, "NoSuchUpload")
	}},
	{"multipart upload with wrong parts is refused", func(k *trial) {
		id := k.start("a")
		one := k.part("a", id, 1, "small").want(http.StatusOK, "").etag()
		two := k.part("a", id, 2, "last").want(http.StatusOK, "").etag()
		k.complete("a", id, []completedPart{{1, one}, {2, two}}).want(http.StatusBadRequest, "EntityTooSmall")
		k.complete("a", id, []completedPart{{1, two}}).want(http.StatusBadRequest, "InvalidPart")
		k.absent("a")
		k.complete("a", id, []completedPart{{2, two}}).want(http.StatusOK, "")
		k.holds("a", "last", "")
	}},
	{"multipart upload is aborted", func(k *trial) {
		id, parts := k.prepare("a", "body")
		k.abort("a", id).want(http.StatusNoContent, "")
		k.part("a", id, 2, "x").want(http.StatusNotFound, "NoSuchUpload")
		k.complete("a", id, parts).want(http.StatusNotFound, "NoSuchUpload")
		k.abort("a", id).want(http.StatusNotFound, "NoSuchUpload")
		k.absent("a")
	}},
	{"multipart upload creates only once", func(k *trial) {
		id, parts := k.prepare("a", "1")
		k.complete("a", id, parts, "If-None-Match", "*").want(http.StatusOK, "")
		id, parts = k.prepare("a", "2")
		k.complete("a", id, parts, "If-None-Match", "*").want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.holds("a", "1", "")
		k.abort("a", id).want(http.StatusNoContent, "")
	}},
}
