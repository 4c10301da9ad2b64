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
	// maxContradictions is how often, in a row, a store may contradict itself. A deletion
	// between a refused creation and the read is one that nobody is to blame for.
	maxContradictions = 3
)

// change is a fenced write in progress: its key, its claim, and how to make the
// next version from the current one.
type change struct {
	verb  string // for errors, with the key: put "a/b"
	claim guard.Claim
	key   string
	id    writeID
	whole bool // next needs the body and the headers of the object
	// exposed says that a write has left, and that no read has since shown another one in its
	// place: it may have taken effect, whatever the response.
	exposed bool

	// next decides whether claim may write over base and builds the write. It
	// returns nil if there is nothing to write.
	next func(ctx context.Context, base *version) (*write, error)
}

// op names the change in errors.
func (c *change) op() string { return c.verb + " " + strconv.QuoteToASCII(c.key) }

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

// failed is the error for what could not be done. Nothing was written.
func (c *change) failed(err error) error {
	if errors.Is(err, guard.ErrInvalid) {
		return err
	}
	return guard.Unavailable(c.op(), c.claim, err)
}

// swap decides and writes, until one of the two is final: the only place where anything
// with a mark is written. It returns the version that it wrote, or found to be sufficient
// or in the way.
//
// The first try uses the remembered version, but that never refuses a claim
// or calls it done: the object is read first.
func (b *Bucket) swap(ctx context.Context, c *change) (version, error) {
	if err := c.ended(ctx); err != nil {
		return version{}, err
	}
	base, known := b.cached(c.key)
	known = known && !c.whole
	fresh, met, contradictions := false, false, 0
	defer func() {
		if met { // others write here, so what is known now is old by the next write
			b.forget(c.key)
		}
	}()
	for round := range maxRounds {
		if !known {
			var err error
			if base, err = b.read(ctx, c.key, c.whole); err != nil {
				return version{}, c.failed(err)
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
		now, fate, err := b.write(ctx, c.key, &base, w, c.whole)
		if fate != withheld {
			c.exposed = fate != lost || !now.replaces(w)
		}
		if ctx.Err() != nil {
			err = errors.Join(cmp.Or(guard.Lost(ctx), context.Cause(ctx)), err)
		}
		switch fate {
		case written:
			b.checkOpaque(&base, &now, w)
			return now, nil
		case unclear:
			return base, guard.OutcomeUnknown(c.op(), c.claim, err)
		case declined, withheld:
			return base, guard.Unavailable(c.op(), c.claim, err)
		case contradicted:
			if contradictions++; contradictions == maxContradictions {
				return now, guard.OutcomeUnknown(c.op(), c.claim, contradiction(&now)) // a cache may also hide our write
			}
		case lost:
			contradictions, met = 0, true
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

// replaces reports whether v proves that nothing names what w was to name: it is fenced,
// has not followed w as far as it lists, and points elsewhere. That there is no fenced
// object proves nothing: what was read may be a page, and v may only follow w by a raise.
func (v *version) replaces(w *write) bool {
	return v.fenced() && !v.made(w.next.id) && v.pointer().Data != w.next.pointer().Data
}

// contradiction is the error of a store that refuses to write on a condition that
// it shows to be true, again and again.
func contradiction(now *version) error {
	if now.kind == kindAbsent {
		return errors.New("the store shows no object and refuses to create one: a cache serves its reads, or the key has a delete marker, on which versitygw creates nothing")
	}
	return errors.New("the store refuses a write on condition of the ETag " + quoteShort(now.etag) + ", which its reads show: a cache serves them")
}

// checkOpaque examines the response to a Plain write. On a store whose ETags are
// hashes of the content, the next write of the same body would have the same
// ETag, and a condition on it would not tell the two apart. On such a store
// nothing more is written in Plain through b. Nobody uses what was written as
// the base of a write, because its metadata also has the hash.
func (b *Bucket) checkOpaque(base, now *version, w *write) {
	problem := ""
	switch {
	case !w.opaque || now.id != w.next.id:
		return
	case isMD5(now.etag, now.md5):
		problem = "the ETag " + now.etag + " of a write is the MD5 of its body"
	case now.etag == base.etag:
		problem = "a write did not change the ETag " + now.etag
	default:
		return
	}
	b.plainStop.CompareAndSwap(nil, b.unsuitable("Plain needs opaque ETags", problem))
}

// fenced is what [Objects] and [Pointers] have in common.
type fenced struct {
	b    *Bucket
	kind kind
	rule guard.Rule
	// repeatable says that writing the same body again makes a new ETag.
	repeatable bool
	pattern    *keyPattern // nil if keys are not bound to resources
}

// begin checks the arguments that every write has, and starts a change.
func (o *fenced) begin(verb string, claim guard.Claim, key string) (*change, error) {
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	c, err := o.reading(verb, key)
	if err != nil {
		return nil, err
	}
	if o.pattern != nil {
		if err := claim.CheckResource(c.claim.Resource); err != nil {
			return nil, err
		}
	}
	c.claim, c.id = claim, newWriteID()
	return c, nil
}

// reading checks the key of any call, and names the call in errors, with the key's
// resource if that is known.
func (o *fenced) reading(verb, key string) (c *change, err error) {
	if err := validateKey("key", key, maxKey); err != nil {
		return nil, err
	}
	c = &change{verb: verb, key: key}
	if o.pattern != nil {
		c.claim.Resource, err = o.pattern.resource(key)
	}
	return c, err
}

// writable returns an error if o must not write an object of this version.
func (o *fenced) writable(claim guard.Claim, key string, v *version) error {
	switch {
	case v.gone(), v.kind == o.kind:
		return nil
	case v.kind == kindUnfenced:
		return &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim, Cause: errForeign}
	}
	return guard.Invalid("mode", kindNames[o.kind], "is not the mode in which object "+strconv.QuoteToASCII(key)+" was written: "+kindNames[v.kind])
}

// errForeign is the cause of the refusal of an object that this package did not write.
var errForeign = errors.New("another program wrote the object; Objects.Adopt fences it, InsecureDelete removes it")

// admit decides whether claim may replace the version.
func (o *fenced) admit(claim guard.Claim, key string, v *version) error {
	if err := o.writable(claim, key, v); err != nil {
		return err
	}
	if err := guard.Decide(o.rule, v.mark, claim); err != nil {
		return err
	}
	return o.safeBase(claim, key, v)
}

// safeBase refuses to write Plain over an object whose ETag is its content's
// hash, or at all once the bucket has been seen to make such ETags.
func (o *fenced) safeBase(claim guard.Claim, key string, v *version) error {
	if o.kind != kindPlain || !o.repeatable {
		return nil
	}
	problem := o.b.plainStop.Load()
	if problem == nil && v.kind == kindPlain && isMD5(v.etag, v.md5) {
		problem = o.b.unsuitable("Plain needs opaque ETags", "the ETag "+v.etag+" of an object is the MD5 of its body")
	}
	if problem == nil {
		return nil
	}
	return guard.Setup((&change{verb: "write", key: key}).op(), claim, problem)
}

// observed runs the change and reports it.
func (o *fenced) observed(ctx context.Context, op guard.Op, c *change) error {
	start := time.Now()
	v, err := o.b.swap(ctx, c)
	if o.b.opts.Observer != nil {
		o.b.opts.Observer.Observe(ctx, guard.Event{
			Op: op, Surface: guard.SurfaceS3, Claim: c.claim, Mark: v.mark, Reason: guard.ReasonOf(err), Duration: time.Since(start), Err: err,
		})
	}
	return err
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
	c, err := o.begin("raise", claim, key)
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
	c.next = func(_ context.Context, base *version) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.mark.Token == claim.Token {
			return nil, nil
		}
		return o.rewrite(key, base, claim, c.id)
	}
	return o.observed(ctx, guard.OpRaise, c)
}

// mayRepeat refuses operations that rewrite the body of an object.
func (o *fenced) mayRepeat(what string) error {
	if o.repeatable {
		return nil
	}
	return guard.Invalid("mode", kindNames[o.kind], "has no safe way for "+what+" here: the body stays the same, and so would the ETag")
}

// rewrite makes the write that changes nothing but the mark.
func (o *fenced) rewrite(key string, base *version, claim guard.Claim, id writeID) (*write, error) {
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
	return o.holding(next, key, h, base.body, base.content), nil
}

// holding makes the write of a caller's body.
func (o *fenced) holding(next version, key string, h Headers, body []byte, length int64) *write {
	w := next.holding(key, h, body, length)
	w.opaque = o.kind == kindPlain && o.repeatable
	return w
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
	c, err := o.begin("delete", claim, key)
	if err != nil {
		return err
	}
	c.next = func(_ context.Context, base *version) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.kind == kindTombstone && base.mark.Token == claim.Token {
			return nil, nil
		}
		return base.tombstone(key, claim, c.id, o.b.opts.GracePeriod), nil
	}
	return o.observed(ctx, guard.OpWrite, c)
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
	c, err := o.reading("delete", key)
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
	case refused, unsent, busy:
		return guard.Unavailable(c.op(), c.claim, r.err)
	default:
		return guard.OutcomeUnknown(c.op(), c.claim, r.err)
	}
}
