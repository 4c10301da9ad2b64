package lockclient

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5"
)

const settingsSQL = `SELECT version(), current_setting('server_version_num')::integer, current_database()::text, current_user::text,
  pg_is_in_recovery(), pg_backend_pid(),
  current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_setting('default_transaction_isolation'),
  current_setting('default_transaction_read_only'), current_setting('fsync'), current_setting('full_page_writes'),
  current_setting('idle_in_transaction_session_timeout')`

const (
	systemSQL   = `SELECT s.system_identifier::text FROM pg_control_system() s`
	timelineSQL = `SELECT CASE WHEN pg_is_in_recovery() THEN (SELECT c.timeline_id::bigint FROM pg_control_checkpoint() c)
  ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END`
	estimateSQL = `SELECT greatest(c.reltuples, 0)::bigint FROM pg_class c WHERE c.oid = to_regclass('fencepost.leases')`
	baseSQL     = `SELECT coalesce((SELECT e.base FROM fencepost.epoch e), 0), coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0)`
	// blockerSQL finds the oldest of the transactions whose lock on the leases
	// would keep the exclusive calls out.
	blockerSQL = `SELECT coalesce(k.pid, 0) FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid
WHERE k.relation = to_regclass('fencepost.leases') AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND k.granted AND k.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND s.xact_start < clock_timestamp() - interval '1 second'
ORDER BY s.xact_start LIMIT 1`
)

func (p *postgres) inspect(ctx context.Context) (in Inspection, err error) {
	err = p.on(ctx, p.pool, p.set.opTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		in = Inspection{SchemaWanted: schema().Version()}
		var pid uint32
		err := conn.QueryRow(ctx, settingsSQL).Scan(&in.Server, &in.VersionNum, &in.Database, &in.User, &in.Standby, &pid,
			&in.SynchronousCommit, &in.SynchronousStandbys, &in.DefaultIsolation, &in.DefaultReadOnly, &in.Fsync, &in.FullPageWrites,
			&in.TransactionTimeoutIdle)
		if err != nil {
			return harmless(err)
		}
		in.Pooled = pid != conn.PgConn().PID()
		return harmless(p.inspectRest(ctx, conn, &in))
	})
	return in, failure("inspect", guard.Claim{}, err)
}

// inspectRest asks what may be denied or missing; only a broken connection is an
// error.
func (p *postgres) inspectRest(ctx context.Context, conn *pgx.Conn, in *Inspection) error {
	var hidden []string
	see := func(secret bool, sql string, into ...any) error {
		err := conn.QueryRow(ctx, sql).Scan(into...)
		if pg := pgError(err); pg != nil && serverSaidNo(pg) {
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
	var version, floor int64
	err := errors.Join(
		see(true, systemSQL, &in.SystemIdentifier),
		see(true, timelineSQL, &in.Timeline),
		see(false, schema().VersionSQL(), &version),
		see(false, estimateSQL, &in.Resources),
		see(false, baseSQL, &in.EpochBase, &floor),
		see(false, blockerSQL, &in.Blocker),
	)
	in.Schema, in.Floor, in.Hidden = int(version), guard.Token(floor), strings.Join(hidden, "; ")
	if err != nil {
		return err
	}
	return inspectClock(ctx, conn, in)
}

// inspectClock compares the clocks by the fastest of a few round trips: the
// server read its clock somewhere within it.
func inspectClock(ctx context.Context, conn *pgx.Conn, in *Inspection) error {
	in.RoundTrip = math.MaxInt64
	for range 5 {
		var at time.Time
		sent := time.Now()
		if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&at); err != nil {
			return err
		}
		if took := time.Since(sent); took < in.RoundTrip {
			in.RoundTrip, in.ClockError = took, took/2
			in.ClockAhead = at.Sub(sent.Add(took / 2))
		}
	}
	return nil
}
