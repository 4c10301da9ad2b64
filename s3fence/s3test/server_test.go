package s3test_test

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// signed is the header of a request that was signed, or says so.
func signed(id, region string) string {
	return "AWS4-HMAC-SHA256 Credential=" + id + "/20260101/" + region + "/s3/aws4_request, SignedHeaders=host, Signature=00"
}

func TestCredentials(t *testing.T) {
	c := newClient(t, s3test.Options{
		Region:      "eu-central-1",
		Credentials: []s3test.Credential{{AccessKeyID: "good"}, {AccessKeyID: "old", Expired: true}},
	})
	for _, r := range []struct {
		authorization string
		status        int
		body          string
	}{
		{signed("good", "eu-central-1"), 200, ""},
		{signed("old", "eu-central-1"), 400, "<Code>ExpiredToken</Code>"},
		{signed("who", "eu-central-1"), 403, "<Code>InvalidAccessKeyId</Code>"},
		{signed("good", "us-east-1"), 400, "<Region>eu-central-1</Region>"},
		{"AWS4-HMAC-SHA256 nonsense", 403, "<Code>AccessDenied</Code>"},
		{"", 403, "<Code>AccessDenied</Code>"},
	} {
		c.do(r.status, r.body, http.MethodPut, "/a", "1", "Authorization", r.authorization)
	}
	if n := len(c.server.History(bucket, "a")); n != 1 {
		t.Errorf("%d writes", n)
	}
	c.do(403, "InvalidAccessKeyId", http.MethodGet, "/a?X-Amz-Credential=who%2F20260101%2Feu-central-1%2Fs3%2Faws4_request", "")
}

// What the server does not know must not be taken for something it knows.
func TestUnknownRequestsChangeNothing(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.put("a", "1")
	c.do(501, "NotImplemented", http.MethodPut, "/a?tagging", "2")
	c.do(501, "NotImplemented", http.MethodPut, "/a?acl", "2")
	c.do(501, "NotImplemented", http.MethodDelete, "/a?versionId=1", "")
	c.do(501, "NotImplemented", http.MethodPut, "/a", "", "X-Amz-Copy-Source", "/bucket/b")
	c.do(501, "NotImplemented", http.MethodPut, "/a", "2", "If-Match", "*")
	c.do(501, "NotImplemented", http.MethodGet, "", "") // the first version of the listing
	c.do(501, "NotImplemented", http.MethodPost, "/a", "")
	c.holds("a", "1")
	if n := c.server.Count(s3test.CopyObject); n != 1 {
		t.Errorf("%d copies counted", n)
	}
}

func TestOpaqueETags(t *testing.T) {
	c := newClient(t, s3test.Options{ETags: s3test.ETagOpaque})
	one, two := c.put("a", "same"), c.put("a", "same")
	if one == two || len(one) != len(two) {
		t.Errorf("%s and %s", one, two)
	}
	c.do(412, "", http.MethodPut, "/a", "same", "If-Match", one)
	c.server.SetETags(s3test.ETagMD5)
	if three, four := c.put("a", "same"), c.put("a", "same"); three != four {
		t.Errorf("%s and %s", three, four)
	}
}

func TestEncryption(t *testing.T) {
	c := newClient(t, s3test.Options{})
	const kms, key = "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "X-Amz-Server-Side-Encryption-Customer-Key-Md5"
	sum := md5.Sum([]byte("body"))
	plain := `"` + hex.EncodeToString(sum[:]) + `"`
	if etag := c.put("a", "body", "X-Amz-Server-Side-Encryption", "AES256"); etag != plain {
		t.Errorf("SSE-S3: %s", etag)
	}
	r := c.do(200, "", http.MethodPut, "/a", "body", "X-Amz-Server-Side-Encryption", "aws:kms", kms, "key-1")
	if r.header.Get("Etag") == plain || r.header.Get(kms) != "key-1" {
		t.Errorf("SSE-KMS: %v", r.header)
	}
	if r := c.do(200, "body", http.MethodGet, "/a", ""); r.header.Get(kms) != "key-1" || r.header.Get("X-Amz-Server-Side-Encryption") != "aws:kms" {
		t.Errorf("SSE-KMS: %v", r.header)
	}
	c.put("a", "body", key, "md5-of-key")
	c.do(400, "InvalidRequest", http.MethodGet, "/a", "")
	c.do(403, "AccessDenied", http.MethodGet, "/a", "", key, "another")
	c.do(200, "body", http.MethodGet, "/a", "", key, "md5-of-key")
}

func TestDiscardedBodies(t *testing.T) {
	c := newClient(t, s3test.Options{DiscardAbove: 1 << 20})
	const size = 64 << 20
	r, err := http.NewRequest(http.MethodPut, c.server.URL()+"/"+bucket+"/large", io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = size
	answer, err := c.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	o, _ := c.server.Object(bucket, "large")
	h := sha256.New()
	io.Copy(h, io.LimitReader(zeros{}, size))
	if o.Body != nil || o.Size != size || [sha256.Size]byte(h.Sum(nil)) != o.SHA256 || o.ETag != answer.Header.Get("Etag") {
		t.Errorf("%d bytes kept of %d, ETag %s", len(o.Body), o.Size, o.ETag)
	}
	if head := c.do(200, "", http.MethodHead, "/large", ""); head.header.Get("Content-Length") != fmt.Sprint(size) {
		t.Errorf("%v", head.header)
	}
	c.do(501, "NotImplemented", http.MethodGet, "/large", "")
	c.put("small", strings.Repeat("x", 1<<20))
	c.do(200, "x", http.MethodGet, "/small", "")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestTLS(t *testing.T) {
	c := newClient(t, s3test.Options{TLS: true})
	if !strings.HasPrefix(c.server.URL(), "https://") || c.server.Certificate() == nil {
		t.Error(c.server.URL())
	}
	c.put("a", "1")
}

func TestClock(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	c := newClient(t, s3test.Options{Now: func() time.Time { return at }})
	c.put("a", "1")
	if r := c.do(200, "1", http.MethodGet, "/a", ""); r.header.Get("Last-Modified") != at.Format(http.TimeFormat) {
		t.Errorf("%v", r.header)
	}
	if h := c.server.History(bucket, "a"); !h[0].Time.Equal(at) {
		t.Errorf("%+v", h)
	}
}

func TestBuckets(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.server.CreateBucket(bucket)
	c.server.CreateBucket("another")
	c.do(409, "BucketAlreadyOwnedByYou", http.MethodPut, "", "")
	c.put("a", "1")
	c.do(409, "BucketNotEmpty", http.MethodDelete, "", "")
	c.do(204, "", http.MethodDelete, "/a", "")
	c.do(204, "", http.MethodDelete, "", "")
	c.do(404, "NoSuchBucket", http.MethodPut, "/a", "1")
	c.do(200, "", http.MethodPut, "", "")
	c.do(200, "LocationConstraint", http.MethodGet, "?location", "")
	defer func() {
		if recover() == nil {
			t.Error("a bucket with an invalid name")
		}
	}()
	c.server.CreateBucket("No_Bucket")
}

func TestDeleteObjects(t *testing.T) {
	c := newClient(t, s3test.Options{})
	a, b := c.put("a", "1"), c.put("b", "2")
	c.do(200, "<Code>PreconditionFailed</Code>", http.MethodPost, "?delete",
		"<Delete><Object><Key>a</Key><ETag>"+a+"</ETag></Object><Object><Key>b</Key><ETag>"+a+"</ETag></Object></Delete>")
	c.holds("a", "")
	c.holds("b", "2")
	c.do(200, "<Deleted><Key>b</Key></Deleted>", http.MethodPost, "?delete", "<Delete><Object><Key>b</Key><ETag>"+b+"</ETag></Object></Delete>")
	c.holds("b", "")
	c.do(400, "MalformedXML", http.MethodPost, "?delete", "nonsense")
}
