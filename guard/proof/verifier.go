package proof

import (
	"context"
	"crypto/ed25519"
	"net/http"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Verifier checks proofs. Make one with [NewVerifier]; the zero value is not
// usable. It is safe for concurrent use.
type Verifier struct{ keys *Keys }

// NewVerifier returns a [Verifier] that trusts these keys, which must not be nil.
func NewVerifier(keys *Keys) *Verifier { return &Verifier{keys} }

// Verify returns nil if compact proves that the issuer granted claim, for this audience.
//
// It checks signature, issuer, audience, resource, token, lease, expiry and that the key is still in
// the set. Nothing is remembered of a proof: each call verifies a signature of Ed25519, which takes
// less time than the comparison with the mark in a database.
//
// Errors:
//   - [guard.ErrMissing]: compact is empty.
//   - [guard.ErrInvalid]: the proof is not genuine, has expired, or is for another audience, token or
//     lease. The error shows nothing of it.
//   - [guard.ErrMisdirected]: a genuine proof of another resource.
//   - [guard.ErrUnavailable]: the keys are too old to be trusted, and their source does not respond.
func (v *Verifier) Verify(ctx context.Context, compact, audience string, claim guard.Claim) error {
	if compact == "" {
		return guard.Missing(Header)
	}
	now := time.Now().Unix()
	set, err := v.keys.current(ctx, now, false)
	if err != nil {
		return err
	}
	signed, payload, kid, signature, err := split(compact)
	if err != nil {
		return err
	}
	key, ok := (*set)[kid]
	if !ok {
		if set, err = v.keys.current(ctx, now, true); err != nil {
			return err
		}
		if key, ok = (*set)[kid]; !ok {
			return malformed("is signed by a key that is not in the set")
		}
	}
	if !ed25519.Verify(key, []byte(signed), signature) {
		return malformed("has a signature that is not genuine")
	}
	said, err := read[content](payload)
	if err != nil {
		return err
	}
	return compare(&said, audience, &claim, now)
}

// compare checks the contents of a genuine proof against what is expected.
func compare(said *content, audience string, claim *guard.Claim, now int64) error {
	switch {
	case said.Issuer != issuer:
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
// request merely says; its errors are returned as they are. It must not be nil.
func (v *Verifier) Hook(audience func(*http.Request) (string, error)) func(guard.Claim, *http.Request) error {
	if audience == nil {
		panic("proof: Hook needs the audience")
	}
	return func(claim guard.Claim, r *http.Request) error {
		lines := r.Header[Header]
		if len(lines) > 1 {
			return guard.Invalid(Header, "", "is given "+strconv.Itoa(len(lines))+" times")
		}
		expected, err := audience(r)
		if err != nil {
			return err
		}
		if len(lines) == 0 {
			return guard.Missing(Header)
		}
		return v.Verify(r.Context(), lines[0], expected, claim)
	}
}
