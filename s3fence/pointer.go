package s3fence

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

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
// the pointer's mark admits the claim under the rule. h, of which [Headers] of the
// data are made, may be nil.
//
// body is nil for an empty one; otherwise it is sent from where it stands to its
// end, at most 5 GiB, and stored whole or not at all: if Put fails, the reader is
// left where it was. A reader that stands at its end, but not at its start, is
// ErrInvalid, because somebody has read what was to be written.
//
// It takes two requests if this Bucket has seen the pointer's state, else three.
// Errors: as [Objects.Put].
func (o *Pointers) Put(ctx context.Context, claim guard.Claim, key string, body io.ReadSeeker, h *Headers) error {
	c, err := o.begin("put", claim, key)
	if err != nil {
		return err
	}
	headers, err := h.validate()
	if err != nil {
		return err
	}
	from, err := take(body)
	if err != nil {
		return err
	}
	var made pointer
	var failed error
	c.next = func(ctx context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if made.Data == "" && failed == nil { // now, so that a stale writer does not send it for nothing
			made, failed = o.b.upload(ctx, c, from, headers)
		}
		if failed != nil {
			return nil, failed
		}
		return o.b.pointerWrite(key, base, base.follow(kindPointer, claim, c.id), made), nil
	}
	if _, err = o.observed(ctx, guard.OpWrite, c); err == nil {
		return nil
	}
	if made.Data != "" {
		o.b.discard(ctx, c, made)
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
// The SDK may retry it: only this write uses the key, and the bytes are the same. The
// condition is for buckets whose policy refuses writes without one; it fails only
// after a response that was lost.
func (b *Bucket) upload(ctx context.Context, c *change, from *data, h Headers) (pointer, error) {
	made := pointer{Data: b.dataKey(c.key, c.claim.Token, c.id), Token: c.claim.Token}
	in := b.put(made.Data, h, h.Metadata)
	in.Body, in.ContentLength, in.IfNoneMatch = from, &from.length, aws.String("*")
	_, err := b.client.PutObject(ctx, in)
	if classify(err) == outcomeNotMatched && b.stored(ctx, made.Data, from.length) {
		err = nil
	}
	if err == nil && !from.changed && (from.complete || from.length == 0) {
		made.Length, made.CRC = from.length, fmt.Sprintf("%08x", from.whole)
		return made, nil
	}
	b.discard(ctx, c, made)
	switch {
	case from.err != nil:
		return pointer{}, from.err
	case err == nil:
		return pointer{}, guard.Invalid("body", "", "was changed while it was read")
	}
	// Data that no pointer names counts as not written.
	return pointer{}, guard.Unavailable(c.op(), c.claim, b.explain(err))
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

// maxFollows bounds how often a reader follows a pointer that moves during the
// read.
const maxFollows = 16

// Get reads an object, its mark, headers and metadata. The result is never older
// than the last write that was acknowledged before the call. The body comes from
// the store while it is read, and is verified at its end: the last Read returns a
// [*DamagedError] in place of io.EOF if it is not what was written. So act on nothing
// before io.EOF.
//
// Errors: as [Objects.Get].
func (o *Pointers) Get(ctx context.Context, key string) (*Object, error) {
	last := ""
	for range maxFollows {
		out, s, err := o.found(ctx, "get", key, false)
		if err != nil {
			return nil, err
		}
		there, err := o.b.open(ctx, out, s.pointer())
		if err == nil && !there && s.etag == last { // and the pointer has not moved
			err = damaged(key, "its data "+quoteShort(s.pointer().Data)+" is gone")
		}
		if err != nil {
			return nil, o.b.unread(reading("get", key), err)
		}
		if there {
			return out, nil
		}
		last = s.etag
	}
	return nil, guard.Unavailable(opName("get", key), guard.Claim{}, errors.New("the object was changed while it was read; try again"))
}

// open opens the data of a pointer. It reports false if it is not there.
func (b *Bucket) open(ctx context.Context, out *Object, p pointer) (bool, error) {
	got, err := b.client.GetObject(ctx, b.get(p.Data, 0))
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h, err := headOf(got)
	if err != nil {
		got.Body.Close()
		return false, err
	}
	out.Headers, out.DataKey, out.Size = h.headers, p.Data, p.Length
	out.Body = &verifier{ReadCloser: got.Body, key: out.Key, left: p.Length, want: p.CRC}
	return true, nil
}

// verifier compares data, while it is read, with what the pointer says.
type verifier struct {
	io.ReadCloser
	key  string
	left int64
	crc  uint32
	want string
}

func (v *verifier) Read(buf []byte) (int, error) {
	n, err := v.ReadCloser.Read(buf)
	v.crc = crc32.Update(v.crc, castagnoli, buf[:n])
	v.left -= int64(n)
	switch {
	case v.left < 0:
		err = damaged(v.key, "its data is longer than its pointer says")
	case err == io.EOF && v.left > 0:
		err = damaged(v.key, "its data is shorter than its pointer says")
	case err == io.EOF && fmt.Sprintf("%08x", v.crc) != v.want:
		err = damaged(v.key, "its data does not match the checksum in its pointer")
	}
	return n, err
}

// pointer is the body of a pointer, and of a tombstone, which points nowhere.
type pointer struct {
	Note string `json:"note,omitempty"`
	// Data is the key of the data, "" for a tombstone.
	Data string `json:"data,omitempty"`
	// Token is the token of the write that made the data; a raise keeps it. For
	// a tombstone it is the deletion's.
	Token guard.Token `json:"token"`
	// Length and CRC, CRC-32C in hexadecimal, are the data's.
	Length int64  `json:"length,omitempty"`
	CRC    string `json:"crc32c,omitempty"`

	// Settled and Later say since when the pointer has been at data of at
	// least that token, so that a collector knows when older data was left,
	// even if the pointer never goes unchanged for a grace period. Later is
	// replaced once it is a grace period older than its successor.
	Settled *since `json:"settled,omitempty"`
	Later   *since `json:"later,omitempty"`
}

// complete reports whether p has all that a pointer must have.
func (p pointer) complete() bool {
	sum, err := hex.DecodeString(p.CRC)
	crc := err == nil && len(sum) == crc32.Size && p.CRC == hex.EncodeToString(sum)
	return p.Data != "" && p.Token.Valid() && p.Length >= 0 && crc
}

type since struct {
	Token guard.Token `json:"token"`
	At    time.Time   `json:"at"`
}

// pointer returns the pointer in s; the zero value if s is none.
func (s *state) pointer() (p pointer) {
	if s.kind != kindPointer && s.kind != kindTombstone {
		return p
	}
	if json.Unmarshal(s.body, &p) != nil { // parse has checked that a pointer can be read
		return pointer{}
	}
	return p
}

// encodeJSON encodes what this package stores. Markup stays unescaped, so that
// no key makes a pointer longer than the tail that readers fetch.
func encodeJSON(v any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("s3fence: encode: " + err.Error()) // it is text, numbers and times
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// after returns p with what is known when base is about to be replaced: the
// pointer has been at base's data since base was stored.
func (p pointer) after(base *state, grace time.Duration) pointer {
	if p.Token == guard.NoToken || base.modified.IsZero() {
		return p
	}
	now := since{Token: p.Token, At: base.modified.UTC().Truncate(time.Millisecond)}
	switch {
	case p.Later == nil:
		p.Later = &now
	case now.Token > p.Later.Token && now.At.Sub(p.Later.At) >= grace:
		p.Settled, p.Later = p.Later, &now
	}
	return p
}

// pointerWrite builds the write of p over base.
func (b *Bucket) pointerWrite(key string, base *state, next state, p pointer) *write {
	old := base.pointer().after(base, b.opts.GracePeriod)
	p.Note, p.Settled, p.Later = "fenced pointer; the object's bytes are under the key in data", old.Settled, old.Later
	return b.sealedWrite(key, next, Headers{ContentType: "application/json"}, encodeJSON(p))
}

// discard deletes data that no pointer will ever name: its pointer was never
// sent, or reads showed each sending to be lost. Otherwise the data stays, and
// the collector finds it if no pointer names it.
func (b *Bucket) discard(ctx context.Context, c *change, made pointer) {
	if c.exposed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.RequestTimeout)
	defer cancel()
	_ = b.remove(ctx, made.Data) // the collector finds what stays
}

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
// replaced. It never deletes what the pointer points to. Data that a crashed
// writer left under the highest token so far is deleted once the token grows;
// data without any pointer stays.
//
// Errors: ErrUnavailable, if the store cannot be asked any more, with what was
// done before.
func (o *Pointers) Collect(ctx context.Context, prefix string) (Collected, error) {
	var done Collected
	c := &change{verb: "collect", key: prefix}
	if err := c.ended(ctx); err != nil {
		return done, err
	}
	for object, err := range o.b.list(ctx, prefix) {
		key := aws.ToString(object.Key)
		// An object longer than a tail is not a pointer.
		if err == nil && !internal(key) && aws.ToInt64(object.Size) <= tailSize {
			err = o.b.collect(ctx, key, &done)
		}
		if err != nil {
			return done, guard.Unavailable(c.op(), c.claim, o.b.explain(err))
		}
	}
	return done, nil
}

// collect deletes what one pointer has left.
func (b *Bucket) collect(ctx context.Context, key string, done *Collected) error {
	s, err := b.look(ctx, key, tailSize)
	if skippable(err) {
		done.skip(guard.Unavailable(opName("collect", key), guard.Claim{}, b.explain(err)))
		return nil
	}
	if err != nil {
		return err
	}
	if s.kind != kindPointer && s.kind != kindTombstone {
		return nil
	}
	done.Pointers++
	p := s.pointer()
	prefix := b.dataPrefix(key)
	now := b.clock()
	for object, err := range b.list(ctx, prefix) {
		if err != nil {
			return err
		}
		name := aws.ToString(object.Key)
		token, id, ok := parseDataKey(strings.TrimPrefix(name, prefix))
		if !ok || name == p.Data || !b.left(&s, p, token, id, now) {
			continue
		}
		switch err := b.remove(ctx, name); {
		case err == nil:
			done.Deleted++
			done.Bytes += aws.ToInt64(object.Size)
		case skippable(err):
			done.skip(guard.Unavailable(opName("collect data of", key)+": delete "+strconv.QuoteToASCII(name), guard.Claim{}, b.explain(err)))
		default:
			return err
		}
	}
	return nil
}

// left reports whether the pointer has not been at the data for a grace period
// and never will be again. Nothing that happens between reading the pointer and
// the deletion changes that: marks only grow, and no write of a pointer takes
// effect twice.
func (b *Bucket) left(s *state, p pointer, token guard.Token, id writeID, now time.Time) bool {
	old := func(at time.Time) bool { return now.Sub(at) >= b.opts.GracePeriod }
	switch {
	case token == s.mark.Token:
		return id != s.id && slices.Contains(s.recent, id) && old(s.modified)
	case token > s.mark.Token:
		return false
	case old(s.modified):
		return true
	}
	for _, at := range []*since{p.Settled, p.Later} {
		if at != nil && token < at.Token && old(at.At) {
			return true
		}
	}
	return false
}
