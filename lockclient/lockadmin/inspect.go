package lockadmin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
)

// Severity says how bad a [Finding] is.
type Severity string

// The severities.
const (
	// SeverityError: leases cannot be granted, or a promise does not hold.
	SeverityError Severity = "error"
	// SeverityWarning: it works, but with surprising behaviour.
	SeverityWarning Severity = "warning"
)

// Finding is a problem that [Operator.Inspect] found.
type Finding struct {
	// Severity is error or warning.
	Severity Severity `json:"severity"`
	// Setting is a short, stable name of what is wrong, such as "schema" or
	// "default_transaction_isolation".
	Setting string `json:"setting"`
	// Problem says what is wrong, Remedy what to do about it.
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

// Inspection is what [Operator.Inspect] saw.
type Inspection struct {
	// Server is the server's version in its own words, VersionNum the number
	// (150018); Database and User are those of the connection.
	Server     string `json:"server"`
	VersionNum int    `json:"versionNum"`
	Database   string `json:"database"`
	User       string `json:"user"`
	// Schema is the version of lockclient's schema, 0 if there is none;
	// SchemaWanted is this build's.
	Schema       int `json:"schema"`
	SchemaWanted int `json:"schemaWanted"`
	// SchemaUsable reports whether this build can use the schema: it is its own, or
	// a newer one that allows it.
	SchemaUsable bool `json:"schemaUsable"`
	// Standby says that the server is one, so that nothing can be granted there.
	Standby bool `json:"standby"`
	// Pooled says that there is a pooler or proxy in between, which gives the
	// client a process number other than the server's.
	Pooled bool `json:"pooled"`
	// The settings are those of this connection, in the server's words.
	SynchronousCommit string `json:"synchronousCommit"`
	DefaultIsolation  string `json:"defaultIsolation"`
	DefaultReadOnly   string `json:"defaultReadOnly"`
	Fsync             string `json:"fsync"`
	FullPageWrites    string `json:"fullPageWrites"`
	// Timeline is the WAL timeline, 0 if it cannot be read; SystemIdentifier
	// names the cluster, empty if it cannot be read; Hidden says why.
	Timeline         int64  `json:"timeline"`
	SystemIdentifier string `json:"systemIdentifier"`
	Hidden           string `json:"hidden,omitempty"`
	// EpochBase is the stored part of the epoch, Floor the token that every
	// later grant is above.
	EpochBase int64       `json:"epochBase"`
	Floor     guard.Token `json:"floor"`
	// Blocker is the server process of a transaction that has been open for
	// more than a second with a lock that keeps Purge, RaiseEpoch and
	// AdvanceFloor out; 0 if there is none, or none that the role may see: a
	// role without pg_read_all_stats sees only its own transactions.
	Blocker int `json:"blocker,omitempty"`
	// Locker is a server process that has a lock on the leases, or waits for one, which
	// keeps everybody out, as VACUUM FULL and most of ALTER TABLE do; 0 if there is none.
	// LockerWaitsFor are the processes in its own way, such as a dump.
	Locker         int     `json:"locker,omitempty"`
	LockerWaitsFor []int32 `json:"lockerWaitsFor,omitempty"`
	// Snapshot is the server process of the oldest transaction with a snapshot in this
	// database, SnapshotAge how long that has been open; 0 if there is none, or none that
	// the role may see. Dead versions of rows are kept for as long as it lasts.
	Snapshot    int           `json:"snapshot,omitempty"`
	SnapshotAge time.Duration `json:"snapshotAgeNanoseconds,omitempty"`
	// RowSecurity are the tables of leases with row-level security, whose policies would
	// hide leases from issuers: every statement that they apply to is refused.
	RowSecurity []string `json:"rowSecurity,omitempty"`
	// Ahead is how many leases were granted later than the server's clock shows:
	// it was set back since. They last longer by that much.
	Ahead int64 `json:"ahead,omitempty"`
	// RoundTrip is how long the fastest of a few empty statements took.
	RoundTrip time.Duration `json:"roundTripNanoseconds"`
	// ClockAhead is how far the server's clock is ahead of this machine's, plus
	// or minus ClockError. Leases do not depend on it; comparing logs does.
	ClockAhead time.Duration `json:"clockAheadNanoseconds"`
	ClockError time.Duration `json:"clockErrorNanoseconds"`
	// Findings are the problems, the worst first; empty means none were found.
	Findings []Finding `json:"findings"`
}

// Inspect reads the settings of the server that matter to leases, and reports
// what is wrong with them. It writes nothing, and works on a standby, on a
// database without the schema and on one with another version of it. A setting
// that the role may not see is left empty.
//
// The error is guard.ErrUnavailable: the server could not be reached at all.
func (o *Operator) Inspect(ctx context.Context) (in Inspection, err error) {
	err = o.do(ctx, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		in, err = inspect(ctx, conn)
		return pglease.Harmless(err)
	})
	if err != nil {
		return Inspection{}, pause.WithCause(ctx, pglease.Failure("inspect", guard.Claim{}, err))
	}
	in.Findings = in.findings()
	return in, nil
}

const settingsSQL = `SELECT version(), current_setting('server_version_num')::integer, current_database()::text, current_user::text,
  pg_is_in_recovery(), pg_backend_pid(),
  current_setting('synchronous_commit'), current_setting('default_transaction_isolation'),
  current_setting('default_transaction_read_only'), current_setting('fsync'), current_setting('full_page_writes')`

const (
	systemSQL   = `SELECT s.system_identifier::text FROM pg_control_system() s`
	timelineSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN (SELECT c.timeline_id::bigint FROM pg_control_checkpoint() c)
  ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END`
	baseSQL  = `SELECT coalesce((SELECT e.base FROM fencepost.epoch e), 0), coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0)`
	aheadSQL = `SELECT count(*) FROM fencepost.leases l WHERE l.lease_id IS NOT NULL AND l.acquired_at > clock_timestamp() + interval '1 second'`
	// blockerSQL finds the oldest of the transactions whose lock on the leases
	// would block the exclusive calls.
	blockerSQL = `SELECT coalesce(k.pid, 0) FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid
WHERE k.relation = to_regclass('fencepost.leases') AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND k.granted AND k.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND s.xact_start < clock_timestamp() - interval '1 second'
ORDER BY s.xact_start LIMIT 1`
	// lockerSQL finds who has or waits for a lock that conflicts with every grant's.
	lockerSQL = `SELECT k.pid, pg_blocking_pids(k.pid) FROM pg_locks k
WHERE k.relation = to_regclass('fencepost.leases') AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') ORDER BY k.granted DESC, k.pid LIMIT 1`
	snapshotSQL = `SELECT s.pid, (extract(epoch FROM clock_timestamp() - s.xact_start) * 1000000)::bigint FROM pg_stat_activity s
WHERE s.backend_xmin IS NOT NULL AND s.datname = current_database() AND s.pid <> pg_backend_pid() ORDER BY s.xact_start LIMIT 1`
	rowSecuritySQL = `SELECT array_agg(c.relname::text ORDER BY c.relname) FROM pg_class c
WHERE c.oid IN (to_regclass('fencepost.leases'), to_regclass('fencepost.spent'), to_regclass('fencepost.epoch')) AND c.relrowsecurity`
)

// lockPatience is how long Inspect waits for a lock. Who is in its way is a finding.
const lockPatience = 500 * time.Millisecond

// snapshotWorthTelling is how old a snapshot may be before it slows down busy leases.
const snapshotWorthTelling = time.Minute

// inspect reads the settings, and then what may be denied or missing, where only a
// broken connection is an error.
func inspect(ctx context.Context, conn *pgx.Conn) (in Inspection, err error) {
	in = Inspection{SchemaWanted: pglease.Schema().Version()}
	var pid uint32
	err = look(ctx, conn, func() error {
		return conn.QueryRow(ctx, settingsSQL).Scan(&in.Server, &in.VersionNum, &in.Database, &in.User, &in.Standby, &pid,
			&in.SynchronousCommit, &in.DefaultIsolation, &in.DefaultReadOnly, &in.Fsync, &in.FullPageWrites)
	})
	if err != nil {
		return in, err
	}
	in.Pooled = pid != conn.PgConn().PID()
	var hidden []string
	see := func(secret bool, sql string, into ...any) error {
		err := look(ctx, conn, func() error {
			if _, err := conn.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", pglease.Milliseconds(lockPatience)); err != nil {
				return err
			}
			return conn.QueryRow(ctx, sql).Scan(into...)
		})
		if pg := pglease.Error(err); pg != nil && pglease.NothingWritten(pg) {
			if secret {
				hidden = append(hidden, pg.Message)
			}
			return nil
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	}
	var age, usable int64
	err = errors.Join(
		see(true, systemSQL, &in.SystemIdentifier),
		see(true, timelineSQL, &in.Timeline),
		see(false, pglease.Schema().VersionSQL(), &in.Schema),
		see(false, pglease.Schema().UsableSQL(), &usable),
		see(false, baseSQL, &in.EpochBase, (*int64)(&in.Floor)),
		see(false, blockerSQL, &in.Blocker),
		see(false, lockerSQL, &in.Locker, &in.LockerWaitsFor),
		see(false, snapshotSQL, &in.Snapshot, &age),
		see(false, rowSecuritySQL, &in.RowSecurity),
		see(false, aheadSQL, &in.Ahead),
	)
	in.SchemaUsable = usable == int64(in.SchemaWanted)
	in.SnapshotAge = time.Duration(age) * time.Microsecond
	if in.Hidden = strings.Join(hidden, "; "); err == nil {
		err = inspectClock(ctx, conn, &in)
	}
	return in, err
}

// inspectClock compares the clocks by the fastest of a few round trips: the
// server read its clock somewhere within it.
func inspectClock(ctx context.Context, conn *pgx.Conn, in *Inspection) error {
	in.RoundTrip = math.MaxInt64
	for range 5 {
		var at time.Time
		sent := time.Now()
		if err := conn.QueryRow(ctx, "SELECT pg_catalog.clock_timestamp()").Scan(&at); err != nil {
			return err
		}
		if took := time.Since(sent); took < in.RoundTrip {
			in.RoundTrip, in.ClockError = took, took/2
			in.ClockAhead = at.Sub(sent.Add(took / 2))
		}
	}
	return nil
}

// skewWorthTelling is how far apart clocks may be before the logs of two
// machines are hard to compare.
const skewWorthTelling = time.Second

// findings returns what is wrong with what was read, the worst first.
func (in *Inspection) findings() []Finding {
	found := []Finding{}
	add := func(bad bool, severity Severity, setting, problem, remedy string) {
		if bad {
			found = append(found, Finding{severity, setting, problem, remedy})
		}
	}
	add(in.Standby, SeverityError, "standby", "the server is a standby: nothing can be granted or renewed there",
		"connect to the primary (target_session_attrs=read-write)")
	add(in.Schema == 0, SeverityError, "schema", "there is no schema of lockclient in this database, or the role may not see it", "run the migration")
	add(in.Schema > 0 && in.Schema < in.SchemaWanted, SeverityError, "schema",
		fmt.Sprintf("the schema has version %d, this build needs %d", in.Schema, in.SchemaWanted), "run the migration, then roll out")
	add(in.Schema > in.SchemaWanted && !in.SchemaUsable, SeverityError, "schema",
		fmt.Sprintf("the schema has version %d, this build knows %d", in.Schema, in.SchemaWanted), "run a newer build: the schema does not allow this one")
	add(in.DefaultIsolation != "read committed", SeverityError, "default_transaction_isolation",
		"is "+strconv.Quote(in.DefaultIsolation)+": every acquire is refused",
		"set it to \"read committed\" in the connection's parameters or for the role")
	add(in.DefaultReadOnly == "on" && !in.Standby, SeverityError, "default_transaction_read_only", "is on: nothing can be written", "set it to off for the role")
	add(in.Fsync == "off", SeverityError, "fsync", "is off: after a crash of the machine tokens may be issued again", "set it to on")
	add(in.FullPageWrites == "off", SeverityWarning, "full_page_writes", "is off: a crash of the machine can damage the table",
		"set it to on, unless the file system writes whole pages")
	add(in.SynchronousCommit == "off" || in.SynchronousCommit == "local", SeverityWarning, "synchronous_commit",
		"is "+strconv.Quote(in.SynchronousCommit)+": grants and renewals override it for themselves, the application's own writes do not",
		"nothing for leases; check that the application's writes may be lost")
	add(in.Locker != 0, SeverityError, "locked",
		fmt.Sprintf("server process %d has or awaits a lock that keeps everybody out of the leases, as VACUUM FULL, CLUSTER and ALTER TABLE do; it waits for %v", in.Locker, in.LockerWaitsFor),
		"end it, or what it waits for: see pg_stat_activity")
	add(len(in.RowSecurity) > 0, SeverityError, "row-level security", "is on for "+strings.Join(in.RowSecurity, ", ")+": the statements of issuers to which it applies are refused",
		"ALTER TABLE fencepost.... DISABLE ROW LEVEL SECURITY; rights per column (roles) are what is needed")
	add(in.SnapshotAge > snapshotWorthTelling, SeverityWarning, "old snapshot",
		fmt.Sprintf("server process %d has a snapshot for %s: until it ends no dead version of a row is cleaned, and busy leases become slow", in.Snapshot, in.SnapshotAge.Round(time.Second)),
		"end the transaction if it is forgotten; let long reports and dumps run on a standby")
	add(in.Hidden != "", SeverityWarning, "timeline", "the server does not show everything, so a failover may go unnoticed: "+in.Hidden,
		"raise the epoch after every failover and restore, or grant EXECUTE on these functions")
	add(in.Pooled, SeverityWarning, "pooler", "the connection goes through a pooler or proxy: in transaction mode waiters poll, since notifications do not arrive",
		"let the lease client connect to the server itself, or accept hand-overs of up to Options.PollInterval")
	add(in.Blocker != 0, SeverityWarning, "blocker",
		fmt.Sprintf("server process %d has had a transaction open for more than a second, with a lock on the leases: it keeps out Purge, RaiseEpoch and AdvanceFloor", in.Blocker),
		"look at pg_stat_activity, end it if it is forgotten")
	add(in.Ahead > 0, SeverityWarning, "clock set back",
		fmt.Sprintf("leases granted later than the server's clock shows: %d; it was set back, and they last for longer by that", in.Ahead),
		"let them be renewed or released; force-unlock those whose holders are gone; keep the server's clock from stepping")
	direction := " ahead of"
	if in.ClockAhead < 0 {
		direction = " behind"
	}
	add(in.ClockAhead.Abs() > skewWorthTelling+in.ClockError, SeverityWarning, "clock",
		"the server's clock is "+in.ClockAhead.Abs().Round(time.Millisecond).String()+direction+" this machine's",
		"leases do not depend on it; set the clocks, so that logs can be compared")
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(string(a.Severity), string(b.Severity)) }) // "error" first
	return found
}
