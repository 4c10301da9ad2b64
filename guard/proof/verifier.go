package proof

import (
	"context"
	"crypto/ed25519"
	"hash/maphash"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// cacheSize is how many verified proofs are remembered, a power of two. Each takes
// up to [MaxLen] bytes. Only genuine proofs are remembered.
const cacheSize = 4096

// VerifierOptions configures [NewVerifier]. The zero value of every field is its
// default.
type VerifierOptions struct {
	// Issuer is the lock server whose proofs are accepted (iss); "" means
	// [DefaultIssuer].
	Issuer string
	// Audience is the audience that proofs must name (aud); "" means that
	// [Verifier.Verify] refuses everything and each call of
	// [Verifier.VerifyFor] names it, such as the tenant of the request.
	Audience string
}

// Verifier checks proofs. Make one with [NewVerifier]; the zero value is not
// usable. It is safe for concurrent use.
type Verifier struct {
	keys  *Keys
	opts  VerifierOptions
	seed  maphash.Seed
	cache [cacheSize]atomic.Pointer[verified] // by the hash of the proof; a newer proof replaces an older one
}

// verified is a proof whose signature is genuine under a generation of keys.
// Its contents are compared at each use.
type verified struct {
	compact string
	by      *keySet
	content
}

// NewVerifier returns a [Verifier] that trusts these keys. opts may be nil. The
// error is a *guard.InvalidError (guard.ErrInvalid).
func NewVerifier(keys *Keys, opts *VerifierOptions) (*Verifier, error) {
	v := &Verifier{keys: keys, seed: maphash.MakeSeed()}
	if opts != nil {
		v.opts = *opts
	}
	if v.opts.Issuer == "" {
		v.opts.Issuer = DefaultIssuer
	}
	if keys == nil {
		return nil, guard.Invalid("keys", "", "must not be nil")
	}
	if err := checkName("VerifierOptions.Issuer", v.opts.Issuer); err != nil {
		return nil, err
	}
	if v.opts.Audience != "" {
		if err := checkName("VerifierOptions.Audience", v.opts.Audience); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Verify is [Verifier.VerifyFor] with [VerifierOptions.Audience].
func (v *Verifier) Verify(ctx context.Context, compact string, claim guard.Claim) error {
	return v.VerifyFor(ctx, compact, v.opts.Audience, claim)
}

// VerifyFor reports whether compact proves that the issuer granted claim, for
// this audience. Signature, issuer, audience, resource, token, lease and expiry
// are all checked, even for a proof that was verified before; so is whether its
// key is still in the set.
//
// Errors: a *guard.InvalidError for the field "proof", which shows nothing of
// the proof, [guard.ErrMissing] for an empty one; a *guard.MisdirectedError for
// a genuine proof of another resource; [guard.ErrUnavailable] if the keys are
// too old to be trusted. It allocates nothing for a proof that it remembers.
func (v *Verifier) VerifyFor(ctx context.Context, compact, audience string, claim guard.Claim) error {
	if compact == "" {
		return guard.Missing("proof")
	}
	now := time.Now().Unix()
	set, err := v.keys.current(ctx, now)
	if err != nil {
		return err
	}
	// The end of a signature is as good as random, and only genuine proofs have
	// a place: its hash need not be of the whole proof.
	slot := &v.cache[maphash.String(v.seed, compact[max(0, len(compact)-16):])%cacheSize]
	if p := slot.Load(); p != nil && p.by == set && p.compact == compact {
		return v.compare(&p.content, audience, &claim, now)
	}
	signed, payload, kid, signature, err := split(compact)
	if err != nil {
		return err
	}
	key, set, err := v.keys.find(ctx, set, kid, now)
	if err != nil {
		return err
	}
	if !ed25519.Verify(key.key, []byte(signed), signature) {
		return malformed("has a signature that is not genuine")
	}
	var said content
	if err := read(payload, &said); err != nil {
		return err
	}
	if err := v.compare(&said, audience, &claim, now); err != nil {
		return err
	}
	slot.Store(&verified{strings.Clone(compact), set, said})
	return nil
}

// compare checks the contents of a genuine proof against what is expected.
func (v *Verifier) compare(said *content, audience string, claim *guard.Claim, now int64) error {
	switch {
	case said.Issuer != v.opts.Issuer:
		return malformed("is of another issuer")
	case audience == "" || said.Audience != audience:
		return malformed("is for another audience")
	case now >= said.Expires:
		return malformed("has expired")
	case said.Resource != claim.Resource:
		return &guard.MisdirectedError{Claimed: said.Resource, Guarded: claim.Resource}
	case said.Token != claim.Token:
		return malformed("is for another fencing token")
	case said.LeaseID != claim.LeaseID:
		return malformed("is for another lease")
	}
	return nil
}

// Hook returns a function for httpfence's Options.Verify: a request must carry
// in [Header] a proof of its claim. audience returns the audience that the proof
// must name, from the authenticated identity or a constant, never from what the
// request merely says; its errors are answered by their sentinel. nil means
// [VerifierOptions.Audience], and is an error if that is not set.
func (v *Verifier) Hook(audience func(*http.Request) (string, error)) (func(guard.Claim, *http.Request) error, error) {
	if audience == nil && v.opts.Audience == "" {
		return nil, guard.Invalid("audience", "", "must not be nil, or VerifierOptions.Audience must be set")
	}
	return func(claim guard.Claim, r *http.Request) error {
		lines := r.Header[Header]
		switch {
		case len(lines) == 0:
			return guard.Missing(Header)
		case len(lines) > 1:
			return guard.Invalid(Header, "", "is given "+strconv.Itoa(len(lines))+" times")
		}
		expected := v.opts.Audience
		if audience != nil {
			var err error
			if expected, err = audience(r); err != nil {
				return err
			}
		}
		return v.VerifyFor(r.Context(), lines[0], expected, claim)
	}, nil
}
