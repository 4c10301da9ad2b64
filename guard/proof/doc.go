// Package proof lets a service check that a lock server issued the claim that a
// request presents. The server signs each claim that it grants; the service
// verifies the signature before its fence compares the token. Without a proof a
// token is only a number, and whoever can send a high one locks out everyone
// else.
//
// # What it guarantees
//
// A request whose proof is missing, malformed, expired, signed by a key that is
// not in the set, or made for another issuer, audience, resource, token or lease
// is refused, and raises no mark. The service decides that proofs are required,
// and the algorithm; nothing in a request can change that. The key ID in a
// request is only compared with the IDs in the set: it opens no file and no URL.
//
// A key that was removed from the source is refused after [KeysOptions].Refresh,
// even for proofs that were verified while it was there. Keys that could not be
// confirmed for MaxAge verify nothing ([guard.ErrUnavailable]). A key that cannot
// be used harms no other and is logged once by its name.
//
// # What it does not
//
// A proof is a bearer credential: whoever can read it can present it until it
// expires, for that one resource and token. Send it over TLS only. It does not
// replace the comparison with the mark: the proof of a lease that was taken
// over is genuine, but its token is stale.
//
// # Use
//
// The lock server, which alone holds the private key. Identity.Audience is the
// audience of each caller's proofs:
//
//	signer, err := proof.NewSigner(key, &proof.SignerOptions{Issuer: "locks.example"})
//	server, err := lockhttp.New(issuer, authenticate, &lockhttp.Options{Signer: signer})
//
// The service:
//
//	keys, err := proof.NewKeys(ctx, proof.JWKS("https://locks.example/.well-known/jwks.json", nil), nil)
//	verifier, err := proof.NewVerifier(keys, &proof.VerifierOptions{Issuer: "locks.example"})
//	verify, err := verifier.Hook(audienceOfTenant)
//	fence, err := httpfence.New(db, resource, &httpfence.Options{Verify: verify})
//
// The worker, which sends the proof in the header field [Header]:
//
//	issuer, err := lockhttp.NewIssuer("https://locks.example", httpClient)
//	transport, err := httpfence.NewTransport(nil, origins, &httpfence.TransportOptions{Proof: issuer.Proof})
//
// examples/lockserver has all three.
//
// # Format
//
// A proof is a JWS in the compact form (RFC 7515, section 7.1) with the type
// [Type] and the algorithm EdDSA (RFC 8037), or by its newer name Ed25519 (RFC
// 9864), over an Ed25519 key:
//
//	{"alg":"EdDSA","kid":"<key ID>","typ":"fence+jwt"}
//	{"iss":"<issuer>","aud":"<audience>","res":"<resource>","fen":"<token>","lid":"<lease ID>","exp":<seconds since 1970>}
//
// This is the only spelling: the members in this order, without spaces, without an
// escape that JSON does not require (but "\u2028" and "\u2029"); fen is a decimal
// string as [guard.ParseToken] reads it, lid may be "". The parts are base64url
// without padding, in the one canonical spelling. A proof has at most [MaxLen]
// bytes.
//
// # No JOSE library
//
// Package guard and what is below it have no dependencies. A library is also wider
// than this profile: go-jose accepts other members in the header and a payload of
// any spelling, and allocates for each proof, also for one that it has seen. The
// signatures are those of crypto/ed25519. The suite internal/suites/http compares both:
// whatever passes here passes go-jose and says the same there.
//
// # Rotation
//
// Add the new public key to the source; wait for Refresh; sign with the new
// private key; wait until the last proof of the old key has expired; remove the
// old public key. To revoke a key at once, remove it: its proofs are refused
// after Refresh.
//
// # Compatibility
//
// As in package guard, names may change until version 1; the format will not.
package proof
