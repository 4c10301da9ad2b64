package proof

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	// Header is the header field that carries a proof over HTTP: exactly one
	// field line.
	Header = "X-Fencing-Proof"
	// Type is the type in the header of a proof (RFC 8725, section 3.11): no
	// other kind of token that the same key has signed can pass as a proof.
	Type = "fence+jwt"
	// MaxLen is the maximum length of a proof, in bytes.
	MaxLen = 4096

	// issuer is who has made a proof (iss), and algorithm how (alg). Neither can be
	// chosen: a service trusts keys, not names.
	issuer    = "fencepost"
	algorithm = "EdDSA"
)

// isAlgorithm reports whether name is that of the signatures here: RFC 9864 has
// given EdDSA over Ed25519 a name of its own, which says the same.
func isAlgorithm(name string) bool { return name == algorithm || name == "Ed25519" }

var encoding = base64.RawURLEncoding

// decode accepts only the spelling that encoding makes of the result: Go's decoder
// ignores line breaks and unused bits.
func decode(s string) ([]byte, bool) {
	b, err := encoding.DecodeString(s)
	return b, err == nil && encoding.EncodeToString(b) == s
}

// header is the first part of a proof, content the second. Their members are in
// the order of the format.
type header struct {
	Alg string `json:"alg"`
	Kid string `json:"kid"`
	Typ string `json:"typ"`
}

type content struct {
	Issuer   string      `json:"iss"`
	Audience string      `json:"aud"`
	Resource string      `json:"res"`
	Token    guard.Token `json:"fen"`
	LeaseID  string      `json:"lid"`
	Expires  int64       `json:"exp"` // seconds since 1970; not valid from then on
}

// part is v as a part of a proof: JSON without the escapes for HTML, in base64url.
// The error is that of an invalid token.
func part(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return encoding.EncodeToString(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), err
}

// read decodes a part of a proof. It accepts only what part makes of the result:
// no member twice, in other letters, of another type or order, no further ones, and
// nothing that another reader would understand in another way.
func read[T header | content](s string) (v T, err error) {
	if b, ok := decode(s); ok && json.Unmarshal(b, &v) == nil {
		if own, err := part(v); err == nil && own == s {
			return v, nil
		}
	}
	return v, malformed("has a part that is not spelled as the format says")
}

// split takes a proof apart and reads its header. None of it is trusted yet
// except the key ID, which is only used to look up a key.
func split(compact string) (signed, payload, kid string, signature []byte, err error) {
	if len(compact) > MaxLen {
		return "", "", "", nil, malformed("has " + strconv.Itoa(len(compact)) + " bytes, at most " + strconv.Itoa(MaxLen) + " are allowed")
	}
	parts := strings.Split(compact, ".")
	if len(parts) != 3 {
		return "", "", "", nil, malformed("is not a compact JWS of three parts")
	}
	h, err := read[header](parts[0])
	if err != nil {
		return "", "", "", nil, err
	}
	signature, ok := decode(parts[2])
	switch {
	case !isAlgorithm(h.Alg):
		err = malformed("is not signed by " + algorithm)
	case h.Typ != Type:
		err = malformed("is not of the type " + Type)
	case !ok:
		err = malformed("has a signature that is not in canonical base64url")
	}
	return compact[:len(parts[0])+1+len(parts[1])], parts[1], h.Kid, signature, err
}

// malformed includes nothing of the proof, because errors are logged and a
// proof is a credential.
func malformed(problem string) error { return guard.Invalid("proof", "", problem) }
