package s3fence

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"io"
	"strconv"
	"time"

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

// fenced is what [Objects] and [Pointers] have in common.
type fenced struct {
	b    *Bucket
	kind kind
	rule guard.Rule
	// repeatable says that writing the same body again makes a new ETag.
	repeatable bool
	pattern    *keyPattern // nil if keys are not bound to resources
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

// begin checks the arguments that every call has, and starts a change.
func (o *fenced) begin(verb string, claim guard.Claim, key string) (*change, error) {
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	if err := validateKey("key", key, maxKey); err != nil {
		return nil, err
	}
	if o.pattern != nil {
		name, err := o.pattern.resource(key)
		if err != nil {
			return nil, err
		}
		if err := claim.CheckResource(name); err != nil {
			return nil, err
		}
	}
	return &change{verb: verb, claim: claim, key: key, id: newWriteID()}, nil
}

func opName(op, key string) string { return op + " " + strconv.QuoteToASCII(key) }

// writable returns an error if o must not write an object in this state.
func (o *fenced) writable(claim guard.Claim, key string, s *state) error {
	switch {
	case s.gone(), s.kind == o.kind:
		return nil
	case s.kind == kindUnfenced:
		return &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim, Cause: errForeign}
	}
	return guard.Invalid("mode", kindNames[o.kind], "is not the mode in which object "+strconv.QuoteToASCII(key)+" was written: "+kindNames[s.kind])
}

// errForeign is the cause of the refusal of an object that this package did not write.
var errForeign = errors.New("another program wrote the object; Objects.Adopt fences it, InsecureDelete removes it")

// admit checks writable and the rule.
func (o *fenced) admit(claim guard.Claim, key string, s *state) error {
	if err := o.writable(claim, key, s); err != nil {
		return err
	}
	if err := guard.Decide(o.rule, s.mark, claim); err != nil {
		return err
	}
	return o.safeBase(s)
}

// safeBase refuses to write Plain over an object whose ETag is its content's
// hash, or at all once the bucket has been seen to make such ETags.
func (o *fenced) safeBase(s *state) error {
	if o.kind != kindPlain || !o.repeatable {
		return nil
	}
	if err := o.b.plainStop.Load(); err != nil {
		return err
	}
	if s.kind == kindPlain && isMD5(s.etag, s.md5) {
		return o.b.unsuitable("Plain needs opaque ETags", "the ETag "+s.etag+" of an object is the MD5 of its body")
	}
	return nil
}

// observed runs the change and reports it.
func (o *fenced) observed(ctx context.Context, op guard.Op, c *change) (state, error) {
	start := time.Now()
	s, err := o.b.swap(ctx, c)
	o.b.observe(ctx, op, c.claim, s.mark, start, err)
	return s, err
}

// Mark returns the mark of an object without reading its body, the zero Mark if
// there never was one. A deleted object has a mark.
//
// Errors: ErrInvalid, ErrUnfenced, ErrUnavailable (also for a [*DamagedError]).
func (o *fenced) Mark(ctx context.Context, key string) (guard.Mark, error) {
	s, err := o.look(ctx, "read mark of", key, false)
	return s.mark, err
}

// look reads the state of an object that o may read.
func (o *fenced) look(ctx context.Context, verb, key string, whole bool) (state, error) {
	if err := validateKey("key", key, maxKey); err != nil {
		return state{}, err
	}
	c := reading(verb, key)
	c.whole = whole
	if err := c.ended(ctx); err != nil {
		return state{}, err
	}
	s, err := o.b.read(ctx, c)
	if err != nil {
		return state{}, o.b.unread(c, err)
	}
	if err := o.writable(c.claim, key, &s); err != nil {
		return state{}, err
	}
	return s, nil
}

// reading names a call that only reads, in errors.
func reading(verb, key string) *change {
	return &change{verb: verb, claim: guard.Claim{Resource: key}, key: key}
}

// Raise replaces the object's lower mark with claim and leaves the object
// otherwise unchanged. A new holder that reads before it writes must call it
// before it reads: from then on no older holder's write takes effect, so none
// overtakes what is read (promise P2). An object that does not exist gets a
// mark too, and still reads as not found. Raising to the current mark writes
// nothing.
//
// An object is read and written back whole, with its headers and metadata;
// tags, access lists and locks are not carried over. Of a pointer only the
// pointer is.
//
// It is refused under OncePerToken, where it would use up the token, and in
// Plain where it would not change the ETag.
// Errors: as Put.
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
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.mark.Token == claim.Token {
			return nil, nil
		}
		return o.rewrite(key, base, claim, c.id), nil
	}
	_, err = o.observed(ctx, guard.OpRaise, c)
	return err
}

// mayRepeat refuses operations that rewrite the body of an object.
func (o *fenced) mayRepeat(what string) error {
	if o.repeatable {
		return nil
	}
	return guard.Invalid("mode", kindNames[o.kind], "has no safe way for "+what+" here: the body stays the same, and so would the ETag")
}

// rewrite builds the write that changes nothing but the mark.
func (o *fenced) rewrite(key string, base *state, claim guard.Claim, id writeID) *write {
	switch {
	case base.gone():
		return o.tombstone(key, base, claim, id)
	case base.kind == kindPointer:
		return o.b.pointerWrite(key, base, base.follow(kindPointer, claim, id), base.pointer())
	}
	return o.bodyWrite(key, base.follow(base.kind, claim, id), *base.headers, base.body, base.content)
}

// Put writes body to key under claim if the object's mark admits it under the
// rule, and replaces the mark with the claim, in one atomic step. h may be nil.
//
// The claim's resource names what the lease is on, for errors and observers; the
// claim is compared with the object's own mark. Tokens of different resources are
// not comparable, so all writers of a key must hold leases on the same resource.
//
// body is at most Options.MaxBody bytes and must not change until Put returns. It
// takes one request if this Bucket has seen the object's state, else two.
//
// Errors: a [*guard.RejectedError] (ErrStale, ErrSpent, ErrConflict,
// ErrUnfenced), ErrInvalid, ErrUnavailable (nothing was written),
// ErrOutcomeUnknown (the write may have taken effect, or may yet; presenting the
// same claim again is safe for the order of writers).
func (o *Objects) Put(ctx context.Context, claim guard.Claim, key string, body []byte, h *Headers) error {
	c, err := o.begin("put", claim, key)
	if err != nil {
		return err
	}
	headers, err := h.validate()
	if err != nil {
		return err
	}
	if err := o.fitting(headers); err != nil {
		return err
	}
	length := int64(len(body))
	if length > o.b.opts.MaxBody {
		return tooLong(length, o.b.opts.MaxBody)
	}
	if o.kind == kindGzip {
		body = pack(body)
	}
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		return o.bodyWrite(key, base.follow(o.kind, claim, c.id), headers, body, length), nil
	}
	_, err = o.observed(ctx, guard.OpWrite, c)
	return err
}

// bodyWrite builds the write of a caller's body, sealed or plain. For kind gzip
// body is packed, and length is that of the content.
func (o *fenced) bodyWrite(key string, next state, h Headers, body []byte, length int64) *write {
	if next.kind == kindGzip {
		next.content = length
	}
	if next.kind == kindPlain {
		next.md5 = md5.Sum(body)
		return &write{in: o.b.put(key, h, next.metadata(h.Metadata)), body: body, state: next, opaque: o.repeatable}
	}
	return o.b.sealedWrite(key, next, h, body)
}

// fitting refuses headers that a gzip file cannot be served with.
func (o *Objects) fitting(h Headers) error {
	if o.kind != kindGzip || h.ContentEncoding == "" || h.ContentEncoding == "gzip" {
		return nil
	}
	return guard.Invalid("Headers.ContentEncoding", h.ContentEncoding, `must be "gzip" or empty in this mode`)
}

func tooLong(size, limit int64) error {
	return guard.Invalid("body", strconv.FormatInt(size, 10)+" bytes",
		"is longer than Options.MaxBody, "+strconv.FormatInt(limit, 10)+"; use Pointers for long bodies")
}

// Get reads an object, its mark, headers and metadata. The body is in memory and
// has been verified. The result is never older than the last write that was
// acknowledged before the call.
//
// Errors: ErrNotFound, also for a deleted object (the [*guard.RejectedError] has
// the tombstone's mark), ErrUnfenced, ErrInvalid, ErrUnavailable (also for a
// [*DamagedError]).
func (o *Objects) Get(ctx context.Context, key string) (*Object, error) {
	out, s, err := o.found(ctx, "get", key, true)
	if err != nil {
		return nil, err
	}
	if s.kind == kindGzip {
		if s.content > o.b.opts.MaxBody {
			return nil, tooLong(s.content, o.b.opts.MaxBody)
		}
		if s.body, err = unpack(s.body, s.content); err != nil || int64(len(s.body)) != s.content {
			err = damaged(key, "its body does not unpack to the "+strconv.FormatInt(s.content, 10)+" bytes in its trailer")
			return nil, guard.Unavailable(opName("get", key), guard.Claim{}, err)
		}
	}
	out.Headers = *s.headers
	out.Body, out.Size = io.NopCloser(bytes.NewReader(s.body)), int64(len(s.body))
	return out, nil
}

// Adopt fences an object that this package did not write: the body stays, its
// mark becomes the claim, and from then on it is fenced. Until then every other
// call returns ErrUnfenced. An object that already has a mark is not changed, if
// the mark would not refuse the claim. [SealedGzip] compresses the body, or what is
// in it if it is a gzip file.
//
// Previous writers of the object must have stopped, or use this package from
// now on: writers that bypass the fence are not stopped by it. Under
// OncePerToken adopting uses up the token.
// Errors: as Put, and ErrNotFound.
func (o *Objects) Adopt(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin("adopt", claim, key)
	if err != nil {
		return err
	}
	if err := o.mayRepeat("adopting"); err != nil {
		return err
	}
	c.whole = true
	c.next = func(_ context.Context, base *state) (*write, error) {
		if done, err := o.adopted(c, base); done || err != nil {
			return nil, err
		}
		if err := o.safeBase(base); err != nil {
			return nil, err
		}
		h, err := base.headers.validate() // we may be unable to write foreign metadata back
		if err != nil {
			return nil, err
		}
		body, length := base.body, int64(len(base.body))
		if o.kind == kindGzip {
			if body, length, err = o.adoptGzip(h, body); err != nil {
				return nil, err
			}
		}
		return o.bodyWrite(key, base.follow(o.kind, claim, c.id), h, body, length), nil
	}
	_, err = o.observed(ctx, guard.OpWrite, c)
	return err
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
func (o *Objects) adopted(c *change, s *state) (bool, error) {
	if s.kind == kindUnfenced {
		return false, nil
	}
	if err := o.writable(c.claim, c.key, s); err != nil {
		return false, err
	}
	if err := guard.Decide(guard.SameOrNewer, s.mark, c.claim); err != nil {
		return false, err
	}
	if s.gone() {
		return false, &guard.RejectedError{Reason: guard.ReasonNotFound, Claim: c.claim, Mark: s.mark}
	}
	return true, nil
}

// tombstoneSize is the length of every tombstone as stored, so that a listing
// shows by the length which few objects may be one.
const tombstoneSize = 1277

// Delete deletes an object under claim. It leaves a tombstone, an object of
// about 1 KiB with the mark and nothing else, because a resource that forgets
// its mark admits a stale writer; reading it returns ErrNotFound, and listing
// hides it. An object that does not exist gets one too. A tombstone that
// already has the claim is not changed under SameOrNewer.
//
// Tombstones stay until InsecureDelete.
// Errors: as Put.
func (o *fenced) Delete(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin("delete", claim, key)
	if err != nil {
		return err
	}
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.kind == kindTombstone && base.mark.Token == claim.Token {
			return nil, nil
		}
		return o.tombstone(key, base, claim, c.id), nil
	}
	_, err = o.observed(ctx, guard.OpWrite, c)
	return err
}

// tombstone builds the write of a tombstone. It is sealed in every mode: empty
// bodies would all have the same ETag.
func (o *fenced) tombstone(key string, base *state, claim guard.Claim, id writeID) *write {
	next := base.follow(kindTombstone, claim, id)
	p := base.pointer().after(base, o.b.opts.GracePeriod)
	p.Data, p.Token, p.Length, p.CRC = "", claim.Token, 0, ""
	p.Note = "deleted under a fencing token; this object holds the mark"
	body := encodeJSON(p)
	if pad := tombstoneSize - (&seal{state: next}).size() - len(body); pad > 0 {
		body = append(body, bytes.Repeat([]byte{' '}, pad)...)
	}
	return o.b.sealedWrite(key, next, Headers{ContentType: "application/json"}, body)
}

// InsecureDelete deletes an object of any kind, or its tombstone, with its
// mark. It is the unfenced way out: for a damaged object, or one on which no
// lease will ever be taken again. A holder of an old token may write again
// afterwards. The data of a pointer stays below the key's data prefix.
//
// Errors: ErrInvalid, ErrUnavailable, ErrOutcomeUnknown; deleting a missing
// object is not an error.
func (o *fenced) InsecureDelete(ctx context.Context, key string) error {
	if err := validateKey("key", key, maxKey); err != nil {
		return err
	}
	c := &change{verb: "delete", key: key}
	if err := c.ended(ctx); err != nil {
		return err
	}
	o.b.forget(key)
	way := &tracker{}
	err := o.b.remove(ctx, key, way.option)
	switch outcome := classify(err); {
	case outcome == outcomeApplied, outcome == outcomeNotMatched:
		return nil
	case outcome == outcomeUnknown && way.handed(err), way.repeated():
		return guard.OutcomeUnknown(c.op(), c.claim, o.b.explain(err))
	}
	return guard.Unavailable(c.op(), c.claim, o.b.explain(err))
}
