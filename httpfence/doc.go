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
// # What it guarantees
//
//   - Once a claim with token T was admitted for a resource, [Middleware.Admit]
//     admits no request under a lower token, on any replica that shares the
//     store (promise P1 at the door); the same token under another lease ID is
//     a conflict (P4).
//   - It fails closed (P5): no token, two tokens, a malformed one, a resource
//     that cannot be named, a store that cannot be asked: the handler is not
//     called. A header that a proxy removed is a missing token.
//   - The reason is exact (P6), in the answer's problem type and, by
//     [ErrorFrom], in the client's error.
//   - Two spellings of one path give one resource ([ChiParam], [PathValue]).
//   - [Transport] sends tokens to the origins it was given and to no others,
//     and nothing once the lease is over by the holder's clock (P7).
//   - A refused request leaves no state behind.
//
// # What it does not
//
//   - Admission does not stop a write already in flight. A request admitted
//     under token 10 may still write after one under 11 was admitted; in
//     a hostile test a quarter of the old requests did. Present the claim to
//     a write that compares inside itself, or hold a fenced transaction.
//   - [net/http.TimeoutHandler] answers 503 while the handler goes on, and may
//     still write. So may a handler whose client has gone. Neither undoes an
//     admission.
//   - A token proves nothing about who sends it. Authenticate first, take the
//     tenant from the identity (see the example of [Join]), and see that only
//     clients who may hold the lease can reach the route: whoever can send
//     a high token can lock the others out.
//   - GET, HEAD, OPTIONS and TRACE are not guarded unless told otherwise
//     ([Options.UnguardedMethods]); a GET that writes, or that upgrades the
//     connection, has to be.
//   - A claim is compared once per request. A connection that was upgraded or
//     a body that streams for an hour was admitted an hour ago.
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
