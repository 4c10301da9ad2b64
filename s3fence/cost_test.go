package s3fence_test

import (
	"bytes"
	"net/http"
	"sync/atomic"
	"testing"

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
