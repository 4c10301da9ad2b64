package sqladmin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// oldest is the first version of PostgreSQL that has what the schema needs.
const oldest = 13

const (
	probeServerSQL    = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_version_num')::int / 10000, pg_catalog.pg_backend_pid()"
	probeBeginSQL     = pinSQL + ", pg_catalog.set_config('lock_timeout', '20ms', true)"
	probeExclusiveSQL = "SELECT pg_catalog.pg_advisory_xact_lock($1::bigint)"
	probeSharedSQL    = "SELECT pg_catalog.pg_advisory_xact_lock_shared($1::bigint)"
	probeIDSQL        = "SELECT pg_catalog.pg_current_xact_id()::text"
	// probeSeenSQL says whether a session has the lock, and whether a transaction is
	// committed to the statement itself.
	probeSeenSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_locks WHERE pid = $1::int AND locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
		AND classid::bigint = ($2::bigint >> 32) & 4294967295 AND objid::bigint = $2::bigint & 4294967295),
	pg_catalog.pg_visible_in_snapshot($3::text::pg_catalog.xid8, pg_catalog.pg_current_snapshot())`
)

// probeTimeout bounds a probe on a server that ignores lock_timeout. A probe takes some 30
// round trips, and a machine may be busy when replicas start.
const probeTimeout = 30 * time.Second

// Probe shows on the live server, with two sessions, that what every fence relies on
// works: an advisory lock excludes another session's, is seen in pg_locks and ends
// with its transaction; a statement under READ COMMITTED sees what was committed
// before it; the server is PostgreSQL 13 or newer. Servers that only speak its
// protocol may accept the statements and do nothing. [Admin.Migrate] and
// [Admin.Verify] do this first. It changes nothing, and says nothing of a standby, which
// fences refuse. It opens a second session, which is not one of the pool.
//
// The errors: ErrSetup names the property that the server does not have;
// ErrUnavailable.
func (a *Admin) Probe(ctx context.Context) error {
	const op = "probe the server"
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c, err := a.conn(ctx, op)
	if err != nil {
		return unopened(op, err)
	}
	defer c.Release()
	var version string
	if err := c.QueryRow(ctx, "SELECT pg_catalog.version()").Scan(&version); err != nil {
		return sqlkit.Interrupted(ctx, sqlkit.Failure(op, guard.Claim{}, pgerr.NotSent(err), false))
	}
	if strings.Contains(version, "emscripten") { // asked first: the second session would be refused, or wait, as on a busy server
		return guard.Setup(op, guard.Claim{}, lacksSessions)
	}
	second, err := pgx.ConnectConfig(ctx, c.Conn().Config())
	if err != nil {
		return sqlkit.Failure(op, guard.Claim{}, pgerr.NotSent(err), false)
	}
	defer second.Close(ctx) // bounded: it says goodbye to the server
	err = probe(ctx, c.Conn(), second)
	var lacking lacks
	switch {
	case errors.As(err, &lacking):
		return guard.Setup(op, guard.Claim{}, lacking)
	case pgerr.Undefined(err):
		return guard.Setup(op, guard.Claim{}, fmt.Errorf("the server is not PostgreSQL %d or newer: %w", oldest, err))
	}
	return sqlkit.Interrupted(ctx, sqlkit.Failure(op, guard.Claim{}, err, false))
}

// unopened is the error of a connection that could not be had.
func unopened(op string, err error) error {
	if guard.ReasonOf(err) != guard.ReasonOther {
		return err
	}
	return sqlkit.Failure(op, guard.Claim{}, err, false)
}

// lacks is a property that the server does not have.
type lacks string

func (l lacks) Error() string { return string(l) }

const (
	lacksSessions  = lacks("the server is PGlite, which has one session: no session could wait for another one's lock")
	lacksExclusion = lacks("an advisory lock does not exclude another session's: on this server no raise would wait for a holder")
	lacksShow      = lacks("an advisory lock is not seen in pg_locks: on this server a raise would find nobody in its way")
	lacksEnd       = lacks("an advisory lock does not end with its transaction: on this server a raise would wait forever")
	lacksFreshness = lacks("a statement under READ COMMITTED does not see what was committed before it: on this server a stale claim would pass")
)

func probe(ctx context.Context, first, second *pgx.Conn) error {
	key := int64(rand.Uint64())
	holder, err := begin(ctx, first)
	if err != nil {
		return err
	}
	defer holder.Rollback(ctx)
	var standby bool
	var version, pid int
	var id string
	if err := holder.QueryRow(ctx, probeServerSQL).Scan(&standby, &version, &pid); err != nil {
		return err
	}
	switch {
	case version < oldest:
		return lacks(fmt.Sprintf("the server has version %d, PostgreSQL %d or newer is needed", version, oldest))
	case standby:
		return nil
	}
	// A holder whose session has ended, or whose context has, excludes nobody and is
	// not to be seen. That says nothing about the server.
	lacking := func(property lacks) error {
		if _, err := holder.Exec(ctx, "SELECT"); err != nil {
			return fmt.Errorf("the first of two sessions: %w", err)
		}
		return property
	}
	// A shared lock excludes an exclusive one, as an entered transaction does a raise;
	// and the reverse.
	for _, pair := range [][2]string{{probeSharedSQL, probeExclusiveSQL}, {probeExclusiveSQL, probeSharedSQL}} {
		if _, err := holder.Exec(ctx, pair[0], key); err != nil {
			return err
		}
		switch waited, err := waits(ctx, second, pair[1], key); {
		case err != nil:
			return err
		case !waited:
			return lacking(lacksExclusion)
		}
	}
	if err := holder.QueryRow(ctx, probeIDSQL).Scan(&id); err != nil {
		return err
	}
	observer, err := begin(ctx, second)
	if err != nil {
		return err
	}
	defer observer.Rollback(ctx)
	see := func() (locked, committed bool, err error) {
		err = observer.QueryRow(ctx, probeSeenSQL, pid, key, id).Scan(&locked, &committed)
		return locked, committed, err
	}
	switch locked, committed, err := see(); {
	case err != nil:
		return err
	case !locked:
		return lacking(lacksShow)
	case committed:
		return lacksFreshness
	}
	if err := holder.Commit(ctx); err != nil {
		return err
	}
	locked, committed, err := see()
	if err != nil {
		return err
	}
	observer.Rollback(ctx)
	waited, err := waits(ctx, second, probeExclusiveSQL, key)
	switch {
	case err != nil:
		return err
	case locked || waited:
		return lacksEnd
	case !committed:
		return lacksFreshness
	}
	return nil
}

// begin opens a transaction in which no lock is waited for.
func begin(ctx context.Context, c *pgx.Conn) (pgx.Tx, error) {
	tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, pgerr.NotSent(err)
	}
	if _, err := tx.Exec(ctx, probeBeginSQL); err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

// waits reports whether a statement has to wait for a lock.
func waits(ctx context.Context, c *pgx.Conn, lock string, key int64) (bool, error) {
	tx, err := begin(ctx, c)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx)
	_, err = tx.Exec(ctx, lock, key)
	if pgerr.State(err) == pgerr.LockTimeout {
		return true, nil
	}
	return false, err
}
