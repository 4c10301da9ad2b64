// Package httpfence lets a net/http service refuse requests of a stale lock
// holder, and lets its clients present their fencing tokens. It works with chi,
// with [net/http.ServeMux] and with any other router.
//
// A client sends the token of its lease as a precondition in the sense of RFC
// 9110, section 13.1:
//
//	POST /tenants/7/billing-close HTTP/1.1
//	X-Fencing-Token: 11
//	X-Fencing-Lease: 0197-6a41
//
// # Use
//
//	marks := guard.NewMemory(nil) // replicas share a store in a database
//	fence := httpfence.New(marks, httpfence.ChiParam("id"), nil)
//	router := chi.NewRouter()
//	router.With(fence.Admit).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
//		claim, _ := guard.ClaimFrom(r.Context())
//		if err := closeAccount(r.Context(), claim); err != nil { // a fenced write
//			fence.Reject(w, r, err)
//			return
//		}
//	})
//
// and in the client:
//
//	client := &http.Client{Transport: httpfence.NewTransport(nil, []string{"https://ledger.internal:8443"}, nil)}
//	resp, err := client.Do(req.WithContext(guard.WithLease(ctx, lease)))
//	...
//	err = httpfence.ErrorFrom(resp) // errors.Is(err, guard.ErrStale): stop
//
// # Four ways
//
// Each name's guarantee is the first sentence of its documentation.
//
//   - [Middleware.Check] compares and writes nothing.
//   - [Middleware.Admit] admits at the door and raises the mark. It does not by
//     itself stop a write already in flight: pair it with a fenced write.
//   - [Middleware.InTx] runs the handler in a fenced transaction and holds the
//     answer back until COMMIT. The handler need not know about tokens.
//   - [Middleware.Raise] is the endpoint that a new holder calls before it
//     reads.
//
// With sqlfence:
//
//	fence := httpfence.New(db, httpfence.ChiParam("id"), nil) // db is a sqlfence.DB
//	router.Post("/accounts/{id}/raise", fence.Raise)
//	router.With(fence.InTx(db.Transactor(), nil)).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
//		tx, _ := db.TxFrom(r.Context())
//		...
//	})
//
// # What it guarantees
//
//   - Once a claim with token T was admitted for a resource, [Middleware.Admit]
//     admits no request under a lower token, on any replica that shares the
//     store (promise P1 at the door); the same token under another lease ID is
//     a conflict (P4). Clients that send no lease ID cannot be told apart:
//     [Options.RequireLease] refuses them.
//   - Behind [Middleware.InTx] no write under a lower token takes effect (P1),
//     and a client is told of success only after COMMIT. After
//     [Middleware.Raise] on the same database has answered, no older holder
//     changes anything any more (P2).
//   - It fails closed (P5): no token, two tokens, a malformed one, a resource
//     that cannot be named, a store that cannot be asked: the handler is not
//     called. A header that a proxy removed is a missing token.
//   - The reason is exact (P6), in the answer's problem type and, by
//     [ErrorFrom], in the client's error.
//   - Two spellings of one path give one resource ([ChiParam], [PathValue]), and
//     so do those of one number and one UUID ([Integer], [UUID]).
//   - [Transport] sends tokens to the origins it was given and to no others,
//     and begins no request once the lease is over by the holder's clock (P7).
//   - A refused request leaves no state behind.
//
// # What it does not
//
//   - Admission does not stop a write already in flight. A request admitted
//     under token 10 may still write after one under 11 was admitted; in
//     a hostile test more than a fifth of all writes were such. Present the
//     claim to a write that compares inside itself, or hold a fenced
//     transaction.
//   - [net/http.TimeoutHandler] answers 503 while the handler goes on, and may
//     still write. So may a handler whose client has gone. Neither undoes an
//     admission. Around InTx it rolls back what is not at its COMMIT yet, by
//     the request's context; if the COMMIT was on its way, the 503 says
//     nothing about it and has no problem type. Inside InTx it does not belong:
//     the transaction would end while the handler still uses it.
//   - A token proves nothing about who sends it. Authenticate first, take the
//     tenant from the identity (see the example of [Join]), and see that only
//     clients who may hold the lease can reach the route: whoever can send
//     a high token can lock the others out.
//   - GET, HEAD, OPTIONS and TRACE are not guarded unless told otherwise
//     ([Options.UnguardedMethods]); a GET that writes, or that upgrades the
//     connection, has to be.
//   - A claim is compared once per request. A connection that was hijacked and
//     a stream of server-sent events were admitted when they began, and go on
//     under a token that may be stale by now: compare in each write. InTx
//     refuses both, because it would have to answer before it has committed.
//   - What a handler does outside its transaction is not rolled back.
//   - Middleware that changes the method or the path (method override, chi's
//     StripSlashes and CleanPath) has to stand in front.
//
// # Idempotency keys
//
// A key makes a request that is sent twice happen once; it does not say who may
// still send it, so it stands beside the fence and not in its place. The order:
//
//  1. authentication: it also says whose key it is,
//  2. not found,
//  3. the look-up of a finished request, which is answered as it was, whatever
//     its token is by now, because nothing is written,
//  4. the fence,
//  5. If-Match, and the handler, in one transaction with the key.
//
// The token is no part of the request's fingerprint, because a successor that
// repeats its predecessor's request asks for the same. Refusals are not stored,
// or they would be repeated to a holder that is not stale. A key that was left
// unfinished may be taken over by a higher token, whose raise has seen to it
// that the lower one cannot finish. examples/idempotency is all of this on
// PostgreSQL.
//
// # Other transports
//
// Connect's handlers are net/http handlers; examples/connect gives refusals
// the form of its protocols. For messages, [guard.Inject] and [guard.Extract]
// carry the claim in headers; examples/consumer says what becomes of a message
// that is refused. openapi.json ([OpenAPI]) describes the fields and the
// answers.
//
// # Report-only
//
// [Options.InsecureReportOnly] lets every request through and counts what it
// would have refused, for finding clients that send no token yet. It protects
// nothing.
//
// # Answers
//
// Refusals are problem details (RFC 9457) with "Cache-Control: no-store" and
// the type "tag:fencepost-go.github.io,2026:problem/" followed by the reason:
//
//	missing                            428  (RFC 6585, section 3)
//	invalid                            400
//	stale, spent, conflict, mark_ahead 412  (RFC 9110, section 15.5.13)
//	not_found                          404
//	unfenced                           409
//	unavailable                        503  with Retry-After
//	outcome_unknown                    500
//	lease_lost                         500  (only for a handler's own lease)
//	other                              500
//
// The mark is not disclosed unless [Options.DiscloseMark] is set.
//
// The token field is one line with the one spelling that [guard.ParseToken]
// accepts. net/http removes spaces and tabs around a field's value before
// anybody sees it (RFC 9110, section 5.5), so "  11 " is read as "11"; anything
// else is refused, a list "11, 11" as much as "+11". A token in a trailer is
// no token.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. What is
// sent will not change its meaning: header names, statuses, problem types.
package httpfence
