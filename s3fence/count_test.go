package s3fence_test

import (
	"bytes"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Requests per call, the cost that is documented.
func TestRequestsPerCall(t *testing.T) {
	for mode, write := range map[s3fence.Mode]int{s3fence.Sealed: 1, s3fence.SealedGzip: 1, s3fence.Plain: 1, s3fence.Pointer: 2} {
		t.Run(mode.String(), func(t *testing.T) {
			server, b, o := setup(t, mode, 0)
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
			count("a raise", 2-btoi(mode == s3fence.Pointer), func() error { return o.Raise(t.Context(), claim(8, "b"), key) })
			count("a raise to what is the mark", 1, func() error { return o.Raise(t.Context(), claim(8, "b"), key) })
			count("reading the mark", 1, func() error { _, err := o.Mark(t.Context(), key); return err })
			count("reading", 1+btoi(mode == s3fence.Pointer), func() error { content(t, o, key); return nil })
			count("deleting", 1, func() error { return o.Delete(t.Context(), claim(8, "b"), key) })
			// A refusal is never by the cache: the object is read first.
			count("a refused write", 1, func() error {
				refused(t, putAs(7)(), guard.ReasonStale)
				return nil
			})
			if n := server.Answers(s3test.PutObject)[412]; n != 0 {
				t.Errorf("%d writes were sent in vain", n)
			}
		})
	}
}

func TestRequestsPerAdmission(t *testing.T) {
	server := newServer(t, nil)
	b := open(t, server, nil)
	store := b.Store()
	for _, step := range []struct {
		name  string
		token guard.Token
		want  int
	}{
		{"the first claim", 5, 5}, {"the same again", 5, 1}, {"a raise", 6, 1},
	} {
		server.ResetCounts()
		if _, err := store.Admit(t.Context(), claim(step.token, "a")); err != nil {
			t.Fatal(err)
		}
		if got := server.Count(); got != step.want {
			t.Errorf("%s took %d requests, want %d", step.name, got, step.want)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
