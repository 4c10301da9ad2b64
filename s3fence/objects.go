package s3fence

import (
	"context"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Mode says how an object carries its mark. It is the caller's promise about
// the readers, so it has no default.
type Mode uint8

const (
	// Sealed: a foreign reader sees the content followed by a trailer of 150 to
	// 800 bytes, so a text has a binary end and a strict parser refuses it; a
	// reader that asks for a range sees the content. It costs those bytes, and
	// the body is held in memory to be written.
	//
	// The trailer makes every write's bytes unique, and so its ETag, which is
	// what makes If-Match sound on every store. It has checksums, so a reader
	// by [Objects.Get] or [Unseal] takes nothing that is cut or altered.
	Sealed Mode = iota + 1
	// Plain: a foreign reader sees exactly the content. It costs the proof: it is
	// refused unless the store makes opaque ETags ([Probe], and every later
	// answer is compared with hashes of the body) or the caller declares that
	// bodies never repeat ([ObjectsOptions].BodiesNeverRepeat). Most stores make
	// hashes. The mark is in the metadata alone, with the body's MD5.
	Plain
	// Pointer: a foreign reader of the key sees a small JSON document that names
	// another key, and under that exactly the content. It costs a request more
	// for each write and read, and a collector ([Objects.Collect]). The body is
	// of any length, from any reader, and immutable.
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
	// ever have the same body: each has, say, a time and a random number in
	// it. If one does, a stale writer can overwrite a newer one. Raise and
	// Adopt, which repeat a body by nature, are refused under it.
	BodiesNeverRepeat bool
	// Resource and KeyPattern, both or none, bind keys to resources (promise P9):
	// the pattern has each variable of the template once, as a segment of the
	// key's path or a part of one, such as "exports/{tenant}/{period}.csv" for
	// "{tenant}:billing-close:{period}". Then a claim for another resource
	// than the key's is refused with a [*guard.MisdirectedError], and a key
	// that is not of the pattern is ErrInvalid, before anything is sent.
	Resource   *guard.Template
	KeyPattern string
}

// Objects are the fenced objects of a bucket, in one mode and under one rule.
// Make them with [Bucket.Objects]; all who write an object use the same mode
// and rule. They are safe for concurrent use.
type Objects struct {
	b    *Bucket
	mode Mode
	rule guard.Rule
	// repeatable says that writing the same body again makes another ETag.
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

// begin checks what every call has, and starts a change.
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

// writable says whether an object in this state is one that o writes.
func (o *Objects) writable(claim guard.Claim, key string, s *state) error {
	switch s.kind {
	case kindAbsent, kindTombstone, o.mode.kind():
		return nil
	case kindUnfenced:
		return &guard.RejectedError{Reason: guard.ReasonUnfenced, Claim: claim}
	}
	return guard.Invalid("mode", o.mode.String(), "is not the mode in which object "+strconv.QuoteToASCII(key)+" was written: "+kindNames[s.kind])
}

// admit is writable and the rule.
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

// swap runs the change and reports it.
func (o *Objects) swap(ctx context.Context, op guard.Op, c *change) (state, error) {
	start := time.Now()
	s, err := o.b.swap(ctx, c)
	o.b.observe(ctx, op, c.claim, s.mark, start, err)
	return s, err
}

// Mark returns the mark of an object without reading its body, the zero Mark
// if there never was one. A deleted object has one.
//
// Errors: ErrInvalid, ErrUnfenced, ErrUnavailable (also for a [*DamagedError]).
func (o *Objects) Mark(ctx context.Context, key string) (guard.Mark, error) {
	if err := validateKey("key", key, maxKey); err != nil {
		return guard.Mark{}, err
	}
	c := &change{verb: "read mark of", given: true, key: key}
	if err := c.ended(ctx); err != nil {
		return guard.Mark{}, err
	}
	s, err := o.b.read(ctx, c)
	if err != nil {
		return guard.Mark{}, o.b.unread(c, err)
	}
	if err := o.writable(guard.Claim{Resource: key}, key, &s); err != nil {
		return guard.Mark{}, err
	}
	return s.mark, nil
}
