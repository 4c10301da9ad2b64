package s3test_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

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
		if string(m.Body) != strconv.Itoa(i) || m.Seq != int64(i+1) || m.SHA256 != sha256.Sum256(m.Body) || m.Op != s3test.PutObject {
			t.Fatalf("change %d: %+v", i, m)
		}
		if i > 0 && (m.Replaced != history[i-1].ETag || m.Time.Before(history[i-1].Time)) {
			t.Fatalf("change %d does not follow %d: %+v, %+v", i, i-1, history[i-1], m)
		}
	}
	c.holds("n", strconv.Itoa(writers*each))
}

func TestHistoryTellsWhatWasStored(t *testing.T) {
	c := newClient(t, s3test.Options{Buckets: []string{"other"}})
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
		put.ETag != etag || put.Size != 1 || put.Replaced != "" || put.RequestID == "" {
		t.Errorf("%+v", put)
	}
	if remove.Op != s3test.DeleteObject || remove.Key != "a" || remove.Replaced != etag || remove.ETag != "" || remove.Seq != 3 {
		t.Errorf("%+v", remove)
	}
	if o := c.server.Objects(bucket); len(o) != 1 || o[0].Key != "b" {
		t.Errorf("%+v", o)
	}
	c.server.ForgetHistory()
	c.put("c", "4")
	if h := c.server.History("", ""); len(h) != 1 || h[0].Seq != 4 {
		t.Errorf("%+v", h)
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
	if got := fmt.Sprint(c.server.Answers(s3test.PutObject)); got != "map[0:1 200:1 412:1]" {
		t.Errorf("answers %s", got)
	}
	c.server.ResetCounts()
	if n := c.server.Count(); n != 0 || len(c.server.Answers(s3test.PutObject)) != 0 {
		t.Errorf("%d requests after the reset", n)
	}
}

func TestNoHistory(t *testing.T) {
	c := newClient(t, s3test.Options{NoHistory: true})
	c.put("a", "1")
	if h := c.server.History("", ""); len(h) != 0 {
		t.Errorf("%+v", h)
	}
	c.holds("a", "1")
}
