package proof

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
)

// PublicKey verifies proofs. The zero value is not usable.
type PublicKey struct {
	id  string
	key ed25519.PublicKey
	err error // why it cannot be used, if a source knows that
}

// PrivateKey signs proofs. Printed, logged or marshalled, by itself or inside of
// anything else, it does not show its secret; only [PrivateKey.JWK] reveals it.
// The zero value is not usable.
type PrivateKey struct {
	id string
	// key returns the secret. It is a function because fmt calls no method of an
	// unexported field and prints the bytes of a slice that it finds there, at any
	// depth; it cannot look into a function.
	key func() ed25519.PrivateKey
}

func privateKey(id string, key ed25519.PrivateKey) PrivateKey {
	return PrivateKey{id, func() ed25519.PrivateKey { return key }}
}

// NewPrivateKey makes a key with a random ID.
func NewPrivateKey() PrivateKey {
	_, private, _ := ed25519.GenerateKey(rand.Reader) // crypto/rand never fails
	return privateKey(rand.Text(), private)
}

// ParsePrivateKey reads the JWK of a private key, as [PrivateKey.JWK] writes it.
// The error is a *guard.InvalidError that shows nothing of the key.
func ParsePrivateKey(b []byte) (PrivateKey, error) {
	k, public, err := parseJWK(b)
	if err != nil {
		return PrivateKey{}, err
	}
	seed, ok := decode(k.D)
	if !ok || len(seed) != ed25519.SeedSize {
		return PrivateKey{}, guard.Invalid("JWK", "", "must have a private key (d) of 32 bytes")
	}
	private := ed25519.NewKeyFromSeed(seed)
	if !public.Equal(private.Public()) {
		return PrivateKey{}, guard.Invalid("JWK", "", "has a public key (x) that does not match its private key (d)")
	}
	return privateKey(k.Kid, private), nil
}

// ID returns the key ID.
func (k PrivateKey) ID() string { return k.id }

// Public returns the key that verifies what k signs.
func (k PrivateKey) Public() PublicKey {
	return PublicKey{id: k.id, key: k.key().Public().(ed25519.PublicKey)}
}

// JWK returns the whole key with its secret, for a file that only the lock
// server can read.
func (k PrivateKey) JWK() []byte {
	whole := jwkOf(k.Public())
	whole.D = encoding.EncodeToString(k.key().Seed())
	return guard.Must(json.Marshal(whole))
}

// Format writes the ID, and no secret, for every verb.
func (k PrivateKey) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "proof.PrivateKey(%s)", k.id) }

// jwk is a key by RFC 7517, section 4, and RFC 8037, section 2.
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	Alg string `json:"alg,omitempty"`
	Use string `json:"use,omitempty"`
	X   string `json:"x"`
	D   string `json:"d,omitempty"`
}

func jwkOf(k PublicKey) jwk {
	return jwk{Kty: "OKP", Crv: "Ed25519", Kid: k.id, Alg: algorithm, Use: "sig", X: encoding.EncodeToString(k.key)}
}

func parseJWK(b []byte) (k jwk, public ed25519.PublicKey, err error) {
	if json.Unmarshal(b, &k) != nil {
		return k, nil, guard.Invalid("JWK", "", "is not a JSON object of strings")
	}
	x, ok := decode(k.X)
	switch {
	case k.Kty != "OKP" || k.Crv != "Ed25519" || k.Alg != "" && !isAlgorithm(k.Alg) || k.Use != "" && k.Use != "sig":
		err = guard.Invalid("JWK", k.Kid, "is not an Ed25519 key for signatures")
	case k.Kid == "":
		err = guard.Invalid("JWK", "", "must have a kid")
	case !ok || len(x) != ed25519.PublicKeySize:
		err = guard.Invalid("JWK", k.Kid, "must have a public key (x) of 32 bytes in base64url")
	}
	return k, x, err
}
