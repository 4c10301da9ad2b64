package s3test_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

const bucket = s3test.DefaultBucket

// client sends plain, unsigned requests.
type client struct {
	t      testing.TB
	server *s3test.Server
}

func newClient(t testing.TB, opts s3test.Options) *client {
	t.Helper()
	return &client{t, s3test.New(t, &opts)}
}

type reply struct {
	status int
	header http.Header
	body   string
}

// try sends a request; path follows the bucket, pairs are headers.
func (c *client) try(method, path, body string, pairs ...string) (*reply, error) {
	r, err := http.NewRequest(method, c.server.URL()+"/"+bucket+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Header.Set(pairs[i], pairs[i+1])
	}
	answer, err := c.server.HTTPClient().Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	return &reply{answer.StatusCode, answer.Header, string(got)}, err
}

// do is try with a status and a part of the body that the response must have.
func (c *client) do(status int, part, method, path, body string, pairs ...string) *reply {
	c.t.Helper()
	r, err := c.try(method, path, body, pairs...)
	if err != nil {
		c.t.Fatal(err)
	}
	if r.status != status || !strings.Contains(r.body, part) {
		c.t.Fatalf("%s %s: %d %q, want %d and %q", method, path, r.status, r.body, status, part)
	}
	return r
}

func (c *client) put(key, body string, pairs ...string) string {
	c.t.Helper()
	return c.do(200, "", http.MethodPut, "/"+key, body, pairs...).header.Get("Etag")
}

// holds reports whether the object has the body; "" means no object.
func (c *client) holds(key, body string) {
	c.t.Helper()
	o, ok := c.server.Object(bucket, key)
	if string(o.Body) != body || ok != (body != "") {
		c.t.Fatalf("%s is there: %v, and holds %q, want %q", key, ok, o.Body, body)
	}
}

// A request that the server does not know must not be mistaken for one it
// knows.
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
	if n := c.server.Count(s3test.Unknown); n != 6 {
		t.Errorf("%d unknown requests counted", n)
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

func TestClockAndHistory(t *testing.T) {
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
	defer func() {
		if recover() == nil {
			t.Error("a bucket with an invalid name")
		}
	}()
	c.server.CreateBucket("No_Bucket")
}

// What users write: Amazon's client, a bucket, a fault.
func TestClient(t *testing.T) {
	server := s3test.New(t, nil)
	server.Inject(s3test.Rule{Ops: puts, Times: 1, Fault: s3test.Respond(503)})
	_, err := server.Client().PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(s3test.DefaultBucket), Key: aws.String("a"), Body: strings.NewReader("1"),
	})
	if o, ok := server.Object(s3test.DefaultBucket, "a"); err != nil || !ok || string(o.Body) != "1" || server.Count(s3test.PutObject) != 2 {
		t.Errorf("%v, %q, %d requests", err, o.Body, server.Count(s3test.PutObject))
	}
}

// A listing as the SDK for Python asks for it.
func TestEncodedListing(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.put("d/é", "1")
	c.do(200, "<Key>d/%C3%A9</Key>", http.MethodGet, "?list-type=2&encoding-type=url", "")
	c.do(200, "<Key>d/é</Key>", http.MethodGet, "?list-type=2", "")
}

// As on observed stores, an empty condition counts as none.
func TestEmptyConditionIsNone(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.put("a", "1")
	c.put("a", "2", "If-Match", "")
	c.holds("a", "2")
}

// Writers that increment a number by compare-and-swap lose no increment, and
// the history is the chain of what they did.
func TestHistoryIsTheOrderOfCompareAndSwap(t *testing.T) {
	const writers, each = 8, 50
	c := newClient(t, s3test.Options{})
	c.put("n", "0")
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				read, err := c.try(http.MethodGet, "/n", "")
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(read.body)
				write, err := c.try(http.MethodPut, "/n", strconv.Itoa(n+1), "If-Match", read.header.Get("Etag"))
				if err != nil {
					t.Error(err)
					return
				}
				if write.status == http.StatusOK {
					done++
				}
			}
		})
	}
	wg.Wait()
	history := c.server.History(bucket, "n")
	if len(history) != writers*each+1 {
		t.Fatalf("%d changes, want %d", len(history), writers*each+1)
	}
	for i, m := range history {
		if string(m.Body) != strconv.Itoa(i) || m.Seq != int64(i+1) || m.Op != s3test.PutObject {
			t.Fatalf("change %d: %+v", i, m)
		}
		if i > 0 && (m.Replaced != history[i-1].ETag || m.Time.Before(history[i-1].Time)) {
			t.Fatalf("change %d does not follow %d: %+v, %+v", i, i-1, history[i-1], m)
		}
	}
	c.holds("n", strconv.Itoa(writers*each))
}

func TestHistoryTellsWhatWasStored(t *testing.T) {
	c := newClient(t, s3test.Options{Buckets: []string{bucket, "other"}})
	etag := c.put("a", "1", "x-amz-meta-Fencing-Token", "7", "Cache-Control", "no-store")
	c.put("b", "2")
	c.do(204, "", http.MethodDelete, "/a", "")
	c.do(204, "", http.MethodDelete, "/a", "")
	c.do(412, "", http.MethodPut, "/b", "3", "If-None-Match", "*")

	all := c.server.History("", "")
	if len(all) != 3 || len(c.server.History(bucket, "")) != 3 || len(c.server.History("other", "")) != 0 {
		t.Fatalf("%+v", all)
	}
	put, remove := all[0], all[2]
	if put.Key != "a" || put.Bucket != bucket || put.Metadata["fencing-token"] != "7" || put.Header.Get("Cache-Control") != "no-store" ||
		put.ETag != etag || put.Replaced != "" {
		t.Errorf("%+v", put)
	}
	if remove.Op != s3test.DeleteObject || remove.Key != "a" || remove.Replaced != etag || remove.ETag != "" || remove.Seq != 3 {
		t.Errorf("%+v", remove)
	}
	if o := c.server.Objects(bucket); len(o) != 1 || o[0].Key != "b" {
		t.Errorf("%+v", o)
	}
}

func TestCounts(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.put("a", "1")
	c.do(412, "", http.MethodPut, "/a", "2", "If-None-Match", "*")
	c.do(200, "", http.MethodGet, "/a", "")
	c.do(404, "", http.MethodHead, "/b", "")
	c.server.Inject(s3test.Rule{Fault: s3test.LoseResponse()})
	if _, err := c.try(http.MethodPut, "/a", "3"); err == nil {
		t.Fatal("the response was not lost")
	}
	if n := c.server.Count(s3test.PutObject); n != 3 {
		t.Errorf("%d PUTs", n)
	}
	if n := c.server.Count(s3test.GetObject, s3test.HeadObject); n != 2 {
		t.Errorf("%d reads", n)
	}
	if n := c.server.Count(); n != 5 {
		t.Errorf("%d requests", n)
	}
	c.server.ResetCounts()
	if n := c.server.Count(); n != 0 {
		t.Errorf("%d requests after the reset", n)
	}
}

// Bodies in chunks, as clients send them over TLS: what is in them is stored, without the
// framing, and the checksum behind them is verified and returned.
func TestChunkedBodies(t *testing.T) {
	for _, tls := range []bool{false, true} {
		c := newClient(t, s3test.Options{TLS: tls})
		framed := []string{"X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "X-Amz-Decoded-Content-Length", "9", "Content-Encoding", "aws-chunked,gzip"}
		const good = "5\r\nhello\r\n4;chunk-signature=0\r\n you\r\n0\r\nx-amz-checksum-crc32:iOOe2w==\r\n\r\n"
		for body, code := range map[string]string{
			strings.Replace(good, "iOOe2w==", "AAAAAA==", 1): "BadDigest", "9\r\nhello": "IncompleteBody", "x\r\n": "IncompleteBody", "": "IncompleteBody",
			"5\r\nhello4\r\n you\r\n0\r\n\r\n": "IncompleteBody", "5\r\nhello\r\n0\r\n\r\n": "IncompleteBody", "ffffffffffffffff\r\nhello": "IncompleteBody",
		} {
			c.do(400, code, http.MethodPut, "/a", body, framed...)
		}
		r := c.do(200, "", http.MethodPut, "/a", good, framed...)
		if got := r.header.Get("X-Amz-Checksum-Crc32"); got != "iOOe2w==" {
			t.Errorf("the checksum is %q", got)
		}
		c.holds("a", "hello you")
		if o, _ := c.server.Object(bucket, "a"); o.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("stored as %v", o.Header)
		}
		if strings.HasPrefix(c.server.URL(), "https:") != tls {
			t.Error(c.server.URL())
		}
	}
}

// What is in front of a store responds in its own words, whether or not the request went on.
func TestForeignPages(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.server.Inject(s3test.Rule{Ops: puts, Times: 1, Fault: s3test.NotFoundByProxy("no such route")})
	r := c.do(404, "no such route", http.MethodPut, "/a", "1")
	if r.header.Get("X-Amz-Request-Id") != "" || c.server.Seq() != 0 {
		t.Errorf("%v, %d changes", r.header, c.server.Seq())
	}
	c.server.Inject(s3test.Rule{Ops: puts, Times: 1, Fault: s3test.Fault{Foreign: true, Page: "OK", Applied: true}})
	if r := c.do(200, "OK", http.MethodPut, "/a", "1"); r.header.Get("Etag") != "" || c.server.Seq() != 1 {
		t.Errorf("%v, %d changes", r.header, c.server.Seq())
	}
}
