// Fencectl is the operators' command line for leases, fencing tokens and marks,
// for people on call at 3 a.m.
//
//	fencectl show tenant_123:billing-close:2026-04
//	fencectl force-unlock tenant_123:billing-close:2026-04 --actor ana --reason 'INC-4711, it hangs' --raise
//
// It inspects (list, show, audit, doctor), intervenes (force-unlock, marks, epoch, advance,
// purge) and sets up (triggers, migrate, roles). With --issuer it does what is about leases on etcd,
// ZooKeeper, Redis and a lock server, too, as far as each can (lockadmin.Admin). Each command has --help. Names are whole names: those of
// a client confined to a namespace begin with it. A PATTERN for a list is read
// by components: tenant_1 is that name and all that begin with "tenant_1:",
// never tenant_12; "*" is any component and, at the end, any rest.
//
// # Configuration
//
// By flag, otherwise by environment: DATABASE_URL for PostgreSQL, FENCECTL_ISSUER,
// FENCECTL_ADDRESS, FENCECTL_USER and FENCECTL_BEARER for the others, FENCECTL_OUTPUT,
// FENCECTL_TIMEOUT and FENCECTL_ACTOR. What
// --database-url leaves out comes from the usual PG variables (PGHOST, PGUSER,
// PGSERVICE, PGSSLMODE, ...), the service file and ~/.pgpass, as with psql. No
// password is ever printed; ps shows one on the command line, so use the
// environment or ~/.pgpass.
//
// # Output
//
// Tables for people; with -o json (or FENCECTL_OUTPUT=json) one JSON object per
// line, so that a list can be read while it is written and jq accepts it unchanged
// (jq -s makes an array). Leases and records have the form of package lockadmin, which is the
// lock server's: fencingToken is a number and token the same as text, since many readers lose
// digits of JSON numbers above 2^53; durations have their unit in their name, times are in
// RFC 3339. Errors are one line on standard error, with -o json an object with
// code, reason and message. Names come from the database: whatever is not plainly
// printable is escaped.
//
// A list is read and printed page by page. It begins at once and takes the same
// memory for ten leases as for a million; it is not a snapshot.
//
// To see it change, run it by watch(1): watch fencectl list.
//
// # Confirmation
//
// Commands that change something (force-unlock, marks raise, reset and retire, epoch raise,
// advance, purge, migrate, triggers install, report, enforce and remove) ask for a "yes" if
// standard input is a terminal, and require --yes otherwise: a script is never asked. The
// question names the server and what changes; with --yes "On SERVER:" is said on standard
// error, or is in the JSON as server. force-unlock cuts the lease that it has looked at, or
// that --expect names, and no successor's, with --yes too.
//
// # Exit codes
//
// Scripts branch on them: "fencectl help exit-codes" prints them all. 0 means
// done; after 6 it is safe to try again; after 7 look first, the change may have
// been made; after 11 a part was done, or all of it and it could not be printed.
// "fencectl help runbook" says which command to run when, and what to do.
//
// # Rights
//
// Fencectl has the rights of the role that it connects as. "fencectl roles" prints
// the SQL of this module's roles. The operator's is enough for everything but migrate and
// what changes triggers, which need the schema's owner (triggers install that of the
// table, too), and the end-to-end test of doctor, which needs an issuer; the reader's is
// enough for commands that only read.
//
// # Where to read on
//
// main.go has the table of the commands, each of which is in the file of its name;
// command.go has what a command is given, asked and refused; session.go the connection to
// PostgreSQL and the schema's versions, engines.go that to the other issuers; exit.go the exit
// codes, errors.go the way to them; output.go tables and JSON.
package main
