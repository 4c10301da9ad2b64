package s3fence_test

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Requests per call, the cost that is documented.
func TestRequestsPerCall(t *testing.T) {
	for mode, write := range map[s3fence.Mode]int{s3fence.Sealed: 1, s3fence.SealedGzip: 1, s3fence.Plain: 1, s3fence.Pointer: 2} {
		t.Run(s3fence.NameOf(mode), func(t *testing.T) {
			server, b, o := setup(t, mode, 0)
			inVain := refusedWrites(server)
			count := func(name string, want int, call func() error) {
				t.Helper()
				server.ResetCounts()
				if err := call(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if got := server.Count(); got != want {
					t.Errorf("%s took %d requests, want %d", name, got, want)
				}
			}
			putAs := func(token guard.Token) func() error {
				return func() error {
					return o.Put(t.Context(), claim(token, "a"), key, bytes.NewReader([]byte("body")), nil)
				}
			}
			count("the first write", write+1, putAs(5))
			count("a write under the same token", write, putAs(5))
			count("a write under a higher token", write, putAs(6))
			b.Forget()
			count("a cold write", write+1, putAs(7))
			count("a raise", 3-write, func() error { return o.Raise(t.Context(), claim(8, "b"), key) })
			count("a raise to what is the mark", 1, func() error { return o.Raise(t.Context(), claim(8, "b"), key) })
			count("reading the mark", 1, func() error { _, err := o.Mark(t.Context(), key); return err })
			count("reading", write, func() error { content(t, o, key); return nil })
			count("deleting", 1, func() error { return o.Delete(t.Context(), claim(8, "b"), key) })
			// A refusal never comes from the cache: the object is read first.
			count("a refused write", 1, func() error {
				refused(t, putAs(7)(), guard.ReasonStale)
				return nil
			})
			if n := inVain.Load(); n != 0 {
				t.Errorf("%d writes were sent in vain", n)
			}
		})
	}
}

// refusedWrites counts the writes that the server responds to with 412.
func refusedWrites(server *s3test.Server) *atomic.Int64 {
	n := &atomic.Int64{}
	server.Inject(s3test.Rule{Ops: puts, Fault: s3test.Fault{After: func(_ *s3test.Request, status int) {
		if status == http.StatusPreconditionFailed {
			n.Add(1)
		}
	}}})
	return n
}

// Each benchmark writes in turn with the fence, the same stored bytes and
// metadata by a bare PUT, and only the body by a bare PUT, so that the
// machine's load affects all alike. Metrics: "ratio" is the throughput of the
// fenced write over that of the same bytes, by the sums; "p50-ratio" by the
// medians; "p50-body-ratio" is over only the body.
func BenchmarkPut(b *testing.B) {
	for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.Plain, s3fence.Pointer} {
		for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", mode, size>>10), func(b *testing.B) { benchPut(b, mode, size, 0) })
		}
	}
	// A request over loopback to a store in memory takes a quarter of a
	// millisecond, most of it in the SDK; a store with disks takes some.
	b.Run("sealed/1KiB/2ms", func(b *testing.B) { benchPut(b, s3fence.Sealed, 1<<10, 2*time.Millisecond) })
}

func benchPut(b *testing.B, mode s3fence.Mode, size int, latency time.Duration) {
	server := newServer(b, &s3test.Options{NoHistory: true, ETags: s3test.ETagOpaque})
	inVain := refusedWrites(server)
	o := objects(b, open(b, server, nil), mode, nil)
	client := newClient(server)
	body := bytesOf(size)
	if latency > 0 {
		server.Inject(s3test.Rule{Fault: s3test.Slow(latency)})
	}
	token := guard.Token(0)
	fenced := func() error {
		token++
		if mode == s3fence.Pointer {
			return o.Pointers().Put(b.Context(), claim(token, "a"), key, bytes.NewReader(body), nil)
		}
		return o.Objects().Put(b.Context(), claim(token, "a"), key, body, nil)
	}
	for range 64 { // until the list of recent writes is full
		if err := fenced(); err != nil {
			b.Fatal(err)
		}
	}
	stored, _ := server.Object(bucketName, key)
	if mode == s3fence.Pointer {
		stored.Body, stored.Metadata = body, nil
	}
	ways := [3]func() error{fenced, barePut(b, client, stored.Body, stored.Metadata), barePut(b, client, body, nil)}
	var took [3][]time.Duration
	for i := 0; b.Loop(); i++ {
		for j := range ways {
			k := (i + j) % len(ways)
			start := time.Now()
			if err := ways[k](); err != nil {
				b.Fatal(err)
			}
			took[k] = append(took[k], time.Since(start))
		}
	}
	b.ReportMetric(float64(sum(took[1]))/float64(sum(took[0])), "ratio")
	b.ReportMetric(float64(median(took[1]))/float64(median(took[0])), "p50-ratio")
	b.ReportMetric(float64(median(took[2]))/float64(median(took[0])), "p50-body-ratio")
	if n := inVain.Load(); n > 0 {
		b.Errorf("%d writes were sent in vain", n)
	}
}

func barePut(b *testing.B, client *s3.Client, body []byte, metadata map[string]string) func() error {
	return func() error {
		_, err := client.PutObject(b.Context(), &s3.PutObjectInput{
			Bucket: aws.String(bucketName), Key: aws.String("bare"), Body: bytes.NewReader(body), Metadata: metadata,
		})
		return err
	}
}

func sum(d []time.Duration) (total time.Duration) {
	for _, x := range d {
		total += x
	}
	return total
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
