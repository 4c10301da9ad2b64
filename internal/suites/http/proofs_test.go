// Package httpsuite tests package httpfence behind proxies.
package httpsuite

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

var proven = guard.Claim{Resource: "acme:billing-close:2026-04", Token: 34, LeaseID: "019f1b2c"}

// proofs has what both readers of proofs need.
type proofs struct {
	key      proof.PrivateKey
	secret   ed25519.PrivateKey
	good     string
	verifier *proof.Verifier
}

func newProofs(t testing.TB) *proofs {
	p := &proofs{key: proof.NewPrivateKey()}
	var jwk struct{ D string }
	testkit.Must(t, json.Unmarshal(p.key.JWK(), &jwk))
	p.secret = ed25519.NewKeyFromSeed(guard.Must(base64.RawURLEncoding.DecodeString(jwk.D)))
	p.good = guard.Must(guard.Must(proof.NewSigner(p.key, nil)).Sign(proven, "ledger", time.Unix(4102444800, 0)))
	keys := guard.Must(proof.NewKeys(context.Background(), proof.Static(p.key.Public()), nil))
	p.verifier = proof.NewVerifier(keys)
	return p
}

// sign signs any header and payload.
func (p *proofs) sign(header, payload string) string {
	signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
	return signed + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(p.secret, []byte(signed)))
}

// jose returns the payload that go-jose reads, and whether it accepts the proof.
func (p *proofs) jose(compact string) ([]byte, bool) {
	jws, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return nil, false
	}
	payload, err := jws.Verify(p.secret.Public())
	return payload, err == nil
}

// parts returns the header and the payload of the good proof.
func (p *proofs) parts() (header, payload string) {
	parts := strings.Split(p.good, ".")
	return string(guard.Must(base64.RawURLEncoding.DecodeString(parts[0]))), string(guard.Must(base64.RawURLEncoding.DecodeString(parts[1])))
}

// FuzzProofs signs arbitrary headers and payloads, and changes the result: what
// package proof accepts is accepted by go-jose and says the same there.
func FuzzProofs(f *testing.F) {
	p := newProofs(f)
	header, payload := p.parts()
	f.Add(header, payload, 0, byte(0))
	f.Add(header, payload, 7, byte('A'))
	f.Add(strings.Replace(header, "{", `{"alg":"none",`, 1), payload, 0, byte(0))
	f.Add(header, strings.Replace(payload, "{", `{"fen":"35",`, 1), 0, byte(0))
	f.Fuzz(func(t *testing.T, header, payload string, at int, with byte) {
		compact := []byte(p.sign(header, payload))
		if with != 0 && at >= 0 && at < len(compact) {
			compact[at] = with
		}
		if p.verifier.Verify(t.Context(), string(compact), "ledger", proven) != nil || strings.Contains(header, `"Ed25519"`) { // a name that go-jose does not know
			return
		}
		read, ok := p.jose(string(compact))
		var said struct{ Iss, Aud, Res, Fen, Lid string }
		if !ok || json.Unmarshal(read, &said) != nil || said.Res != proven.Resource || said.Fen != "34" || said.Lid != proven.LeaseID || said.Aud != "ledger" || said.Iss != "fencepost" {
			t.Errorf("%s: go-jose %v: %s", compact, ok, read)
		}
	})
}

// TestProofsAndJOSE: the profile of proofs is narrower than that of a JOSE
// library, which accepts all of these, and costs no allocation for a proof that
// was seen before. The control is a proof as it should be.
func TestProofsAndJOSE(t *testing.T) {
	p := newProofs(t)
	header, payload := p.parts()
	for name, c := range map[string]struct {
		compact string
		ours    bool
	}{
		"control":                     {p.good, true},
		"signed again":                {p.sign(header, payload), true},
		"another type":                {p.sign(strings.Replace(header, proof.Type, "JWT", 1), payload), false},
		"a key in the header":         {p.sign(strings.Replace(header, "{", `{"jku":"https://evil.example",`, 1), payload), false},
		"a member of the claim twice": {p.sign(header, strings.Replace(payload, "{", `{"fen":"35",`, 1)), false},
		"a member in capitals":        {p.sign(header, strings.Replace(payload, "fen", "FEN", 1)), false},
		"a payload that is no JSON":   {p.sign(header, payload+"}"), false},
		"a line break":                {strings.Replace(p.good, ".", "\n.", 1), false},
	} {
		_, theirs := p.jose(c.compact)
		if err := p.verifier.Verify(t.Context(), c.compact, "ledger", proven); (err == nil) != c.ours || !theirs {
			t.Errorf("%s: %v; go-jose accepts: %v", name, err, theirs)
		}
	}
	ours := testing.AllocsPerRun(100, func() { _ = p.verifier.Verify(t.Context(), p.good, "ledger", proven) })
	theirs := testing.AllocsPerRun(100, func() { p.jose(p.good) })
	if ours != 0 || theirs == 0 {
		t.Errorf("%v allocations, go-jose %v", ours, theirs)
	}
	t.Logf("allocations for a proof that was seen before: %v, go-jose %v", ours, theirs)
}
