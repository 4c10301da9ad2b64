// Package proof lets a service check that a lock server issued the claim that a
// request presents. Without a proof a token is only a number, and whoever can
// send a high one locks out everyone else.
//
// The lock server, and nobody else, has the private key, and signs each claim that it
// grants. The worker sends the proof with its claim, in the field [Header]. The service
// verifies it before its fence compares the token. examples/lockserver has all three:
//
//	signer, err := proof.NewSigner(key, nil) // the lock server; Identity.Audience says for whom a proof is
//	server, err := lockhttp.New(issuer, authenticate, &lockhttp.Options{Signer: signer})
//
//	issuer, err := lockhttp.NewIssuer("https://locks.example", httpClient) // the worker
//	transport, err := httpfence.NewTransport(nil, origins, &httpfence.TransportOptions{Proof: issuer.Proof})
//
//	keys, err := proof.NewKeys(ctx, proof.JWKS("https://locks.example/.well-known/jwks.json", nil), nil) // the service
//	verify := proof.NewVerifier(keys).Hook(audienceOfTenant)
//	fence, err := httpfence.New(db, resource, &httpfence.Options{Verify: verify})
//
// # What it guarantees
//
// A request whose proof is missing, malformed, expired, signed by a key that is
// not in the set, or made for another audience, resource, token or lease is
// refused, and raises no mark. Nothing in a request can change that proofs are
// required, by which algorithm, or where keys are looked for. A key that was
// removed from the source is refused after [Refresh], even for proofs that were
// verified while it was there. Keys that could not be confirmed for [MaxAge]
// verify nothing ([guard.ErrUnavailable]).
//
// # What it does not
//
// It does not replace the comparison with the mark: the proof of a lease that was
// taken over is genuine, but its token is stale. And a proof is a bearer
// credential until it expires, for that one resource and token: send it over TLS.
//
// # Use
//
// To rotate keys, add the new public key to the source; wait for Refresh; sign with
// the new private key; wait until the last proof of the old key has expired; remove
// the old public key. To revoke a key at once, remove it.
//
// # Format
//
// A proof is a JWS in the compact form (RFC 7515, section 7.1) with the type
// [Type] and the algorithm EdDSA (RFC 8037), or by its newer name Ed25519 (RFC
// 9864), over an Ed25519 key:
//
//	{"alg":"EdDSA","kid":"<key ID>","typ":"fence+jwt"}
//	{"iss":"fencepost","aud":"<audience>","res":"<resource>","fen":"<token>","lid":"<lease ID>","exp":<seconds since 1970>}
//
// This is the only spelling: the members in this order, without spaces, without an
// escape that JSON does not require (except "\u2028" and "\u2029"); fen is a decimal
// string as [guard.ParseToken] reads it, lid may be "". The parts are base64url
// without padding. A proof has at most [MaxLen] bytes. No JOSE library reads it here:
// package guard has no dependencies, and a library accepts more. internal/suites/http
// shows that go-jose reads the same in each proof. Names in this package may change
// until version 1; the format will not.
//
// # Where to read on
//
// signer.go makes a proof and verifier.go checks it; format.go is what both agree on. key.go has the
// two kinds of key, keys.go the set that follows its source.
package proof
