package s3fence

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// maxRounds is how often a write that others overtake is built anew. Each
	// round that fails is a round in which another's write took effect.
	maxRounds = 128
	// maxSends is how often one conditional write is sent while its outcome
	// cannot be learned.
	maxSends = 8
	maxDelay = 2 * time.Second
)

// change is a fenced write that is under way: of what, under which claim, and
// how the next state is made from the one there is.
type change struct {
	verb  string // for errors, with the key if that is the caller's: put "a/b"
	given bool   // the key is the caller's
	claim guard.Claim
	key   string
	id    writeID
	plain bool // the headers alone may tell the state
	whole bool // next needs the body and the headers of the object
	// start is a state that was read some time ago; nil if there is none.
	start *state

	// next decides whether claim may write over base and builds the write. It
	// returns nil if there is nothing to write.
	next func(ctx context.Context, base *state) (*write, error)
}

// op names the change in errors.
func (c *change) op() string {
	if !c.given {
		return c.verb
	}
	return opName(c.verb, c.key)
}

// ended reports that ctx is over before anything was sent.
func (c *change) ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return ended(ctx, c.op(), c.claim)
}

// write is one conditional PUT: the bytes stay the same however often it is
// sent.
type write struct {
	in            *s3.PutObjectInput // without body and condition
	body, trailer []byte
	state         state // what the object is once it is applied
	// interim says that what is written asserts nothing, so that nobody needs
	// to learn what became of it.
	interim bool
}

// swap is the compare-and-swap loop, and the only place where anything with a
// mark is written. It returns the state that it wrote, or found to be
// sufficient or in the way.
//
// The first try goes by the remembered state, but nothing is refused or called
// done by it: then the object is read.
func (b *Bucket) swap(ctx context.Context, c *change) (state, error) {
	if err := c.ended(ctx); err != nil {
		return state{}, err
	}
	base, known := b.cached(c.key)
	if !known && c.start != nil {
		base, known = *c.start, true
	}
	fresh := !known || c.whole
	if fresh {
		var err error
		if base, err = b.read(ctx, c); err != nil {
			return state{}, b.unread(c, err)
		}
	}
	for round := range maxRounds {
		w, err := c.next(ctx, &base)
		if !fresh && (err != nil || w == nil) {
			if base, err = b.read(ctx, c); err != nil {
				return state{}, b.unread(c, err)
			}
			fresh = true
			w, err = c.next(ctx, &base)
		}
		if err != nil || w == nil {
			return base, err
		}
		now, done, err := b.apply(ctx, c, &base, w)
		if err != nil || done {
			return now, err
		}
		base, fresh = now, true
		if round > 1 { // once is bad luck; from then on there is a crowd
			sleep(ctx, rand.N(min(time.Millisecond<<min(round, 10), 100*time.Millisecond)))
		}
		if err := c.ended(ctx); err != nil {
			return base, err // the last try had no effect
		}
	}
	return base, guard.Unavailable(c.op(), c.claim, errors.New("others keep writing the object"))
}

// read reads the state that c starts from, and remembers it.
func (b *Bucket) read(ctx context.Context, c *change) (s state, err error) {
	if c.whole {
		s, err = b.fetch(ctx, c.key)
	} else {
		s, err = b.peek(ctx, c.key, c.plain)
	}
	if err != nil {
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

// apply sends w until it is known whether it took effect on base. If it did,
// done is true and now the state that it made; if it did not and never will,
// now is the state to go on from. Otherwise the error says that nothing was
// written or that it cannot be told.
func (b *Bucket) apply(ctx context.Context, c *change, base *state, w *write) (now state, done bool, err error) {
	sent := false // a write is out whose answer we did not get
	var cause error
	for try := range maxSends {
		if try > 0 {
			sleep(ctx, b.backoff(try))
		}
		if ctx.Err() != nil {
			return b.settle(ctx, c, base, sent && !w.interim, cause)
		}
		etag, err := b.send(ctx, base, w)
		outcome := classifyPut(err, base.kind == kindAbsent)
		if err != nil {
			cause = b.explain(err)
		}
		switch outcome {
		case outcomeApplied:
			w.state.etag, w.state.modified = etag, b.clock()
			b.remember(c.key, w.state)
			return w.state, !w.interim, nil
		case outcomeUnsent:
			continue
		case outcomeRefused:
			if !sent {
				return *base, false, guard.Unavailable(c.op(), c.claim, cause)
			}
		case outcomeUnknown:
			sent = true
		}
		if ctx.Err() != nil {
			return b.settle(ctx, c, base, sent && !w.interim, cause)
		}
		now, err := b.read(ctx, c)
		if err != nil {
			if !sent || w.interim {
				return *base, false, b.unread(c, err)
			}
			cause = fmt.Errorf("%w, and then: %w", cause, b.explain(err))
			if outcome == outcomeRefused || errors.As(err, new(*DamagedError)) {
				break
			}
			continue // the next sending tells as well as a reading
		}
		if w.interim {
			return now, false, nil
		}
		switch fate := fateOf(c.id, base, &now); {
		case fate == fateApplied:
			return now, true, nil
		case !sent, fate == fateLost:
			return now, false, nil
		case fate == fateUnknown, outcome == outcomeRefused:
			return now, false, guard.OutcomeUnknown(c.op(), c.claim, cause)
		}
	}
	if sent && !w.interim {
		return *base, false, guard.OutcomeUnknown(c.op(), c.claim, cause)
	}
	return *base, false, guard.Unavailable(c.op(), c.claim, cause)
}

// settle says what became of a write whose context has ended, by one reading
// that does not depend on it. A write that had no effect so far may still be
// on its way, so that is no answer.
func (b *Bucket) settle(ctx context.Context, c *change, base *state, sent bool, cause error) (state, bool, error) {
	cause = errors.Join(context.Cause(ctx), cause)
	if !sent {
		return *base, false, guard.Unavailable(c.op(), c.claim, cause)
	}
	if b.opts.ResolveTimeout > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.opts.ResolveTimeout)
		defer cancel()
		if now, err := b.read(ctx, c); err == nil {
			switch fateOf(c.id, base, &now) {
			case fateApplied:
				return now, true, nil
			case fateLost:
				return now, false, guard.Unavailable(c.op(), c.claim, cause)
			}
		}
	}
	b.forget(c.key)
	return *base, false, guard.OutcomeUnknown(c.op(), c.claim, cause)
}

// send sends w once, on condition that the object still is as base says.
func (b *Bucket) send(ctx context.Context, base *state, w *write) (etag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.opts.RequestTimeout)
	defer cancel()
	// An earlier sending may still be at its body, so each has its own.
	body := &joined{body: w.body, trailer: w.trailer}
	w.in.Body, w.in.ContentLength = body, aws.Int64(body.size())
	if base.kind == kindAbsent {
		w.in.IfNoneMatch = aws.String("*")
	} else {
		w.in.IfMatch = aws.String(base.etag)
	}
	out, err := b.client.PutObject(ctx, w.in, once)
	if err != nil {
		return "", err
	}
	return aws.ToString(out.ETag), nil
}

// backoff is the wait before the try-th repetition: doubled each time, with
// jitter, so that those who failed together do not return together.
func (b *Bucket) backoff(try int) time.Duration {
	d := min(b.delay<<(try-1), maxDelay)
	return d/2 + rand.N(d/2+1)
}

// sealedWrite builds the write of body with a trailer.
func (b *Bucket) sealedWrite(key string, next state, h Headers, body []byte) *write {
	s := seal{
		kind: next.kind, key: keySum(key), token: next.mark.Token, lease: next.mark.LeaseID, id: next.id,
		recent: next.recent, cut: next.cut, length: uint64(len(body)), crc: crc32.Checksum(body, castagnoli),
	}
	next.body, next.size = body, int64(len(body)+s.size())
	return &write{
		in: b.put(key, h, next.metadata(h.Metadata), nil), body: body,
		trailer: s.append(make([]byte, 0, s.size())), state: next,
	}
}
