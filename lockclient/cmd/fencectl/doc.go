// Fencectl is the operators' command line for leases, fencing tokens and marks:
// what somebody on call needs at 3 a.m.
//
//	fencectl show tenant_123:billing-close:2026-04
//	fencectl force-unlock tenant_123:billing-close:2026-04 --actor ana --reason 'INC-4711, it hangs' --raise
//
// It finds out (list, show, long-held, audit, doctor), intervenes (force-unlock,
// marks, epoch, advance, purge) and sets up (migrate, roles, completion). Each
// command has --help. Names are whole: those of a client that is confined to a
// namespace begin with it.
//
// # Configuration
//
// By flag, else by environment: FENCECTL_DATABASE_URL, FENCECTL_OUTPUT,
// FENCECTL_TIMEOUT, FENCECTL_ACTOR and those that --help names. What
// --database-url leaves out comes from the usual PG variables (PGHOST, PGUSER,
// PGSERVICE, PGSSLMODE, ...), the service file and ~/.pgpass, as with psql. No
// password is ever printed; one on the command line is seen by ps, so give it by
// the environment or ~/.pgpass.
//
// # Output
//
// Tables for people; with -o json (or FENCECTL_OUTPUT=json) one JSON object per
// line, so that a list can be read while it is written and jq takes it as it is
// (jq -s makes an array). Tokens are strings, since a JSON number loses what is
// above 2^53 in many readers; durations have their unit in their name, times are in
// RFC 3339.
// Errors are one line on standard error, with -o json an object with code, reason
// and message. Names come out of the database: whatever is not plainly printable
// is escaped.
//
// A list is read and printed page by page. It begins at once and takes the same
// memory for ten leases and for a million; it is no snapshot of all of them.
//
// --watch prints list, show or long-held again and again, in place on a terminal
// and one below the other elsewhere, until Ctrl-C, which is exit code 0 then. A
// server that is away meanwhile is said, and asked again.
//
// # Confirmation
//
// What cannot be taken back (force-unlock, marks raise, reset and retire, epoch
// raise, advance, purge) asks for a "yes" where standard input is a terminal, and
// wants --yes where it is none: it never waits for an answer in a script.
// force-unlock shows whom it is about to hit, and cuts that lease or none.
//
// # Exit codes
//
//	0    done
//	1    an error of none of the kinds below (other)
//	2    the command line or a value in it is malformed, or a confirmation is
//	     needed and there is no terminal to ask at: nothing was sent (usage,
//	     invalid)
//	3    there is no such resource (not_found)
//	4    the state is not what the command expects, such as the lease ID of a
//	     successor: nothing was changed (held, lease_changed, stale, spent,
//	     conflict, mark_ahead, unfenced)
//	5    the server does not let this role do it (no_rights)
//	6    no connection, a timeout, a standby: nothing was changed, trying again
//	     is safe (unavailable)
//	7    the answer was lost and the change may have been made: look before
//	     trying again (outcome_unknown)
//	8    the database does not have the schema, or has another version of it
//	     than this build (schema_missing, schema_older, schema_newer)
//	9    the operator did not confirm: nothing was sent (cancelled)
//	10   doctor found something that must be repaired (unhealthy)
//	11   the first part was done and the second was not: the message says how
//	     to go on (partial)
//	130  Ctrl-C or SIGTERM before the command was done; where a change may have
//	     been made it is outcome_unknown (interrupted)
//
// "fencectl help exit-codes" prints the same.
//
// # Runbook
//
// Find the symptom, run the commands, read on. "fencectl help runbook" prints it.
//
// Somebody waits and gets a lock timeout
//
//	fencectl show RESOURCE --watch
//	    who has it, since when, and whether it is renewed ("another" jumps up)
//	fencectl long-held --threshold 10m
//	fencectl list --awaited
//	Alive and at work: wait, or ask its owner. Gone: it ends at "expires".
//	Hanging: cut it, and fence it.
//	fencectl force-unlock RESOURCE --actor YOU --reason WHY --expect LEASE-ID --raise
//
// Two holders seem to be at work
//
//	fencectl show RESOURCE
//	    "so" says whether the older one can still write there. Below the
//	    lease's token: the command that it prints raises the new holder's
//	    claim; the older one is refused from then on, the new one works on.
//	fencectl audit RESOURCE
//	    whether an operator cut a lease and did not raise the burned claim
//	TWO LEASES HAVE ONE TOKEN, or a conflict in a log: the issuer gave one
//	token twice. Stop both, go to "A backup was restored".
//
// A release fails
//
//	fencectl show RESOURCE
//	    still held: it ends at "expires", nothing is to be done
//	fencectl audit RESOURCE
//	    lease lost: an operator cut it, for this reason
//	fencectl doctor
//	    whether leases can be renewed and released at all
//
// Acquiring is slow
//
//	fencectl doctor
//	    the time of each step; a blocker, a pooler, a standby, the isolation
//	fencectl list --awaited
//	    contention: the time is the holders', not the server's
//
// Stale rejections spike
//
//	fencectl show RESOURCE
//	    "so": older holders are refused, the fence does its work; "owner" is
//	    the new one. THE MARK IS AHEAD: go to "A backup was restored".
//	fencectl list PREFIX --state expired
//	    holders that renew too late: their TTL is too short for their pauses
//
// A backup was restored
//
//	Before the applications are started:
//	fencectl migrate
//	fencectl epoch show
//	    a restore that the server noticed has raised the epoch already
//	fencectl epoch raise
//	    for what it cannot notice: a disk snapshot, rows without the schema
//	fencectl marks list --ahead
//	    marks above the issuer; token columns and S3 objects have their own
//	fencectl advance --floor TOKEN
//	    with the highest token of all these places
//	A mark that was made up, and is too high to lift the issuer over it:
//	fencectl marks reset RESOURCE --from TOKEN --to TOKEN --actor YOU --reason WHY
//
// A failover happened
//
//	fencectl doctor
//	    on the new primary: no standby, and the timeline can be seen
//	fencectl epoch show
//	    the epoch grew with the timeline. If the server hides that:
//	fencectl epoch raise
//	The old primary must not come back for anybody.
//
// # Force-unlock and the cut holder
//
// Force-unlock takes the lease away at the issuer. The cut holder learns of it at
// its next renewal, and even then nothing stops a write that is under way: until a
// higher token arrives at the resource, the resource admits the old one. With
// --raise the burned claim is raised at sqlfence's marks before the command ends;
// it waits for the holder's open fenced transactions, at most --raise-timeout,
// and after it no write of the cut holder takes effect there. Surfaces with a mark
// of their own (a table's token column, an S3 object, another guard.Store) need a
// raise of their own, or the next holder's first write.
//
// # Choosing the TTL
//
// TTL >= the longest pause you want to survive (p99) + a renewal (p99, see
// fencectl doctor) + margin. Too short, and healthy holders lose their leases: a
// takeover each time, but no damage, the fence refuses them. Too long, and
// everybody waits that long after a crash. 30 s is a good start.
//
// # When PostgreSQL is away
//
//   - lockclient grants nothing. Holders keep their lease up to its deadline, by
//     their own clock, and then are told that it is lost; nobody else is granted
//     it before the server is back, so nothing overlaps.
//   - sqlfence writes nothing: the marks are in the same database as the data.
//   - httpfence answers 503 with Retry-After where its store is that database.
//   - s3fence goes on: an object carries its own token. Its holders end with
//     their leases, see lockclient.
//   - fencectl ends with exit code 6, or 7 where an answer was lost.
//
// # When not to use a lock
//
// A constraint, an idempotency key, a partition, a row lock or a version column
// needs no lease, no TTL and no runbook; the project's README has a snippet of
// each.
//
// # Rights
//
// Fencectl has the rights of the role that it connects as. "fencectl roles" prints
// the SQL of the roles that this module knows. The operator's is enough for
// everything but migrate, which is the schema's owner's, and the end-to-end test
// of doctor, which takes an issuer's; the reader's for what only looks.
package main

import _ "embed"

// runbook is the triage table. It stands in the package's documentation, too; a
// test compares them.
//
//go:embed runbook.txt
var runbook string
