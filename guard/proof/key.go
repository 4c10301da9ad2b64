package proof

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// PublicKey verifies proofs. In JSON it is a JWK (RFC 8037, section 2). The zero
// value is not usable.
type PublicKey struct {
	id  string
	key ed25519.PublicKey
}

// PrivateKey signs proofs. Printed, logged or marshalled, alone or inside of
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

// NewPrivateKey makes a key. Its ID is its thumbprint (RFC 7638).
func NewPrivateKey() PrivateKey {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil { // crypto/rand never fails
		panic("proof: " + err.Error())
	}
	thumbprint := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + encoding.EncodeToString(public) + `"}`))
	return privateKey(encoding.EncodeToString(thumbprint[:]), private)
}

// ParsePrivateKey reads the JWK of a private key, as [PrivateKey.JWK] writes it.
// The error is a *guard.InvalidError that shows nothing of the key.
func ParsePrivateKey(jwk []byte) (PrivateKey, error) {
	k, err := parseJWK(jwk)
	if err != nil {
		return PrivateKey{}, err
	}
	seed, ok := decode(k.D)
	if !ok || len(seed) != ed25519.SeedSize {
		return PrivateKey{}, guard.Invalid("JWK", "", "has no private key (d) of 32 bytes")
	}
	private := ed25519.NewKeyFromSeed(seed)
	if !private.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(k.public)) {
		return PrivateKey{}, guard.Invalid("JWK", "", "has a public key (x) that does not match its private key (d)")
	}
	return privateKey(k.Kid, private), nil
}

// ID returns the key ID.
func (k PrivateKey) ID() string { return k.id }

// Public returns the key that verifies what k signs.
func (k PrivateKey) Public() PublicKey {
	return PublicKey{k.id, k.key().Public().(ed25519.PublicKey)}
}

// JWK returns the whole key with its secret, for a file that only the lock
// server can read.
func (k PrivateKey) JWK() []byte {
	return guard.Must(json.Marshal(jwk{Kty: "OKP", Crv: "Ed25519", Kid: k.id, Alg: "EdDSA", Use: "sig",
		X: encoding.EncodeToString(k.Public().key), D: encoding.EncodeToString(k.key().Seed())}))
}

// String shows the ID, and no secret.
func (k PrivateKey) String() string { return "proof.PrivateKey(" + k.id + ")" }

// Format writes String for every verb.
func (k PrivateKey) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.String()) }

// ID returns the key ID.
func (k PublicKey) ID() string { return k.id }

// MarshalJSON implements [json.Marshaler].
func (k PublicKey) MarshalJSON() ([]byte, error) {
	if len(k.key) != ed25519.PublicKeySize {
		return nil, guard.Invalid("key", k.id, "is the zero value")
	}
	return json.Marshal(jwk{Kty: "OKP", Crv: "Ed25519", Kid: k.id, Alg: "EdDSA", Use: "sig", X: encoding.EncodeToString(k.key)})
}

// UnmarshalJSON implements [json.Unmarshaler]. It refuses a private key with
// [guard.ErrInvalid]: a verifier must not be able to sign.
func (k *PublicKey) UnmarshalJSON(b []byte) error {
	parsed, err := parseJWK(b)
	if err != nil {
		return err
	}
	if parsed.D != "" {
		return guard.Invalid("JWK", parsed.Kid, "is a private key; only the lock server may hold it")
	}
	*k = PublicKey{parsed.Kid, parsed.public}
	return nil
}

// jwk is a key by RFC 7517, section 4, and RFC 8037, section 2.
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	Kid string `json:"kid"`
	Alg string `json:"alg,omitempty"`
	Use string `json:"use,omitempty"`
	X   string `json:"x"`
	D   string `json:"d,omitempty"`

	public []byte
}

func parseJWK(b []byte) (jwk, error) {
	var k jwk
	if err := json.Unmarshal(b, &k); err != nil {
		return jwk{}, guard.Invalid("JWK", "", "is not a JSON object of strings")
	}
	if k.Kty != "OKP" || k.Crv != "Ed25519" || k.Alg != "" && !isAlgorithm(k.Alg) || k.Use != "" && k.Use != "sig" {
		return jwk{}, guard.Invalid("JWK", k.Kid, "is no Ed25519 key for signatures")
	}
	if !isKeyID(k.Kid) {
		return jwk{}, guard.Invalid("JWK", k.Kid, `must have a kid of 1 to 128 letters, digits and "-_.=+~@"`)
	}
	var ok bool
	if k.public, ok = decode(k.X); !ok || len(k.public) != ed25519.PublicKeySize {
		return jwk{}, guard.Invalid("JWK", k.Kid, "must have a public key (x) of 32 bytes in base64url")
	}
	return k, nil
}

// isKeyID reports whether s can be a key ID: one without special meaning in a
// path, a URL or a log line.
func isKeyID(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.=+~@", c) >= 0:
		default:
			return false
		}
	}
	return s != "" && len(s) <= 128
}
