package pgadmin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
)

// Inspect reads the settings of the server that matter to leases, and says of each
// whether it is as it should be, always in the same order. It writes nothing, and works
// on a standby, on a database without the schema and on one with another version of
// it. Transactions of others that are in the way are seen as far as the role may see
// them: without pg_read_all_stats only its own.
//
// The error is guard.ErrUnavailable: the server could not be reached at all.
func (o *Operator) Inspect(ctx context.Context) (found []lockadmin.Finding, err error) {
	var in inspection
	err = o.do(ctx, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		if in, err = inspect(ctx, conn); err == nil && in.schema == pglease.Schema().Version() {
			in.objects, err = wrongObjects(ctx, conn)
		} else if err == nil {
			in.unread["schema objects"] = "the schema is not there, or has another version, or was not seen"
		}
		return pglease.Harmless(err)
	})
	if err != nil {
		return nil, pause.WithCause(ctx, pglease.Failure("inspect", guard.Claim{}, err))
	}
	return in.findings(), nil
}

// inspection is what was read. What could not be read, or is not there, is zero.
type inspection struct {
	server, database, user string
	standby                bool
	pooled                 bool // the client has a process number other than the server's
	synchronousCommit      string
	isolation, readOnly    string // the defaults
	fsync, fullPageWrites  string
	schema                 int
	usable                 int    // the version by which this build judges the schema
	objects                string // what is wrong with those of the schema
	timeline, epochBase    int64
	denied                 string            // why the schema's version could not be read
	hidden                 string            // why the timeline or the system identifier could not be read
	unread                 map[string]string // why, by setting
	blocker                int               // process whose open transaction has a lock on the leases, or on rows of them
	blockerState           string
	locker                 int // process with a lock on the leases, or waiting for one, that keeps everybody out
	lockerWaitsFor         []int32
	snapshot               int // process with the oldest snapshot
	snapshotAge            time.Duration
	unseen                 int      // sessions of which the role may not see since when they have a snapshot
	rowSecurity            []string // tables that have it
	ahead                  int64    // leases granted later than the server's clock shows
}

const settingsSQL = `SELECT substring(version() FROM '^\S+ \S+'), current_database()::text, current_user::text,
  pg_is_in_recovery(), pg_backend_pid(),
  current_setting('synchronous_commit'), current_setting('default_transaction_isolation'),
  current_setting('default_transaction_read_only'), current_setting('fsync'), current_setting('full_page_writes')`

const (
	systemSQL   = `SELECT s.system_identifier::text FROM pg_control_system() s`
	timelineSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN (SELECT c.timeline_id::bigint FROM pg_control_checkpoint() c)
  ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END`
	baseSQL  = `SELECT e.base FROM fencepost.epoch e`
	aheadSQL = `SELECT count(*) FROM fencepost.leases l WHERE l.lease_id IS NOT NULL AND l.acquired_at > clock_timestamp() + interval '1 second'`
	// blockerSQL finds the oldest of the transactions that have locked the leases, so that
	// the exclusive calls wait, or rows of them (SELECT FOR UPDATE), so that their holders do.
	blockerSQL = `SELECT coalesce(k.pid, 0), coalesce(s.state, '') FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid
WHERE k.relation = to_regclass('fencepost.leases') AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND k.granted AND k.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND s.xact_start < clock_timestamp() - interval '1 second' AND k.pid <> pg_backend_pid()
ORDER BY s.xact_start LIMIT 1`
	// lockerSQL finds who has or waits for a lock that conflicts with every grant's.
	lockerSQL = `SELECT k.pid, pg_blocking_pids(k.pid) FROM pg_locks k
WHERE k.relation = to_regclass('fencepost.leases') AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') ORDER BY k.granted DESC, k.pid LIMIT 1`
	snapshotSQL = `SELECT s.pid, (extract(epoch FROM clock_timestamp() - s.xact_start) * 1000000)::bigint FROM pg_stat_activity s
WHERE s.backend_xmin IS NOT NULL AND s.datname = current_database() AND s.pid <> pg_backend_pid() AND s.xact_start IS NOT NULL ORDER BY s.xact_start LIMIT 1`
	unseenSQL = `SELECT count(*) FROM pg_stat_activity s
WHERE s.backend_xmin IS NOT NULL AND s.datname = current_database() AND s.pid <> pg_backend_pid() AND s.xact_start IS NULL`
	rowSecuritySQL = `SELECT array_agg(c.relname::text ORDER BY c.relname) FROM pg_class c
WHERE c.oid IN (to_regclass('fencepost.leases'), to_regclass('fencepost.spent'), to_regclass('fencepost.epoch')) AND c.relrowsecurity`
)

// lockPatience is how long Inspect waits for a lock. Who is in its way is a finding.
const lockPatience = 500 * time.Millisecond

// snapshotWorthTelling is how old a snapshot may be before it slows down busy leases.
const snapshotWorthTelling = time.Minute

// inspect reads the settings, and then what may be denied or missing, where only a
// broken connection is an error.
func inspect(ctx context.Context, conn *pgx.Conn) (in inspection, err error) {
	var pid uint32
	err = look(ctx, conn, func() error {
		return conn.QueryRow(ctx, settingsSQL).Scan(&in.server, &in.database, &in.user, &in.standby, &pid,
			&in.synchronousCommit, &in.isolation, &in.readOnly, &in.fsync, &in.fullPageWrites)
	})
	if err != nil {
		return in, err
	}
	in.pooled = pid != conn.PgConn().PID()
	in.unread = map[string]string{}
	see := func(setting, sql string, into ...any) error {
		err := look(ctx, conn, func() error {
			if _, err := conn.Exec(ctx, "SELECT set_config('lock_timeout', $1, true)", pglease.Milliseconds(lockPatience)); err != nil {
				return err
			}
			return conn.QueryRow(ctx, sql).Scan(into...)
		})
		if pg := pglease.Error(err); pg != nil && pglease.NothingWritten(pg) {
			in.unread[setting] = pg.Message
			if setting == lockadmin.SettingSchema && pg.Code == pgerr.Privilege {
				in.denied = pg.Message
			}
			return nil
		}
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	}
	var age int64
	var system string
	err = errors.Join(
		see("system", systemSQL, &system),
		see("timeline", timelineSQL, &in.timeline),
		see(lockadmin.SettingSchema, pglease.Schema().VersionSQL(), &in.schema),
		see(lockadmin.SettingSchema, pglease.Schema().UsableSQL(), &in.usable),
		see("base", baseSQL, &in.epochBase),
		see("blocker", blockerSQL, &in.blocker, &in.blockerState),
		see("locked", lockerSQL, &in.locker, &in.lockerWaitsFor),
		see("old snapshot", snapshotSQL, &in.snapshot, &age),
		see("old snapshot", unseenSQL, &in.unseen),
		see("row-level security", rowSecuritySQL, &in.rowSecurity),
		see("clock set back", aheadSQL, &in.ahead),
	)
	in.snapshotAge = time.Duration(age) * time.Microsecond
	for _, hidden := range []string{"system", "timeline", "base"} {
		if why := in.unread[hidden]; why != "" {
			in.hidden += "; " + why
		}
		delete(in.unread, hidden)
	}
	delete(in.unread, lockadmin.SettingSchema)
	in.hidden = strings.TrimPrefix(in.hidden, "; ")
	return in, err
}

// findings says of each thing that was read whether it is as it should be.
func (in *inspection) findings() (found []lockadmin.Finding) {
	// check adds a finding: the problem, if it is there, or else what is fine.
	check := func(setting, fine string, severity lockadmin.Severity, bad bool, problem, remedy string) {
		if why := in.unread[setting]; why != "" { // what was not seen is not fine
			found = append(found, lockadmin.Finding{Severity: lockadmin.SeverityWarning, Setting: setting, Detail: "not looked at: " + why, Remedy: "see " + lockadmin.SettingSchema})
		} else if bad {
			found = append(found, lockadmin.Finding{Severity: severity, Setting: setting, Detail: problem, Remedy: remedy})
		} else {
			found = append(found, lockadmin.Finding{Severity: lockadmin.SeverityOK, Setting: setting, Detail: fine})
		}
	}
	check("server", in.server+", database "+in.database+", role "+in.user, lockadmin.SeverityOK, false, "", "")
	in.checkSchema(check)
	check("schema objects", "all there, as this build has them", lockadmin.SeverityError, in.objects != "", in.objects, migrate.RepairWith)
	check("standby", "no", lockadmin.SeverityError, in.standby,
		"the server is a standby: nothing can be granted or renewed there",
		"connect to the primary (target_session_attrs=read-write)")
	check("pooler", "none between", lockadmin.SeverityWarning, in.pooled,
		"the connection goes through a pooler or proxy: in transaction mode waiters poll, since notifications do not arrive",
		"let the lease client connect to the server itself, or accept that a lease is handed over within a second")
	check("default_transaction_isolation", in.isolation, lockadmin.SeverityError, in.isolation != "read committed",
		"is "+strconv.Quote(in.isolation)+": every acquire is refused",
		"set it to \"read committed\" in the connection's parameters or for the role")
	check("default_transaction_read_only", in.readOnly, lockadmin.SeverityError, in.readOnly == "on" && !in.standby,
		"is on: nothing can be written",
		"set it to off for the role")
	check("synchronous_commit", in.synchronousCommit, lockadmin.SeverityWarning, in.synchronousCommit == "off" || in.synchronousCommit == "local",
		"is "+strconv.Quote(in.synchronousCommit)+": grants and renewals override it for themselves, the application's own writes do not",
		"nothing for leases; check that the application's writes may be lost")
	check("fsync", in.fsync, lockadmin.SeverityError, in.fsync == "off",
		"is off: after a crash of the machine tokens may be issued again",
		"set it to on")
	check("full_page_writes", in.fullPageWrites, lockadmin.SeverityWarning, in.fullPageWrites == "off",
		"is off: a crash of the machine can damage the table",
		"set it to on, unless the file system writes whole pages")
	check("timeline", fmt.Sprintf("%d, so failovers are noticed; stored epoch base %d", in.timeline, in.epochBase), lockadmin.SeverityWarning, in.hidden != "",
		"the server does not show everything, so a failover may go unnoticed: "+in.hidden,
		"raise the epoch after every failover and restore, or grant EXECUTE on these functions")
	unseen := "none"
	if in.unseen > 0 {
		unseen = fmt.Sprintf("none of those that this role may see; it does not see those of %d sessions, for which it needs pg_read_all_stats", in.unseen)
	}
	check("blocker", unseen, lockadmin.SeverityWarning, in.blocker != 0,
		fmt.Sprintf("server process %d (%s) has had a transaction open for more than a second, with a lock on the leases or on rows of them: whoever needs one of these rows waits; if it has written, Purge, RaiseEpoch and AdvanceFloor do, too", in.blocker, in.blockerState),
		"look at pg_stat_activity; if it is forgotten, end it with pg_terminate_backend")
	behind := ""
	if len(in.lockerWaitsFor) > 0 {
		behind = fmt.Sprintf("; it waits for %v", in.lockerWaitsFor)
	}
	check("locked", "no", lockadmin.SeverityError, in.locker != 0,
		fmt.Sprintf("server process %d has or awaits a lock that keeps everybody out of the leases, as VACUUM FULL, CLUSTER and ALTER TABLE do%s", in.locker, behind),
		"end it, or what it waits for: see pg_stat_activity")
	check("row-level security", "off", lockadmin.SeverityError, len(in.rowSecurity) > 0,
		"is on for "+strings.Join(in.rowSecurity, ", ")+": the statements of issuers to which it applies are refused",
		"ALTER TABLE fencepost.... DISABLE ROW LEVEL SECURITY; rights per column (roles) are what is needed")
	check("old snapshot", unseen, lockadmin.SeverityWarning, in.snapshotAge > snapshotWorthTelling,
		fmt.Sprintf("server process %d has a snapshot for %s: until it ends no dead version of a row is cleaned, and busy leases become slow", in.snapshot, in.snapshotAge.Round(time.Second)),
		"end the transaction if it is forgotten; let long reports and dumps run on a standby")
	check("clock set back", "no", lockadmin.SeverityWarning, in.ahead > 0,
		fmt.Sprintf("leases granted later than the server's clock shows: %d; it was set back, and they last for longer by that", in.ahead),
		"let them be renewed or released; force-unlock those whose holders are gone; keep the server's clock from stepping")
	return found
}

func (in *inspection) checkSchema(check func(setting, fine string, severity lockadmin.Severity, bad bool, problem, remedy string)) {
	wanted := pglease.Schema().Version()
	problem, remedy := "", ""
	switch {
	case in.denied != "":
		problem, remedy = "role "+in.user+" may not see it: "+in.denied, "grant it one of the roles that fencectl roles prints; if these are not there, the schema's owner runs that"
	case in.schema == 0:
		problem, remedy = "there is no schema of lockclient in database "+in.database, "if this is the database that was meant, run fencectl migrate, or pgadmin.Migrate"
	case in.schema < wanted:
		problem, remedy = fmt.Sprintf("the schema has version %d, this build needs %d", in.schema, wanted), "run fencectl migrate, or pgadmin.Migrate, then roll out"
	case in.usable != wanted:
		problem, remedy = fmt.Sprintf("the schema has version %d, this build knows %d", in.schema, wanted), "run a newer build: the schema does not allow this one"
	}
	check(lockadmin.SettingSchema, fmt.Sprintf("version %d", in.schema), lockadmin.SeverityError, problem != "", problem, remedy)
}
