package s3fence

import (
	"bytes"
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// Raise puts claim in the place of the object's lower mark and leaves the
// object as it is otherwise. A new holder that reads before it writes calls it
// before it reads: from then on no older holder's write takes effect, so what
// is read is not overtaken (promise P2). An object that does not exist gets
// a mark all the same, and still reads as not found. Raising to the mark that
// there is already writes nothing.
//
// A [Sealed] or [Plain] object is read and written back whole, with its
// headers and metadata; tags, access lists and locks are not carried over. Of
// a [Pointer] only the pointer is.
//
// It is refused under OncePerToken, where it would spend the token, and in
// Plain where the ETag would not change with it.
// Errors: as [Objects.Put].
func (o *Objects) Raise(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin("raise", claim, key)
	if err != nil {
		return err
	}
	if o.rule == guard.OncePerToken {
		return guard.Invalid("rule", o.rule.String(), "has no takeover: a raise would spend the token")
	}
	if err := o.mayRepeat("a raise"); err != nil {
		return err
	}
	c.whole = o.mode != Pointer
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.mark.Token == claim.Token {
			return nil, nil
		}
		return o.rewrite(key, base, claim, c.id), nil
	}
	_, err = o.swap(ctx, guard.OpRaise, c)
	return err
}

// mayRepeat refuses what writes the body of an object once more.
func (o *Objects) mayRepeat(what string) error {
	if o.repeatable {
		return nil
	}
	return guard.Invalid("mode", o.mode.String(), "has no safe way for "+what+" here: the body stays the same, and so would the ETag")
}

// rewrite builds the write that changes nothing but the mark.
func (o *Objects) rewrite(key string, base *state, claim guard.Claim, id writeID) *write {
	switch base.kind {
	case kindAbsent, kindTombstone:
		return o.tombstone(key, base, claim, id)
	case kindPointer:
		p := base.pointer()
		return o.b.pointerWrite(key, base, base.follow(kindPointer, claim, id), p)
	}
	return o.bodyWrite(key, base.follow(base.kind, claim, id), *base.headers, base.body, base.content)
}

// Adopt puts an object that this package did not write under claim: the body
// stays, its mark becomes the claim, and from then on it is fenced. Until then
// it is ErrUnfenced for every other call. An object that has a mark already is
// left alone, if the mark would not refuse the claim. [SealedGzip] compresses a
// body that is no gzip file yet.
//
// Whoever wrote the object so far must have stopped, or use this package from
// now on: writers that bypass the fence are not stopped by it. Under
// OncePerToken adopting spends the token.
// Errors: as [Objects.Put], and ErrNotFound.
func (o *Objects) Adopt(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin("adopt", claim, key)
	if err != nil {
		return err
	}
	if err := o.mayRepeat("adopting"); err != nil {
		return err
	}
	if o.mode == Pointer {
		return o.adoptData(ctx, c)
	}
	c.whole = true
	c.next = func(_ context.Context, base *state) (*write, error) {
		if done, err := o.adopted(c, base); done || err != nil {
			return nil, err
		}
		if err := o.safeBase(base); err != nil {
			return nil, err
		}
		h, err := base.headers.validate() // foreign metadata may be what we cannot write back
		if err != nil {
			return nil, err
		}
		body, length := base.body, int64(len(base.body))
		if o.mode == SealedGzip {
			if h.ContentEncoding != "" && h.ContentEncoding != "gzip" {
				return nil, guard.Invalid("Headers.ContentEncoding", h.ContentEncoding, `of the object must be "gzip" or empty in this mode`)
			}
			content, err := unpackUpTo(bytes.NewReader(body), 0, o.b.opts.MaxBody)
			switch {
			case err != nil:
				body = pack(body)
			case int64(len(content)) > o.b.opts.MaxBody:
				return nil, tooLong(int64(len(content)), o.b.opts.MaxBody)
			default:
				length = int64(len(content)) // it is a gzip file already
			}
		}
		return o.bodyWrite(key, base.follow(o.mode.kind(), claim, c.id), h, body, length), nil
	}
	_, err = o.swap(ctx, guard.OpWrite, c)
	return err
}

// adopted reports that there is nothing to adopt.
func (o *Objects) adopted(c *change, s *state) (bool, error) {
	switch s.kind {
	case kindUnfenced:
		return false, nil
	case kindAbsent, kindTombstone:
		if err := guard.Decide(guard.SameOrNewer, s.mark, c.claim); err != nil {
			return false, err
		}
		return false, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: c.claim, Mark: s.mark}
	}
	if err := o.writable(c.claim, c.key, s); err != nil {
		return false, err
	}
	return true, guard.Decide(guard.SameOrNewer, s.mark, c.claim)
}
