// Package guard holds what every fence of this module shares: fencing tokens,
// claims, marks, the rule that compares them, the errors that say why a claim
// was refused, and a store of marks in memory. It depends only on the standard
// library.
//
//	closes := guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
//	resource, err := closes.Name("tenant_123", "2026-04")
//	if err != nil {
//		return err
//	}
//	store := guard.NewMemory()
//	if _, err := store.Admit(ctx, guard.Claim{Resource: resource, Token: 11, LeaseID: "b"}); err != nil {
//		var rejected *guard.RejectedError
//		if errors.As(err, &rejected) {
//			log.Printf("%s: offered %v, mark %v", rejected.Reason, rejected.Claim.Token, rejected.Mark.Token)
//		}
//		return err
//	}
//
// # The problem
//
// A worker takes a lease with token 10 and is paused past its expiry. Another
// worker takes token 11 and starts to write. The first resumes and writes. No
// lock can prevent that: the write does not consult the lock. Only the resource
// can, by remembering the highest token it has admitted, its mark, and by
// comparing inside the write.
//
// # Words
//
// A claim is what a writer presents: a resource, a token, a lease ID. A mark is
// the highest claim a resource has admitted. To raise a mark is to replace it
// with a higher claim; marks are never lowered. To take over is to raise the
// mark before reading, so that what was read cannot be overwritten by an older
// holder that is still writing (promise P2: comparing only at write time does
// not give this). A resource has exactly one mark in each place (a row, a database, a
// service, an object), and a raise protects only the writes that are compared with the
// mark it raised; [RaiseAll] raises those of several places.
//
// A resource's name is declared once, as a [Template], and every surface builds
// the same bytes from it (promise P9): the lease client asks the template for a
// name, sqlfence binds its variables to key columns, httpfence to parameters of
// a route, s3fence to parts of a key. Each surface refuses a claim for another
// resource with [ErrMisdirected] and both names, and raises nothing. Writers in
// other languages find test vectors in testdata/templates.json.
//
// # What it guarantees
//
//   - [Decide] is the rule, stated once; SQL, HTTP and S3 are tested against it.
//   - A [Store] admits by [SameOrNewer] and raises in one atomic step: once the
//     mark is T, no claim under a lower token is admitted (P1), and a token
//     under another lease ID is a conflict (P4).
//   - Different values of one Template never give the same name (P9).
//   - A refusal is a [*RejectedError] with the facts; a malformed input is an
//     [*InvalidError] with the field; a claim for another resource is a
//     [*MisdirectedError]; a failure is a [*FailedError] that says whether
//     something may have been written (P5, P6).
//
// # What it does not
//
// Admitting a claim when a request arrives does not stop a write that was
// admitted earlier and is still in flight. Compare inside the write: packages
// sqlfence and s3fence do, and httpfence says how to combine the two. [Memory]
// loses its marks at restart. Two templates can give the same name; a distinct
// literal component keeps each kind of resource apart.
//
// # Use
//
// A service compares claims with a [Store], a client carries its claim in the context
// ([WithLease], [ClaimFrom]), and a message in its headers ([Inject], [Extract]).
//
// # Failure by failure
//
// Each error matches one of the sentinels listed with [ErrStale] by
// [errors.Is]; [ReasonOf] names it. Stale: stop, never retry. Spent: the token
// has written already. Conflict: two holders have one token; stop both and
// raise an alarm. Unavailable: nothing was written, a retry is safe. Outcome
// unknown: the write may have taken effect; read before you write again.
// Invalid, missing and misdirected: nothing was sent; correct the caller. An error speaks
// of the claim that it names: [ReasonFor] says what it means for another.
// FAILURES.md says what each part of the module does when an issuer or a store
// is down, and shows how to fail fast, wait, or continue without it.
//
// # Where this departs from the textbook
//
// [Mark] has a Floor flag, so that a comparison with "no mark of its own, but
// the store has retired marks up to here" is the same call to [Decide] as any
// other, even for a caller that only reads.
//
// # Where to read on
//
// token.go and claim.go are what is compared, decide.go is how, template.go and validate.go
// are the names. reason.go has the sentinels, errors.go and lost.go the errors with their
// facts. store.go is for implementers, with memory.go as the shortest store and package
// guardtest as its judge. context.go and carrier.go carry a claim, raiseall.go takes over
// several places, observer.go and observers.go report. Implementers of stores and issuers
// make their errors by [Invalid], [Missing], [Unavailable], [Setup] and [OutcomeUnknown];
// programs that only use the fences need none of these.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. The meaning
// of what is stored or sent will not change: tokens, names built by a Template,
// carrier keys, reasons.
package guard
