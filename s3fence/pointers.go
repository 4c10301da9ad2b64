package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Pointers are fenced objects whose content is under another key: a foreign reader
// of the key sees a small JSON document that names it. Create them with
// [Bucket.Pointers]; all writers of a key must use Pointers, under one rule. They
// are safe for concurrent use.
//
// Bodies are not held in memory, and what was written never changes. It costs one
// more request for each write and read, and needs a collector ([Pointers.Collect]).
type Pointers struct{ fenced }

// Pointers returns the bucket's objects that are pointers.
// Errors: as [Bucket.Objects].
func (b *Bucket) Pointers(opts *ObjectsOptions) (*Pointers, error) {
	f, err := b.fenced(kindPointer, opts)
	if err != nil {
		return nil, err
	}
	return &Pointers{f}, nil
}

// Put stores body under a key of its own and makes key point to it under claim, if
// the pointer's mark admits the claim under the rule.
//
// If the claim is refused, the pointer stays as it is. If Put fails, the reader is left where
// it was; if the body was stored by then, it stays until [Pointers.Collect].
//
// body is nil for an empty one; otherwise it is sent from where it stands to its
// end, at most 5 GiB, and stored whole or not at all. A reader that stands at its end, but
// not at its start, is ErrInvalid, because somebody has read what was to be written. h, of
// which [Headers] of the data are made, may be nil.
//
// It takes two requests if this Bucket has seen the pointer's version, else three.
//
// Errors: as [Objects.Put].
func (o *Pointers) Put(ctx context.Context, claim guard.Claim, key string, body io.ReadSeeker, h *Headers) error {
	c, err := o.begin(ctx, guard.OpWrite, "put", claim, key)
	if err != nil {
		return err
	}
	headers, err := o.storable(h, 0)
	if err != nil {
		return err
	}
	from, err := take(body)
	if err != nil {
		return err
	}
	var made pointer
	var failed error
	c.next = func(ctx context.Context, base *version) (*update, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if made.Data == "" && failed == nil { // now, so that a stale writer does not send it for nothing
			made, failed = o.b.upload(ctx, c, from, headers)
		}
		if failed != nil {
			return nil, failed
		}
		return base.follow(kindPointer, claim, c.id).pointing(key, base, made, o.b.opts.GracePeriod), nil
	}
	if err = o.run(ctx, c); err == nil {
		return nil
	}
	_, back := from.Seek(from.start, io.SeekStart)
	return errors.Join(err, back)
}

// data is a caller's body on its way into the store. The SDK reads it more than once.
type data struct {
	io.ReadSeeker
	start, length int64
	// read and crc are of the bytes since the start was last sought.
	read int64
	crc  uint32
	// whole is the checksum of a reading of all of it; the last one may end early,
	// since a store that has the data refuses to take it again.
	whole    uint32
	complete bool  // there was one
	changed  bool  // two of them differ
	err      error // the caller's own
}

// take prepares a caller's body. It reads nothing.
func take(body io.ReadSeeker) (*data, error) {
	if body == nil {
		body = bytes.NewReader(nil)
	}
	d := &data{ReadSeeker: body}
	end, err := int64(0), error(nil)
	if d.start, err = body.Seek(0, io.SeekCurrent); err == nil {
		if end, err = body.Seek(0, io.SeekEnd); err == nil {
			_, err = body.Seek(d.start, io.SeekStart)
		}
	}
	switch d.length = end - d.start; {
	case err != nil: // a pipe is also an *os.File
		return nil, guard.Invalid("body", "", "must be one that can be read again: "+err.Error())
	case d.length <= 0 && d.start > 0:
		return nil, guard.Invalid("body", "", "has nothing left to read; give nil for an empty body")
	case d.length > maxSinglePut:
		return nil, guard.Invalid("body", strconv.FormatInt(d.length, 10)+" bytes", "is longer than 5 GiB")
	}
	return d, nil
}

func (d *data) Read(p []byte) (int, error) {
	n, err := d.ReadSeeker.Read(p)
	d.read += int64(n)
	d.crc = crc32.Update(d.crc, castagnoli, p[:n])
	if n > 0 && d.read == d.length {
		d.changed = d.changed || d.complete && d.crc != d.whole
		d.whole, d.complete = d.crc, true
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("s3fence: read body: %w", err)
		d.err = err
	}
	return n, err
}

func (d *data) Seek(offset int64, whence int) (int64, error) {
	at, err := d.ReadSeeker.Seek(offset, whence)
	if at == d.start {
		d.read, d.crc = 0, 0
	}
	return at, err
}

// upload stores the data of one write, under a key that no other write has, and
// returns a pointer to it. It leaves nothing behind on error.
//
// The SDK may send it again: only this write uses the key, and the bytes are the same. The
// condition is for buckets whose policy refuses writes without one; it fails only
// after a response that was lost, and then the data is there.
func (b *Bucket) upload(ctx context.Context, c *change, from *data, h Headers) (pointer, error) {
	made := pointer{Data: b.dataKey(c.key, c.claim.Token, c.id), Token: c.claim.Token}
	got := b.put(ctx, made.Data, noObject, payload{headers: h, metadata: h.Metadata, from: from, length: from.length, again: true})
	if (got.outcome == mismatch || got.outcome == unknown) && b.stored(ctx, made.Data, from.length) {
		got = result{outcome: applied}
	}
	if got.outcome == applied && !from.changed && (from.complete || from.length == 0) {
		made.Length, made.CRC = from.length, fmt.Sprintf("%08x", from.whole)
		return made, nil
	}
	b.discard(ctx, made.Data)
	switch {
	case from.err != nil:
		return pointer{}, from.err
	case got.outcome == applied:
		return pointer{}, guard.Invalid("body", "", "was changed while it was read")
	}
	// Data that no pointer names counts as not written.
	return pointer{}, guard.Unavailable(c.name(), c.claim, got.err)
}

// stored reports whether data of that length is under key.
func (b *Bucket) stored(ctx context.Context, key string, length int64) bool {
	o, err := b.open(ctx, key)
	if err != nil {
		return false
	}
	o.body.Close()
	return o.size == length
}

// discard deletes data that no pointer names, because it was not stored whole. Once a pointer
// has left, its data is the collector's. If the context has ended, it takes no longer than the
// read that resolves a write does then.
func (b *Bucket) discard(ctx context.Context, key string) {
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.RequestTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(resolveTimeout, cancel) })()
	_ = b.remove(detached, key) // the collector finds what stays
}

// Get reads an object, its mark, headers and metadata. The result is never older
// than the last write that was acknowledged before the call. The body comes from
// the store while it is read, and is verified at its end: the last Read returns a
// [*DamagedError] in place of io.EOF if it is not what was written. So act on nothing
// before io.EOF.
//
// Errors: as [Objects.Get].
func (o *Pointers) Get(ctx context.Context, key string) (*Object, error) { return o.get(ctx, key) }

// Collected reports what [Pointers.Collect] did.
type Collected struct {
	// Pointers is how many pointers and tombstones were examined.
	Pointers int64
	// Deleted is how many data objects were deleted, Bytes their length.
	Deleted, Bytes int64
	// Skipped is how many objects were not deleted because they could not be
	// verified, or the store did not let them be read or deleted. Err joins the
	// errors of the first 100; each names its key.
	Skipped int64
	Err     error
}

const maxSkipErrors = 100

// skip counts an object that stays.
func (c *Collected) skip(err error) {
	if c.Skipped++; c.Skipped <= maxSkipErrors {
		c.Err = errors.Join(c.Err, err)
	}
}

// Collect deletes the data that pointers and tombstones with the given key
// prefix have left for longer than the grace period. It may run anywhere, at
// any time, alongside writers, readers and other collectors; running it again
// resumes after an interruption.
//
// It deletes only data that no pointer can name any more: data of a lower token
// than the pointer's mark, whose writer, however long it was paused, would now
// be refused; and data of the mark's own token that the pointer lists as
// replaced. It never deletes what the pointer points to. All times are the store's.
// Data that a crashed writer left under the highest token so far is deleted once the
// token grows; data without any pointer stays.
//
// Errors: ErrInvalid for a prefix that no key has; ErrUnavailable and ErrSetup if the
// store cannot be asked any more, with what was done before.
func (o *Pointers) Collect(ctx context.Context, prefix string) (Collected, error) {
	var done Collected
	c := &change{verb: "collect", key: prefix}
	if err := c.ended(ctx); err != nil {
		return done, err
	}
	for e, err := range o.b.listed(ctx, prefix) {
		switch {
		case err == nil && e.err != nil:
			done.skip(guard.Unavailable((&change{verb: "collect", key: e.Key}).name(), guard.Claim{}, e.err))
		// An object longer than a tail is not a pointer.
		case err == nil && !internal(e.Key) && e.StoredSize <= tailSize:
			err = o.b.collect(ctx, e.Key, &done)
		}
		if err != nil {
			return done, c.unavailable(err)
		}
	}
	return done, nil
}

// collect deletes what one pointer has left.
func (b *Bucket) collect(ctx context.Context, key string, done *Collected) error {
	c := &change{verb: "collect", key: key}
	v, err := b.read(ctx, key, false)
	switch {
	case ofOneObject(err):
		done.skip(c.unavailable(err))
		return nil
	case err != nil:
		return err
	case v.kind != kindPointer && v.kind != kindTombstone:
		return nil
	}
	done.Pointers++
	p, prefix := v.pointer(), b.dataPrefix(key)
	for e, err := range b.listed(ctx, prefix) {
		if err != nil {
			return err
		}
		token, id, ok := parseDataKey(strings.TrimPrefix(e.Key, prefix))
		if !ok || e.Key == p.Data || !v.left(p, token, id, b.opts.GracePeriod) {
			continue
		}
		switch r := b.remove(ctx, e.Key); {
		case r.outcome == applied:
			done.Deleted++
			done.Bytes += e.StoredSize
		case ofOneObject(r.err):
			c.verb = "collect data of"
			done.skip(guard.Unavailable(c.name()+": delete "+strconv.QuoteToASCII(e.Key), guard.Claim{}, r.err))
		default:
			return r.err
		}
	}
	return nil
}
