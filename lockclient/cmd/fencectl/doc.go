// Fencectl is the operators' command line for leases, fencing tokens and marks:
// what somebody on call needs at 3 a.m.
//
//	fencectl show tenant_123:billing-close:2026-04
//	fencectl force-unlock tenant_123:billing-close:2026-04 --actor ana --reason 'INC-4711, it hangs' --raise
//
// It finds out (list, watch, show, explain, long-held, audit, doctor), intervenes
// (force-unlock, marks, epoch, advance, purge) and sets up (migrate, roles, completion). Each
// command has --help. Names are whole: those of a client that is confined to a
// namespace begin with it. Where a list takes a PATTERN, it is read by components:
// tenant_1 is that name and what begins with "tenant_1:", never tenant_12; "*" is
// any component and, at the end, any rest.
//
// # Configuration
//
// By flag, else by environment: FENCECTL_DATABASE_URL, FENCECTL_OUTPUT,
// FENCECTL_TIMEOUT, FENCECTL_ACTOR and those that --help names. What
// --database-url leaves out comes from the usual PG variables (PGHOST, PGUSER,
// PGSERVICE, PGSSLMODE, ...), the service file and ~/.pgpass, as with psql. No
// password is ever printed; ps shows one on the command line, so use the
// environment or ~/.pgpass.
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
// memory for ten leases and for a million; it is not a snapshot.
//
// watch, and list, show or long-held with --watch, print again and again, in place on a terminal
// and one below the other elsewhere, until Ctrl-C, which is exit code 0 then. A
// server that is away meanwhile is said, and asked again.
//
// # Confirmation
//
// What cannot be taken back (force-unlock, marks raise, reset and retire, epoch
// raise, advance, purge) asks for a "yes" where standard input is a terminal, and
// requires --yes elsewhere: it never waits for an answer in a script.
// force-unlock shows whom it is about to hit, and cuts that lease or none.
//
// # Exit codes
//
// Scripts branch on them: "fencectl help exit-codes" prints them all. 0 is done; 6
// is safe to try again; after 7 look first, the change may have been made.
// "fencectl help runbook" says which command to run when, and what to do.
//
// # Rights
//
// Fencectl has the rights of the role that it connects as. "fencectl roles" prints
// the SQL of the roles that this module knows. The operator's is enough for
// everything but migrate, which is the schema's owner's, and the end-to-end test
// of doctor, which takes an issuer's; the reader's for what only looks.
package main

import _ "embed"

//go:embed runbook.txt
var runbook string
