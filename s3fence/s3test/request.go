package s3test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Op is an operation of S3, by Amazon's name.
type Op string

// The operations. All others are counted as Unknown, and refused.
const (
	CreateBucket  Op = "CreateBucket"
	ListObjectsV2 Op = "ListObjectsV2"
	PutObject     Op = "PutObject"
	GetObject     Op = "GetObject"
	HeadObject    Op = "HeadObject"
	DeleteObject  Op = "DeleteObject"
	Unknown       Op = "Unknown"
)

// Request is one request, as rules and hooks see it. It must not be changed.
type Request struct {
	// ID is the request ID that the response carries.
	ID     string
	Op     Op
	Bucket string
	Key    string
	Header http.Header
	Query  url.Values
	Body   []byte
}

// operations are named by the method, and by whether a bucket or an object is addressed.
var operations = map[string]struct{ bucket, object Op }{
	http.MethodPut:    {CreateBucket, PutObject},
	http.MethodGet:    {ListObjectsV2, GetObject},
	http.MethodHead:   {Unknown, HeadObject},
	http.MethodDelete: {Unknown, DeleteObject},
}

// listParameters are those of ListObjectsV2; the other operations have none.
var listParameters = []string{"list-type", "prefix", "start-after", "continuation-token", "max-keys", "encoding-type"}

// parse returns what a request asks for. A parameter that the operation does
// not know makes it Unknown: a PUT of ?tagging must not become a PUT of the
// object.
func parse(r *http.Request) *Request {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	req := &Request{Bucket: bucket, Key: key, Header: r.Header, Query: r.URL.Query()}
	if req.Op = operations[r.Method].object; key == "" {
		req.Op = operations[r.Method].bucket
	}
	lists := req.Op == ListObjectsV2
	for name := range req.Query {
		// x-id is a hint of the SDK, X-Amz-* belongs to presigned requests.
		if name != "x-id" && !strings.HasPrefix(name, "X-Amz-") && !(lists && slices.Contains(listParameters, name)) {
			req.Op = Unknown
		}
	}
	if req.Op == "" || bucket == "" || lists && req.Query.Get("list-type") != "2" || r.Header.Get("X-Amz-Copy-Source") != "" {
		req.Op = Unknown
	}
	return req
}

// readBody reads and verifies a body. A refusal is for the client; an error says that
// the connection broke before the body's end.
func readBody(r *http.Request) (body []byte, refusal *response, err error) {
	body = make([]byte, max(r.ContentLength, 0))
	if _, err = io.ReadFull(r.Body, body); err == nil {
		_, err = io.Copy(io.Discard, r.Body) // of a length that was not announced
	}
	sum := sha256.Sum256(body)
	switch payload := r.Header.Get("X-Amz-Content-Sha256"); {
	case err != nil:
	case strings.HasPrefix(payload, "STREAMING-"): // aws-chunked, which clients use over HTTPS
		if body, refusal = dechunk(r.Header, body); refusal != nil {
			body = nil
		}
	case r.ContentLength < 0 && r.Method == http.MethodPut:
		refusal = fail("MissingContentLength")
	case len(payload) == hex.EncodedLen(len(sum)) && payload != hex.EncodeToString(sum[:]):
		refusal = fail("XAmzContentSHA256Mismatch")
	}
	return body, refusal, err
}

// dechunk returns what is in an aws-chunked body, and puts what follows the chunks among
// the headers. Chunks have signatures of their own if the whole body is not signed over
// TLS; they are not verified.
func dechunk(h http.Header, framed []byte) (body []byte, refusal *response) {
	rest := framed
	for {
		line, after, found := bytes.Cut(rest, []byte("\r\n"))
		digits, _, _ := bytes.Cut(line, []byte(";"))
		size, err := strconv.ParseUint(string(digits), 16, 31)
		if !found || err != nil {
			return nil, fail("IncompleteBody")
		}
		if rest = after; size == 0 {
			break
		}
		if uint64(len(rest)) < size+2 || string(rest[size:size+2]) != "\r\n" {
			return nil, fail("IncompleteBody")
		}
		body, rest = append(body, rest[:size]...), rest[size+2:]
	}
	for line := range strings.SplitSeq(string(rest), "\r\n") {
		if name, value, found := strings.Cut(line, ":"); found {
			h.Set(name, strings.TrimSpace(value))
		}
	}
	if announced := h.Get("X-Amz-Decoded-Content-Length"); announced != strconv.Itoa(len(body)) {
		return nil, fail("IncompleteBody")
	}
	// The framing is not part of what is stored.
	kept := slices.DeleteFunc(strings.Split(h.Get("Content-Encoding"), ","), func(e string) bool { return strings.TrimSpace(e) == "aws-chunked" })
	if h.Set("Content-Encoding", strings.TrimSpace(strings.Join(kept, ","))); h.Get("Content-Encoding") == "" {
		h.Del("Content-Encoding")
	}
	if crc := h.Get("X-Amz-Checksum-Crc32"); crc != "" && crc != base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(body))) {
		return nil, fail("BadDigest")
	}
	return body, nil
}

// checkWriteSyntax refuses conditions that writes do not support. Stores disagree about
// If-Match: *, so nobody should depend on it.
func checkWriteSyntax(c *call) *response {
	match, none := c.header.Get("If-Match"), c.header.Get("If-None-Match")
	if none != "" && (none != "*" || match != "") || match == "*" {
		return fail("NotImplemented")
	}
	return nil
}

// checkWrite decides the conditions of PutObject.
func checkWrite(c *call, current *Object) *response {
	match, none := c.header.Get("If-Match"), c.header.Get("If-None-Match")
	switch {
	case match != "" && current == nil:
		return fail("NoSuchKey")
	case none != "" && current != nil, match != "" && !sameETag(match, current.ETag):
		return fail("PreconditionFailed")
	}
	return nil
}

// checkRead decides the conditions of GetObject and HeadObject, each on one ETag; it
// does not know those by date.
func checkRead(c *call, o *Object) *response {
	match, none := c.header.Get("If-Match"), c.header.Get("If-None-Match")
	switch {
	case match != "" && !sameETag(match, o.ETag):
		return fail("PreconditionFailed")
	case none != "" && sameETag(none, o.ETag):
		return &response{status: http.StatusNotModified, header: http.Header{"Etag": {o.ETag}}}
	}
	return nil
}

// sameETag compares ETags; clients may leave the quotes out.
func sameETag(a, b string) bool { return strings.Trim(a, `"`) == strings.Trim(b, `"`) }
