package s3fence_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

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
	for _, n := range []int{0, 1, 5*miB - 1, 5 * miB, 5*miB + 1, 10 * miB, 23 * miB} {
		body := bytesOf(n)
		sum := sha256.Sum256(body)
		for name, r := range map[string]io.Reader{
			"stream": streamed{bytes.NewReader(body)}, "sized": bytes.NewReader(body), "slow": iotest.OneByteReader(bytes.NewReader(body)),
		} {
			if name == "slow" && n > 6*miB {
				continue
			}
			token++
			if err := o.Put(t.Context(), claim(token, ""), key, r, &s3fence.PutOptions{SHA256: sum[:]}); err != nil {
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
		opts *s3fence.PutOptions
		is   error
	}{
		"at once":         {func() io.Reader { return iotest.ErrReader(broken) }, nil, broken},
		"in a first part": {func() io.Reader { return io.MultiReader(bytes.NewReader(bytesOf(100)), iotest.ErrReader(broken)) }, nil, broken},
		"in a later part": {func() io.Reader { return io.MultiReader(bytes.NewReader(bytesOf(12*miB)), iotest.ErrReader(broken)) }, nil, broken},
		"cut short": {func() io.Reader {
			return io.MultiReader(bytes.NewReader(bytesOf(100)), iotest.ErrReader(io.ErrUnexpectedEOF))
		}, nil, io.ErrUnexpectedEOF},
		"not what was announced": {func() io.Reader { return bytes.NewReader(bytesOf(100)) }, &s3fence.PutOptions{SHA256: make([]byte, 32)}, guard.ErrInvalid},
		"long, not what was announced": {func() io.Reader { return bytes.NewReader(bytesOf(11 * miB)) },
			&s3fence.PutOptions{SHA256: make([]byte, 32)}, guard.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			o := objects(t, open(t, server, &s3fence.Options{PartSize: 5 * miB}), s3fence.Pointer, nil)
			put(t, o, claim(5, "a"), "before")
			if err := o.Put(t.Context(), claim(6, "b"), key, streamed{c.body()}, c.opts); !errors.Is(err, c.is) {
				t.Errorf("got %v, want %v", err, c.is)
			}
			want(t, o, "before", guard.Mark{Token: 5, LeaseID: "a"})
			if uploads, data := server.Uploads(bucketName), dataKeys(server); len(uploads) != 0 || len(data) != 1 {
				t.Errorf("left: uploads %v, data %q", uploads, data)
			}
		})
	}
}

// The store failing on the way, in each request of an upload.
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
			// A single lost answer is nothing, in each of them.
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

// endless yields n bytes without holding them, and measures the live heap each
// time that so many more were read.
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

// What a long write holds in memory does not depend on its length.
func TestPointerMemory(t *testing.T) {
	size := int64(320 * miB)
	if long {
		size = 5 << 30
	}
	server := newServer(t, &s3test.Options{DiscardAbove: 64 << 10})
	o := objects(t, open(t, server, nil), s3fence.Pointer, nil)
	put(t, o, claim(1, ""), "warm")
	runtime.GC()
	before := liveHeap()
	body := &endless{left: size, each: 20 * miB}
	if err := o.Put(t.Context(), claim(2, ""), key, body, nil); err != nil {
		t.Fatal(err)
	}
	grown := int64(body.peak) - int64(before)
	t.Logf("%d MiB were written with at most %d MiB of live heap, the server's included", size/miB, grown/miB)
	if grown > 64*miB || grown < 8*miB {
		t.Errorf("the live heap grew by %d MiB, want 8 (or it was not measured) to 64", grown/miB)
	}
	object, err := o.Get(t.Context(), key)
	if err == nil {
		object.Body.Close()
		t.Error("the server kept the data, so its memory was measured")
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
