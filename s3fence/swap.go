package s3fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// maxRounds is how often a write that others overtake is rebuilt. In each
	// round that fails, another's write took effect.
	maxRounds = 128
	// maxSends is how often one conditional write is sent while its outcome is
	// unknown.
	maxSends = 8
	maxDelay = 2 * time.Second
	// resolveTimeout bounds the one read that still resolves a write whose
	// context has ended.
	resolveTimeout = time.Second
)

// change is a fenced write in progress: its key, its claim, and how to make the
// next state from the current one.
type change struct {
	verb  string // for errors, with the key: put "a/b"
	claim guard.Claim
	key   string
	id    writeID
	whole bool // next needs the body and the headers of the object
	// contradicted counts how often, in a row, the store has refused a condition
	// that its next response to a read fulfils.
	contradicted int
	// exposed says that a write was handed to the SDK and no read has shown it
	// to be lost: it may have taken effect, whatever the response.
	exposed bool

	// next decides whether claim may write over base and builds the write. It
	// returns nil if there is nothing to write.
	next func(ctx context.Context, base *state) (*write, error)
}

// op names the change in errors.
func (c *change) op() string { return opName(c.verb, c.key) }

// ended reports that ctx is over before anything was sent.
func (c *change) ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if lost := guard.Lost(ctx); lost != nil {
		return fmt.Errorf("s3fence: %s: nothing was sent: %w", c.op(), lost)
	}
	return guard.Unavailable(c.op(), c.claim, context.Cause(ctx))
}

// write is one conditional PUT. Its bytes are the same each time it is sent.
type write struct {
	in            *s3.PutObjectInput // without body and condition
	body, trailer []byte
	state         state // what the object is once it is applied
	// opaque says that a Plain write depends on ETags that are not hashes.
	opaque bool
}

// ReadAt reads body and trailer as one, without joining them in memory.
func (w *write) ReadAt(p []byte, at int64) (n int, err error) {
	if at < int64(len(w.body)) {
		n = copy(p, w.body[at:])
	}
	if behind := at + int64(n) - int64(len(w.body)); n < len(p) && behind < int64(len(w.trailer)) {
		n += copy(p[n:], w.trailer[behind:])
	}
	if n < len(p) {
		err = io.EOF
	}
	return n, err
}

// sealedBody is one sending's reader of a write.
type sealedBody struct {
	*io.SectionReader
	w *write
}

// WriteTo saves the SDK's checksums a buffer.
func (b sealedBody) WriteTo(to io.Writer) (total int64, err error) {
	at, err := b.Seek(0, io.SeekCurrent)
	for _, part := range [][]byte{b.w.body, b.w.trailer} {
		skip := min(at, int64(len(part)))
		at -= skip
		if err == nil {
			var n int
			n, err = to.Write(part[skip:])
			total += int64(n)
		}
	}
	_, _ = b.Seek(total, io.SeekCurrent)
	return total, err
}

// swap is the compare-and-swap loop, and the only place where anything with a
// mark is written. It returns the state that it wrote, or found to be
// sufficient or in the way.
//
// The first try uses the remembered state, but that state never refuses a claim
// or calls it done: the object is read first.
func (b *Bucket) swap(ctx context.Context, c *change) (state, error) {
	if err := c.ended(ctx); err != nil {
		return state{}, err
	}
	base, known := b.cached(c.key)
	known = known && !c.whole
	fresh := false
	for round := range maxRounds {
		if !known {
			var err error
			if base, err = b.read(ctx, c); err != nil {
				return state{}, b.unread(c, err)
			}
			known, fresh = true, true
		}
		w, err := c.next(ctx, &base)
		if err != nil || w == nil {
			if fresh {
				return base, err
			}
			known = false
			continue
		}
		now, done, err := b.apply(ctx, c, &base, w)
		if err != nil || done {
			return now, err
		}
		base, fresh = now, true
		if round > 1 { // the first may be chance; after it, expect contention
			sleep(ctx, b.backoff(min(round, 3)))
		}
		if err := c.ended(ctx); err != nil {
			return base, err // the last try had no effect
		}
	}
	return base, guard.Unavailable(c.op(), c.claim, errors.New("other writers kept changing the object"))
}

// read reads the state that c starts from, and remembers it.
func (b *Bucket) read(ctx context.Context, c *change) (s state, err error) {
	last := tailSize
	if c.whole {
		last = 0
	}
	if s, err = b.look(ctx, c.key, last); err != nil {
		b.forget(c.key)
		return s, err
	}
	b.remember(c.key, s)
	return s, nil
}

// unread is the error for an object whose state could not be read. Nothing was
// written.
func (b *Bucket) unread(c *change, err error) error {
	if errors.Is(err, guard.ErrInvalid) {
		return err
	}
	return guard.Unavailable(c.op(), c.claim, b.explain(err))
}

// sending is a write in flight.
type sending struct {
	b    *Bucket
	c    *change
	base *state
	w    *write

	handed bool // to the SDK, at least once
	doubt  bool // one is out whose outcome its response does not show
	denied bool // 412 or 404 came: no effect, unless something on the way sent it twice
	lost   bool // a read has shown that none took effect or ever will
	cause  error
}

// apply sends w until it is known whether it took effect on base. If it did,
// done is true and now is the state that it made; if it did not and never will,
// now is the state to go on from. Otherwise the error says that nothing was
// written or that the outcome is unknown.
func (b *Bucket) apply(ctx context.Context, c *change, base *state, w *write) (now state, done bool, err error) {
	s := &sending{b: b, c: c, base: base, w: w}
	defer func() { c.exposed = c.exposed || s.handed && !s.lost }()
	for try := range maxSends {
		if try > 0 {
			sleep(ctx, b.backoff(try))
		}
		if ctx.Err() != nil {
			return s.settle(ctx)
		}
		etag, way, err := b.send(ctx, s.base, s.w)
		if err != nil {
			s.cause = b.explain(err)
		}
		outcome := classifyPut(err, s.base.kind == kindAbsent)
		if !way.handed(err) {
			if ctx.Err() != nil {
				return s.settle(ctx)
			}
			return s.failed() // no credentials, no endpoint, not valid
		}
		s.handed = true
		s.doubt = s.doubt || way.repeated()
		if outcome == outcomeApplied && !strongETag(etag) {
			s.cause = fmt.Errorf("the store responded to a write with the ETag %s", quoteShort(etag))
			outcome = outcomeUnknown
		}
		switch outcome {
		case outcomeApplied:
			s.w.state.etag, s.w.state.modified = etag, b.clock()
			b.checkOpaque(s.base, s.w)
			b.remember(c.key, s.w.state)
			return s.w.state, true, nil
		case outcomeLater:
			continue
		case outcomeRefused:
			if !s.doubt {
				return s.failed()
			}
		case outcomeUnknown:
			s.doubt = true
		case outcomeNotMatched:
			s.denied = true
		}
		if ctx.Err() != nil {
			return s.settle(ctx)
		}
		now, err := b.read(ctx, c)
		if err != nil {
			if !s.doubt && !s.denied {
				return *s.base, false, b.unread(c, err)
			}
			s.doubt = true
			s.cause = fmt.Errorf("%w, and then: %w", s.cause, b.explain(err))
			if outcome == outcomeRefused || errors.As(err, new(*DamagedError)) {
				return s.failed()
			}
			continue // the next sending shows as much as a read
		}
		switch fate := fateOf(c.id, s.base, &now); {
		case fate == fateApplied:
			return now, true, nil
		case fate == fateLost:
			s.lost = true
			return now, false, nil
		case !s.doubt: // a remembered base may be any number of writes old
			return now, false, s.contradiction(&now)
		case fate == fateUnknown, outcome == outcomeRefused:
			return now, false, guard.OutcomeUnknown(c.op(), c.claim, s.cause)
		}
	}
	return s.failed()
}

// maxContradictions is how often a store may contradict itself. A deletion between
// a refused creation and the read is one that nobody is to blame for.
const maxContradictions = 3

// contradiction returns an error if the store refuses to write on a condition that
// it shows to be true, again and again. No retry changes that.
func (s *sending) contradiction(now *state) error {
	if now.etag != s.base.etag {
		s.c.contradicted = 0
		return nil
	}
	if s.c.contradicted++; s.c.contradicted < maxContradictions {
		return nil
	}
	problem := "the store refuses a write on condition of the ETag " + quoteShort(now.etag) + ", which its reads show: a cache serves them"
	if now.kind == kindAbsent {
		problem = "the store shows no object and refuses to create one: a cache serves its reads, or the key has a delete marker, on which versitygw creates nothing"
	}
	return guard.Unavailable(s.c.op(), s.c.claim, errors.New(problem))
}

// failed ends a write whose outcome no further read can show.
func (s *sending) failed() (state, bool, error) {
	if s.doubt {
		return *s.base, false, guard.OutcomeUnknown(s.c.op(), s.c.claim, s.cause)
	}
	return *s.base, false, guard.Unavailable(s.c.op(), s.c.claim, s.cause)
}

// settle resolves a write whose context has ended, by one read that does not
// depend on that context. A write without effect so far may still be in flight,
// so that proves nothing.
func (s *sending) settle(ctx context.Context) (state, bool, error) {
	s.cause = errors.Join(cmp.Or(guard.Lost(ctx), context.Cause(ctx)), s.cause)
	if !s.doubt && !s.denied {
		return *s.base, false, guard.Unavailable(s.c.op(), s.c.claim, s.cause)
	}
	s.doubt = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resolveTimeout)
	defer cancel()
	if now, err := s.b.read(ctx, s.c); err == nil {
		switch fateOf(s.c.id, s.base, &now) {
		case fateApplied:
			return now, true, nil
		case fateLost:
			s.lost = true
			return now, false, guard.Unavailable(s.c.op(), s.c.claim, s.cause)
		}
	}
	s.b.forget(s.c.key)
	return s.failed()
}

// send sends w once, on condition that the object still is as base says.
func (b *Bucket) send(ctx context.Context, base *state, w *write) (etag string, way *tracker, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.RequestTimeout)
	defer cancel()
	// An earlier sending may still be reading its body, so each has its own.
	body := sealedBody{io.NewSectionReader(w, 0, int64(len(w.body)+len(w.trailer))), w}
	w.in.Body, w.in.ContentLength = body, aws.Int64(body.Size())
	w.in.IfMatch, w.in.IfNoneMatch = nil, nil
	if base.kind == kindAbsent {
		w.in.IfNoneMatch = aws.String("*")
	} else {
		w.in.IfMatch = aws.String(base.etag)
	}
	way = &tracker{}
	out, err := b.client.PutObject(way.trace(ctx), w.in, once, way.option)
	if err != nil {
		return "", way, err
	}
	return aws.ToString(out.ETag), way, nil
}

// checkOpaque examines the response to a Plain write. On a store whose ETags are
// hashes of the content, the next write of the same body would have the same
// ETag, and a condition on it would not tell the two apart. On such a store
// nothing more is written in Plain through b. Nobody uses what was written as
// the base of a write, because its metadata also has the hash.
func (b *Bucket) checkOpaque(base *state, w *write) {
	problem := ""
	switch etag := w.state.etag; {
	case !w.opaque:
		return
	case isMD5(etag, w.state.md5):
		problem = "the ETag " + etag + " of a write is the MD5 of its body"
	case etag == base.etag:
		problem = "a write did not change the ETag " + etag
	default:
		return
	}
	b.plainStop.CompareAndSwap(nil, b.unsuitable("Plain needs opaque ETags", problem))
}

func (b *Bucket) unsuitable(check, problem string) *UnsuitableError {
	return &UnsuitableError{Bucket: b.name, Check: check, Problem: problem}
}

// backoff is the wait before the try-th repetition: doubled each time, with
// jitter, so that writers that failed together do not retry together.
func (b *Bucket) backoff(try int) time.Duration {
	d := min(b.delay<<(try-1), maxDelay)
	return d/2 + rand.N(d/2+1)
}

// sealedWrite builds the write of body with a trailer.
func (b *Bucket) sealedWrite(key string, next state, h Headers, body []byte) *write {
	s := seal{state: next, key: keySum(key), length: uint64(len(body)), crc: crc32.Checksum(body, castagnoli)}
	next.body = body
	return &write{
		in: b.put(key, h, next.metadata(h.Metadata)), body: body,
		trailer: s.append(make([]byte, 0, s.size())), state: next,
	}
}
