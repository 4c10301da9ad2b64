package s3fence_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Over TLS, where applications are, the SDK sends a body in chunks with a checksum behind
// them, and not in one: the probe, and all that a writer does, with lost responses too.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	server := newServer(t, &s3test.Options{TLS: true, ETags: s3test.ETagOpaque})
	var chunked, whole atomic.Int64
	server.Inject(s3test.Rule{Ops: puts, Match: func(r *s3test.Request) bool {
		if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") && r.Header.Get("X-Amz-Checksum-Crc32") != "" {
			chunked.Add(1)
		} else if len(r.Body) > 0 {
			whole.Add(1)
		}
		return false
	}})
	client := newClient(server, func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenSupported })
	b, err := s3fence.Open(t.Context(), client, bucketName, nil)
	must(t, err)
	large := string(bytes.Repeat([]byte("0123456789abcdef"), 1<<14))
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		o := objects(t, b, mode, nil)
		must(t, o.InsecureDelete(t.Context(), key))
		for token, body := range []string{1: "", 2: "small", 3: large} {
			if token == 0 {
				continue
			}
			for _, fault := range []s3test.Fault{{}, s3test.LoseResponse(), s3test.LoseRequest()} {
				if fault.Lose {
					server.Inject(firstPut(fault))
				}
				before := len(server.History(bucketName, key))
				must(t, o.Put(t.Context(), claim(guard.Token(token), "a"), key, strings.NewReader(body), &s3fence.Headers{Metadata: map[string]string{"tenant": "123"}}))
				if n := len(server.History(bucketName, key)) - before; n != 1 {
					t.Errorf("%d writes took effect", n)
				}
				want(t, o, body, guard.Mark{Token: guard.Token(token), LeaseID: "a"})
			}
		}
		must(t, o.Raise(t.Context(), claim(4, "b"), key))
		want(t, o, large, guard.Mark{Token: 4, LeaseID: "b"})
		refused(t, o.Put(t.Context(), claim(3, "a"), key, strings.NewReader("stale"), nil), guard.ReasonStale)
		if at := stored(t, server, key); at.Header.Get("Content-Encoding") != "" {
			t.Errorf("the framing is stored: %q", at.Header)
		}
		must(t, o.Delete(t.Context(), claim(5, "c"), key))
		refused(t, got(t, o, key), guard.ReasonNotFound)
	})
	if chunked.Load() < 100 || whole.Load() != 0 {
		t.Errorf("%d bodies came in chunks, %d did not", chunked.Load(), whole.Load())
	}
	if !strings.HasPrefix(server.URL(), "https://") {
		t.Error("it is not TLS")
	}
}
