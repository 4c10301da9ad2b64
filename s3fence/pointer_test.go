package s3fence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// pointerBody is what tests read of a stored pointer.
type pointerBody struct {
	Data  string `json:"data"`
	Token string `json:"token"`
}

func parsePointer(t testing.TB, o s3test.Object) (p pointerBody) {
	t.Helper()
	if err := json.NewDecoder(bytes.NewReader(o.Body)).Decode(&p); err != nil {
		t.Fatalf("pointer %q: %v", o.Body, err)
	}
	return p
}

// dataHistory gives the mutations of a pointer the metadata of the data that
// each of them names, which is where a caller's metadata is.
func dataHistory(t testing.TB, server *s3test.Server, history []s3test.Mutation) []s3test.Mutation {
	t.Helper()
	attempts := map[string]string{}
	for _, m := range server.History(bucketName, "") {
		if m.Key != key && m.Metadata != nil {
			attempts[m.Key] = m.Metadata["attempt"]
		}
	}
	out := make([]s3test.Mutation, len(history))
	for i, m := range history {
		out[i] = m
		out[i].Metadata = map[string]string{
			"fencing-token": m.Metadata["fencing-token"], "attempt": attempts[parsePointer(t, m.Object).Data],
		}
	}
	return out
}

const miB = 1 << 20

// streamed hides everything of a reader but Read.
type streamed struct{ r io.Reader }

func (s streamed) Read(p []byte) (int, error) { return s.r.Read(p) }

func bytesOf(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i * 7 >> 3)
	}
	return out
}

// Lengths around the borders of parts, from readers of every kind.
func TestPointerLengths(t *testing.T) {
	server := newServer(t, nil)
	o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB, Concurrency: 2}), s3fence.Pointer, nil)
	token := guard.Token(0)
	for _, n := range []int{0, 1, 5*miB - 1, 5 * miB, 5*miB + 1, 10 * miB, 12 * miB} {
		body := bytesOf(n)
		for name, r := range map[string]io.Reader{
			"stream": streamed{bytes.NewReader(body)}, "sized": bytes.NewReader(body), "slow": iotest.OneByteReader(bytes.NewReader(body)),
		} {
			if name == "slow" && n != 1 && n != 5*miB+1 {
				continue // it takes long, and differs where a part ends
			}
			if n == 0 && name != "sized" {
				r = nil // what cannot tell that it is empty must not be
			}
			token++
			if err := o.Put(t.Context(), claim(token, ""), key, r, nil); err != nil {
				t.Fatalf("%d bytes, %s: %v", n, name, err)
			}
			if got, mark := content(t, o, key); got != string(body) || mark.Token != token {
				t.Errorf("%d bytes, %s: read %d bytes at %d", n, name, len(got), mark.Token)
			}
		}
	}
	if uploads := server.Uploads(bucketName); len(uploads) != 0 {
		t.Errorf("uploads are left: %v", uploads)
	}
}

// A body that fails on the way leaves no data, no upload and the object as it
// was.
func TestPointerBodyFails(t *testing.T) {
	broken := errors.New("the disk is gone")
	for name, c := range map[string]struct {
		body func() io.Reader
		is   error
	}{
		"at once":         {func() io.Reader { return iotest.ErrReader(broken) }, broken},
		"in a first part": {func() io.Reader { return io.MultiReader(bytes.NewReader(bytesOf(100)), iotest.ErrReader(broken)) }, broken},
		"in a later part": {func() io.Reader { return io.MultiReader(bytes.NewReader(bytesOf(12*miB)), iotest.ErrReader(broken)) }, broken},
		"cut short": {func() io.Reader {
			return io.MultiReader(bytes.NewReader(bytesOf(100)), iotest.ErrReader(io.ErrUnexpectedEOF))
		}, io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), s3fence.Pointer, nil)
			put(t, o, claim(5, "a"), "before")
			err := o.Put(t.Context(), claim(6, "b"), key, streamed{c.body()}, nil)
			if !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
			if errors.Is(err, guard.ErrUnavailable) || server.Count(s3test.DeleteObject) != 0 {
				t.Errorf("the caller's own error is %v, after %d deletions", err, server.Count(s3test.DeleteObject))
			}
			want(t, o, "before", guard.Mark{Token: 5, LeaseID: "a"})
			if uploads, data := server.Uploads(bucketName), dataKeys(server); len(uploads) != 0 || len(data) != 1 {
				t.Errorf("left: uploads %v, data %q", uploads, data)
			}
		})
	}
}

// The store fails midway, in each request of an upload.
func TestPointerStoreFails(t *testing.T) {
	for _, op := range []s3test.Op{s3test.CreateMultipartUpload, s3test.UploadPart, s3test.CompleteMultipartUpload} {
		t.Run(string(op), func(t *testing.T) {
			server := newServer(t, nil)
			o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), s3fence.Pointer, nil)
			put(t, o, claim(5, "a"), "before")
			server.Inject(s3test.Rule{Ops: []s3test.Op{op}, Fault: s3test.Answer(500)})
			err := o.Put(t.Context(), claim(6, "b"), key, bytes.NewReader(bytesOf(11*miB)), nil)
			refused(t, err, guard.ReasonUnavailable)
			want(t, o, "before", guard.Mark{Token: 5, LeaseID: "a"})
			if uploads, data := server.Uploads(bucketName), dataKeys(server); len(uploads) != 0 || len(data) != 1 {
				t.Errorf("left: uploads %v, data %q", uploads, data)
			}
			// A single lost answer does no harm in any of them.
			server.ClearFaults()
			server.Inject(s3test.Rule{Ops: []s3test.Op{op}, Times: 1, Fault: s3test.LoseResponse()})
			if err := o.Put(t.Context(), claim(6, "b"), key, bytes.NewReader(bytesOf(11*miB)), nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// A cancelled write ends, and leaves nothing.
func TestPointerCancelled(t *testing.T) {
	server := newServer(t, nil)
	o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), s3fence.Pointer, nil)
	ctx, cancel := context.WithCancel(t.Context())
	pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.UploadPart}, Skip: 1, Times: 1}, s3test.BeforeApply)
	go func() {
		if held, err := pause.Wait(context.Background()); err == nil {
			cancel()
			held.Release()
		}
	}()
	refused(t, o.Put(ctx, claim(6, "b"), key, bytes.NewReader(bytesOf(26*miB)), nil), guard.ReasonUnavailable)
	if uploads, data := server.Uploads(bucketName), dataKeys(server); len(uploads) != 0 || len(data) != 0 {
		t.Errorf("left: uploads %v, data %q", uploads, data)
	}
}

// endless yields n bytes without holding them, and measures the live heap at
// regular intervals.
type endless struct {
	left, each, read int64
	peak             uint64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.left)
	if (e.read+n)/e.each > e.read/e.each {
		runtime.GC()
		e.peak = max(e.peak, liveHeap())
	}
	e.left, e.read = e.left-n, e.read+n
	return int(n), nil
}

// forgetful counts the bytes of parts and keeps none.
type forgetful struct {
	s3fence.S3
	n atomic.Int64
}

func (f *forgetful) UploadPart(ctx context.Context, in *s3.UploadPartInput, _ ...func(*s3.Options)) (*s3.UploadPartOutput, error) {
	n, err := io.Copy(io.Discard, in.Body)
	f.n.Add(n)
	return &s3.UploadPartOutput{ETag: aws.String(`"e"`)}, err
}

func (f *forgetful) CompleteMultipartUpload(context.Context, *s3.CompleteMultipartUploadInput, ...func(*s3.Options)) (*s3.CompleteMultipartUploadOutput, error) {
	return &s3.CompleteMultipartUploadOutput{}, nil
}

// What a long write holds in memory does not depend on its length.
func TestPointerMemory(t *testing.T) {
	size := int64(longtest.ByLength(160, 5<<10)) * miB
	server, b, _ := setup(t, s3fence.Pointer, 0)
	store := &forgetful{S3: newClient(server)}
	o := objects(t, b.On(store, bucketName), s3fence.Pointer, nil)
	put(t, o, claim(1, ""), "warm")
	runtime.GC()
	before := liveHeap()
	body := &endless{left: size, each: 20 * miB}
	if err := o.Put(t.Context(), claim(2, ""), key, body, nil); err != nil {
		t.Fatal(err)
	}
	grown := int64(body.peak) - int64(before)
	t.Logf("%d MiB were written with at most %d MiB of live heap", size/miB, grown/miB)
	if grown > 64*miB || grown < 8*miB {
		t.Errorf("the live heap grew by %d MiB, want 8 (or it was not measured) to 64", grown/miB)
	}
	if n := store.n.Load(); n != size {
		t.Errorf("%d bytes arrived, want %d", n, size)
	}
}

func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// More parts than there can be are refused, and the upload aborted.
func TestPointerTooLong(t *testing.T) {
	if s3fence.MaxPartsForTest(2) != 10_000 {
		t.Fatal("not the limit of S3")
	}
	defer s3fence.MaxPartsForTest(10_000)
	server := newServer(t, nil)
	o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), s3fence.Pointer, nil)
	err := o.Put(t.Context(), claim(2, ""), key, streamed{bytes.NewReader(bytesOf(11 * miB))}, nil)
	refused(t, err, guard.ReasonInvalid)
	if err == nil || !strings.Contains(err.Error(), "PartSize") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	if uploads := server.Uploads(bucketName); len(uploads) != 0 {
		t.Errorf("uploads are left: %v", uploads)
	}
}

// later is a handle on the same bucket whose clock is ahead: a collector that
// runs later.
func later(t *testing.T, o *s3fence.Handle, d time.Duration) *s3fence.Handle {
	t.Helper()
	b := o.Bucket().On(o.Bucket().Client(), bucketName)
	b.SetClock(func() time.Time { return time.Now().Add(d) })
	return objects(t, b, s3fence.Pointer, nil)
}

func collect(t *testing.T, o *s3fence.Handle) s3fence.Collected {
	t.Helper()
	done, err := o.Collect(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
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
			pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1}, s3test.BeforeApply)
			verdict := make(chan error, 1)
			go func() {
				verdict <- other.Put(context.Background(), claim(c.paused, "a"), key, strings.NewReader("paused"), nil)
			}()
			held, err := pause.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			put(t, o, claim(c.holder, "a"), "holder's")

			// Within the grace period nothing is deleted.
			if done := collect(t, later(t, o, s3fence.DefaultGracePeriod-time.Minute)); done.Deleted != 0 {
				t.Errorf("%d deleted within the grace period", done.Deleted)
			}
			if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != c.deleted || done.Pointers != 1 {
				t.Errorf("collected %+v, want %d deleted", done, c.deleted)
			}
			held.Release()
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
	server, b, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(9, "z"), "before")
	named := dataKeys(server)[0]
	other := objects(t, b.On(o.Bucket().Client(), bucketName), s3fence.Pointer, nil)
	pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: key, Times: 1}, s3test.BeforeApply)
	verdict := make(chan error, 1)
	go func() {
		verdict <- other.Put(context.Background(), claim(12, "a"), key, strings.NewReader("paused"), nil)
	}()
	held, err := pause.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range dataKeys(server) {
		if data != named {
			if err := b.RemoveForTest(t.Context(), data); err != nil {
				t.Fatal(err)
			}
		}
	}
	held.Release()
	if err := <-verdict; err != nil {
		t.Fatal(err)
	}
	_, err = o.Get(t.Context(), key)
	if d := damage(t, err); !strings.Contains(d.Problem, "is gone") {
		t.Errorf("the control dangles nothing: %v", err)
	}
}

// A raise is above the data that the pointer still names.
func TestCollectKeepsDataUnderARaisedMark(t *testing.T) {
	server, _, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "one")
	put(t, o, claim(5, "a"), "two")
	if err := o.Raise(t.Context(), claim(9, "b"), key); err != nil {
		t.Fatal(err)
	}
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
	server, _, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "one")
	put(t, o, claim(5, "a"), "two")
	old := later(t, o, 24*time.Hour)
	away := server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.GetObject, s3test.HeadObject}, Key: key, Fault: s3test.Answer(503)})
	done, err := old.Collect(t.Context(), "")
	if !errors.Is(err, guard.ErrUnavailable) || done != (s3fence.Collected{}) || len(dataKeys(server)) != 2 {
		t.Errorf("collected %+v, %v, left %q", done, err, dataKeys(server))
	}
	away.Remove()
	if done := collect(t, old); done.Pointers != 1 || done.Deleted != 1 {
		t.Errorf("afterwards it collected %+v", done)
	}
}

// A body that ends with a part has no empty part after it.
func TestPartsEndWithTheBody(t *testing.T) {
	server := newServer(t, nil)
	o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), s3fence.Pointer, nil)
	for token, parts := range map[guard.Token]int{10: 2, 11: 3} {
		before := server.Count(s3test.UploadPart)
		body := bytesOf(10*miB + int(token-10))
		// A reader of unknown length, so that its end is found only by reading on.
		if err := o.Put(t.Context(), claim(token, "a"), key+token.String(), io.MultiReader(bytes.NewReader(body)), nil); err != nil {
			t.Fatal(err)
		}
		if n := server.Count(s3test.UploadPart) - before; n != parts {
			t.Errorf("%d bytes went in %d parts, want %d", len(body), n, parts)
		}
	}
}

// A holder that writes often under one token, and finally deletes, leaves
// nothing forever.
func TestCollectUnderOneToken(t *testing.T) {
	server, _, o := setup(t, s3fence.Pointer, 0)
	for range 5 {
		put(t, o, claim(5, "a"), "body")
	}
	if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != 4 {
		t.Errorf("collected %+v, want 4", done)
	}
	if err := o.Delete(t.Context(), claim(5, "a"), key); err != nil {
		t.Fatal(err)
	}
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
	now := time.Now()
	clock := func() time.Time { return now }
	server := newServer(t, &s3test.Options{Now: clock})
	b := open(t, server, nil)
	b.SetClock(clock)
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

// A reader that has the data's stream continues; one that has only the old
// pointer, and is too late, is led to the new one.
func TestReadersWhileThePointerMoves(t *testing.T) {
	server, b, o := setup(t, s3fence.Pointer, 0)
	put(t, o, claim(5, "a"), "old")
	other := objects(t, b.On(o.Bucket().Client(), bucketName), s3fence.Pointer, nil)
	pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.GetObject}, Prefix: b.DataPrefix(key), Times: 1}, s3test.BeforeApply)
	type result struct {
		object *s3fence.Object
		err    error
	}
	read := make(chan result, 1)
	go func() {
		object, err := other.Get(context.Background(), key)
		read <- result{object, err}
	}()
	held, err := pause.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(t, o, claim(6, "b"), "new")
	if done := collect(t, later(t, o, 24*time.Hour)); done.Deleted != 1 {
		t.Fatalf("collected %+v", done)
	}
	held.Release()
	r := <-read
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.object.Body.Close()
	var got bytes.Buffer
	if _, err := io.Copy(&got, r.object.Body); err != nil || got.String() != "new" || r.object.Mark.Token != 6 {
		t.Errorf("read %q at %d, %v", got.String(), r.object.Mark.Token, err)
	}
}
