package s3test_test

import (
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

var uploadID = regexp.MustCompile(`<UploadId>(.*)</UploadId>`)

func (c *client) start(key string, pairs ...string) string {
	c.t.Helper()
	return uploadID.FindStringSubmatch(c.do(200, "UploadId", http.MethodPost, "/"+key+"?uploads", "", pairs...).body)[1]
}

func (c *client) part(key, id string, n int, body string, pairs ...string) string {
	c.t.Helper()
	return c.do(200, "", http.MethodPut, fmt.Sprintf("/%s?uploadId=%s&partNumber=%d", key, id, n), body, pairs...).header.Get("Etag")
}

func completion(parts ...string) string {
	return "<CompleteMultipartUpload>" + strings.Join(parts, "") + "</CompleteMultipartUpload>"
}

func item(n int, etag, more string) string {
	return fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag>%s</Part>", n, etag, more)
}

func TestMultipartHistory(t *testing.T) {
	c := newClient(t, s3test.Options{MinPartSize: -1})
	before := c.put("a", "0")
	id := c.start("a", "x-amz-meta-token", "9")
	one, two := c.part("a", id, 1, "one,"), c.part("a", id, 2, "two")
	if u := c.server.Uploads(bucket); !slices.Equal(u, []string{"a"}) {
		t.Errorf("uploads %q", u)
	}
	if n := len(c.server.History(bucket, "a")); n != 1 {
		t.Errorf("%d changes before completion", n)
	}
	c.do(200, "", http.MethodPost, "/a?uploadId="+id, completion(item(1, one, ""), item(2, two, "")))
	m := c.server.History(bucket, "a")[1]
	if m.Op != s3test.CompleteMultipartUpload || string(m.Body) != "one,two" || m.Metadata["token"] != "9" || m.Replaced != before {
		t.Errorf("%+v", m)
	}
	if u := c.server.Uploads(bucket); len(u) != 0 {
		t.Errorf("uploads %q", u)
	}
}

// With a composite checksum Amazon wants each part's again at the end.
func TestCompositeChecksum(t *testing.T) {
	const header = "x-amz-checksum-crc32"
	sum := func(body string) string {
		return base64.StdEncoding.EncodeToString(be(crc32.ChecksumIEEE([]byte(body))))
	}
	c := newClient(t, s3test.Options{MinPartSize: -1})
	id := c.start("a", "x-amz-checksum-algorithm", "CRC32")
	one, two := c.part("a", id, 1, "one", header, sum("one")), c.part("a", id, 2, "two", header, sum("two"))
	c.do(400, "Checksum Type mismatch", http.MethodPut, "/a?partNumber=3&uploadId="+id, "x", "x-amz-checksum-sha1", "EfatjsUqKYSrqv18O1FlA3hcIHI=")
	c.do(400, "It was missing for part 1", http.MethodPost, "/a?uploadId="+id, completion(item(1, one, ""), item(2, two, "")))
	c.do(400, "InvalidPart", http.MethodPost, "/a?uploadId="+id, completion(item(1, one, "<ChecksumCRC32>"+sum("two")+"</ChecksumCRC32>")))
	r := c.do(200, "", http.MethodPost, "/a?uploadId="+id, completion(
		item(1, one, "<ChecksumCRC32>"+sum("one")+"</ChecksumCRC32>"), item(2, two, "<ChecksumCRC32>"+sum("two")+"</ChecksumCRC32>")))
	parts := append(be(crc32.ChecksumIEEE([]byte("one"))), be(crc32.ChecksumIEEE([]byte("two")))...)
	if want := sum(string(parts)) + "-2"; r.header.Get(header) != want {
		t.Errorf("%s is %s, want %s", header, r.header.Get(header), want)
	}
}

func be(n uint32) []byte { return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} }

func TestFullObjectChecksum(t *testing.T) {
	c := newClient(t, s3test.Options{MinPartSize: -1})
	id := c.start("a", "x-amz-checksum-algorithm", "CRC32", "x-amz-checksum-type", "FULL_OBJECT")
	one, two := c.part("a", id, 1, "one"), c.part("a", id, 2, "two")
	whole := base64.StdEncoding.EncodeToString(be(crc32.ChecksumIEEE([]byte("onetwo"))))
	parts := completion(item(1, one, ""), item(2, two, ""))
	c.do(400, "BadDigest", http.MethodPost, "/a?uploadId="+id, parts, "x-amz-checksum-crc32", "AAAAAA==")
	if r := c.do(200, "", http.MethodPost, "/a?uploadId="+id, parts, "x-amz-checksum-crc32", whole); r.header.Get("x-amz-checksum-crc32") != whole {
		t.Errorf("%v", r.header)
	}
}

func TestDiscardedParts(t *testing.T) {
	c := newClient(t, s3test.Options{DiscardAbove: 1 << 20, MinPartSize: -1})
	id := c.start("a")
	body := strings.Repeat("x", 700<<10)
	etags := []string{c.part("a", id, 1, body), c.part("a", id, 2, body)}
	c.do(200, "", http.MethodPost, "/a?uploadId="+id, completion(item(1, etags[0], ""), item(2, etags[1], "")))
	if o, _ := c.server.Object(bucket, "a"); o.Body != nil || o.Size != 2*700<<10 || !strings.HasSuffix(o.ETag, `-2"`) {
		t.Errorf("%d bytes kept of %d, ETag %s", len(o.Body), o.Size, o.ETag)
	}
	c.do(501, "", http.MethodGet, "/a", "")
}

func TestListUploadsByPages(t *testing.T) {
	c := newClient(t, s3test.Options{})
	want := map[string]bool{}
	for _, key := range []string{"a", "a", "b", "c"} {
		want[c.start(key)] = true
	}
	next := regexp.MustCompile(`<NextKeyMarker>(.*)</NextKeyMarker><NextUploadIdMarker>(.*)</NextUploadIdMarker>`)
	path := "?uploads&max-uploads=1"
	for range 4 {
		r := c.do(200, "", http.MethodGet, path, "")
		delete(want, uploadID.FindStringSubmatch(r.body)[1])
		if m := next.FindStringSubmatch(r.body); m != nil {
			path = "?uploads&max-uploads=1&key-marker=" + m[1] + "&upload-id-marker=" + m[2]
		}
	}
	if len(want) != 0 {
		t.Errorf("%d uploads not listed", len(want))
	}
}
