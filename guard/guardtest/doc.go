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
// share the marks (the races are then run across two handles), and
// [Harness.Reopen] if the marks outlive the process. A capability that is not
// declared is not tested, and Run logs which cases are skipped. A store whose
// harness does not declare that it is shared or durable has not been shown to
// be.
//
// Each case is a subtest named after its promise: the flag -run 'TestStore/P1' selects
// the cases about stale writes. A failure prints the promise that was
// broken and the seed that repeats the random choices. [Check] runs the same
// cases without a [testing.T] and returns the failures, for running the suite
// against a store that must fail.
//
// # What it asks of the harness
//
// The cases run one after another, and each opens one store with
// [Harness.New] and closes it, so New may empty a database in place. The
// suite makes some 9,000 calls, every other one to look at what an admission left, and
// sleeps for about a second in total; the
// numbers are fields of [Harness].
//
// # Where to read on
//
// guardtest.go is the harness, cases.go the cases with one caller, in steps of steps.go;
// cancel.go, race.go and model.go have the others, case.go runs them, promise.go names what
// they check.
//
// # What it does not show
//
// The suite neither kills the store nor interrupts its network. The store's own tests
// must show what a crash, a failover or a lost COMMIT does to marks.
package guardtest
