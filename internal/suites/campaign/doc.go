// Command campaign attacks Fencepost: real processes with real leases write
// through every fence while they are paused, killed, disconnected and lied to,
// and two oracles say whether a promise was broken. It runs on Linux.
//
//	go -C internal/suites/campaign run . -seed 1 -duration 60s -guards on
//	go -C internal/suites/campaign run . -seed 1 -duration 45s -guards naive -expect violations
//	go -C internal/suites/campaign run . -seed 1 -duration 45s -guards off -expect violations
//	go -C internal/suites/campaign run . -short     the three of them, from half a minute
//	go -C internal/suites/campaign run . -long      eight seeds of five minutes, controls, mutants
//	go run ./internal/mutants -named
//
// The exit status is 0 for a clean run, 1 for violations, 2 for a run that
// proves nothing: too little activity, or the campaign itself failed. go run
// turns both into 1 and prints which it was.
//
// # Clients that trust their lease
//
// A worker acquires a lease, takes over (raises the mark), reads, writes one to
// three times and releases. It never asks whether it still holds the lease, and
// no deadline of its own runs while it is paused: a client that checks itself
// hides most of what a fence must catch. It writes a document with the ID of the
// write, that of the write it is based on, and a counter, which no resource
// compares: a lost update is a write whose base is not its predecessor.
//
// # Surfaces
//
//   - sql-row: sqlfence.Table.Takeover and Update, rule SameOrNewer, with a
//     lease column; half of the sessions read in the takeover.
//   - sql-tx: sqlfence.DB.Raise, and InTx or Enter; half of the sessions read
//     and write in one transaction.
//   - sql-trigger: a table under the triggers of sqlfence.DB.InstallTrigger,
//     written by plain transactions that present a claim.
//   - http-admit: httpfence's Raise and Admit, and a fenced transaction for the
//     write, on two replicas, each a process, on one PostgreSQL.
//   - http-intx: httpfence's Raise and InTx, on the same replicas.
//   - s3-sealed, s3-pointer: s3fence on s3fence/s3test in a process of its own.
//     Bodies are few and repeat, so that ETags repeat too.
//
// # Guards off, and naive ones
//
// With -guards off nothing is compared. With -guards naive each surface has the
// usual code: SQL that compares the token in the UPDATE and never raises before
// it reads; an HTTP door with marks in memory and a write behind it that
// compares nothing; S3 with the token in the metadata and If-Match on the ETag
// that was read. The naive guards must break P1 or P2 on every surface, no
// guards both, four times, or the campaign could not see it if Fencepost did.
//
// # Aim
//
// A worker reports its phases to the controller over a pipe, and waits at some
// of them, the gates, for the word to go on. To pause it there the controller
// stops the process (SIGSTOP), waits until the kernel confirms it, and then
// writes the word to go on into the pipe: when the process is resumed, its next
// step is exactly the one after the gate. It is resumed when a successor with a
// higher token on the same resource is granted its lease, has written, or, held
// at its own gate, is between its read and its write. The gates are: after the
// grant, before each write, inside the transaction of a write before it and
// before COMMIT, and in a replica between admission and write. A random pause
// hits these windows once in minutes.
//
// # The rest of the nemesis
//
// kill -9 of workers, of PostgreSQL with all its backends, of a replica, of the
// S3 server (which keeps a journal, written before it answers, and restarts
// from it); on every link, by toxiproxy, cuts, delays, resets, and lost
// requests and answers; in the S3 server lost requests and answers, errors with
// and without an effect, and PUTs that are in flight for longer than a lease;
// steps of PostgreSQL's wall clock by an hour forward and two back
// (libfaketime, which the server loads; Go programs keep their time). A step
// ends leases early or late. That may cost availability, and P7; never P1, P2
// or P3. Leases that a step back strands in the future are ended by the
// controller, as an operator would.
//
// Every activity draws from its own random stream, seeded by -seed: the same
// seed means the same sequence of acts in each, though not the same
// interleaving, which the kernel chooses. A failure's schedule, with times, is
// in its artefacts.
//
// # Oracles
//
// Triggers on documents, marks and leases log each change while its row is
// locked; the S3 server's journal is the order in which it accepted changes;
// each replica's handler logs what it was about to write. Each call and each
// return of a client is one write to a file, timed by the clock that all
// processes share. Package oracle compares the two sides:
//
//   - tokens that took effect, raises included, never decrease;
//   - each write is based on its true predecessor;
//   - the counter is the number of writes applied;
//   - an acknowledged write is in the log, once; a refused one, or one reported
//     as unavailable, is not; nothing is in it that no client asked for;
//   - a claim is refused as stale only if a higher one had come, and is refused
//     for no other reason;
//   - grants increase and never overlap by the server's clock, and by the
//     holders' clocks (P7) where the server's was not stepped;
//   - the histories are linearizable with respect to a fenced register and to
//     a lease service (porcupine), where the log supplies what a client could
//     not learn.
//
// # How long a run takes
//
// The floors (floors.go) are amounts, not rates. A run that has not reached
// them at the end of its -duration goes on until it has, under the same nemesis
// at a slower pace; after its -patience it is invalid or, as a control, failed.
// A fence is not worse on a slow machine, but a verdict on little activity
// would be.
//
// README.md explains how to read a failure, and what the campaign cannot show.
package main
