package proof

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

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
	// MaxAudienceLen is the maximum length of an issuer or an audience, in
	// bytes.
	MaxAudienceLen = 256
)

const algorithm = "EdDSA"

// isAlgorithm reports whether name is that of the signatures here: RFC 9864 has
// given EdDSA over Ed25519 a name of its own, which says the same.
func isAlgorithm(name string) bool { return name == algorithm || name == "Ed25519" }

// encoding is Strict, so that the last character of a part has no unused bits
// set.
var encoding = base64.RawURLEncoding.Strict()

// decode accepts only the canonical spelling: Go's decoder skips line breaks.
func decode(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("a line break")
	}
	return encoding.DecodeString(s)
}

// content is what a proof says.
type content struct {
	issuer, audience string
	claim            guard.Claim
	expires          int64 // seconds since 1970; not valid from then on
}

// marshal returns the first two parts of a proof.
func (c *content) marshal(kid string) string {
	header := mustMarshal(struct {
		Alg string `json:"alg"`
		Kid string `json:"kid"`
		Typ string `json:"typ"`
	}{algorithm, kid, Type})
	payload := mustMarshal(struct {
		Iss string `json:"iss"`
		Aud string `json:"aud"`
		Res string `json:"res"`
		Fen string `json:"fen"`
		Lid string `json:"lid"`
		Exp int64  `json:"exp"`
	}{c.issuer, c.audience, c.claim.Resource, c.claim.Token.String(), c.claim.LeaseID, c.expires})
	return encoding.EncodeToString(header) + "." + encoding.EncodeToString(payload)
}

// mustMarshal is json.Marshal without the escapes for HTML.
func mustMarshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // structs of strings and numbers
		panic("proof: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// split takes a proof apart and reads its header. None of it is trusted yet
// except the key ID, which is only used to look up a key.
func split(compact string) (signed, payload, kid string, signature []byte, err error) {
	if len(compact) > MaxLen {
		return "", "", "", nil, malformed("has " + strconv.Itoa(len(compact)) + " bytes, at most " + strconv.Itoa(MaxLen) + " are allowed")
	}
	header, rest, ok := strings.Cut(compact, ".")
	payload, last, also := strings.Cut(rest, ".")
	if !ok || !also || strings.Contains(last, ".") {
		return "", "", "", nil, malformed("is no compact JWS of three parts")
	}
	members, err := object(header, "alg", "kid", "typ")
	if err != nil {
		return "", "", "", nil, err
	}
	var texts [3]string
	for i, m := range members {
		if texts[i], ok = m.(string); !ok {
			return "", "", "", nil, malformed("has a member in its header that is no string")
		}
	}
	switch {
	case !isAlgorithm(texts[0]):
		return "", "", "", nil, malformed("is not signed by " + algorithm)
	case texts[2] != Type:
		return "", "", "", nil, malformed("is not of the type " + Type)
	case !isKeyID(texts[1]):
		return "", "", "", nil, malformed("has a key ID that is none")
	}
	if signature, err = decode(last); err != nil {
		return "", "", "", nil, malformed("has a signature that is not in canonical base64url")
	}
	return compact[:len(header)+1+len(payload)], payload, texts[1], signature, nil
}

// parse reads a payload whose signature is genuine.
func parse(payload string) (content, error) {
	members, err := object(payload, "iss", "aud", "res", "fen", "lid", "exp")
	if err != nil {
		return content{}, err
	}
	var texts [5]string
	for i := range texts {
		var ok bool
		if texts[i], ok = members[i].(string); !ok {
			return content{}, malformed("has a member that must be a string")
		}
	}
	number, ok := members[5].(json.Number)
	if !ok {
		return content{}, malformed("has an exp that is not a number")
	}
	expires, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil || expires <= 0 {
		return content{}, malformed("has an exp that is no whole positive number of seconds")
	}
	token, err := guard.ParseToken(texts[3])
	if err != nil {
		return content{}, malformed("has a fen that is no fencing token")
	}
	c := content{issuer: texts[0], audience: texts[1], claim: guard.Claim{Resource: texts[2], Token: token, LeaseID: texts[4]}, expires: expires}
	if err := c.claim.Validate(); err != nil {
		return content{}, malformed("has a claim that is none")
	}
	return c, nil
}

// object decodes a part of a proof, a JSON object with exactly these members,
// each once, and returns their values in this order. Decoding into a struct with
// encoding/json would take the last of two members and ignore the case of names,
// where another reader takes the first.
func object(part string, names ...string) ([]any, error) {
	b, err := decode(part)
	if err != nil {
		return nil, malformed("is not in canonical base64url without padding")
	}
	if !utf8.Valid(b) {
		return nil, malformed("is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, malformed("has a part that is not a JSON object")
	}
	values := make([]any, len(names))
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, malformed("has a part that is not a JSON object")
		}
		value, err := d.Token()
		if err != nil || value == nil {
			return nil, malformed("has a part that is not a JSON object of strings and numbers")
		}
		known := false
		for i := range names {
			if name == names[i] {
				if values[i] != nil {
					return nil, malformed("has the member " + names[i] + " twice")
				}
				values[i], known = value, true
			}
		}
		if !known {
			return nil, malformed("has a member that is not of its format")
		}
	}
	if t, err := d.Token(); err != nil || t != json.Delim('}') {
		return nil, malformed("has a part that is not a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, malformed("has something behind a JSON object")
	}
	for i, v := range values {
		if v == nil {
			return nil, malformed("has no member " + names[i])
		}
	}
	return values, nil
}

// malformed includes nothing of the proof, because errors are logged and a
// proof is a credential.
func malformed(problem string) error { return guard.Invalid("proof", "", problem) }

// checkName checks an issuer or an audience.
func checkName(field, name string) error {
	if name == "" || len(name) > MaxAudienceLen || guard.ValidateResource(name) != nil {
		return guard.Invalid(field, name, "must be 1 to "+strconv.Itoa(MaxAudienceLen)+" bytes of UTF-8 without control characters")
	}
	return nil
}
