package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// takeover is the story of P2: holder 6 takes over and reads; then holder 5,
// who is still at it, appends; then holder 6 appends to what it read.
func takeover(t *testing.T, mode s3fence.Mode, raise bool) (final string, old error) {
	_, b, o := setup(t, mode, guard.SameOrNewer)
	succ := objects(t, b.Handle(o.Bucket().Client(), bucketName), mode, nil)
	put(t, o, claim(5, "a"), "1")
	if raise {
		if err := succ.Raise(t.Context(), claim(6, "b"), key); err != nil {
			t.Fatal(err)
		}
	}
	read, _ := content(t, succ, key)
	old = o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("1,5")), nil)
	put(t, succ, claim(6, "b"), read+",6")
	final, _ = content(t, o, key)
	return final, old
}

func TestP2Takeover(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		final, old := takeover(t, mode, true)
		if !errors.Is(old, guard.ErrStale) {
			t.Errorf("the old holder's write after the raise: %v, want stale", old)
		}
		if final != "1,6" {
			t.Errorf("the object is %q", final)
		}
	})
}

// Without the raise an acknowledged update is lost.
func TestP2TakeoverControl(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		final, old := takeover(t, mode, false)
		if old != nil || final != "1,6" {
			t.Errorf("the control lost nothing: %v, %q", old, final)
		}
	})
}

// A write of the old holder that comes while the mark is being raised, after
// the object was read for it, is carried over: the new holder reads it.
func TestP2WriteDuringRaise(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		server, b, o := setup(t, mode, 0)
		succ := objects(t, b.Handle(o.Bucket().Client(), bucketName), mode, nil)
		put(t, o, claim(5, "a"), "1")
		pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1}, s3test.BeforeApply)
		raised := make(chan error, 1)
		go func() { raised <- succ.Raise(context.Background(), claim(6, "b"), key) }()
		held, err := pause.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		put(t, o, claim(5, "a"), "1,5") // acknowledged
		held.Release()
		if err := <-raised; err != nil {
			t.Fatal(err)
		}
		want(t, succ, "1,5", guard.Mark{Token: 6, LeaseID: "b"})
		refused(t, o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("1,5,5")), nil), guard.ReasonStale)
	})
}

// The control: a raise that ignores the condition of its write loses it.
func TestP2WriteDuringRaiseControl(t *testing.T) {
	server, b, o := setup(t, s3fence.Sealed, 0)
	succ := objects(t, b.Handle(o.Bucket().Client(), bucketName), s3fence.Sealed, nil)
	put(t, o, claim(5, "a"), "1")
	fault := s3test.IgnoreConditions()
	fault.Before = func(*s3test.Request) { put(t, o, claim(5, "a"), "1,5") }
	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1, Fault: fault})
	if err := succ.Raise(t.Context(), claim(6, "b"), key); err != nil {
		t.Fatal(err)
	}
	if body, _ := content(t, succ, key); body != "1" {
		t.Errorf("the control lost nothing: %q", body)
	}
}

// A raise leaves everything but the mark.
func TestRaiseKeepsTheObject(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		_, _, o := setup(t, mode, 0)
		h := s3fence.Headers{
			ContentType: "text/csv", CacheControl: "max-age=60", ContentDisposition: "attachment", ContentEncoding: "identity",
			ContentLanguage: "de", Metadata: map[string]string{"Tenant": "123"},
		}
		if mode == s3fence.SealedGzip {
			h.ContentEncoding = "gzip"
		}
		if err := o.Put(t.Context(), claim(5, "a"), key, bytes.NewReader([]byte("body")), &s3fence.PutOptions{Headers: h}); err != nil {
			t.Fatal(err)
		}
		for _, token := range []guard.Token{6, 6, 7} {
			if err := o.Raise(t.Context(), claim(token, "b"), key); err != nil {
				t.Fatal(err)
			}
		}
		want(t, o, "body", guard.Mark{Token: 7, LeaseID: "b"})
		object, err := o.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		defer object.Body.Close()
		got := object.Headers
		if got.ContentType != h.ContentType || got.CacheControl != h.CacheControl || got.ContentDisposition != h.ContentDisposition ||
			got.ContentEncoding != h.ContentEncoding || got.ContentLanguage != h.ContentLanguage ||
			len(got.Metadata) != 1 || got.Metadata["tenant"] != "123" {
			t.Errorf("the headers are %+v, want %+v", got, h)
		}
		refused(t, o.Raise(t.Context(), claim(6, "b"), key), guard.ReasonStale)
		refused(t, o.Raise(t.Context(), claim(7, "c"), key), guard.ReasonConflict)
	})
}

// A raise of what does not exist keeps older writers from creating it.
func TestRaiseBeforeTheObject(t *testing.T) {
	eachMode(t, func(t *testing.T, mode s3fence.Mode) {
		_, _, o := setup(t, mode, 0)
		if err := o.Raise(t.Context(), claim(6, "b"), key); err != nil {
			t.Fatal(err)
		}
		_, err := o.Get(t.Context(), key)
		refused(t, err, guard.ReasonNotFound)
		refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
		put(t, o, claim(6, "b"), "body")
		want(t, o, "body", guard.Mark{Token: 6, LeaseID: "b"})
	})
}
