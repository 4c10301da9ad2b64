// Package lockhttp is the lock server: leases with fencing tokens over HTTP, for
// workers in any language, with identities, tenants and an operators' page. Its
// Go client is a driver.Issuer, so lockclient's waiting, renewing and Hold work
// over it as over PostgreSQL.
//
// examples/lockserver is a complete server. A lease protects nothing by itself:
// a stale writer is refused because of its token, compared at the resource by
// sqlfence, httpfence or s3fence.
//
// # What it guarantees
//
// Its issuer's guarantees, over HTTP: tokens only grow (P3), one token has one
// lease (P4), given up is over (P8). An identity sees, names and counts nothing
// outside its templates and its tenant. If [Options].Signer is set, a claim that
// cannot be signed is not returned. With the issuer down each exchange with it
// ends within [Options].Timeout and a tenth of a second, and the request with it
// is answered.
//
// # What it does not
//
// It has no TLS, no passwords and no store of identities: those are left to the
// http.Server and the Authenticate hook. Limits and counts are per server. If an
// answer to a client without a leaseId of its own is lost, the lease runs until
// its TTL.
//
// # Use
//
// The server:
//
//	issuer, err := lockclient.NewIssuer(pool, nil) // or etcd, Redis, memory
//	operator, err := lockadmin.New(pool, nil)
//	server, err := lockhttp.New(issuer, authenticate, &lockhttp.Options{Admin: operator})
//	err = (&http.Server{Handler: server, ReadHeaderTimeout: 5 * time.Second}).ListenAndServe()
//
// A worker:
//
//	issuer, err := lockhttp.NewIssuer("https://locks.example.com", httpClient)
//	client, err := lockclient.NewWith(issuer, "worker-7", nil)
//	err = client.Hold(ctx, "acme:billing-close:2026-04", ...)
//
// # Requests
//
// GET /openapi.json describes them (OpenAPI 3.1).
//
//	POST   /v1/locks/acquire                 {resource, ttlSeconds, ownerId, leaseId, waitSeconds, metadata, notAfter}
//	POST   /v1/locks/{leaseId}/renew         {ttlSeconds, resource, fencingToken}, or no body: the grant's TTL
//	POST   /v1/locks/renew                   {renewals: [{resource, leaseId, fencingToken, ttlSeconds}, ...]}
//	DELETE /v1/locks/{leaseId}               ?resource=R&fencingToken=N
//	POST   /v1/locks/release                 {resource, leaseId, fencingToken}, for lease IDs such as ".."
//	POST   /v1/locks/why                     {resource, leaseId, fencingToken}: who ended the lease by force
//	GET    /v1/locks?prefix=P                a page of what the identity may name
//	GET    /v1/locks/{resource}
//	POST   /v1/locks/{resource}/force-unlock {actorId, reason, leaseId, requestId}
//	GET    /v1/audit
//	GET    /v1/events?resource=R             server-sent: who holds, and every change that is seen
//	GET    /health, /readyz                  the process answers; a lease can be acquired and released
//	GET    /ui                               the operators' page
//
// A granted acquire is 200: acquired is true, with leaseId, the token and expiresAt.
// A refused one is 409: acquired is false, with who holds it until when. A token is
// there twice, as the number fencingToken and as the text
// token; requests accept either in fencingToken. Clients that read JSON numbers
// as floats must use the text. Count the ttlSeconds of an answer from when the
// request was sent plus waitedSeconds: it is at most what was requested, and less
// if the issuer counts from an earlier moment.
//
// A renewal and a release need only the lease ID. A resource and a token are checked
// if they are given. The server knows up to 65,536 running leases that it granted, and
// asks a driver.Finder for others, once for each. PostgreSQL then reads all leases: 2 ms
// for ten thousand, 220 ms for a million, one request at a time. With another issuer
// the request must name the resource. A lease ID that the server made ends with the TTL, so
// that any server renews for it.
//
// Each item of a batch has its own state: extended, over, or the word of an error
// below. A bad item does not prevent the others from being carried out.
//
// Names in paths are percent-encoded and decoded once: "%2F" is a slash in the
// name and "%61" an a.
//
// # Given up is over (promise P8)
//
//   - A lost answer: repeat the request under the same leaseId, which gives the
//     same lease and token. If the client sent no leaseId, the answer of a failed
//     request names the one that the server made.
//   - A client that goes away: its wait ends. A lease that may have been granted
//     to it under an ID that the server made is released. Under an ID of the
//     client's own it is kept, since the client may come back, and runs out with
//     its TTL.
//   - A release or a force unlock that was received is carried out, and the invalidated
//     claim is raised, even if the client does not wait for the answer.
//   - To give up under an ID of the client's own: DELETE with the resource, without the token.
//     Nothing is granted under that ID any more, not even to a request in
//     transit.
//   - notAfter: a request that arrives later, by the server's clock, does
//     nothing. The Go client always sends it, computed from the server's time
//     that it last received. The clocks of servers behind one name must agree
//     within what such a request may be late.
//   - Nothing between may repeat a POST by itself (nginx does not, unless it is told
//     to by non_idempotent): a copy of an acquire that was answered, and whose lease
//     was released with its token, can be granted until its notAfter. Where
//     something does, release without the token.
//
// # Who may do what
//
// [Authenticate] returns an [Identity] for a request. It may name the resources
// of its templates; the variable {tenant} must be its tenant. Everything else is
// answered with 403, whether it exists or not, and is in no list, page, count or
// audit that it sees. It sees who holds a lease on its own resources, but not
// the lease ID or token, with which it could act as the holder, unless
// Identity.SeeHolders allows it. Force unlocks and the audit need
// Identity.Operator. [Limits] bound each identity.
//
// The server compares the resource, lease ID and token of a renewal or release
// with the issuer's; its only state is the count of leases for Limits.Leases, which
// leases it granted, and what the page's plots show. So any number of servers may share one
// issuer.
//
// # Errors
//
// Every error is a problem of RFC 9457 with the type
// "tag:fencepost-go.github.io,2026:problem/" and one of these words:
//
//	400 invalid                 malformed, out of bounds, unknown field; names the field
//	401 unauthenticated         no or wrong credentials
//	403 forbidden               not this identity's resource, owner or right
//	404 lease_over              released, run out, cut (with who and why), or never was
//	404 not_found               no such path, or a resource that was never leased
//	405 method_not_allowed
//	409                         an acquire that was refused: no problem, see above
//	409 lease_changed           force unlock: not the expected lease
//	410 lease_spent             the lease ID was released or abandoned
//	412 late                    after its notAfter
//	413 too_large, 415 unsupported_media_type
//	429 too_many_requests, too_many_leases
//	500 outcome_unknown         it may have been done: repeat it, or release
//	500 internal                likewise
//	501 unsupported             no Options.Admin, or an issuer without notifications
//	503 unavailable             nothing was done
//	503 issuer_behind           the issuer is behind its own tokens, as after a
//	                            restore (guard.ErrMarkAhead): an operator has to act
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. On the wire,
// fields may be added to answers.
package lockhttp
