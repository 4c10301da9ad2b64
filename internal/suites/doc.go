// Package suites is the root of the module of the test suites: the workshop, which
// uses the library and which nothing uses. The suites need more than the library
// does: real servers, other libraries to compare with, a browser. They live in one
// module so that what they need is not in the module graph of those who use
// Fencepost, and so that one upgrade touches one go.mod.
//
//	bench       what fencing costs, and how the lease client compares
//	campaign    stopped, killed and disconnected workers, judged by oracles
//	explore     every interleaving of small models of the protocols
//	http        package httpfence behind proxies and inside frameworks
//	issuers     etcd, ZooKeeper and Redis, started, killed and failed over
//	migrations  the printed schema, applied by goose and golang-migrate
//	lockserver  the lock server's page in a browser, its workers in other languages
//	mutants     named mistakes, each caught by the test that is named for it
//	s3          package s3fence on real gateways and behind real proxies
//
// The module also pins the programs that check the code, by its tool directive.
// With go vet and internal/layout, staticcheck is enough: golangci-lint bundles the
// two in 900 modules, which take longer to build than the gate's tests to run.
package suites
