// Package pgtest starts a private PostgreSQL for tests and example programs.
//
// Tests call [Database] or [Pool] and get a fresh, empty database on a server
// that the test binary shares. Tests that kill, restart or replicate call
// [Start] and own a whole server. Programs call [Provide].
//
// # Where the server comes from
//
// If FENCEPOST_DATABASE_URL is set, [Database], [Pool] and [Provide] create
// scratch databases on that server (PostgreSQL 13 or newer, a role that may
// create databases) and drop them afterwards. Otherwise, and always for [Start],
// server binaries are used: those in the directory FENCEPOST_PG_BIN if it is
// set, else those in PATH, or in the usual places of Debian, RPM, Homebrew and
// Postgres.app. If none are found, the error names .ci/setup, which installs
// them. Nothing is ever skipped, and nothing is downloaded.
//
// initdb runs once for each set of binaries. What it makes is kept as an archive
// in the user's cache directory (fencepost-pgtest), with a checksum, and every
// later server is a copy, which costs a tenth of the time. So servers of one user
// have one system identifier and one password, unless Options.Fresh is set.
//
// If FENCEPOST_SLOW_CONNECTIONS is set, each connection to a database that tests get on
// the shared private server takes 100 to 300 ms, as over a network with TLS: it goes
// through a proxy in the test's process. No test's verdict may depend on that.
//
// # What is promised
//
// A private server listens on 127.0.0.1 and on a Unix socket in its own
// directory, which only its user can enter, and takes a password. It
// runs as the user postgres, or else nobody, when the process is root, because
// PostgreSQL refuses to run as root. Its time zone is UTC, its locale is C. The
// directory is made in TMPDIR, else in /dev/shm if that has a gigabyte to spare,
// else in /tmp or /var/tmp, whichever is the first open to the server's user.
//
// When the process ends, its servers and their directories are gone a moment
// later: after a normal end, os.Exit, panic, go test's timeout, SIGINT, SIGTERM
// or SIGKILL. A small shell, the watchdog, in a session of its own waits on a
// pipe that only the process holds, and cleans up when it closes.
//
// # Durability
//
// An acknowledged commit survives [Server.Kill], [Server.StopImmediate] and a
// SIGKILL of any process of the server, by default and with Options.Durable,
// as long as synchronous_commit is not turned off. The default is fsync=off: the
// server hands its writes to the kernel before it acknowledges, and the kernel
// outlives the server. fsync=off would lose data if the machine itself failed,
// which this package cannot provoke. With Options.Durable the server is on a
// disk and waits for it, for tests whose timing should match production.
//
// # What is not promised
//
// A watchdog that is itself killed with SIGKILL does not clean up. A scratch
// database on FENCEPOST_DATABASE_URL stays behind when the process is killed;
// its name begins with fencepost_scratch. On macOS the System V semaphores of a
// server that was killed and not restarted stay behind until the next boot.
// Systems without Unix processes, such as Windows, can use
// FENCEPOST_DATABASE_URL only.
package pgtest
