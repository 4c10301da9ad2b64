package s3fence

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// Bytes returns b as a body that is not copied: it must not change until the
// call that it is given to returns. Other bodies are read into memory first,
// but for [Pointer].
func Bytes(b []byte) io.ReadSeeker { return &lent{Reader: bytes.NewReader(b), all: b} }

type lent struct {
	*bytes.Reader
	all []byte
}

// readBody returns the bytes of a body. It reads what is not lent into memory
// of its own, so that each sending has the same bytes, whatever becomes of the
// reader meanwhile.
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
	case *os.File: // of other seekers nobody knows what seeking does
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

// rest returns what is left of the body, or else of the trailer.
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
