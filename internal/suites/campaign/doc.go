// Command campaign attacks Fencepost: real processes with real leases write
// through every fence while they are paused, killed, disconnected and lied to,
// and two oracles say whether a promise was broken. It runs on Linux.
//
//	go -C internal/suites/campaign run . -short
//	go -C internal/suites/campaign run . -seed 1 -duration 5m
//
// The exit status is 0 for a clean run, 1 for violations, 2 for a run that
// proves nothing. go run turns both into 1 and prints which it was. README.md
// explains how to read a failure, and what the campaign cannot show.
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
//   - sql-row: sqlrow.Table.Raise and Update, with a lease column.
//   - sql-tx: sqlfence.DB.Raise, and InTx or Enter; half of the sessions read
//     and write in one transaction.
//   - sql-trigger: a table under triggers, written by plain transactions that
//     present a claim.
//   - http-admit, http-intx: httpfence's Raise and Admit with a fenced write
//     behind it, or InTx, on two replicas, each a process, on one PostgreSQL.
//   - s3-sealed, s3-pointer: s3fence on s3fence/s3test. Bodies are few and
//     repeat, so that ETags repeat too.
//
// With -guards off nothing is compared. With -guards naive each surface has the
// usual code: SQL that compares the token in the UPDATE and never raises before
// it reads; an HTTP door with marks in memory and a write behind it that
// compares nothing; S3 with the token in the metadata and If-Match on the ETag
// that was read. The naive guards must break P1 or P2 on every surface, no
// guards both, four times, or the campaign could not see it if Fencepost did.
//
// # The nemesis
//
// A worker reports its phases to the controller over a pipe, and waits at some
// of them, the gates, for the word to go on. To pause it there the controller
// stops the process (SIGSTOP), waits until the kernel confirms it, and then
// writes the word to go on into the pipe: when the process is resumed, its next
// step is exactly the one after the gate. It is resumed when a successor with a
// higher token on the same resource is granted its lease, has written, or, held
// at its own gate, is between its read and its write. The gates are: after the
// grant, before each write, inside the transaction of a write before it and
// before COMMIT, and in a replica between admission and write.
//
// Besides: kill -9 of workers, of PostgreSQL with all its backends and of a
// replica; on every link cuts, delays, resets, and lost requests and responses; in
// the S3 server lost requests and responses, errors with and without an effect,
// and PUTs that are in flight for longer than a lease; steps of PostgreSQL's
// wall clock by an hour forward and two back (libfaketime). A step ends leases
// early or late. That may cost availability, and P7; never P1, P2 or P3. Leases
// that a step back strands in the future are ended as an operator would.
//
// Every activity draws from its own random stream, seeded by -seed: the same
// seed means the same acts, not the same interleaving, which the kernel chooses.
//
// # Oracles
//
// Triggers on documents, marks and leases log each change while its row is
// locked; the S3 server's history is the order in which it accepted changes;
// each replica's handler records what it was about to write. Each call and each
// return of a client is one write to a file, timed by the clock that all
// processes share. Package oracle compares the two sides; oracle.Checks lists
// what it finds.
//
// What a run must show (summary.go) is amounts, not rates: it goes on until it
// has shown them, under the same nemesis at a slower pace, as long as it comes
// nearer to them.
package main
