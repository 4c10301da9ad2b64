// Package guardtest is the conformance suite for implementations of
// [guard.Store]. A store that passes keeps, as far as tests can tell, the
// promises P1, P3, P4, P5 and P6 of this module.
//
// # Use
//
// One test adopts the whole suite:
//
//	func TestStore(t *testing.T) {
//		guardtest.Run(t, guardtest.Harness{
//			New: func(ctx context.Context) (guard.Store, error) { return mystore.Open(ctx, emptyDatabase(t)) },
//		})
//	}
//
// Declare what else the store can do: [Harness.Replica] if several processes
// share the marks (every case is then run across two handles), and
// [Harness.Reopen] if the marks outlive the process. A capability that is not
// declared is not tested, and Run logs which cases were left out.
//
// Each case is a subtest named after what it is about: the flag -run 'TestStore/P1' selects
// the cases about stale writes.
//   - P1: no write under a token below the mark.
//   - P3: neither a mark nor the floor is ever lowered or forgotten.
//   - P4: the same token under another lease ID is a conflict.
//   - P5: malformed input, an ended context or an unknown outcome is never success.
//   - P6: a refusal has the right reason, with the claim and the mark.
//
// [Check] runs the same cases without a [testing.T] and returns the failures, for running
// the suite against a store that must fail.
//
// # What it asks of the harness
//
// The cases run one after another, and each opens one store with
// [Harness.New] and closes it, so New may empty a database in place. The
// suite makes some 9,000 calls, every other one to look at what an admission left.
//
// # Where to read on
//
// guardtest.go is the harness. cases.go has the cases of one caller, whose calls model.go
// makes both on the store and on a model of it; race.go has those of several callers, and of
// calls that end halfway.
//
// # What it does not show
//
// The suite neither kills the store nor interrupts its network. The store's own tests
// must show what a crash, a failover or a lost COMMIT does to marks.
package guardtest
