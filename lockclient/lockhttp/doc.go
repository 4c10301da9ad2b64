// Package lockhttp is the lock server: leases with fencing tokens over HTTP, for workers
// in any language. Its Go client is a driver.Issuer, so lockclient works over it as over
// PostgreSQL.
//
// examples/lockserver is a complete server. A lease protects nothing by itself: a stale
// writer is refused because of its token, compared at the resource by a fence.
//
// The server:
//
//	issuer, err := pglock.New(pool, nil) // or etcd, Redis, memory
//	operator, err := pgadmin.New(pool, nil)
//	server, err := lockhttp.New(issuer, authenticate, &lockhttp.Options{Admin: operator})
//	err = (&http.Server{Handler: server, ReadHeaderTimeout: 5 * time.Second}).ListenAndServe()
//
// A worker:
//
//	issuer, err := lockhttp.NewIssuer("https://locks.example.com", httpClient)
//	client, err := lockclient.New(issuer, "worker-7", nil)
//	err = client.Hold(ctx, "acme:billing-close:2026-04", ...)
//
// # What it guarantees
//
// Its issuer's guarantees, over HTTP: tokens only grow (P3), one token has one
// lease (P4), abandoned means abandoned (P8). An identity sees, names and counts nothing
// outside its templates and its tenant. If [Options].Signer is set, a claim that
// cannot be signed is not returned. With the issuer down each exchange with it
// ends within [Options].Timeout and a tenth of a second.
//
// # What it does not
//
// It has no TLS, no passwords and no store of identities: those are left to the
// http.Server and the Authenticate hook. Limits are per server.
//
// # Use
//
// GET /openapi.json describes them (OpenAPI 3.1).
//
//	POST   /v1/locks/acquire                 {resource, ttlSeconds, ownerId, leaseId, waitSeconds, metadata, notAfter, waiting}
//	POST   /v1/locks/{leaseId}/renew         {ttlSeconds, resource, fencingToken}, or no body: the grant's TTL
//	DELETE /v1/locks/{leaseId}               ?resource=R&fencingToken=N; without the token the ID is spent
//	POST   /v1/locks/renew, /v1/locks/release   the same with leaseId in the body, for IDs such as ".."
//	GET    /v1/locks?prefix=P                a page of what the identity may name; state, limit, after
//	GET    /v1/resources/{resource}          who holds it
//	POST   /v1/resources/{resource}/force-unlock {reason, actorId, leaseId, requestId}
//	POST   /v1/resources/{resource}/advance  {fencingToken}: every later token of the resource is above it
//	GET    /v1/audit?prefix=P                a page of what operators did; limit, before
//	POST   /v1/advance, /v1/epoch/raise      {fencingToken}: the same of every resource; a new epoch. GET /v1/epoch
//	POST   /v1/purge                         {olderThanSeconds, batch, lockTimeoutSeconds}
//	GET    /v1/watch?resource=R&leaseId=L    server-sent: who holds, then "wake" when it is worth asking again
//	GET    /v1/time                          the server's time, for notAfter
//	GET    /health, /readyz                  the process responds; a lease can be acquired, signed and released within Options.ReadyWithin
//	GET    /ui                               the operators' page
//
// A granted acquire is 200: acquired is true, with leaseId, the token and expiresAt.
// A refused one is 409: acquired is false, with who holds it until when. A token is
// there twice, as the number fencingToken and, for readers of floats, as the text token;
// requests accept either in fencingToken. Count the ttlSeconds of a response from when the
// request was sent plus waitedSeconds: it is at most what was requested.
//
// A renewal and a release need only the lease ID that the server made, which says the TTL
// and the resource, unless that is longer than some 60 bytes. A client's own ID needs the
// resource beside it, and the TTL of a renewal. RETRIES.md says what to do about a lost
// response and an acquire to abandon (P8), and why a second DELETE is 404.
//
// Names in paths are percent-encoded and decoded once: "%2F" is a slash in the name.
//
// # Who may do what
//
// [Authenticate] returns an [Identity] for a request. It may name the resources
// of its templates; the variable {tenant} must be its tenant. Everything else
// gets a 403, whether it exists or not, and is in no list, page, count or
// audit that it sees. It sees until when a lease on its own resources runs, and who holds it if
// Options.ShowHolders says so; the lease ID and
// token, with which anybody who may name the resource can act as the holder, force
// unlocks and the audit are for Identity.Operator. A force unlock is recorded under the
// identity's Subject; the name in actorId is kept beside the reason. The operators' page
// is a client of these requests. [Limits] bound each identity. The resource
// fencepost-readyz is the servers' own.
//
// The server's only state is who waits: any number of servers may share one issuer, and a
// restart loses nothing. Log lines and events come from a queue: a logger that blocks
// delays no response, and what does not fit is dropped and counted (lock_events_dropped).
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
//	409                         an acquire that was refused: no problem, see above
//	409 lease_changed, held     force unlock: not the expected lease; advance: beyond a holder
//	410 lease_spent             the lease ID was released or abandoned
//	412 late                    after its notAfter
//	405 method_not_allowed, 413 too_large, 415 unsupported_media_type
//	429 too_many_requests
//	500 outcome_unknown         it may have been done: repeat it, or release, under the
//	                            leaseId that it names; if it names none, ask anew
//	500 internal                likewise
//	500 setup                   nothing was done, and no retry helps: somebody has to act
//	501 unsupported             no Options.Admin, or an issuer that never notifies
//	503 unavailable             nothing was done; also a wait that ended before anybody said
//	                            who has the lease, and a watch whose issuer connects yet
//	503 issuer_behind           the issuer is behind its own tokens, as after a
//	                            restore (guard.ErrMarkAhead): an operator has to act
//
// # Where to read on
//
// An acquire goes from server.go (options, the table of routes and their fields, how an
// exchange with the issuer is bounded) to request.go (its fields, read and checked) and
// identity.go (what the identity may), then to acquire.go, and its response is in wire.go
// or, if it is refused, problem.go, the table of errors for both sides; quota.go bounds a
// tenant. renew.go, leases.go (what a lease ID says) and watch.go are the other requests of
// workers, operate.go, health.go and page.go those of operators. The clients are issuer.go,
// proofs.go and, for operators, admin.go.
//
// Until version 1 exported names may change between minor versions, and fields be added.
package lockhttp
