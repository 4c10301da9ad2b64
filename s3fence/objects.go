package s3fence

import (
	"context"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// Mode says how an object carries its mark. It is the caller's promise about
// the readers, so it has no default.
type Mode uint8

const (
	// Sealed: a foreign reader sees the content followed by a trailer of 100 to
	// 750 bytes, so a text has a binary end and a strict parser refuses it; a
	// reader that asks for a range sees the content. It costs those bytes, and
	// the body is held in memory to be written.
	//
	// The trailer makes every write's bytes unique, and so its ETag, which is
	// what makes If-Match sound on every store. It has checksums, so Get takes
	// nothing that is cut or altered.
	Sealed = Mode(kindSealed)
	// Plain: a foreign reader sees exactly the content. It works on stores whose
	// ETags are new with each write, which are few: Amazon's directory buckets,
	// but not its general purpose buckets, MinIO or versitygw, where it is
	// refused unless the caller declares that bodies never repeat
	// ([ObjectsOptions].BodiesNeverRepeat).
	//
	// The mark is only in the metadata, with the body's MD5. Nothing but the
	// store's ETags tells two writes of one body apart, so every later response
	// is compared with hashes of the body.
	Plain = Mode(kindPlain)
	// SealedGzip: a foreign reader sees a gzip file of exactly the content:
	// "aws s3 cp - | gunzip", zcat, Python's gzip module and, with
	// Headers.ContentEncoding "gzip", browsers and Go's and Python's HTTP
	// clients. The file has two members, the second one empty; "curl
	// --compressed" refuses any file of two with exit status 23, so pipe what
	// curl reads to gunzip. It costs compressing each body, some 50 to 100
	// MB/s. Otherwise it is Sealed.
	SealedGzip = Mode(kindGzip)
)

// String returns "sealed", "plain", "gzip" or "invalid mode".
func (m Mode) String() string {
	if m.valid() {
		return kindNames[kind(m)]
	}
	return "invalid mode"
}

func (m Mode) valid() bool { return m == Sealed || m == Plain || m == SealedGzip }

// ObjectsOptions configures [Bucket.Objects] and [Bucket.Pointers].
type ObjectsOptions struct {
	// Resource and KeyPattern bind keys to resources (promise P9): the pattern
	// has each variable of the template once, as a segment of the key's path or
	// a part of one, such as "exports/{tenant}/{period}.csv" for
	// "{tenant}:billing-close:{period}". Then a claim for another resource
	// than the key's is refused with a [*guard.MisdirectedError], and a key
	// that does not match the pattern is ErrInvalid, before anything is sent.
	// They are required unless InsecureAnyResource is set.
	Resource   *guard.Template
	KeyPattern string
	// InsecureAnyResource takes any claim for any key: a claim for one resource
	// then fences the object of another. It excludes Resource and KeyPattern.
	InsecureAnyResource bool
	// Rule is [guard.SameOrNewer] by default: a holder writes an object as
	// often as it likes. With [guard.OncePerToken] each token writes an object
	// once, and Raise is refused, because it would use up the token.
	Rule guard.Rule
	// BodiesNeverRepeat declares, for [Plain], that no two writes of one key
	// ever have the same body: each contains, say, a time and a random number.
	// If a body does repeat, a stale writer can overwrite a newer one. Raise
	// and Adopt, which always repeat a body, are refused under it.
	BodiesNeverRepeat bool
}

// Objects are the fenced objects of a bucket, in one mode and under one rule.
// Create them with [Bucket.Objects]; all writers of an object must use the same
// mode and rule. They are safe for concurrent use.
type Objects struct{ fenced }

// Objects returns the bucket's objects in the given mode.
// Errors: ErrInvalid for a bad mode or rule, for options that neither name a
// resource nor do without, and for Plain on a store where it is not safe.
func (b *Bucket) Objects(mode Mode, opts *ObjectsOptions) (*Objects, error) {
	if !mode.valid() {
		return nil, guard.Invalid("mode", strconv.Itoa(int(mode)), "must be Sealed, SealedGzip or Plain")
	}
	f, err := b.fenced(kind(mode), opts)
	if err != nil {
		return nil, err
	}
	return &Objects{f}, nil
}

// fenced checks the options.
func (b *Bucket) fenced(k kind, opts *ObjectsOptions) (fenced, error) {
	if opts == nil {
		opts = &ObjectsOptions{}
	}
	o := fenced{b: b, kind: k, rule: opts.Rule, repeatable: k != kindPlain || b.opaque}
	switch {
	case opts.BodiesNeverRepeat && k != kindPlain:
		return o, guard.Invalid("ObjectsOptions.BodiesNeverRepeat", "true", "is for Plain only")
	case !o.repeatable && !opts.BodiesNeverRepeat:
		return o, guard.Invalid("mode", kindNames[k], "is not safe here: the store gives two writes of one body the same ETag"+
			" (or was not probed); use Sealed, or declare BodiesNeverRepeat")
	case (opts.Resource == nil) != (opts.KeyPattern == ""):
		return o, guard.Invalid("ObjectsOptions.KeyPattern", opts.KeyPattern, "goes with ObjectsOptions.Resource, one needs the other")
	case opts.Resource == nil && !opts.InsecureAnyResource:
		return o, guard.Invalid("ObjectsOptions.Resource", "nil", "must be the template that names the resources of the keys; ObjectsOptions.InsecureAnyResource does without")
	case opts.Resource != nil && opts.InsecureAnyResource:
		return o, guard.Invalid("ObjectsOptions.InsecureAnyResource", "true", "must not be set with a template")
	}
	if opts.Resource != nil {
		var err error
		if o.pattern, err = newKeyPattern(opts.KeyPattern, opts.Resource); err != nil {
			return o, err
		}
	}
	switch o.rule {
	case 0:
		o.rule = guard.SameOrNewer
	case guard.SameOrNewer, guard.OncePerToken:
	default:
		return o, guard.Invalid("ObjectsOptions.Rule", o.rule.String(), "must be SameOrNewer or OncePerToken")
	}
	return o, nil
}

// Put writes body to key under claim if the object's mark admits it under the
// rule, and replaces the mark with the claim, in one atomic step.
//
// If the claim is refused, the object stays as it is. A caller that is refused as stale
// stops: it has been superseded.
//
// The claim is compared with the object's own mark. Tokens of different resources are
// not comparable, so all writers of a key must hold leases on the same resource.
//
// body is at most Options.MaxBody bytes and must not change until Put returns. h may be
// nil. ctx should have a deadline: see [Options].RequestTimeout.
//
// Errors:
//   - ErrStale, ErrSpent, ErrConflict, ErrUnfenced, as a [*guard.RejectedError]: refused.
//   - ErrInvalid, ErrMisdirected: an argument is wrong; nothing was sent.
//   - ErrUnavailable: nothing was written; a retry is safe.
//   - ErrSetup: nothing was written, and nothing will be until somebody repairs it. It may
//     be a [*DamagedError] or, in Plain, an [*UnsuitableError].
//   - ErrOutcomeUnknown: the write may have taken effect, or may yet; so it is, too, if more
//     than 32 writes by others came before Put could look (8 in Plain). To present the same
//     claim again is safe for the order of writers.
func (o *Objects) Put(ctx context.Context, claim guard.Claim, key string, body []byte, h *Headers) error {
	c, err := o.begin(ctx, guard.OpWrite, "put", claim, key)
	if err != nil {
		return err
	}
	length := int64(len(body))
	headers, err := o.storable(h, length)
	if err != nil {
		return err
	}
	if o.kind == kindGzip {
		body = pack(body)
	}
	c.next = func(_ context.Context, base *version) (*update, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		return base.follow(o.kind, claim, c.id).holding(key, headers, body, length), nil
	}
	return o.run(ctx, c)
}

// Get reads an object, its mark, headers and metadata. The body is in memory and
// has been verified. The result is never older than the last write that was
// acknowledged before the call.
//
// Errors:
//   - ErrNotFound: only if the store itself says so, or the object was deleted; the
//     [*guard.RejectedError] has the tombstone's mark.
//   - ErrUnfenced: another program wrote the object.
//   - ErrInvalid: the key is not one of these objects', or the object is of another mode.
//   - ErrUnavailable: it could not be read. ErrSetup: nor can it be until somebody repairs
//     it, also for a [*DamagedError].
func (o *Objects) Get(ctx context.Context, key string) (*Object, error) { return o.get(ctx, key) }

// Adopt fences an object that this package did not write: the body stays, and its mark
// becomes the claim. Until then every other call returns ErrUnfenced.
//
// If the claim is refused, the object stays as it is; so does one that already has a mark
// which would not refuse the claim.
//
// Previous writers of the object must have stopped, or use this package from now on:
// writers that bypass the fence are not stopped by it. Under OncePerToken adopting uses up
// the token. [SealedGzip] compresses the body, or what is in it if it is a gzip file.
//
// Errors: as Put, and ErrNotFound. Of two that adopt one object at once, one gets
// ErrOutcomeUnknown, because an object that was not fenced lists no writes: call it again.
func (o *Objects) Adopt(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin(ctx, guard.OpWrite, "adopt", claim, key)
	if err != nil {
		return err
	}
	if err := o.mayRepeat("adopting"); err != nil {
		return err
	}
	c.whole = true
	c.next = func(_ context.Context, base *version) (*update, error) {
		if done, err := o.adopted(c, base); done || err != nil {
			return nil, err
		}
		h, err := base.rewritable()
		if err != nil {
			return nil, err
		}
		body, length := base.body, int64(len(base.body))
		if o.kind == kindGzip {
			if body, length, err = o.adoptGzip(h, body); err != nil {
				return nil, err
			}
		}
		return base.follow(o.kind, claim, c.id).holding(key, h, body, length), nil
	}
	return o.run(ctx, c)
}

// adoptGzip returns a foreign body as a gzip file of one member, and the length of
// its content. It is packed anew, because Chromium shows only the first member of a
// file.
func (o *Objects) adoptGzip(h Headers, body []byte) (packed []byte, length int64, err error) {
	if err := o.fitting(h); err != nil {
		return nil, 0, err
	}
	content, err := unpack(body, o.b.opts.MaxBody)
	switch {
	case err != nil && h.ContentEncoding == "gzip":
		return nil, 0, guard.Invalid("Headers.ContentEncoding", h.ContentEncoding, "is the object's, whose body is not a gzip file")
	case err != nil:
		content = body
	case int64(len(content)) > o.b.opts.MaxBody:
		return nil, 0, tooLong(int64(len(content)), o.b.opts.MaxBody)
	}
	return pack(content), int64(len(content)), nil
}

// adopted reports that there is nothing to adopt.
func (o *Objects) adopted(c *change, v *version) (bool, error) {
	if v.kind == kindUnfenced {
		return false, nil
	}
	if err := o.sameMode(c.claim, c.key, v); err != nil {
		return false, err
	}
	if err := guard.Decide(guard.SameOrNewer, v.mark, c.claim); err != nil {
		return false, err
	}
	if v.gone() {
		return false, notFound(c, v)
	}
	return true, nil
}
