package s3fence

import (
	"bytes"
	"context"
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
	// what makes If-Match sound on every store. It has checksums, so a reader
	// by [Objects.Get] or [Unseal] takes nothing that is cut or altered.
	Sealed Mode = iota + 1
	// Plain: a foreign reader sees exactly the content. It gives up the proof:
	// it is refused unless the store makes opaque ETags ([Probe], and every
	// later answer is compared with hashes of the body) or the caller declares
	// that bodies never repeat ([ObjectsOptions].BodiesNeverRepeat). Most
	// stores make hashes. The mark is only in the metadata, with the body's
	// MD5.
	Plain
	// Pointer: a foreign reader of the key sees a small JSON document that
	// names another key, which holds exactly the content. It costs one more
	// request for each write and read, and needs a collector
	// ([Objects.Collect]). The body is of any length, from any reader, and
	// immutable.
	Pointer
	// SealedGzip: a foreign reader sees a gzip file of exactly the content:
	// "aws s3 cp - | gunzip", zcat, Python's gzip module, and with
	// Headers.ContentEncoding "gzip" every browser and HTTP client. It costs
	// compressing each body, some 50 to 100 MB/s, and that [Objects.GetRange]
	// has no ranges. Otherwise it is Sealed, with the trailer in the header of
	// a last, empty member of the file.
	SealedGzip
)

// String returns "sealed", "plain", "pointer", "gzip" or "invalid mode".
func (m Mode) String() string {
	if k := m.kind(); k != kindAbsent {
		return kindNames[k]
	}
	return "invalid mode"
}

func (m Mode) kind() kind {
	switch m {
	case Sealed:
		return kindSealed
	case Plain:
		return kindPlain
	case Pointer:
		return kindPointer
	case SealedGzip:
		return kindGzip
	}
	return kindAbsent
}

// ObjectsOptions configures [Bucket.Objects]. The zero value is the default.
type ObjectsOptions struct {
	// Rule is [guard.SameOrNewer] by default: a holder writes an object as
	// often as it likes. With [guard.OncePerToken] each token writes an object
	// once, and Raise is refused, because it would spend the token.
	Rule guard.Rule
	// BodiesNeverRepeat declares, for [Plain], that no two writes of one key
	// ever have the same body: each contains, say, a time and a random number.
	// If a body does repeat, a stale writer can overwrite a newer one. Raise
	// and Adopt, which always repeat a body, are refused under it.
	BodiesNeverRepeat bool
	// Resource and KeyPattern, both or none, bind keys to resources (promise P9):
	// the pattern has each variable of the template once, as a segment of the
	// key's path or a part of one, such as "exports/{tenant}/{period}.csv" for
	// "{tenant}:billing-close:{period}". Then a claim for another resource
	// than the key's is refused with a [*guard.MisdirectedError], and a key
	// that does not match the pattern is ErrInvalid, before anything is sent.
	Resource   *guard.Template
	KeyPattern string
}

// Objects are the fenced objects of a bucket, in one mode and under one rule.
// Create them with [Bucket.Objects]; all writers of an object must use the same
// mode and rule. They are safe for concurrent use.
type Objects struct {
	b    *Bucket
	mode Mode
	rule guard.Rule
	// repeatable says that writing the same body again makes a new ETag.
	repeatable bool
	pattern    *keyPattern // nil if keys are not bound to resources
}

// Objects returns the bucket's objects in the given mode. opts may be nil.
// Errors: ErrInvalid for a bad mode or rule, and for Plain on a store where it
// is not safe.
func (b *Bucket) Objects(mode Mode, opts *ObjectsOptions) (*Objects, error) {
	if opts == nil {
		opts = &ObjectsOptions{}
	}
	o := &Objects{b: b, mode: mode, rule: opts.Rule, repeatable: mode != Plain || b.probe.OpaqueETags}
	switch {
	case mode.kind() == kindAbsent:
		return nil, guard.Invalid("mode", strconv.Itoa(int(mode)), "must be Sealed, SealedGzip, Plain or Pointer")
	case opts.BodiesNeverRepeat && mode != Plain:
		return nil, guard.Invalid("ObjectsOptions.BodiesNeverRepeat", "true", "is for Plain alone")
	case !o.repeatable && !opts.BodiesNeverRepeat:
		return nil, guard.Invalid("mode", mode.String(), "is not safe here: the store gives two writes of one body the same ETag"+
			" (or was not probed); use Sealed, or declare BodiesNeverRepeat")
	}
	if (opts.Resource == nil) != (opts.KeyPattern == "") {
		return nil, guard.Invalid("ObjectsOptions.KeyPattern", opts.KeyPattern, "goes with ObjectsOptions.Resource, one needs the other")
	}
	if opts.Resource != nil {
		var err error
		if o.pattern, err = newKeyPattern(opts.KeyPattern, opts.Resource); err != nil {
			return nil, err
		}
	}
	switch o.rule {
	case 0:
		o.rule = guard.SameOrNewer
	case guard.SameOrNewer, guard.OncePerToken:
	default:
		return nil, guard.Invalid("ObjectsOptions.Rule", o.rule.String(), "must be SameOrNewer or OncePerToken")
	}
	return o, nil
}

// begin checks the arguments that every call has, and starts a change.
func (o *Objects) begin(verb string, claim guard.Claim, key string) (*change, error) {
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
	return &change{verb: verb, given: true, claim: claim, key: key, id: newWriteID()}, nil
}

func opName(op, key string) string { return op + " " + strconv.QuoteToASCII(key) }

// writable returns an error if o must not write an object in this state.
func (o *Objects) writable(claim guard.Claim, key string, s *state) error {
	switch s.kind {
	case kindAbsent, kindTombstone, o.mode.kind():
		return nil
	case kindUnfenced:
		return &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim}
	}
	return guard.Invalid("mode", o.mode.String(), "is not the mode in which object "+strconv.QuoteToASCII(key)+" was written: "+kindNames[s.kind])
}

// admit checks writable and the rule.
func (o *Objects) admit(claim guard.Claim, key string, s *state) error {
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
func (o *Objects) safeBase(s *state) error {
	if o.mode != Plain || !o.repeatable {
		return nil
	}
	if err := o.b.plainStop.Load(); err != nil {
		return err
	}
	if s.kind == kindPlain && contentHash(s.etag, nil, s.md5) != "" {
		return o.b.unsuitable("Plain needs opaque ETags", "the ETag "+s.etag+" of an object is the MD5 of its body")
	}
	return nil
}

// observed runs the change and reports it.
func (o *Objects) observed(ctx context.Context, op guard.Op, c *change) (state, error) {
	start := time.Now()
	s, err := o.b.swap(ctx, c)
	o.b.observe(ctx, op, c.claim, s.mark, start, err)
	return s, err
}

// Mark returns the mark of an object without reading its body, the zero Mark if
// there never was one. A deleted object has a mark.
//
// Errors: ErrInvalid, ErrUnfenced, ErrUnavailable (also for a [*DamagedError]).
func (o *Objects) Mark(ctx context.Context, key string) (guard.Mark, error) {
	s, err := o.look(ctx, "read mark of", key, false)
	return s.mark, err
}

// look reads the state of an object that o may read.
func (o *Objects) look(ctx context.Context, verb, key string, whole bool) (state, error) {
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
	return &change{verb: verb, given: true, claim: guard.Claim{Resource: key}, key: key}
}

// Raise replaces the object's lower mark with claim and leaves the object
// otherwise unchanged. A new holder that reads before it writes must call it
// before it reads: from then on no older holder's write takes effect, so none
// overtakes what is read (promise P2). An object that does not exist gets a
// mark too, and still reads as not found. Raising to the current mark writes
// nothing.
//
// A [Sealed] or [Plain] object is read and written back whole, with its
// headers and metadata; tags, access lists and locks are not carried over. For
// a [Pointer] only the pointer is.
//
// It is refused under OncePerToken, where it would spend the token, and in
// Plain where it would not change the ETag.
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
	_, err = o.observed(ctx, guard.OpRaise, c)
	return err
}

// mayRepeat refuses operations that rewrite the body of an object.
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

// Adopt fences an object that this package did not write: the body stays, its
// mark becomes the claim, and from then on it is fenced. Until then every other
// call returns ErrUnfenced. An object that already has a mark is left alone, if
// the mark would not refuse the claim. [SealedGzip] compresses a body that is
// not yet a gzip file.
//
// Previous writers of the object must have stopped, or use this package from
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
		h, err := base.headers.validate() // we may be unable to write foreign metadata back
		if err != nil {
			return nil, err
		}
		body, length := base.body, int64(len(base.body))
		if o.mode == SealedGzip {
			if err := o.fitting(h); err != nil {
				return nil, err
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
	_, err = o.observed(ctx, guard.OpWrite, c)
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

// tombstoneSize is the length of every tombstone as stored, so that a listing
// shows by the length alone which few objects may be one.
const tombstoneSize = 1277

// Delete deletes an object under claim. It leaves a tombstone, an object of
// about 1 KiB with the mark and nothing else, because a resource that forgets
// its mark admits a stale writer; reading it returns ErrNotFound, and listing
// hides it. An object that does not exist gets one too. A tombstone that
// already has the claim is left alone under SameOrNewer.
//
// Tombstones stay until [Objects.InsecureDelete].
// Errors: as [Objects.Put].
func (o *Objects) Delete(ctx context.Context, claim guard.Claim, key string) error {
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
func (o *Objects) tombstone(key string, base *state, claim guard.Claim, id writeID) *write {
	next := base.follow(kindTombstone, claim, id)
	p := base.pointer().after(base, o.b.opts.GracePeriod)
	p.Data, p.Token, p.Length, p.CRC = "", claim.Token, 0, ""
	p.Note = "deleted under a fencing token; this object holds the mark"
	body := encodeJSON(p)
	s := seal{lease: claim.LeaseID, recent: next.recent}
	if pad := tombstoneSize - s.size() - len(body); pad > 0 {
		body = append(body, bytes.Repeat([]byte{' '}, pad)...)
	}
	return o.b.sealedWrite(key, next, Headers{ContentType: "application/json"}, body)
}

// InsecureDelete deletes an object of any kind, or its tombstone, with its
// mark. It is the unfenced way out: for a damaged object, or one on which no
// lease will ever be taken again. A holder of an old token may write again
// afterwards. The data of a [Pointer] stays below the key's data prefix.
//
// Errors: ErrInvalid, ErrUnavailable, ErrOutcomeUnknown; deleting a missing
// object is no error.
func (o *Objects) InsecureDelete(ctx context.Context, key string) error {
	if err := validateKey("key", key, maxKey); err != nil {
		return err
	}
	op, claim := opName("delete", key), guard.Claim{}
	if err := ended(ctx, op, claim); err != nil {
		return err
	}
	o.b.forget(key)
	way := &tracker{}
	err := o.b.remove(ctx, key, way.option)
	switch outcome := classify(err); {
	case outcome == outcomeApplied, outcome == outcomeNotMatched:
		return nil
	case outcome == outcomeUnknown && way.handed(err), way.repeated():
		return guard.OutcomeUnknown(op, claim, o.b.explain(err))
	}
	return guard.Unavailable(op, claim, o.b.explain(err))
}

// Copy writes the body and headers of the object from to the key to, under
// claim, as [Objects.Put] does. It reads them and writes on condition, never by
// S3's CopyObject, whose destination has no condition on most stores and which
// would copy the mark too. from is not changed, and others may change it
// meanwhile: to holds a version that was there during the call.
//
// To rename, Raise from, so that no older holder writes there any more, then Copy,
// then Delete from. In between the object is under both keys, never under none.
// Errors: as [Objects.Get] and [Objects.Put].
func (o *Objects) Copy(ctx context.Context, claim guard.Claim, from, to string) error {
	if _, err := o.begin("copy", claim, to); err != nil {
		return err
	}
	object, err := o.Get(ctx, from)
	if err != nil {
		return err
	}
	defer object.Body.Close()
	return o.Put(ctx, claim, to, storeBody{object.Body, o.b, reading("get", from)}, &PutOptions{Headers: object.Headers})
}
