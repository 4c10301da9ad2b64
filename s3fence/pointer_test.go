package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

func bytesOf(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i * 7 >> 3)
	}
	return out
}

// later is a handle on the same bucket as the store is seen so much later: a collector, or
// a holder, that runs then.
func later(t *testing.T, o *s3fence.Handle, d time.Duration) *s3fence.Handle {
	t.Helper()
	client := s3.New(o.Bucket().Client().(*s3.Client).Options(), func(opts *s3.Options) {
		next := opts.HTTPClient
		opts.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			answer, err := next.Do(r)
			if err == nil {
				at, err := http.ParseTime(answer.Header.Get("Date"))
				must(t, err)
				answer.Header.Set("Date", at.Add(d).Format(http.TimeFormat))
			}
			return answer, err
		})
	})
	return objects(t, o.Bucket().On(client, bucketName), o.Mode(), nil)
}

func collect(t *testing.T, o *s3fence.Handle) s3fence.Collected {
	t.Helper()
	done, err := o.Collect(t.Context(), "")
	must(t, err)
	return done
}

// dataKeys returns the keys of the data objects.
func dataKeys(server *s3test.Server) (keys []string) {
	for _, o := range server.Objects(bucketName) {
		if strings.Contains(o.Key, ".fencepost/data/") {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// A writer that is paused between its data and its pointer, for longer than
// the grace period, while a collector runs: whatever the tokens, no pointer
// ever names data that is gone.
func TestPausedWriterLeavesNoDanglingPointer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		paused, holder guard.Token // the holder's write comes while the other is paused
		verdict        guard.Reason
		deleted        int64
	}{
		// The predecessor's data is deleted too, each time.
		{"an old writer is refused, its data collected", 10, 11, guard.ReasonStale, 2},
		{"a newer writer's data is kept, its pointer stored", 12, 11, guard.ReasonNone, 1},
		{"another write under the same token", 11, 11, guard.ReasonNone, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, b, o := setup(t, s3fence.Pointer, 0)
			put(t, o, claim(9, "z"), "before")
			other := objects(t, b.On(o.Bucket().Client(), bucketName), s3fence.Pointer, nil)
			release, verdict := hold(t, server, firstPut(s3test.Fault{}), func() error {
				return other.Put(context.Background(), claim(c.paused, "a"), key, strings.NewReader("paused"), nil)
			})
			put(t, o, claim(c.holder, "a"), "holder's")

			// Within the grace period nothing is deleted.
			if done := collect(t, later(t, o, s3fence.DefaultGracePeriod-time.Minute)); done.Deleted != 0 {
				t.Errorf("%d deleted within the grace period", done.Deleted)
			}
			if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != c.deleted || done.Pointers != 1 {
				t.Errorf("collected %+v, want %d deleted", done, c.deleted)
			}
			release()
			refused(t, <-verdict, c.verdict)
			body, _ := content(t, o, key) // and it is there
			if wantBody := map[bool]string{true: "paused", false: "holder's"}[c.verdict == guard.ReasonNone]; body != wantBody {
				t.Errorf("the object is %q, want %q", body, wantBody)
			}
			collect(t, later(t, o, 48*time.Hour))
			content(t, o, key)
		})
	}
}

// The control: a collector that checks only what is named now deletes the data
// of a writer that is paused in between.
func TestPausedWriterControl(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(9, "z"), "before")
	named := dataKeys(server)[0]
	other := objects(t, b.On(o.Bucket().Client(), bucketName), s3fence.Pointer, nil)
	release, verdict := hold(t, server, firstPut(s3test.Fault{}), func() error {
		return other.Put(context.Background(), claim(12, "a"), key, strings.NewReader("paused"), nil)
	})
	for _, data := range dataKeys(server) {
		if data != named {
			must(t, b.RemoveForTest(t.Context(), data))
		}
	}
	release()
	must(t, <-verdict)
	_, err := o.Get(t.Context(), key)
	if d := damage(t, err); !strings.Contains(d.Problem, "is gone") {
		t.Errorf("the control dangles nothing: %v", err)
	}
}

// A raise is above the data that the pointer still names.
func TestCollectKeepsDataUnderARaisedMark(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "one")
	put(t, o, claim(5, "a"), "two")
	must(t, o.Raise(t.Context(), claim(9, "b"), key))
	if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != 1 || done.Bytes != 3 {
		t.Errorf("collected %+v, want the first data", done)
	}
	want(t, o, "two", guard.Mark{Token: 9, LeaseID: "b"})
	if n := len(dataKeys(server)); n != 1 {
		t.Errorf("%d data objects are left, want 1", n)
	}
}

// A pointer that cannot be read ends the collection with an error, and none of
// its data is deleted.
func TestCollectNeedsThePointer(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "one")
	put(t, o, claim(5, "a"), "two")
	old := later(t, o, 24*time.Hour)
	away := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.GetObject, s3test.HeadObject}, Key: key, Fault: s3test.Respond(503)})
	done, err := old.Collect(t.Context(), "")
	if !errors.Is(err, guard.ErrUnavailable) || done != (s3fence.Collected{}) || len(dataKeys(server)) != 2 {
		t.Errorf("collected %+v, %v, left %q", done, err, dataKeys(server))
	}
	away.Remove()
	if done := collect(t, old); done.Pointers != 1 || done.Deleted != 1 {
		t.Errorf("afterwards it collected %+v", done)
	}
}

// A holder that writes often under one token, and finally deletes, leaves
// nothing forever.
func TestCollectUnderOneToken(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Pointer, 0)
	for range 5 {
		put(t, o, claim(5, "a"), "body")
	}
	if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != 4 {
		t.Errorf("collected %+v, want 4", done)
	}
	must(t, o.Delete(t.Context(), claim(5, "a"), key))
	if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != 1 {
		t.Errorf("collected %+v, want 1", done)
	}
	if keys := dataKeys(server); len(keys) != 0 {
		t.Errorf("left: %q", keys)
	}
}

// A pointer that is written more often than once per grace period must not keep
// its old data forever.
func TestCollectOfAPointerThatNeverRests(t *testing.T) {
	t.Parallel()
	now := time.Now()
	clock := func() time.Time { return now }
	server := newServer(t, &s3test.Options{Now: clock})
	b := open(t, server, nil)
	o := objects(t, b, s3fence.Pointer, nil)
	bypass(t, server, "damaged", []byte("x"), map[string]string{"fencing-token": "7"})
	total, damaged := int64(0), int64(0)
	for token := guard.Token(1); token <= 60; token++ { // ten hours
		put(t, o, claim(token, "a"), "body")
		now = now.Add(10 * time.Minute)
		done := collect(t, o)
		total, damaged = total+done.Deleted, damaged+done.Skipped
		if token%7 == 0 {
			b.Forget() // as another process goes on
		}
		content(t, o, key)
	}
	// At most a little over two grace periods' worth is left.
	if damaged != 60 {
		t.Errorf("the damaged object was met %d times, want each time", damaged)
	}
	if left := len(dataKeys(server)); left > 15 || total < 45 {
		t.Errorf("%d deleted, %d left of 60", total, left)
	}
}

// Whose clock is wrong does not matter: neither a writer that is hours behind, of which the
// pointers say since when they name their data, nor a collector that is hours ahead makes the
// collector delete data that the pointer has left a moment before.
func TestClocksOfWritersAndCollectors(t *testing.T) {
	t.Parallel()
	now := time.Now().Add(-2 * time.Hour) // the store's: for it, this program's own clock is two hours ahead
	server := newServer(t, &s3test.Options{Now: func() time.Time { return now }})
	for name, ahead := range map[string]time.Duration{"behind": 2 * time.Hour, "ahead": -2 * time.Hour} {
		now = time.Now().Add(ahead)
		b := open(t, server, nil)
		o := objects(t, b, s3fence.Pointer, nil)
		k := name + "/object"
		write := func(token guard.Token) {
			must(t, o.Put(t.Context(), claim(token, "l"), k, strings.NewReader(token.String()), nil))
		}
		write(4)
		write(5)
		now = now.Add(3 * time.Hour)
		object, err := o.Get(t.Context(), k)
		must(t, err)
		object.Body.Close()
		write(7)
		write(8)
		done, err := o.Collect(t.Context(), name)
		must(t, err)
		if _, ok := server.Object(bucketName, object.DataKey); !ok {
			t.Errorf("%s: the data that the pointer left a moment ago is deleted: %+v", name, done)
		}
		now = now.Add(2 * time.Hour)
		if done, err := o.Collect(t.Context(), name); err != nil || done.Deleted != 3 {
			t.Errorf("%s, later: %+v, %v", name, done, err)
		}
	}
}

// A store that does not say what time it is gets nothing collected.
func TestCollectWithoutDates(t *testing.T) {
	t.Parallel()
	_, b, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "one")
	put(t, o, claim(6, "a"), "two")
	undated := s3.New(b.Client().(*s3.Client).Options(), func(opts *s3.Options) {
		next := opts.HTTPClient
		opts.HTTPClient = httpFunc(func(r *http.Request) (*http.Response, error) {
			answer, err := next.Do(r)
			if err == nil {
				answer.Header.Del("Date")
			}
			return answer, err
		})
	})
	if done := collect(t, objects(t, b.On(undated, bucketName), s3fence.Pointer, nil)); done.Pointers != 1 || done.Deleted != 0 {
		t.Errorf("collected %+v", done)
	}
}

// A reader that has the data's stream continues; one that has only the old
// pointer, and is too late, is led to the new one.
func TestReadersWhileThePointerMoves(t *testing.T) {
	t.Parallel()
	server, b, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "old")
	other := objects(t, b.On(o.Bucket().Client(), bucketName), s3fence.Pointer, nil)
	var object *s3fence.Object
	release, read := hold(t, server, s3test.Rule{Ops: gets, Prefix: b.DataPrefix(key), Times: 1}, func() (err error) {
		object, err = other.Get(context.Background(), key)
		return err
	})
	put(t, o, claim(6, "b"), "new")
	if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != 1 {
		t.Fatalf("collected %+v", done)
	}
	release()
	must(t, <-read)
	defer object.Body.Close()
	if got, err := io.ReadAll(object.Body); err != nil || string(got) != "new" || object.Mark.Token != 6 {
		t.Errorf("read %q at %d, %v", got, object.Mark.Token, err)
	}
}

// The data key of an object that was read can be signed: its bytes stay the ones of
// that version while the pointer moves on.
func TestDataKeyCanBeSigned(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "old")
	object, err := o.Get(t.Context(), key)
	must(t, err)
	object.Body.Close()
	signed, err := s3.NewPresignClient(newClient(server)).PresignGetObject(t.Context(),
		&s3.GetObjectInput{Bucket: aws.String(bucketName), Key: &object.DataKey})
	must(t, err)
	put(t, o, claim(6, "b"), "new")
	response, err := server.HTTPClient().Get(signed.URL)
	must(t, err)
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "old" {
		t.Errorf("%s: read %q, %v", response.Status, body, err)
	}
}

// What the collector may not read or delete is counted and named, and what is behind
// it is collected.
func TestCollectGoesOn(t *testing.T) {
	t.Parallel()
	server, _, o := setup(t, s3fence.Pointer, 0)
	for _, k := range []string{"a", "b", "c"} {
		for token := guard.Token(5); token < 7; token++ {
			must(t, o.Put(t.Context(), claim(token, "l"), k, strings.NewReader("x"), nil))
		}
	}
	o = later(t, o, 2*time.Hour)
	archived := server.Inject(s3test.Rule{Ops: gets, Key: "a", Fault: s3test.Fault{Status: 403, Code: "InvalidObjectState"}})
	locked := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Prefix: o.Bucket().DataPrefix("b"), Fault: s3test.Respond(403)})
	done, err := o.Collect(t.Context(), "")
	if err != nil || done.Pointers != 2 || done.Deleted != 1 || done.Skipped != 2 || done.Err == nil ||
		!strings.Contains(done.Err.Error(), `collect "a"`) || !strings.Contains(done.Err.Error(), `data of "b"`) {
		t.Errorf("Collect = %+v, %v", done, err)
	}
	archived.Remove()
	locked.Remove()
	if done, err := o.Collect(t.Context(), ""); err != nil || done.Deleted != 2 || done.Skipped != 0 || done.Err != nil {
		t.Errorf("later: %+v, %v", done, err)
	}
}

// A Put whose context has ended does not wait for as long as a request may take, only to
// delete data that no pointer names.
func TestPutEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := newServer(t, nil)
	b := open(t, server, &s3fence.Options{RequestTimeout: 2 * testkit.Patience})
	o := objects(t, b, s3fence.Pointer, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The data is held, and so is its deletion.
	release, done := hold(t, server, s3test.Rule{Prefix: b.DataPrefix(key)}, func() error {
		return o.Put(ctx, claim(5, "a"), key, strings.NewReader("x"), nil)
	})
	defer release()
	cancel()
	refused(t, testkit.Receive(t, "the end of Put", done), guard.ReasonUnavailable)
}

// A listing whose continuation tokens go round ends, for the caller and for the collector.
func TestListingThatGoesRound(t *testing.T) {
	t.Parallel()
	server, b, _ := setup(t, s3fence.Pointer, 0)
	pages := 0
	client := via(newClient(server), func(r *http.Request, send sendFunc) (*http.Response, error) {
		if pages++; pages > 10 {
			return nil, errors.New("it goes on")
		}
		return response(r, http.StatusOK, "<ListBucketResult><Name>"+bucketName+"</Name><IsTruncated>true</IsTruncated><NextContinuationToken>"+
			[]string{"A", "B", "C"}[pages%3]+"</NextContinuationToken></ListBucketResult>"), nil
	})
	o := objects(t, b.On(client, bucketName), s3fence.Pointer, nil)
	var listed error
	for _, listed = range o.List(t.Context(), "") {
	}
	first := pages
	_, collected := o.Collect(t.Context(), "")
	for _, err := range []error{listed, collected} {
		if refused(t, err, guard.ReasonUnavailable); err == nil || !strings.Contains(err.Error(), "continuation token") {
			t.Error(err)
		}
	}
	if first != 4 || pages != 8 {
		t.Errorf("%d and %d pages were asked for, want 4 each", first, pages-first)
	}
}

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
