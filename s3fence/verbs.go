package s3fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// maxRounds is how often a write that others overtake is rebuilt. In each
	// round that fails, another's write took effect.
	maxRounds = 128
	// maxContradictions is how often, in a row, a store may refuse a condition that it shows to
	// be true. A deletion between a refused creation and the read explains one.
	maxContradictions = 3
)

var errContradiction = errors.New("the store refuses a write on a condition that its reads show to be true: a cache serves them, or the key has a delete marker, on which versitygw creates nothing")

// fenced is what [Objects] and [Pointers] have in common.
type fenced struct {
	b    *Bucket
	kind kind
	rule guard.Rule
	// repeatable says that writing the same body again makes a new ETag.
	repeatable bool
	pattern    *keyPattern // nil if keys are not bound to resources
}

// change is a fenced write in progress: its key, its claim, and how to make the
// next version from the current one.
type change struct {
	op    guard.Op
	verb  string // for errors, with the key: put "a/b"
	claim guard.Claim
	key   string
	id    writeID
	start time.Time
	whole bool // next needs the body and the headers of the object

	// next decides whether claim may write over base and builds the write. It
	// returns nil if there is nothing to write.
	next func(ctx context.Context, base *version) (*update, error)
	// applied, if not nil, is called with a version that was written and the one before.
	applied func(base, now *version)
}

// name says in errors what is done to which key.
func (c *change) name() string { return c.verb + " " + strconv.QuoteToASCII(c.key) }

// ended is the error of a ctx that is over while nothing has been written.
func (c *change) ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if lost := guard.Lost(ctx); lost != nil {
		return fmt.Errorf("s3fence: %s: nothing was written: %w", c.name(), lost)
	}
	return c.unavailable(context.Cause(ctx))
}

// unavailable is the error for what could not be done. Nothing was written.
func (c *change) unavailable(err error) error {
	if errors.Is(err, guard.ErrInvalid) {
		return err
	}
	return guard.Unavailable(c.name(), c.claim, err)
}

// run makes the change and reports what became of it.
func (o *fenced) run(ctx context.Context, c *change) error {
	if o.kind == kindPlain && o.repeatable {
		o.watchETags(c)
	}
	v, err := o.b.replace(ctx, c)
	o.observe(ctx, c, v.mark, err)
	return err
}

func (o *fenced) observe(ctx context.Context, c *change, mark guard.Mark, err error) {
	if o.b.opts.Observer != nil {
		o.b.opts.Observer.Observe(ctx, guard.Event{
			Op: c.op, Surface: guard.SurfaceS3, Claim: c.claim, Mark: mark, Reason: guard.ReasonOf(err), Duration: time.Since(c.start), Err: err,
		})
	}
}

// replace decides and writes, until one of the two is final: the only place where anything
// with a mark is written. It returns the version that it wrote, or found to be sufficient
// or in the way.
//
// The first try uses the remembered version, but that never refuses a claim
// or calls it done: the object is read first.
func (b *Bucket) replace(ctx context.Context, c *change) (version, error) {
	if err := c.ended(ctx); err != nil {
		return version{}, err
	}
	base, known := b.cached(c.key)
	known = known && !c.whole
	fresh, contradictions, contended := false, 0, false
	for round := range maxRounds {
		if !known {
			var err error
			if base, err = b.read(ctx, c.key, c.whole); err != nil {
				return version{}, c.unavailable(err)
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
		now, outcome, err := b.compareAndSwap(ctx, c.key, &base, w, c.whole)
		if ctx.Err() != nil {
			err = errors.Join(cmp.Or(guard.Lost(ctx), context.Cause(ctx)), err)
		}
		switch {
		case outcome == applied:
			if contended { // so what is known now is old by the next write
				b.forget(c.key)
			}
			if c.applied != nil {
				c.applied(&base, &now)
			}
			return now, nil
		case outcome == unknown, outcome == refused && contradictions > 0: // a cache may also hide our write
			return base, guard.OutcomeUnknown(c.name(), c.claim, err)
		case outcome == refused:
			return base, guard.Unavailable(c.name(), c.claim, err)
		}
		// mismatch: decide again, by what is there now.
		if round > 1 { // the first may be chance; after it, expect contention
			sleep(ctx, b.backoff(min(round, 3)))
		}
		if now.etag != base.etag {
			contradictions, contended = 0, true
		} else if contradictions++; contradictions == maxContradictions || ctx.Err() != nil {
			return now, guard.OutcomeUnknown(c.name(), c.claim, errContradiction)
		}
		base, fresh = now, true
		if err := c.ended(ctx); err != nil {
			return base, err // the last try had no effect
		}
	}
	return base, guard.Unavailable(c.name(), c.claim, errors.New("other writers kept changing the object"))
}

// admit decides whether claim may replace the version.
func (o *fenced) admit(claim guard.Claim, key string, v *version) error {
	if err := o.sameMode(claim, key, v); err != nil {
		return err
	}
	return guard.Decide(o.rule, v.mark, claim)
}

// sameMode refuses an object that is neither absent nor written in o's mode.
func (o *fenced) sameMode(claim guard.Claim, key string, v *version) error {
	switch {
	case v.gone(), v.kind == o.kind:
		return nil
	case v.kind == kindUnfenced:
		return &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim, Cause: errors.New("another program wrote the object, or responded in place of the store: it is " +
			v.looks + "; Objects.Adopt fences it, InsecureDelete removes it")}
	}
	return guard.Invalid("mode", kindNames[o.kind], "is not the mode in which object "+strconv.QuoteToASCII(key)+" was written: "+kindNames[v.kind])
}

// Raise replaces the object's lower mark with claim and leaves the object
// otherwise unchanged. A new holder that reads before it writes must call it
// before it reads: from then on no older holder's write takes effect, so none
// overtakes what is read (promise P2).
//
// If the claim is refused, or nothing could be written, the mark stays as it was.
// An object that does not exist gets a mark too, and still reads as not found.
// Raising to the current mark writes nothing.
//
// An object is read and written back whole, with its headers and metadata;
// tags, access lists and locks are not carried over. Of a pointer only the
// pointer is.
//
// Errors: as [Objects.Put], and ErrInvalid under OncePerToken, where a raise would use up
// the token, and in Plain where it would not change the ETag.
func (o *fenced) Raise(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin(ctx, guard.OpRaise, "raise", claim, key)
	if err != nil {
		return err
	}
	if o.rule == guard.OncePerToken {
		return guard.Invalid("rule", o.rule.String(), "has no takeover: a raise would use up the token")
	}
	if err := o.mayRepeat("a raise"); err != nil {
		return err
	}
	c.whole = o.kind != kindPointer
	c.next = func(_ context.Context, base *version) (*update, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.mark.Token == claim.Token {
			return nil, nil
		}
		return o.rewrite(key, base, claim, c.id)
	}
	return o.run(ctx, c)
}

// rewrite makes the write that changes nothing but the mark.
func (o *fenced) rewrite(key string, base *version, claim guard.Claim, id writeID) (*update, error) {
	next := base.follow(base.kind, claim, id)
	switch {
	case base.gone():
		return base.tombstone(key, claim, id, o.b.opts.GracePeriod), nil
	case base.kind == kindPointer:
		return next.pointing(key, base, base.pointer(), o.b.opts.GracePeriod), nil
	}
	h, err := base.rewritable()
	if err != nil {
		return nil, err
	}
	return next.holding(key, h, base.body, base.content), nil
}

// Delete deletes an object under claim. It leaves a tombstone, an object of
// about 1 KiB with the mark and nothing else, because a resource that forgets
// its mark admits a stale writer; reading it returns ErrNotFound, and listing
// hides it. If the claim is refused, the object stays.
//
// An object that does not exist gets one too. A tombstone that already has the claim is
// not changed under SameOrNewer. Tombstones stay until InsecureDelete.
//
// Errors: as [Objects.Put].
func (o *fenced) Delete(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin(ctx, guard.OpWrite, "delete", claim, key)
	if err != nil {
		return err
	}
	c.next = func(_ context.Context, base *version) (*update, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.kind == kindTombstone && base.mark.Token == claim.Token {
			return nil, nil
		}
		return base.tombstone(key, claim, c.id, o.b.opts.GracePeriod), nil
	}
	return o.run(ctx, c)
}

// InsecureDelete deletes an object of any kind, or its tombstone, with its
// mark. It is the unfenced way out: for a damaged object, or one on which no
// lease will ever be taken again. A holder of an old token may write again
// afterwards. The data of a pointer stays below the key's data prefix.
//
// Deleting a missing object is not an error.
//
// Errors:
//   - ErrInvalid: the key is not one of these objects'.
//   - ErrUnavailable, ErrSetup: nothing was deleted.
//   - ErrOutcomeUnknown: it may have been deleted, or may yet be.
func (o *fenced) InsecureDelete(ctx context.Context, key string) error {
	c, err := o.keyed("delete", key)
	if err != nil {
		return err
	}
	if err := c.ended(ctx); err != nil {
		return err
	}
	o.b.forget(key)
	switch r := o.b.remove(ctx, key); r.outcome {
	case applied:
		return nil
	case refused, busy:
		return guard.Unavailable(c.name(), c.claim, r.err)
	default:
		return guard.OutcomeUnknown(c.name(), c.claim, r.err)
	}
}
