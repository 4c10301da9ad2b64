// Package httpfence lets a net/http service refuse requests from a stale lock
// holder, and lets its clients present their fencing tokens. It works with chi,
// with [net/http.ServeMux] and with any other router.
//
//	closes := guard.Must(guard.NewTemplate("{tenant}:billing-close"))
//	resource, err := httpfence.Named(closes, httpfence.Bindings{"tenant": tenantOfSession})
//	fence, err := httpfence.NewTx(db.Transactor(), resource, nil) // a sqlfence.DB
//	router := chi.NewRouter()
//	router.Post("/billing-close/raise", fence.Raise)
//	router.With(mustExist, fence.InTx).Post("/billing-close", func(w http.ResponseWriter, r *http.Request) {
//		tx, _ := db.TxFrom(r.Context())
//		...
//	})
//
// and in the client:
//
//	transport, err := httpfence.NewTransport(nil, []string{"https://ledger.internal:8443"}, nil)
//	resp, err := (&http.Client{Transport: transport}).Do(req.WithContext(guard.WithLease(ctx, lease)))
//	...
//	err = httpfence.ErrorFrom(resp) // errors.Is(err, guard.ErrStale): stop
//
// The claim of a lease is a precondition in the sense of RFC 9110, section 13.1,
// in the fields [TokenHeader], [LeaseHeader] and [ResourceHeader].
//
// # What it guarantees
//
//   - Once a claim with token T was admitted for a resource, [Middleware.Admit]
//     admits no request under a lower token, on any replica that shares the
//     store (promise P1 at admission); the same token under another lease ID is
//     a conflict (P4), unless [Options.TokenOnly] is set.
//   - A claim for another resource is refused with both names and raises
//     nothing (P9), unless [Options.InsecureAnyResource] is set.
//   - Behind [TxMiddleware.InTx] no write under a lower token takes effect (P1),
//     and a client sees success only after COMMIT. A failure that the
//     handler reports by a status, however late, by [Rollback], by a panic or by
//     silence is rolled back. After [Middleware.Raise] on the same database has
//     sent its 204, no older holder changes anything any more (P2).
//   - A request that has not arrived in full holds its socket and nothing else;
//     waiting for the store ends with 503 ([Options.MaxWait]).
//   - It fails closed (P5): if a field is missing, duplicated or malformed, a
//     resource cannot be named, or the store cannot be queried, the handler is
//     not called. A field that a proxy removed is a missing field.
//   - The reason is exact (P6), in the response's problem type, in [ReasonHeader]
//     and, by [ErrorFrom], in the client's error; [Options.Observer] has the cause.
//   - All spellings of one path give one name or are refused ([ChiParam],
//     [PathValue]).
//   - [Transport] sends tokens to the origins it was given and to no others,
//     begins no request once the lease is over by the holder's clock (P7), and
//     does not replay a write.
//   - A refused request leaves no state behind. What a handler puts on its request,
//     such as the files of a form, the server cleans up as without the fence.
//
// # What it does not
//
//   - Admission does not stop a write already in flight: in a hostile test more
//     than a fifth of all writes came after a newer holder's admission. Present
//     the claim to a write that makes the comparison itself, or use InTx.
//   - It does not deduplicate requests: under a live token a proxy's replay is
//     admitted again. PROXIES.md says which settings repeat what;
//     examples/idempotency has the order for idempotency keys.
//   - [net/http.TimeoutHandler] sends 503 while the handler continues, and may
//     still write. Around InTx it rolls back what has not reached its COMMIT; while a
//     COMMIT is in flight, the 503 does not say whether it took effect. It does not
//     belong inside InTx.
//   - A token proves nothing about its sender. Authenticate first, take the
//     tenant from the identity, and verify who issued the token
//     ([Options.Verify]): whoever can send a high token can lock others out, and
//     whoever can make up names can fill the store of marks.
//   - GET, HEAD, OPTIONS and TRACE are not guarded by default
//     ([Options.UnguardedMethods]); a GET that writes must be.
//   - A claim is compared once per request. A hijacked connection and a stream
//     of events continue under a token that may have become stale: compare in
//     each write. InTx refuses the former and holds back the latter.
//   - What a handler does outside its transaction is not rolled back.
//
// # Use
//
// [Middleware.Check] compares and writes nothing. [Middleware.Admit] admits before
// the handler. [TxMiddleware.InTx] runs the handler in a fenced transaction.
// [Middleware.Raise] is the endpoint that a new holder calls before it reads.
//
// In front of them: authentication, routing (404, 405), what exists (404). A fence
// in front of these raises marks needlessly.
//
// # Other frameworks and transports
//
// echo, gin, fiber and others render a handler's error after the middleware has
// returned, so a fence that is wrapped around them as it is would see a success.
// examples/thirdparty/frameworks has the recipes, for huma and Go kit too. Package
// grpcfence has interceptors for grpc-go and Connect. For messages, [guard.Inject] and
// [guard.Extract] carry the claim. openapi.json describes the fields and responses.
//
// # Responses
//
// Refusals are problem details (RFC 9457) with "Cache-Control: no-store" and
// the type "tag:fencepost-go.github.io,2026:problem/" followed by the reason:
//
//	missing                            428  (RFC 6585, section 3)
//	invalid                            400  (a body: 413 too long, 408 too late)
//	misdirected                        400  with both names
//	stale, spent, conflict, mark_ahead 412  (RFC 9110, section 15.5.13)
//	not_found                          404
//	unfenced                           409
//	unavailable                        503  with Retry-After
//	outcome_unknown                    500
//	lease_lost                         500  (only for a handler's own lease)
//	other                              500
//
// The mark is not disclosed unless [Options.DiscloseMark] is set. Each field
// occurs once, and a list "11, 11" or "+11" is refused. net/http removes spaces
// around a value over HTTP/1.1 and makes one line of a folded one, with a space
// (RFC 9112, section 5.2); what it hands on is what is compared. A field in
// a trailer does not count.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The meaning
// of what is sent will not change: header names, statuses, problem types.
package httpfence
