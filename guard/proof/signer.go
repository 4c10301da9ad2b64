package proof

import (
	"cmp"
	"crypto/ed25519"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// DefaultIssuer is the issuer that a signer states and a verifier expects by
// default.
const DefaultIssuer = "fencepost"

// SignerOptions configures [NewSigner]. The zero value is the default.
type SignerOptions struct {
	// Issuer names the lock server (iss), 1 to [MaxAudienceLen] bytes; "" means
	// [DefaultIssuer]. If several servers share keys, give each its own issuer.
	Issuer string
	// Leeway is how much longer than its claim's lease each proof is valid, for
	// verifiers whose clocks are ahead, and so that a late holder is refused as
	// stale and not because its proof has expired. 0 adds nothing. It weakens
	// nothing: the mark protects the resource, not the proof's expiry.
	Leeway time.Duration
}

// Signer signs claims with one key. Make one with [NewSigner]; the zero value is
// not usable. It is safe for concurrent use.
type Signer struct {
	key    PrivateKey
	issuer string
	leeway time.Duration
}

// NewSigner returns a [Signer]. opts may be nil. The error is
// a *guard.InvalidError (guard.ErrInvalid).
func NewSigner(key PrivateKey, opts *SignerOptions) (*Signer, error) {
	s := &Signer{key: key, issuer: DefaultIssuer}
	if opts != nil {
		s.issuer, s.leeway = cmp.Or(opts.Issuer, DefaultIssuer), opts.Leeway
	}
	if s.leeway < 0 {
		return nil, guard.Invalid("SignerOptions.Leeway", s.leeway.String(), "must not be negative")
	}
	if key.key == nil {
		return nil, guard.Invalid("key", "", "is the zero value; see NewPrivateKey and ParsePrivateKey")
	}
	return s, checkName("SignerOptions.Issuer", s.issuer)
}

// Sign returns a proof that claim was issued. audience says who may accept it,
// such as a service, or a service and a tenant: a verifier that expects another
// audience refuses it. The proof is valid until expires, the lease's end, plus
// [SignerOptions.Leeway], rounded up to a second, by the verifier's clock.
//
// The error is a *guard.InvalidError: claim, audience or expires is invalid, or
// they make the proof longer than [MaxLen].
func (s *Signer) Sign(claim guard.Claim, audience string, expires time.Time) (string, error) {
	if err := claim.Validate(); err != nil {
		return "", err
	}
	if err := checkName("audience", audience); err != nil {
		return "", err
	}
	expires = expires.Add(s.leeway)
	c := content{s.issuer, audience, claim.Resource, claim.Token, claim.LeaseID, expires.Unix()}
	if expires.Nanosecond() > 0 {
		c.Expires++
	}
	if c.Expires <= 0 {
		return "", guard.Invalid("expires", expires.String(), "must be after 1970")
	}
	signed := encoding.EncodeToString(guard.Must(marshal(header{algorithm, s.key.id, Type}))) + "." + encoding.EncodeToString(guard.Must(marshal(c)))
	compact := signed + "." + encoding.EncodeToString(ed25519.Sign(s.key.key(), []byte(signed)))
	if len(compact) > MaxLen {
		return "", guard.Invalid("proof", "", "would have "+strconv.Itoa(len(compact))+" bytes, at most "+strconv.Itoa(MaxLen)+" are allowed")
	}
	return compact, nil
}
