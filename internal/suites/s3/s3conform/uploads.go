package s3conform

import (
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// checksums lists what S3 verifies, by header.
var checksums = map[string]func() hash.Hash{
	"x-amz-checksum-crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"x-amz-checksum-crc32c":    func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
	"x-amz-checksum-crc64nvme": func() hash.Hash { return crc64.New(crc64.MakeTable(0x9a6c9329ac4bc9b5)) },
	"x-amz-checksum-sha1":      sha1.New,
	"x-amz-checksum-sha256":    sha256.New,
}

func sum(h hash.Hash, body string) string {
	h.Write([]byte(body))
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// chunked writes a body as aws-chunked, in chunks of the given size, with a
// checksum in the trailer.
func chunked(body string, size int, header, checksum string) []byte {
	var b bytes.Buffer
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	fmt.Fprintf(&b, "0\r\n%s:%s\r\n\r\n", header, checksum)
	return b.Bytes()
}

// stream writes an object as aws-chunked.
func (k *trial) stream(key string, length int, body []byte, trailer string, pairs ...string) *reply {
	h := headers(append(pairs, "Content-Encoding", "aws-chunked", "X-Amz-Trailer", trailer,
		"X-Amz-Decoded-Content-Length", strconv.Itoa(length)))
	return k.send(ask{
		method: http.MethodPut, key: k.prefix + key, header: h, body: body,
		payload: "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
	})
}

var checksumCases = []testCase{
	{"checksums are verified and kept", func(k *trial) error {
		const body = "123456789"
		for name, newHash := range checksums {
			good, bad := sum(newHash(), body), sum(newHash(), "other")
			k.put(name, body, name, bad).want(http.StatusBadRequest, "BadDigest")
			k.absent(name)
			k.put(name, body, name, "nonsense").want(http.StatusBadRequest, "InvalidRequest")
			k.absent(name)
			k.put(name, body, name, good).want(http.StatusOK, "")
			described(k.get(name, "x-amz-checksum-mode", "ENABLED"), http.CanonicalHeaderKey(name), good)
			k.holds(name, body, "")
		}
		return nil
	}},
	{"Content-MD5 is verified", func(k *trial) error {
		k.put("a", "body", "Content-MD5", sum(md5.New(), "other")).want(http.StatusBadRequest, "BadDigest")
		k.put("a", "body", "Content-MD5", "nonsense").want(http.StatusBadRequest, "InvalidDigest")
		k.absent("a")
		k.put("a", "body", "Content-MD5", sum(md5.New(), "body")).want(http.StatusOK, "")
		return nil
	}},
	{"signed hash of the body is verified", func(k *trial) error {
		other := sha256.Sum256([]byte("other"))
		r := k.send(ask{method: http.MethodPut, key: k.prefix + "a", body: []byte("body"), payload: fmt.Sprintf("%x", other)})
		r.want(http.StatusBadRequest, "XAmzContentSHA256Mismatch")
		k.absent("a")
		r = k.send(ask{method: http.MethodPut, key: k.prefix + "a", body: []byte("body"), payload: "UNSIGNED-PAYLOAD"})
		r.want(http.StatusOK, "")
		k.holds("a", "body", md5ETag("body"))
		return nil
	}},
	{"chunked body with a checksum in the trailer", func(k *trial) error {
		const name = "x-amz-checksum-crc32"
		body := string(bytes.Repeat([]byte("chunks of a body, "), 10000))
		good, bad := sum(checksums[name](), body), sum(checksums[name](), "other")
		k.stream("a", len(body), chunked(body, 64<<10, name, good), name, "x-amz-meta-token", "1").want(http.StatusOK, "")
		r := k.holds("a", body, md5ETag(body))
		described(r, "X-Amz-Meta-Token", "1")
		described(k.get("a", "x-amz-checksum-mode", "ENABLED"), http.CanonicalHeaderKey(name), good)
		k.stream("a", 5, chunked("other", 64<<10, name, bad), name).want(http.StatusOK, "")
		k.stream("a", len(body), chunked(body, 64<<10, name, bad), name).want(http.StatusBadRequest, "BadDigest")
		k.holds("a", "other", "")
		k.stream("a", 0, chunked("", 64<<10, name, sum(checksums[name](), "")), name).want(http.StatusOK, "")
		k.holds("a", "", "")
		return nil
	}},
	{"aws-chunked is not kept as an encoding", func(k *trial) error {
		const name = "x-amz-checksum-crc32"
		k.stream("a", 4, chunked("body", 64<<10, name, sum(checksums[name](), "body")), name).want(http.StatusOK, "")
		described(k.holds("a", "body", ""), "Content-Encoding", "")
		return nil
	}},
	{"chunked body on a condition", func(k *trial) error {
		const name = "x-amz-checksum-crc32"
		write := func(body string, pairs ...string) *reply {
			return k.stream("a", len(body), chunked(body, 64<<10, name, sum(checksums[name](), body)), name, pairs...)
		}
		one := write("1", "If-None-Match", "*").want(http.StatusOK, "")
		write("2", "If-None-Match", "*").want(http.StatusPreconditionFailed, "PreconditionFailed")
		write("2", "If-Match", one.etag()).want(http.StatusOK, "")
		write("3", "If-Match", one.etag()).want(http.StatusPreconditionFailed, "PreconditionFailed")
		k.holds("a", "2", "")
		return nil
	}},
	{"truncated chunked body is refused", func(k *trial) error {
		const name = "x-amz-checksum-crc32"
		const body = "a body of some length"
		whole := chunked(body, 8, name, sum(checksums[name](), body))
		for _, n := range []int{0, 1, 5, 12, len(whole) / 2} {
			if r := k.stream("a", len(body), whole[:n], name); r.status < 400 || r.status >= 500 {
				return fmt.Errorf("cut after %d bytes: %s", n, r)
			}
		}
		if r := k.stream("a", len(body)+1, whole, name); r.status < 400 || r.status >= 500 {
			return fmt.Errorf("one byte less than declared: %s", r)
		}
		k.absent("a")
		return nil
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

// completion returns the request that completes an upload.
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

// abort takes the full key.
func (k *trial) abort(key, id string) *reply {
	return k.send(ask{method: http.MethodDelete, key: key, query: url.Values{"uploadId": {id}}})
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
		// The order of arrival does not matter, nor does a part that is sent
		// twice.
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
