package s3fence_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// bypass writes an object like a program that knows nothing of fences.
func bypass(t *testing.T, server *s3test.Server, key string, body []byte, metadata map[string]string) {
	t.Helper()
	_, err := newClient(server).PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String(bucketName), Key: &key, Body: bytes.NewReader(body), Metadata: metadata,
	})
	must(t, err)
}

func stored(t *testing.T, server *s3test.Server, key string) s3test.Object {
	t.Helper()
	o, ok := server.Object(bucketName, key)
	if !ok {
		t.Fatalf("%q is not there", key)
	}
	return o
}

// everyCall returns the error of each call on the object but InsecureDelete; no call may
// touch its bytes.
func everyCall(t *testing.T, server *s3test.Server, o *s3fence.Handle, adopt bool) map[string]error {
	t.Helper()
	before := len(server.History(bucketName, key))
	out := map[string]error{}
	for name, call := range calls(o, claim(99, "z"), key) {
		if name != "remove" && (adopt || name != "adopt") {
			out[name] = call(t.Context())
		}
	}
	if n := len(server.History(bucketName, key)) - before; n != 0 {
		t.Errorf("the object was written %d times", n)
	}
	return out
}

// The exception of doc.go: the trailer names the key and not the bucket, so a copy from
// the same key of another bucket is taken for an older state, and admits a stale claim.
func TestCopyFromAnotherBucketLowersTheMark(t *testing.T) {
	t.Parallel()
	for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.SealedGzip} {
		server, b, o := setup(t, mode, 0)
		server.CreateBucket("other")
		put(t, objects(t, b.On(newClient(server), "other"), mode, nil), claim(5, "a"), "theirs")
		put(t, o, claim(9, "b"), "ours")
		refused(t, o.Put(t.Context(), claim(7, "c"), key, strings.NewReader("stale"), nil), guard.ReasonStale)
		theirs, _ := server.Object("other", key)
		bypass(t, server, key, theirs.Body, theirs.Metadata)
		want(t, o, "theirs", guard.Mark{Token: 5, LeaseID: "a"})
		put(t, o, claim(7, "c"), "stale")
	}
}

// An object written by a program that knows nothing of fences, before or in
// between, is unfenced, and not overwritten.
func TestUnfencedObjects(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "somebody's", string(bytesOf(10_000))} {
		eachMode(t, func(t *testing.T, mode s3fence.Mode) {
			server, _, o := setup(t, mode, 0)
			put(t, o, claim(5, "a"), "body") // and it is remembered
			bypass(t, server, key, []byte(body), map[string]string{"tenant": "123"})
			calls := everyCall(t, server, o, false)
			for call, err := range calls {
				if !errors.Is(err, guard.ErrUnfenced) {
					t.Errorf("%s: %v, want unfenced", call, err)
				}
			}
			if mode == s3fence.Pointer {
				return // cannot be adopted
			}
			must(t, o.Adopt(t.Context(), claim(6, "b"), key))
			want(t, o, body, guard.Mark{Token: 6, LeaseID: "b"})
			object, err := o.Get(t.Context(), key)
			must(t, err)
			object.Body.Close()
			if object.Headers.Metadata["tenant"] != "123" {
				t.Errorf("the metadata is %v", object.Headers.Metadata)
			}
			refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
		})
	}
}

// Data that differs from its pointer is detected while it is read, or at once
// if it is gone.
func TestDamagedData(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(body []byte) []byte{
		"altered": func(b []byte) []byte { b[3] ^= 1; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)-1] },
		"longer":  func(b []byte) []byte { return append(b, 'x') },
		"emptied": func([]byte) []byte { return nil },
		"gone":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			server, b, o := setup(t, s3fence.Pointer, 0)
			put(t, o, claim(5, "a"), "the body of the object")
			data := dataKeys(server)[0]
			if change == nil {
				// As a careless clean-up would.
				must(t, b.RemoveForTest(t.Context(), data))
			} else {
				bypass(t, server, data, change([]byte("the body of the object")), nil)
			}
			object, err := o.Get(t.Context(), key)
			if err == nil {
				_, err = io.ReadAll(object.Body)
				object.Body.Close()
				if !strings.Contains(err.Error(), "its data") {
					t.Errorf("reading: %v", err)
				}
				return
			}
			damage(t, err)
			// The mark is intact, and a writer can repair the object.
			put(t, o, claim(5, "a"), "again")
			want(t, o, "again", guard.Mark{Token: 5, LeaseID: "a"})
		})
	}
}

// Objects of one mode are not touched by the others.
func TestModesDoNotMix(t *testing.T) {
	t.Parallel()
	for _, wrote := range allModes {
		for _, mode := range allModes {
			if mode == wrote {
				continue
			}
			t.Run(wrote.String()+" by "+s3fence.NameOf(mode), func(t *testing.T) {
				server, b, _ := setup(t, s3fence.Plain, 0) // all modes are possible here
				put(t, objects(t, b, wrote, nil), claim(5, "a"), "body")
				o := objects(t, b, mode, nil)
				for call, err := range everyCall(t, server, o, true) {
					if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), wrote.String()) {
						t.Errorf("%s: %v", call, err)
					}
				}
				// All modes share tombstones.
				must(t, objects(t, b, wrote, nil).Delete(t.Context(), claim(6, "a"), key))
				refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
				put(t, o, claim(6, "a"), "reborn")
				want(t, o, "reborn", guard.Mark{Token: 6, LeaseID: "a"})
			})
		}
	}
}

// Bytes that end like a trailer are somebody's content: unfenced, and the error says how to be
// fenced. A whole trailer without metadata is damage, and so is another key's object with
// its metadata; InsecureDelete is the way out.
func TestForeignBytesThatEndLikeATrailer(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Sealed, 0)
	bypass(t, server, key, []byte("made by fencepost/s3"), nil)
	err := o.Put(t.Context(), claim(5, "a"), key, nil, nil)
	if refused(t, err, guard.ReasonUnfenced); err == nil || !strings.Contains(err.Error(), "Adopt") {
		t.Errorf("it does not name the way out: %v", err)
	}
	must(t, o.Adopt(t.Context(), claim(5, "a"), key))
	want(t, o, "made by fencepost/s3", guard.Mark{Token: 5, LeaseID: "a"})
	from := stored(t, server, key)
	bypass(t, server, "copied", from.Body, nil)
	damage(t, o.Put(t.Context(), claim(5, "a"), "copied", nil, nil))
	bypass(t, server, "moved", from.Body, from.Metadata)
	if d := damage(t, o.Put(t.Context(), claim(5, "a"), "moved", nil, nil)); !strings.Contains(d.Problem, "another key") {
		t.Errorf("it does not name the problem: %v", d)
	}
	must(t, o.InsecureDelete(t.Context(), "moved"))
	must(t, o.Put(t.Context(), claim(1, "a"), "moved", nil, nil))
}
