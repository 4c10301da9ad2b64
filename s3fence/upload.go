package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/fencepost-go/fencepost/guard"
)

// source reads the caller's data in parts and keeps its length and checksum.
type source struct {
	r      io.Reader
	length int64
	crc    uint32
	err    error // what ended it before its end, if anything
}

// fill reads into buf until it has size bytes or the data ends. It grows buf as
// needed, so that a short body does not cost a whole part.
func (s *source) fill(buf []byte, size int) (part []byte, last bool, err error) {
	part = buf[:0]
	for len(part) < size && !last {
		if len(part) == cap(part) {
			part = slices.Grow(part, min(max(len(part), 64<<10), size-len(part)))
		}
		n, err := s.r.Read(part[len(part):min(cap(part), size)])
		part = part[:len(part)+n]
		if last = err == io.EOF; err != nil && !last {
			s.err = err
			return nil, false, s.err
		}
	}
	s.length += int64(len(part))
	s.crc = crc32.Update(s.crc, castagnoli, part)
	return part, last, nil
}

// storeBody is a body that the store sends. What ends it before its end is the
// store's failure, not one of the caller's reader.
type storeBody struct {
	r io.Reader
	b *Bucket
	c *change
}

func (s storeBody) Read(buf []byte) (int, error) {
	n, err := s.r.Read(buf)
	if err != nil && err != io.EOF {
		err = s.b.unread(s.c, err)
	}
	return n, err
}

// upload stores the data of one write, under a key that no other write has, and
// returns a pointer to it. It leaves nothing behind on error.
func (b *Bucket) upload(ctx context.Context, c *change, body io.Reader, h Headers) (pointer, error) {
	src := &source{r: body}
	made := pointer{Data: b.dataKey(c.key, c.claim.Token, c.id), Token: c.claim.Token}
	first, last, err := src.fill(nil, int(b.opts.PartSize))
	switch {
	case err != nil:
	case last:
		err = b.putWhole(ctx, made.Data, h, first)
	default:
		err = b.putParts(ctx, made.Data, h, src, first)
	}
	switch {
	case err == nil:
		made.Length, made.CRC = src.length, fmt.Sprintf("%08x", src.crc)
		return made, nil
	case src.err != nil:
		return pointer{}, src.err
	}
	b.discard(ctx, c, made)
	if errors.Is(err, guard.ErrInvalid) {
		return pointer{}, err
	}
	// Data that no pointer names counts as not written.
	return pointer{}, guard.Unavailable(c.op(), c.claim, b.explain(err))
}

// putWhole stores data in one request. The SDK may retry it: only this write uses
// the key, and the bytes are the same. The condition is for buckets whose policy
// refuses writes without one; it fails only after an answer that was lost.
func (b *Bucket) putWhole(ctx context.Context, key string, h Headers, data []byte) error {
	in := b.put(key, h, h.Metadata, data)
	in.IfNoneMatch = aws.String("*")
	_, err := b.client.PutObject(ctx, in)
	if classify(err) == outcomeNotMatched && b.stored(ctx, key, int64(len(data))) {
		return nil
	}
	return err
}

// stored reports whether data of that length is under key.
func (b *Bucket) stored(ctx context.Context, key string, length int64) bool {
	out, err := b.client.GetObject(ctx, b.get(key, 0))
	if err != nil {
		return false
	}
	out.Body.Close()
	return aws.ToInt64(out.ContentLength) == length
}

func tooManyParts(partSize int64) error {
	return guard.Invalid("body", "", "is longer than "+strconv.Itoa(maxParts)+" parts of "+strconv.FormatInt(partSize, 10)+
		" bytes; set Options.PartSize higher")
}

// maxParts is how many parts S3 takes; it is a variable only for tests.
var maxParts = 10_000

// parts is a multipart upload under way.
type parts struct {
	b   *Bucket
	key string
	id  *string

	mu   sync.Mutex
	done []types.CompletedPart
	err  error
}

// putParts stores data in parts, of which Concurrency are in memory and in
// flight at once. Reading waits for a free buffer, so a fast reader needs no
// more memory. A failed upload is aborted.
func (b *Bucket) putParts(ctx context.Context, key string, h Headers, src *source, first []byte) (err error) {
	created, err := b.client.CreateMultipartUpload(ctx, b.createUpload(key, h))
	if err != nil {
		return err
	}
	u := &parts{b: b, key: key, id: created.UploadId}
	defer func() {
		if err != nil {
			u.abort(ctx)
		}
	}()
	if err := u.send(ctx, src, first); err != nil {
		return err
	}
	slices.SortFunc(u.done, func(x, y types.CompletedPart) int { return int(*x.PartNumber - *y.PartNumber) })
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &b.name, Key: &key, UploadId: u.id, ExpectedBucketOwner: str(b.opts.ExpectedBucketOwner),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: u.done}, IfNoneMatch: aws.String("*"),
	}
	if _, err := b.client.CompleteMultipartUpload(ctx, in); err != nil && !b.stored(ctx, key, src.length) {
		return err
	}
	return nil
}

// send reads and sends all parts and waits for them. The error is of the first
// part that failed, or of the reader.
func (u *parts) send(ctx context.Context, src *source, first []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // first, so that nothing waits for parts of a failed upload
	free := make(chan []byte, u.b.opts.Concurrency)
	for range u.b.opts.Concurrency - 1 {
		free <- nil // made when it is first needed
	}
	part, last := first, false
	for number := int32(1); ; number++ {
		if int(number) > maxParts {
			return tooManyParts(u.b.opts.PartSize)
		}
		sending := part
		wg.Go(func() {
			if err := u.put(ctx, number, sending); err != nil {
				u.fail(err)
				cancel()
			}
			free <- sending[:cap(sending)] // has room for all buffers
		})
		if last {
			break
		}
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			wg.Wait()
			return u.firstError(ctx)
		}
		var err error
		if part, last, err = src.fill(buf, int(u.b.opts.PartSize)); err != nil {
			return err
		}
		if last && len(part) == 0 {
			break
		}
	}
	wg.Wait()
	return u.firstError(ctx)
}

func (u *parts) put(ctx context.Context, number int32, part []byte) error {
	in := &s3.UploadPartInput{
		Bucket: &u.b.name, Key: &u.key, UploadId: u.id, PartNumber: &number,
		Body: bytes.NewReader(part), ContentLength: aws.Int64(int64(len(part))),
		ChecksumAlgorithm: u.b.opts.ChecksumAlgorithm, ExpectedBucketOwner: str(u.b.opts.ExpectedBucketOwner),
	}
	out, err := u.b.client.UploadPart(ctx, in)
	if err != nil {
		return err
	}
	done := types.CompletedPart{PartNumber: &number, ETag: out.ETag}
	// The SDK may send checksums of parts on its own without announcing them
	// when it creates the upload. The store then has none to compare them with.
	if u.b.opts.ChecksumAlgorithm != "" {
		done.ChecksumCRC32, done.ChecksumCRC32C, done.ChecksumCRC64NVME = out.ChecksumCRC32, out.ChecksumCRC32C, out.ChecksumCRC64NVME
		done.ChecksumSHA1, done.ChecksumSHA256 = out.ChecksumSHA1, out.ChecksumSHA256
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done = append(u.done, done)
	return nil
}

func (u *parts) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err == nil { // the other errors only follow from the cancel
		u.err = err
	}
}

func (u *parts) firstError(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err == nil {
		return context.Cause(ctx)
	}
	return u.err
}

// abort frees the parts, whatever ended the upload. A lifecycle rule of the
// bucket must remove what it misses.
func (u *parts) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.b.opts.RequestTimeout)
	defer cancel()
	_, _ = u.b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &u.b.name, Key: &u.key, UploadId: u.id, ExpectedBucketOwner: str(u.b.opts.ExpectedBucketOwner),
	})
}

func (b *Bucket) createUpload(key string, h Headers) *s3.CreateMultipartUploadInput {
	p := b.put(key, h, h.Metadata, nil) // the same headers as for a single PUT
	return &s3.CreateMultipartUploadInput{
		Bucket: p.Bucket, Key: p.Key, ExpectedBucketOwner: p.ExpectedBucketOwner, ChecksumAlgorithm: p.ChecksumAlgorithm,
		Metadata: p.Metadata, ContentType: p.ContentType, CacheControl: p.CacheControl, Expires: p.Expires,
		ContentDisposition: p.ContentDisposition, ContentEncoding: p.ContentEncoding, ContentLanguage: p.ContentLanguage,
		StorageClass: p.StorageClass, ServerSideEncryption: p.ServerSideEncryption, SSEKMSKeyId: p.SSEKMSKeyId,
		SSEKMSEncryptionContext: p.SSEKMSEncryptionContext, BucketKeyEnabled: p.BucketKeyEnabled,
	}
}
