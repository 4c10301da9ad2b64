// Package explore visits every reachable state of small models of Fencepost's
// protocols: every order in which the steps of four workers can come, with
// leases that expire, messages that are lost or late, servers that crash. It
// calls guard.Decide for each comparison. All of it is test code.
//
//	go -C internal/suites test -v ./explore
//	go -C internal/suites test -v -run /tx-savepoint ./explore
//
// A protocol as it is built reaches no state that violates a promise, and
// reaches the states that make this meaningful (goals). Each mutant, which
// lacks one thing that the protocol has, does reach a violation, and -v prints the
// shortest path to it. Every invariant is violated by a mutant, so
// none is vacuous.
//
// # Models
//
//   - row: the lease's row, the single statement on a row with a mark, and the
//     takeover (raise, read, write) by holders that never look at their lease;
//     OncePerToken with lost responses; an issuer that repeats a token.
//   - transaction: fencepost.raise, enter and retire statement by statement,
//     two transactions of one holder, rollback, a client that stops forever, a
//     server that crashes and loses commits that it did not flush; and the same
//     with one token under two leases.
//   - issuer: acquire in the two steps in which a waiting statement sees two
//     moments, renew, release, purge, idempotent repetition; first with leases
//     that may end at any time, then with clocks in ticks, where a holder's may
//     lose one tick in a TTL, and the deadlines that go by it.
//
// A step is what is atomic in reality: a statement's effect under its row's
// lock, one statement of a plpgsql function. A comment at each names the file or
// statement that it models. The state keeps what a promise needs to know about
// the past, so each invariant is a predicate of one state.
//
// # What the models leave out
//
// They are models: they show that a protocol is right, not that the code
// follows it. The packages' own tests show on real servers that PostgreSQL
// behaves as modelled.
//
//   - Everything is small: four workers, three in the issuer's model of tokens
//     with faults and two in that of deadlines; one or two writes each; one
//     crash; one or two lost messages; a TTL of three ticks.
//   - One resource. Others exist only in that their marks raise the floor.
//   - No replication: no standby, no failover, no epochs, no restored snapshot
//     but for the issuer that repeats one token; no clock that steps.
//   - sqlfence: isolation levels other than READ COMMITTED, Enter in
//     a transaction begun elsewhere, triggers, batches, Reset; how locks queue,
//     and deadlocks between several resources.
//   - lockclient: which waiter is next, LISTEN and NOTIFY, forced unlocks,
//     connections, the timers behind Done and Hold.
//   - s3fence and httpfence: the campaign (internal/suites/campaign) runs them
//     as they are built, on objects, pointers and requests.
//   - Malformed input. Claims are always valid.
package explore
