package s3fence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/fencepost-go/fencepost/guard"
)

// source reads the caller's data in parts and keeps its length and digests.
type source struct {
	r      endReader
	length int64
	crc    uint32
	sha    hash.Hash // nil if not asked for
	err    error     // what ended it, if it was not its end
}

// fill reads into buf until it is full or the data is at its end.
func (s *source) fill(buf []byte) (part []byte, last bool, err error) {
	n, err := io.ReadFull(&s.r, buf)
	part = buf[:n]
	s.length += int64(n)
	s.crc = crc32.Update(s.crc, castagnoli, part)
	if s.sha != nil {
		s.sha.Write(part)
	}
	// An io.ErrUnexpectedEOF of the reader's own means that the data was cut
	// short on its way to us, and is not the one that io.ReadFull makes of an end.
	if err != nil && s.r.err == io.EOF {
		return part, true, nil
	}
	if err != nil {
		s.err = fmt.Errorf("s3fence: read body: %w", err)
		return nil, false, s.err
	}
	return part, false, nil
}

// endReader remembers what a reader ended with.
type endReader struct {
	r   io.Reader
	err error
}

func (e *endReader) Read(buf []byte) (int, error) {
	n, err := e.r.Read(buf)
	if err != nil {
		e.err = err
	}
	return n, err
}

// upload stores the data of one write, under a key that no other write has, and
// returns a pointer to it. It leaves nothing behind on error.
func (b *Bucket) upload(ctx context.Context, c *change, body io.Reader, p PutOptions) (pointer, error) {
	if body == nil {
		body = bytes.NewReader(nil)
	}
	src := &source{r: endReader{r: body}}
	if p.SHA256 != nil {
		src.sha = sha256.New()
	}
	key := b.dataKey(c.key, c.claim.Token, c.id)
	made := pointer{Data: key, Token: c.claim.Token}
	first, last, err := src.fill(make([]byte, firstPart(body, b.opts.PartSize)))
	if err == nil && !last && int64(len(first)) < b.opts.PartSize {
		// The reader had more than it said.
		grown := make([]byte, b.opts.PartSize)
		n := copy(grown, first)
		var more []byte
		more, last, err = src.fill(grown[n:])
		first = grown[:n+len(more)]
	}
	switch {
	case err != nil:
		return pointer{}, err
	case last:
		if err = src.check(p); err != nil {
			return pointer{}, err
		}
		err = b.putWhole(ctx, key, p.Headers, first)
	default:
		err = b.putParts(ctx, key, p, src, first)
	}
	switch {
	case err == nil:
		made.Length, made.CRC = src.length, fmt.Sprintf("%08x", src.crc)
		return made, nil
	case src.err != nil:
		return pointer{}, src.err
	case errors.Is(err, guard.ErrInvalid):
		b.discard(ctx, c, made)
		return pointer{}, err
	}
	b.discard(ctx, c, made)
	// Data that no pointer names was not written, as far as anybody can tell.
	return pointer{}, guard.Unavailable(c.op(), c.claim, b.explain(err))
}

// firstPart keeps a short body from costing a whole part of memory.
func firstPart(body io.Reader, partSize int64) int64 {
	if sized, ok := body.(interface{ Len() int }); ok {
		return min(int64(sized.Len())+1, partSize)
	}
	return partSize
}

// check compares the digest of what was read.
func (s *source) check(p PutOptions) error {
	if s.sha == nil {
		return nil
	}
	if sum := s.sha.Sum(nil); !bytes.Equal(sum, p.SHA256) {
		return wrongDigest(sum)
	}
	return nil
}

// putWhole stores data in one request. The SDK may repeat it: the key is this
// write's alone and the bytes are the same.
func (b *Bucket) putWhole(ctx context.Context, key string, h Headers, data []byte) error {
	in := b.put(key, h, h.Metadata, data)
	_, err := b.client.PutObject(ctx, in)
	return err
}

// stored reports that data of that length is under key: after a lost answer,
// completing an upload once more says that there is no such upload.
func (b *Bucket) stored(ctx context.Context, key string, length int64) bool {
	out, err := b.head(ctx, key)
	return err == nil && aws.ToInt64(out.ContentLength) == length
}

func tooManyParts(partSize int64) error {
	return guard.Invalid("body", "", "is longer than "+strconv.Itoa(maxParts)+" parts of "+strconv.FormatInt(partSize, 10)+
		" bytes; set Options.PartSize higher")
}
