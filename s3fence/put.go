package s3fence

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// Put writes body to key under claim if the object's mark admits it under the
// rule, and replaces the mark with the claim, in one atomic step. h may be nil.
//
// The claim's resource names what the lease is on, for errors and observers; the
// claim is compared with the object's own mark. Tokens of different resources are
// not comparable, so all writers of a key must hold leases on the same resource.
//
// body is nil for an empty one; otherwise it is read from its current position to
// its end, and stored whole or not at all. [Pointers] send it in parts; [Objects]
// read it into memory first, at most Options.MaxBody, unless it is made by
// [Bytes]. If Put fails, an [io.Seeker] and a [*bytes.Buffer] are left where they
// were. Any other reader serves one Put: one that has ended, or was read in part
// by a Put that failed, is ErrInvalid, because what is left of it is not the body.
//
// It takes one request if this Bucket has seen the object's state, else two;
// a pointer takes one more, for the data.
//
// Errors: a [*guard.RejectedError] (ErrStale, ErrSpent, ErrConflict,
// ErrUnfenced), ErrInvalid, ErrUnavailable (nothing was written),
// ErrOutcomeUnknown (the write may have taken effect, or may yet; presenting the
// same claim again is safe for the order of writers).
func (o *fenced) Put(ctx context.Context, claim guard.Claim, key string, body io.Reader, h *Headers) (err error) {
	c, err := o.begin("put", claim, key)
	if err != nil {
		return err
	}
	if h == nil {
		h = &Headers{}
	}
	headers, err := h.validate()
	if err != nil {
		return err
	}
	given, err := o.b.take(body)
	if err != nil {
		return err
	}
	defer func() { given.done(err) }()
	if o.kind == kindPointer {
		admit := func(base *state) (bool, error) { return false, o.admit(claim, key, base) }
		return o.putData(ctx, c, admit, func(ctx context.Context, _ *state) (pointer, error) { return o.b.upload(ctx, c, given, headers) })
	}
	if err := o.fitting(headers); err != nil {
		return err
	}
	content, err := given.all(o.b.opts.MaxBody)
	if err != nil {
		return err
	}
	length := int64(len(content))
	if o.kind == kindGzip {
		content = pack(content)
	}
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		return o.bodyWrite(key, base.follow(o.kind, claim, c.id), headers, content, length), nil
	}
	_, err = o.observed(ctx, guard.OpWrite, c)
	return err
}

// bodyWrite builds the write of a caller's body, sealed or plain. For kind gzip
// body is packed, and length is that of the content.
func (o *fenced) bodyWrite(key string, next state, h Headers, body []byte, length int64) *write {
	if next.kind == kindGzip {
		next.content = length
	}
	if next.kind == kindPlain {
		next.size, next.md5 = int64(len(body)), md5.Sum(body)
		return &write{in: o.b.put(key, h, next.metadata(h.Metadata), nil), body: body, state: next, opaque: o.repeatable}
	}
	return o.b.sealedWrite(key, next, h, body)
}

// fitting refuses headers that a gzip file cannot be served with.
func (o *fenced) fitting(h Headers) error {
	if o.kind != kindGzip || h.ContentEncoding == "" || h.ContentEncoding == "gzip" {
		return nil
	}
	return guard.Invalid("Headers.ContentEncoding", h.ContentEncoding, `must be "gzip" or empty in this mode`)
}

// Bytes returns b as a body that is not copied: it must not change until the
// call that it is given to returns. The call does not read it off, so it may be
// given to another. Other bodies are read into memory first, except for
// [Pointers].
func Bytes(b []byte) io.ReadSeeker { return &lent{Reader: bytes.NewReader(b), bytes: b} }

type lent struct {
	*bytes.Reader
	bytes []byte
}

// input is a caller's body on its way into the store.
type input struct {
	io.Reader
	b *Bucket
	// memory is the rest of a body that is in memory, unless that is nil.
	memory []byte
	// empty says that no byte is what the caller has declared.
	empty bool
	read  int64
	// size is how many bytes to expect.
	size int64
	// back undoes the reading, and end completes it; either may be nil.
	back func() error
	end  func()
}

var errUsedUp = guard.Invalid("body", "", "has nothing left to read; give nil for an empty body, and a new reader for a second try")

// take prepares a caller's body. It reads nothing.
func (b *Bucket) take(body io.Reader) (*input, error) {
	in := &input{Reader: body, b: b, size: 512}
	switch r := body.(type) {
	case nil:
		in.empty, in.Reader = true, bytes.NewReader(nil)
		return in, nil
	case *lent:
		in.empty = len(r.bytes) == 0
		in.memory = r.bytes[len(r.bytes)-r.Len():]
		in.Reader = bytes.NewReader(in.memory)
		return in, nil
	case *bytes.Buffer:
		in.Reader, in.size = bytes.NewReader(r.Bytes()), int64(r.Len())
		in.end = r.Reset
		return in, nil
	case io.Seeker:
		if at, err := r.Seek(0, io.SeekCurrent); err == nil { // a pipe is a Seeker that fails
			in.empty = at == 0
			in.back = func() error {
				_, err := r.Seek(at, io.SeekStart)
				return err
			}
		}
	}
	switch r := body.(type) {
	case interface{ Len() int }:
		in.size = int64(r.Len())
	case *os.File:
		if info, err := r.Stat(); err == nil && info.Mode().IsRegular() {
			in.size = info.Size()
		}
	}
	if in.back == nil && b.brokenOff(body) {
		return nil, guard.Invalid("body", "", "was read in part by a Put that failed; give a new reader")
	}
	return in, nil
}

func (in *input) Read(p []byte) (int, error) {
	n, err := in.Reader.Read(p)
	in.read += int64(n)
	switch {
	case err == nil:
		return n, nil
	case err != io.EOF:
		return n, fmt.Errorf("s3fence: read body: %w", err) // the caller's own error
	case in.read == 0 && !in.empty:
		return n, errUsedUp
	}
	return n, io.EOF
}

// all returns the bytes of the body. It copies what is not lent, so that each
// sending has the same bytes, whatever happens to the reader meanwhile.
func (in *input) all(limit int64) ([]byte, error) {
	if len(in.memory) > 0 {
		if int64(len(in.memory)) > limit {
			return nil, tooLong(int64(len(in.memory)), limit)
		}
		return in.memory, nil
	}
	content, err := readAll(in, min(in.size, limit), limit)
	if err == nil && int64(len(content)) > limit {
		err = tooLong(max(in.size, int64(len(content))), limit)
	}
	return content, err
}

// done leaves the caller's reader at its end or, if the call has failed, where it
// was.
func (in *input) done(err error) {
	switch {
	case err == nil && in.end != nil:
		in.end()
	case err == nil, in.end != nil, in.memory != nil, in.read == 0:
	case in.back == nil || in.back() != nil:
		in.b.breakOff(in.Reader)
	}
}

// brokenOff reports whether a Put has failed after reading r in part. Only readers
// that cannot be put back are remembered, and only the last few.
func (b *Bucket) brokenOff(r io.Reader) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return reflect.ValueOf(r).Comparable() && slices.Contains(b.broken, r)
}

// maxBroken bounds how many readers are remembered.
const maxBroken = 64

func (b *Bucket) breakOff(r io.Reader) {
	if !reflect.ValueOf(r).Comparable() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.broken) == maxBroken {
		b.broken = slices.Delete(b.broken, 0, 1)
	}
	b.broken = append(b.broken, r)
}

func tooLong(size, limit int64) error {
	return guard.Invalid("body", strconv.FormatInt(size, 10)+" bytes",
		"is longer than Options.MaxBody, "+strconv.FormatInt(limit, 10)+"; use Pointers for long bodies")
}

// joined reads a body and its trailer as one, without joining them in memory.
// Each sending has its own.
type joined struct {
	body, trailer []byte
	at            int64
}

func (j *joined) size() int64 { return int64(len(j.body) + len(j.trailer)) }

// rest returns the rest of the body or, after it, of the trailer.
func (j *joined) rest() []byte {
	if j.at < int64(len(j.body)) {
		return j.body[j.at:]
	}
	if j.at < j.size() {
		return j.trailer[j.at-int64(len(j.body)):]
	}
	return nil
}

func (j *joined) Read(p []byte) (int, error) {
	if j.at >= j.size() {
		return 0, io.EOF
	}
	n := copy(p, j.rest())
	if n < len(p) && j.at < int64(len(j.body)) {
		n += copy(p[n:], j.trailer)
	}
	j.at += int64(n)
	return n, nil
}

// WriteTo saves the SDK's checksums a buffer.
func (j *joined) WriteTo(w io.Writer) (total int64, err error) {
	for part := j.rest(); len(part) > 0; part = j.rest() {
		n, err := w.Write(part)
		j.at += int64(n)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (j *joined) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += j.at
	case io.SeekEnd:
		offset += j.size()
	}
	if offset < 0 {
		return 0, errors.New("s3fence: seek before the start of a body")
	}
	j.at = offset
	return offset, nil
}
