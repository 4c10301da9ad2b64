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
//	client := &http.Client{Transport: transport}
//	resp, err := httpfence.Do(client, req.WithContext(guard.WithLease(ctx, lease)))
//	if errors.Is(err, guard.ErrStale) {
//		return err // somebody else holds the lease; a nil error means that it was done
//	}
//
// [Middleware.Check] compares and writes nothing, [Middleware.Admit] admits before the
// handler, [TxMiddleware.InTx] runs the handler in a fenced transaction, and
// [Middleware.Raise] is what a new holder calls before it reads ([RaiseAt]).
//
// # What it guarantees
//
//   - Once a claim with token T was admitted for a resource, Admit admits no request under
//     a lower token, on any replica that shares the store (promise P1 at admission); the
//     same token under another lease ID is a conflict (P4), unless [Options.TokenOnly].
//   - A claim for another resource is refused with both names and raises
//     nothing (P9), unless [Options.InsecureAnyResource] is set.
//   - Behind InTx no write under a lower token takes effect (P1), and a client sees success
//     only after COMMIT. After Raise on the same database has sent its 204, no older holder
//     changes anything any more (P2).
//   - It fails closed (P5): if a field is missing, doubled, joined or malformed, a
//     resource cannot be named, or the store cannot be queried, the handler is not called.
//   - The reason is exact (P6) and speaks of this resource: what another service has
//     refused, and a handler passes on, is 500 ([guard.ReasonFor]).
//   - All spellings of one path give one name or are refused ([ChiParam], [PathValue]).
//   - [Transport] sends tokens to the origins it was given and to no others, begins no
//     request once the lease is over by the holder's clock (P7), and replays no write.
//   - A request that has not arrived in full holds its socket and, behind InTx, at most
//     [Options.MaxBody]; waiting for the store ends with 503 ([Options.MaxWait]).
//
// # What it does not
//
//   - Admission does not stop a write already in flight: in a hostile test more
//     than a fifth of all writes came after a newer holder's admission. Present
//     the claim to a write that makes the comparison itself, or use InTx.
//   - It does not deduplicate requests: under a live token a proxy's replay is admitted
//     again. PROXIES.md says which settings repeat what; examples/service has the order
//     for idempotency keys.
//   - A token proves nothing about its sender. Authenticate first, take the tenant from the
//     identity, and verify who issued the token ([Options.Verify]): whoever can send a high
//     token can lock others out, and whoever can make up names can fill the store.
//   - GET, HEAD, OPTIONS and TRACE are not guarded by default; a GET that writes must be.
//   - A claim is compared once per request: in a hijacked connection and a stream of events
//     compare in each write. InTx refuses the former and holds back the latter.
//
// # Use
//
// Behind InTx, what a handler does outside its transaction is not rolled back. A raise of the mark stays
// if the handler then responds with 404: let middleware in front check what exists. Flush
// does nothing, header fields of a response that is not sent are discarded, and
// "Connection: Upgrade" is removed, as it cannot be granted. A response of gRPC, or of a
// stream of Connect, does not say by its status whether it succeeded: use package grpcfence.
//
// A panic that something inside InTx has silently recovered leaves no trace, nor does a
// second status that middleware inside keeps to itself, as chi's Logger does. TimeoutHandler
// around InTx sends 503 and rolls back what has not reached its COMMIT; while a COMMIT is in
// flight, the 503 does not say whether it took effect. echo, gin, fiber and others render an
// error after their middleware has returned: InTx then sees silence, and rolls back with
// 500. examples/thirdparty/frameworks has the recipes, for huma and Go kit too.
//
// # Responses
//
// The claim is a precondition (RFC 9110, section 13.1) in the fields [TokenHeader],
// [LeaseHeader] and [ResourceHeader]. Refusals are problem details (RFC 9457) with
// "Cache-Control: no-store", the reason in [ReasonHeader], and the type
// "tag:fencepost-go.github.io,2026:problem/" followed by the reason. openapi.json has them.
//
//	missing                            428  with the field (RFC 6585, section 3)
//	invalid                            400  with the field (a body: 413 too long, 408 too late)
//	misdirected                        400  with both names
//	stale, spent, conflict, mark_ahead 412  (RFC 9110, section 15.5.13)
//	not_found                          404
//	unfenced                           409
//	unavailable                        503  with Retry-After
//	setup, outcome_unknown             500
//	lease_lost, other                  500  (lease_lost only as a gateway's word)
//
// The mark is not disclosed unless [Options.DiscloseMark] is set.
//
// # Where to read on
//
// options.go, middleware.go (Check, Admit, Raise), claim.go (the fields) and resource.go (the
// name) are a request's way in; intx.go, transactor.go, buffered.go (the response until COMMIT)
// and serve.go (the handler's request, report-only) its way through; reject.go and status.go
// its refusal. The client's half is transport.go, origin.go and client.go. FORMAT.md is for
// other languages, PROXIES.md for what stands in between.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The meaning
// of what is sent will not change: header names, statuses, problem types.
package httpfence
