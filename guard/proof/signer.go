package proof

import (
	"crypto/ed25519"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// SignerOptions configures [NewSigner]. The zero value is the default.
type SignerOptions struct {
	// Leeway is how much longer than its claim's lease each proof is valid, for
	// verifiers whose clocks are ahead, and so that a late holder is refused as
	// stale and not because its proof has expired. 0 adds nothing. It weakens
	// nothing: the mark protects the resource, not the proof's expiry.
	Leeway time.Duration
}

// Signer signs claims with one key. Make one with [NewSigner]; the zero value is
// not usable. It is safe for concurrent use.
type Signer struct {
	key  PrivateKey
	opts SignerOptions
}

// NewSigner returns a [Signer]. opts may be nil. The error is
// a *guard.InvalidError (guard.ErrInvalid) for the zero key.
func NewSigner(key PrivateKey, opts *SignerOptions) (*Signer, error) {
	if key.key == nil {
		return nil, guard.Invalid("key", "", "is the zero value; see NewPrivateKey and ParsePrivateKey")
	}
	s := &Signer{key: key}
	if opts != nil {
		s.opts = *opts
	}
	return s, nil
}

// Sign returns a proof that claim was issued. audience says who may accept it,
// such as a service, or a service and a tenant: a verifier that expects another
// audience refuses it. The proof is valid until expires, the lease's end, plus
// [SignerOptions.Leeway], rounded up to a second, by the verifier's clock.
//
// The error is a *guard.InvalidError: claim or audience is invalid, or the proof
// would be longer than [MaxLen].
func (s *Signer) Sign(claim guard.Claim, audience string, expires time.Time) (string, error) {
	if err := claim.Validate(); err != nil {
		return "", err
	}
	if guard.ValidateResource(audience) != nil { // it has the limits of a resource
		return "", guard.Invalid("audience", audience, "must be 1 to "+strconv.Itoa(guard.MaxResourceLen)+" bytes of UTF-8 without control characters")
	}
	until := expires.Add(s.opts.Leeway + time.Second - 1).Unix()
	signed := guard.Must(part(header{algorithm, s.key.id, Type})) + "." +
		guard.Must(part(content{issuer, audience, claim.Resource, claim.Token, claim.LeaseID, until}))
	compact := signed + "." + encoding.EncodeToString(ed25519.Sign(s.key.key(), []byte(signed)))
	if len(compact) > MaxLen {
		return "", guard.Invalid("proof", "", "would have "+strconv.Itoa(len(compact))+" bytes, at most "+strconv.Itoa(MaxLen)+" are allowed")
	}
	return compact, nil
}
