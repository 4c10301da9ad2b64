package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// Put and Delete decide as guard.Decide does, for every claim and both rules.
func TestRuleIsDecide(t *testing.T) {
	t.Parallel()
	for _, rule := range []guard.Rule{guard.SameOrNewer, guard.OncePerToken} {
		eachMode(t, func(t *testing.T, mode s3fence.Mode) {
			t.Run(rule.String(), func(t *testing.T) {
				_, _, o := setup(t, mode, rule)
				rng := rand.New(rand.NewPCG(1, uint64(rule)))
				mark := guard.Mark{}
				for range 80 {
					c := claim(max(1, mark.Token+guard.Token(rng.IntN(4))-2), []string{"", "a", "b"}[rng.IntN(3)])
					wanted := guard.Decide(rule, mark, c)
					var err error
					if rng.IntN(4) > 0 {
						err = o.Put(t.Context(), c, key, strings.NewReader("x"), nil)
					} else {
						err = o.Delete(t.Context(), c, key)
					}
					if guard.ReasonOf(err) != guard.ReasonOf(wanted) {
						t.Fatalf("%+v on %+v: %v, Decide says %v", c, mark, err, wanted)
					}
					var r *guard.RejectedError
					if errors.As(err, &r) && (r.Mark != mark || r.Claim != c) {
						t.Errorf("the facts are %+v, want %+v and %+v", r, c, mark)
					}
					if err == nil {
						mark = guard.Mark{Token: c.Token, LeaseID: c.LeaseID}
					}
					if got, err := o.Mark(t.Context(), key); err != nil || got != mark {
						t.Fatalf("the mark is %+v, %v, want %+v", got, err, mark)
					}
				}
			})
		})
	}
}

func TestOncePerTokenHasNoTakeover(t *testing.T) {
	t.Parallel()
	_, _, o := setup(t, s3fence.Sealed, guard.OncePerToken)
	put(t, o, claim(5, "a"), "x")
	invalid(t, o.Raise(t.Context(), claim(6, "b"), key), "rule")
	refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonSpent)
}

// Deletion leaves the mark, so an older holder cannot bring the object back.
func TestP1Tombstones(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		put(t, o, claim(5, "a"), "x")
		for range 2 {
			must(t, o.Delete(t.Context(), claim(6, "b"), key))
		}
		_, err := o.Get(t.Context(), key)
		var r *guard.RejectedError
		if !errors.As(err, &r) || r.Reason != guard.ReasonNotFound || r.Mark != (guard.Mark{Token: 6, LeaseID: "b"}) {
			t.Errorf("Get = %v", err)
		}
		refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
		refused(t, o.Delete(t.Context(), claim(5, "a"), key), guard.ReasonStale)
		refused(t, o.Raise(t.Context(), claim(5, "a"), key), guard.ReasonStale)
		refused(t, o.Put(t.Context(), claim(6, "c"), key, nil, nil), guard.ReasonConflict)
		// Also for an object that never existed, and after a raise before the object.
		for name, call := range map[string]func(context.Context, guard.Claim, string) error{"deleted": o.Delete, "raised": o.Raise} {
			must(t, call(t.Context(), claim(6, "b"), name))
			refused(t, got(t, o, name), guard.ReasonNotFound)
			refused(t, o.Put(t.Context(), claim(5, "a"), name, nil, nil), guard.ReasonStale)
			must(t, o.Put(t.Context(), claim(6, "b"), name, nil, nil))
			must(t, got(t, o, name))
		}
		// Two tombstones never have the same ETag.
		first := stored(t, server, key)
		put(t, o, claim(6, "b"), "again")
		must(t, o.Delete(t.Context(), claim(6, "b"), key))
		if again := stored(t, server, key); again.ETag == first.ETag || len(again.Body) != len(first.Body) {
			t.Errorf("tombstones %s of %d bytes and %s of %d", first.ETag, len(first.Body), again.ETag, len(again.Body))
		}
	})
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		refused(t, o.Adopt(t.Context(), claim(5, "a"), key), guard.ReasonNotFound)
		bypass(t, server, key, []byte("old"), nil)
		for range 2 { // the second time there is nothing to do
			must(t, o.Adopt(t.Context(), claim(5, "a"), key))
		}
		want(t, o, "old", guard.Mark{Token: 5, LeaseID: "a"})
		must(t, o.Adopt(t.Context(), claim(6, "b"), key))
		want(t, o, "old", guard.Mark{Token: 5, LeaseID: "a"}) // adopting is not raising
		refused(t, o.Adopt(t.Context(), claim(4, "z"), key), guard.ReasonStale)
		refused(t, o.Adopt(t.Context(), claim(5, "z"), key), guard.ReasonConflict)
		must(t, o.Delete(t.Context(), claim(7, "c"), key))
		refused(t, o.Adopt(t.Context(), claim(7, "c"), key), guard.ReasonNotFound)
	})
}

// An object that is changed while it is adopted is not overwritten.
func TestAdoptRaces(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		bypass(t, server, key, []byte("old"), nil)
		fault := s3test.Fault{Before: func(*s3test.Request) { bypass(t, server, key, []byte("newer"), nil) }}
		server.Inject(s3test.Rule{Ops: puts, Key: key, Times: 1, Fault: fault,
			Match: func(r *s3test.Request) bool { return r.Header.Get("If-Match") != "" }})
		must(t, o.Adopt(t.Context(), claim(5, "a"), key))
		want(t, o, "newer", guard.Mark{Token: 5, LeaseID: "a"})
	})
}

// Of two that adopt one object at once, one took effect, and the other cannot know: the object
// listed no writes before. It is not called stale, and calling it again settles it.
func TestTwoAdoptions(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		other := objects(t, b.On(o.Bucket().Client(), bucketName), mode, nil)
		bypass(t, server, key, []byte("old"), nil)
		release, adopted := hold(t, server, firstPut(s3test.Fault{}), func() error { return o.Adopt(context.Background(), claim(5, "a"), key) })
		must(t, other.Adopt(t.Context(), claim(6, "b"), key))
		release()
		refused(t, <-adopted, guard.ReasonOutcomeUnknown)
		refused(t, o.Adopt(t.Context(), claim(5, "a"), key), guard.ReasonStale)
		want(t, o, "old", guard.Mark{Token: 6, LeaseID: "b"})
	})
}

// Plain where bodies determine the ETag: only with the declaration, and without
// operations that repeat a body.
func TestPlainNeedsOpaqueETags(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	b, err := s3fence.Open(t.Context(), newClient(server), bucketName, &s3fence.Options{InsecureSkipProbe: true})
	must(t, err)
	_, err = b.In(s3fence.Plain, nil) // nothing is known of the store
	if invalid(t, err, "mode"); server.Count() != 0 {
		t.Errorf("%d requests were sent", server.Count())
	}
	o := objects(t, b, s3fence.Plain, &s3fence.ObjectsOptions{BodiesNeverRepeat: true})
	put(t, o, claim(5, "a"), "at 12:00, 8f3a")
	put(t, o, claim(6, "b"), "at 12:01, 77c0")
	refused(t, o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("at 12:02, 0b1d"), nil), guard.ReasonStale)
	invalid(t, o.Raise(t.Context(), claim(7, "c"), key), "mode")
	invalid(t, o.Adopt(t.Context(), claim(7, "c"), key), "mode")
	if got := string(stored(t, server, key).Body); got != "at 12:01, 77c0" {
		t.Errorf("the stored body is %q", got)
	}
	for _, bad := range []struct {
		mode  s3fence.Mode
		opts  s3fence.ObjectsOptions
		field string
	}{
		{0, s3fence.ObjectsOptions{}, "mode"}, {4, s3fence.ObjectsOptions{}, "mode"},
		{s3fence.Sealed, s3fence.ObjectsOptions{}, "ObjectsOptions.Resource"},
		{s3fence.Sealed, s3fence.ObjectsOptions{BodiesNeverRepeat: true}, "ObjectsOptions.BodiesNeverRepeat"},
		{s3fence.Sealed, s3fence.ObjectsOptions{Rule: 7, InsecureAnyResource: true}, "ObjectsOptions.Rule"},
	} {
		_, err := b.Objects(bad.mode, &bad.opts)
		invalid(t, err, bad.field)
	}
}

// The story of P2: holder 6 takes over and reads; then holder 5, still running, appends;
// then holder 6 appends to what it read. In the control it does not raise, and an
// acknowledged update is lost.
func TestP2Takeover(t *testing.T) {
	t.Parallel()
	for _, raises := range []bool{true, false} {
		eachMode(t, func(t *testing.T, mode s3fence.Mode) {
			_, b, o := setup(t, mode, guard.SameOrNewer)
			succ := objects(t, b.On(o.Bucket().Client(), bucketName), mode, nil)
			put(t, o, claim(5, "a"), "1")
			if raises {
				must(t, succ.Raise(t.Context(), claim(6, "b"), key))
			}
			read, _ := content(t, succ, key)
			old := o.Put(t.Context(), claim(5, "a"), key, strings.NewReader("1,5"), nil)
			put(t, succ, claim(6, "b"), read+",6")
			if raises && !errors.Is(old, guard.ErrStale) || !raises && old != nil {
				t.Errorf("the old holder's write, with a raise %v: %v", raises, old)
			}
			want(t, o, "1,6", guard.Mark{Token: 6, LeaseID: "b"})
		})
	}
}

// A write of the old holder that comes while the mark is being raised, after
// the object was read for it, is carried over: the new holder reads it.
func TestP2WriteDuringRaise(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		succ := objects(t, b.On(o.Bucket().Client(), bucketName), mode, nil)
		long := string(bytesOf(10_000)) // longer than what a read of the mark alone shows
		put(t, o, claim(5, "a"), "1"+long)
		release, raised := hold(t, server, firstPut(s3test.Fault{}), func() error {
			return succ.Raise(context.Background(), claim(6, "b"), key)
		})
		put(t, o, claim(5, "a"), "1,5"+long) // acknowledged
		release()
		must(t, <-raised)
		want(t, succ, "1,5"+long, guard.Mark{Token: 6, LeaseID: "b"})
		refused(t, o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("1,5,5")), nil), guard.ReasonStale)
	})
}

// The control: a raise that ignores the condition of its write loses it.
func TestP2WriteDuringRaiseControl(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Sealed, 0)
	succ := objects(t, b.On(o.Bucket().Client(), bucketName), s3fence.Sealed, nil)
	put(t, o, claim(5, "a"), "1")
	fault := s3test.IgnoreConditions()
	fault.Before = func(*s3test.Request) { put(t, o, claim(5, "a"), "1,5") }
	server.Inject(firstPut(fault))
	must(t, succ.Raise(t.Context(), claim(6, "b"), key))
	if body, _ := content(t, succ, key); body != "1" {
		t.Errorf("the control lost nothing: %q", body)
	}
}

// A raise leaves everything but the mark.
func TestRaiseKeepsTheObject(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		_, _, o := setup(t, mode, 0)
		h := s3fence.Headers{
			ContentType: "text/csv", CacheControl: "max-age=60", ContentDisposition: "attachment", ContentEncoding: "identity",
			ContentLanguage: "de", Expires: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Metadata: map[string]string{"Tenant": "123"},
		}
		if mode == s3fence.SealedGzip {
			h.ContentEncoding = "gzip"
		}
		must(t, o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("body")), &h))
		for _, token := range []guard.Token{6, 6, 7} {
			must(t, o.Raise(t.Context(), claim(token, "b"), key))
		}
		want(t, o, "body", guard.Mark{Token: 7, LeaseID: "b"})
		object, err := o.Get(t.Context(), key)
		must(t, err)
		defer object.Body.Close()
		got := object.Headers
		if got.ContentType != h.ContentType || got.CacheControl != h.CacheControl || got.ContentDisposition != h.ContentDisposition ||
			got.ContentEncoding != h.ContentEncoding || got.ContentLanguage != h.ContentLanguage ||
			!got.Expires.Equal(h.Expires) || len(got.Metadata) != 1 || got.Metadata["tenant"] != "123" {
			t.Errorf("the headers are %+v, want %+v", got, h)
		}
		refused(t, o.Raise(t.Context(), claim(6, "b"), key), guard.ReasonStale)
		refused(t, o.Raise(t.Context(), claim(7, "c"), key), guard.ReasonConflict)
	})
}

// TestP6RefusalsHaveTheFacts: an absent, a deleted and a foreign object differ,
// with the claim, and with the mark where there is one.
func TestP6RefusalsHaveTheFacts(t *testing.T) {
	t.Parallel()
	eachBody(t, func(t *testing.T, mode s3fence.Mode) {
		server, _, o := setup(t, mode, 0)
		ctx, reading, writing := t.Context(), guard.Claim{}, claim(5, "a")
		rejected := func(err error, reason guard.Reason, claim guard.Claim, mark guard.Mark) {
			t.Helper()
			var r *guard.RejectedError
			if !errors.As(err, &r) || r.Reason != reason || r.Claim != claim || r.Mark != mark {
				t.Errorf("%v: %+v, want %s", err, r, reason)
			}
		}
		rejected(got(t, o, key), guard.ReasonNotFound, reading, guard.Mark{})
		bypass(t, server, key, []byte("foreign"), nil)
		rejected(got(t, o, key), guard.ReasonUnfenced, reading, guard.Mark{})
		rejected(o.Put(ctx, writing, key, strings.NewReader(""), nil), guard.ReasonUnfenced, writing, guard.Mark{})
		must(t, o.Adopt(ctx, writing, key))
		at := guard.Mark{Token: 6, LeaseID: "b"}
		must(t, o.Delete(ctx, claim(6, "b"), key))
		rejected(got(t, o, key), guard.ReasonNotFound, reading, at)
		rejected(o.Adopt(ctx, claim(5, "a"), key), guard.ReasonStale, claim(5, "a"), at)
	})
}

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
