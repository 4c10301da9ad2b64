package s3fence

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// PutOptions is what goes with a body. The zero value sends the body alone.
type PutOptions struct {
	Headers Headers
}

// Put writes body to key under claim if the object's mark admits it under the
// rule, and replaces the mark with the claim, in one atomic step. opts may be
// nil.
//
// The claim's resource names what the lease is on, for errors and observers; the
// claim is compared with the object's own mark. Tokens of different resources are
// not comparable, so all writers of a key must hold leases on the same resource.
//
// body may be nil for an empty one, and is read once, from its current position
// to its end. [Pointer] sends it in parts; the other modes read it into memory
// first, at most Options.MaxBody, unless it is made by [Bytes].
//
// It takes one request if this Bucket has seen the object's state, else two;
// Pointer takes one more, for the data.
//
// Errors: a [*guard.RejectedError] (ErrStale, ErrSpent, ErrConflict,
// ErrUnfenced), ErrInvalid, ErrUnavailable (nothing was written),
// ErrOutcomeUnknown (the write may have taken effect, or may yet; presenting the
// same claim again is safe for the order of writers).
func (o *Objects) Put(ctx context.Context, claim guard.Claim, key string, body io.Reader, opts *PutOptions) error {
	c, err := o.begin("put", claim, key)
	if err != nil {
		return err
	}
	if opts == nil {
		opts = &PutOptions{}
	}
	h, err := opts.Headers.validate()
	if err != nil {
		return err
	}
	if o.mode == Pointer {
		admit := func(base *state) (bool, error) { return false, o.admit(claim, key, base) }
		return o.putData(ctx, c, admit, func(ctx context.Context, _ *state) (pointer, error) { return o.b.upload(ctx, c, body, h) })
	}
	if err := o.fitting(h); err != nil {
		return err
	}
	content, err := o.readBody(body)
	if err != nil {
		return err
	}
	length := int64(len(content))
	if o.mode == SealedGzip {
		content = pack(content)
	}
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		return o.bodyWrite(key, base.follow(o.mode.kind(), claim, c.id), h, content, length), nil
	}
	_, err = o.observed(ctx, guard.OpWrite, c)
	return err
}

// bodyWrite builds the write of a caller's body, sealed or plain. For kind gzip
// body is packed, and length is that of the content.
func (o *Objects) bodyWrite(key string, next state, h Headers, body []byte, length int64) *write {
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
func (o *Objects) fitting(h Headers) error {
	if o.mode != SealedGzip || h.ContentEncoding == "" || h.ContentEncoding == "gzip" {
		return nil
	}
	return guard.Invalid("Headers.ContentEncoding", h.ContentEncoding, `must be "gzip" or empty in this mode`)
}

// Bytes returns b as a body that is not copied: it must not change until the
// call that it is given to returns. Other bodies are read into memory first,
// except for [Pointer].
func Bytes(b []byte) io.ReadSeeker { return &lent{Reader: bytes.NewReader(b), all: b} }

type lent struct {
	*bytes.Reader
	all []byte
}

// readBody returns the bytes of a body. It copies what is not lent into its own
// memory, so that each sending has the same bytes, whatever happens to the reader
// meanwhile.
func (o *Objects) readBody(body io.Reader) ([]byte, error) {
	limit, size := o.b.opts.MaxBody, int64(512)
	switch r := body.(type) {
	case nil:
		return nil, nil
	case *lent:
		if int64(r.Len()) > limit {
			return nil, tooLong(int64(r.Len()), limit)
		}
		return r.all[len(r.all)-r.Len():], nil
	case interface{ Len() int }:
		size = int64(r.Len())
	case *os.File: // what seeking does on other seekers is unknown
		if info, err := r.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	content, err := readAll(body, min(size, limit), limit)
	switch {
	case err != nil:
		return nil, fmt.Errorf("s3fence: read body: %w", err) // the caller's own error, and nothing was sent
	case int64(len(content)) > limit:
		return nil, tooLong(max(size, int64(len(content))), limit)
	}
	return content, nil
}

func tooLong(size, limit int64) error {
	return guard.Invalid("body", strconv.FormatInt(size, 10)+" bytes",
		"is longer than Options.MaxBody, "+strconv.FormatInt(limit, 10)+"; use Pointer for long bodies")
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
