// Package migrate applies a component's embedded, forward-only SQL to the
// schema "fencepost". lockclient and sqlfence share it and nothing else.
//
// Applying is idempotent and safe when several replicas start at once: all of
// it happens in one transaction under one advisory lock. What was applied is
// recorded in fencepost.migrations, even by the printed script, so that users
// of goose, atlas or golang-migrate can apply the same text themselves. Only a
// printed script removes it, never this package.
//
// # Builds on newer schemas
//
// A deploy can be rolled back if the builds before it run on the schema that it
// left. So changes come in three releases: expand (a step adds what the new build
// needs and keeps what the old one uses), deploy, contract (a step removes what no
// build uses any more). A step that expands says in its file which builds can go
// on:
//
//	-- Usable from version 4.
//
// means that a build that knows version 4 or a later one may use the schema after
// this step. It is recorded with the step, because an older build does not have the
// file. A step that does not say it can be used only by builds that know it.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// lockKey serialises the migrations of all components; it spells "fencepst".
const lockKey = 0x66656e6365707374

// lockWait bounds how long a migration waits for another one. Most take a second.
var lockWait = 30 * time.Second

// BusyError says that another session has the lock of migrations. Nothing was changed.
type BusyError struct {
	PID    int64 // of the session's server process; 0 if it ended meanwhile
	Waited time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("another migration has the lock for %v or longer, in the session of process %d: it is at work, or its client is stopped or cut off; then end it with SELECT pg_terminate_backend(%[2]d)",
		e.Waited.Round(time.Millisecond), e.PID)
}

// rollbackTimeout bounds how long a failed migration waits to be rolled back.
const rollbackTimeout = 5 * time.Second

// Pin makes the rest of a transaction resolve names in pg_catalog only, and
// unpin restores its search_path: a schema on the path of the migrating role
// may have functions, operators or types of another role, which would run with
// the migrating role's rights.
const (
	Pin = `DO $pin$ BEGIN
  PERFORM pg_catalog.set_config('fencepost.search_path', pg_catalog.current_setting('search_path'), true);
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
END $pin$;
` + together
	unpin = `DO $pin$ BEGIN
  PERFORM pg_catalog.set_config('search_path', pg_catalog.current_setting('fencepost.search_path'), true);
END $pin$;
`
)

// together refuses a script whose statements each commit by themselves, as psql
// sends a file without --single-transaction: then the effect of Pin is lost,
// and sealed could not tell what the script created.
const together = `DO $together$ BEGIN
  IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) 'pg_catalog, pg_temp' THEN
    RAISE EXCEPTION USING ERRCODE = 'no_active_sql_transaction',
      MESSAGE = 'run this script in one transaction (psql --single-transaction); nothing was applied';
  END IF;
END $together$;
`

// prologue creates the schema and the record of what was applied. By itself IF NOT
// EXISTS needs the right to create schemas, even where there is one.
const prologue = `DO $schema$ BEGIN
  IF pg_catalog.to_regnamespace('fencepost') IS NULL THEN
    CREATE SCHEMA IF NOT EXISTS fencepost;
  END IF;
END $schema$;
CREATE TABLE IF NOT EXISTS fencepost.migrations (
  component  text        NOT NULL,
  version    integer     NOT NULL,
  name       text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (component, version)
);
` + window

// window adds the column for Migration.UsableFrom, without a lock if it is there. A
// transaction that stays open, such as a dump's, keeps a table from being altered; a
// client that reads its version would wait behind that, so the wait is short.
const window = `DO $window$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = 'fencepost.migrations'::regclass AND attname = 'usable_from') THEN
    PERFORM pg_catalog.set_config('fencepost.lock_timeout', pg_catalog.current_setting('lock_timeout'), true);
    PERFORM pg_catalog.set_config('lock_timeout', '200ms', true);
    ALTER TABLE fencepost.migrations ADD COLUMN usable_from integer;
    PERFORM pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('fencepost.lock_timeout'), true);
  END IF;
END $window$;
`

// owned refuses a schema of another role: its owner may drop what is in it,
// including marks, whoever created them. It runs whenever something is applied.
const owned = `DO $owned$
DECLARE
  owner name := (SELECT pg_catalog.pg_get_userbyid(nspowner) FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) 'fencepost');
BEGIN
  IF owner OPERATOR(pg_catalog.<>) CURRENT_USER THEN
    RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = pg_catalog.format(
      'schema fencepost belongs to role %I, which could drop the marks and leases in it, and not to %I: migrate as its owner, or have it dropped or given away (ALTER SCHEMA fencepost OWNER TO %I)',
      owner, CURRENT_USER, CURRENT_USER);
  END IF;
END $owned$;
`

// sealed revokes what default privileges (ALTER DEFAULT PRIVILEGES) gave other
// roles on what this transaction created, perhaps in a savepoint: an
// application's role that may write every new table of the migrating role could
// lower marks, and call every function. What PUBLIC may call is left to the
// steps.
const sealed = `DO $sealed$
DECLARE
  made record;
BEGIN
  FOR made IN
    SELECT DISTINCT kind, name, a.grantee FROM (
      SELECT 'SCHEMA' AS kind, 'fencepost' AS name, nspowner AS owner, nspacl AS acl, xmin AS by FROM pg_namespace WHERE nspname = 'fencepost'
      UNION ALL SELECT 'TABLE', oid::regclass::text, relowner, relacl, xmin FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind IN ('r', 'S')
      UNION ALL SELECT 'FUNCTION', oid::regprocedure::text, proowner, proacl, xmin FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
    ) AS o, aclexplode(acl) AS a WHERE age(by) <= 0 AND a.grantee <> owner AND (a.grantee <> 0 OR kind <> 'FUNCTION')
  LOOP
    EXECUTE format('REVOKE ALL ON %s %s FROM %s', made.kind, made.name,
      CASE made.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(made.grantee)) END);
  END LOOP;
END $sealed$;
`

// Migration is one step of a component's schema.
type Migration struct {
	// Version counts from 1 without gaps.
	Version int
	// Name is the file's name without number and extension: "leases".
	Name string
	// SQL is the step without its record in fencepost.migrations.
	SQL string
	// UsableFrom is the lowest version that a build must know to use the schema
	// after this step; 0 means Version.
	UsableFrom int
}

// Script returns the step with its record, to be run in one transaction by
// any tool.
func (m Migration) Script(component string) string {
	return Pin + owned + prologue + strings.TrimSpace(m.SQL) + "\n" + m.record(component) + sealed + unpin
}

func (m Migration) record(component string) string {
	usable := m.Version
	if m.UsableFrom != 0 {
		usable = m.UsableFrom
	}
	return fmt.Sprintf("\nINSERT INTO fencepost.migrations (component, version, name, usable_from) VALUES ('%s', %d, '%s', %d);\n",
		component, m.Version, m.Name, usable)
}

// Component is a package's migrations in order.
type Component struct {
	// Name is the package's: "lockclient".
	Name string
	// Migrations are in order of version, from 1.
	Migrations []Migration
	// Removal removes what the steps created, or fails while it is in use.
	Removal string
}

// Load reads the files NNNN_name.sql in the root of dir. It panics on a
// misnamed or missing file: they are embedded, so that is a broken build.
func Load(component string, dir fs.FS) Component {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		panic(err)
	}
	c := Component{Name: component}
	for _, e := range entries {
		number, rest, ok := strings.Cut(e.Name(), "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version != len(c.Migrations)+1 || !strings.HasSuffix(rest, ".sql") {
			panic(fmt.Sprintf("migrate: %s: unexpected file %q", component, e.Name()))
		}
		sql, err := fs.ReadFile(dir, e.Name())
		if err != nil {
			panic(err)
		}
		m := Migration{Version: version, Name: strings.TrimSuffix(rest, ".sql"), SQL: string(sql)}
		if said := usableFrom.FindSubmatch(sql); said != nil {
			m.UsableFrom, _ = strconv.Atoi(string(said[1]))
			if m.UsableFrom < 1 || m.UsableFrom > version {
				panic(fmt.Sprintf("migrate: %s: %q cannot be usable from version %d", component, e.Name(), m.UsableFrom))
			}
		}
		c.Migrations = append(c.Migrations, m)
	}
	return c
}

var usableFrom = regexp.MustCompile(`(?m)^-- Usable from version (\d+)\.$`)

// Version returns the version that this build expects.
func (c Component) Version() int { return len(c.Migrations) }

// Script returns every step in order, for printing. It begins no transaction.
func (c Component) Script() string {
	var b strings.Builder
	b.WriteString(Pin + owned + prologue)
	for _, m := range c.Migrations {
		fmt.Fprintf(&b, "\n-- %s version %d: %s\n%s\n%s", c.Name, m.Version, m.Name, strings.TrimSpace(m.SQL), m.record(c.Name))
	}
	b.WriteString(sealed + unpin)
	return b.String()
}

// Down returns a script that removes the component, to be run in one transaction as
// [Component.Script] is.
func (c Component) Down() string {
	forget := "DELETE FROM fencepost.migrations WHERE component = '" + c.Name + "';\n"
	return Pin + owned + c.Removal + forget + last + unpin
}

// last removes the schema with its last component.
const last = `DO $last$ BEGIN
  IF NOT EXISTS (SELECT FROM fencepost.migrations) THEN
    DROP TABLE fencepost.migrations;
    DROP SCHEMA fencepost;
  END IF;
END $last$;
`

// Conn runs SQL on one connection. Exec takes several statements at once.
type Conn interface {
	Exec(ctx context.Context, sql string) error
	QueryInt(ctx context.Context, sql string) (int64, error)
}

// NewerError says that the database's schema is newer than this build and does not
// allow it.
type NewerError struct {
	Component string
	Have      int64 // the database's version
	Know      int   // this build's version
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("schema fencepost has %s version %d, this build knows %d: run a newer build", e.Component, e.Have, e.Know)
}

// Up applies what is missing, in one transaction that it begins and ends on
// conn. On an error the transaction is rolled back, if conn still works.
// A schema newer than c is not touched; it is a [*NewerError] unless it allows this
// build. Where there is nothing to do it waits for nobody; else it waits for another
// migration for 30 s, or as long as ctx lasts, and then is a [*BusyError]. An error from
// before the COMMIT is a [pgerr.NotSent] if the server did not say what happened.
func (c Component) Up(ctx context.Context, conn Conn) error { return c.UpTo(ctx, conn, c.Version()) }

// UpTo is [Component.Up] but stops at version, for tests of upgrades.
func (c Component) UpTo(ctx context.Context, conn Conn, version int) (err error) {
	// The level is explicit: under a server default of REPEATABLE READ the
	// version would be read from a snapshot older than the lock.
	if err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"); err != nil {
		return uncommitted(err)
	}
	committing := false
	defer func() {
		if err != nil {
			if !committing {
				err = uncommitted(err)
			}
			// The caller's context may be why it failed, but a silent network
			// must not block the caller either. A connection that does not
			// respond is closed by its driver, and the server rolls back.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
			defer cancel()
			conn.Exec(ctx, "ROLLBACK")
		}
	}()
	// For the search_path see Pin. transaction_timeout (PostgreSQL 17) may be shorter than the
	// wait for another migration, and would end the session.
	if err := conn.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp; SELECT CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END"); err != nil {
		return err
	}
	have, err := c.locked(ctx, conn, int64(version))
	if err != nil {
		return err
	}
	if have > int64(c.Version()) {
		return &NewerError{Component: c.Name, Have: have, Know: c.Version()}
	}
	if have < int64(version) {
		if err := conn.Exec(ctx, owned); err != nil {
			return err
		}
	}
	if 0 < have && have < int64(version) {
		if err := conn.Exec(ctx, window); err != nil {
			return err
		}
	}
	if have == 0 { // creates only if necessary: an application role may lack the right
		if err := conn.Exec(ctx, prologue); err != nil {
			return err
		}
	}
	for _, m := range c.Migrations[have:max(int(have), version)] {
		if err := conn.Exec(ctx, strings.TrimSpace(m.SQL)+"\n"+m.record(c.Name)); err != nil {
			return fmt.Errorf("%s version %d (%s): %w%s", c.Name, m.Version, m.Name, err, wayOut(have, err))
		}
	}
	if have < int64(version) {
		if err := conn.Exec(ctx, sealed); err != nil {
			return err
		}
	}
	committing = true
	return conn.Exec(ctx, "COMMIT")
}

// uncommitted marks an error from before the COMMIT.
func uncommitted(err error) error {
	if pgerr.Reason(err, pgerr.Commit) == guard.ReasonOutcomeUnknown {
		return pgerr.NotSent(err)
	}
	return err
}

// locked returns the applied version: at once if there is nothing to do up to version,
// else under the lock of migrations. The lock is a statement of its own, so that what is
// read after it is newer; it is tried rather than waited for, so that the wait ends when
// somebody else has done the work, and when its time is over.
func (c Component) locked(ctx context.Context, conn Conn, version int64) (int64, error) {
	var busy *BusyError
	ended := func(err error) error {
		if busy == nil || ctx.Err() == nil {
			return err
		}
		return fmt.Errorf("%w: %w", context.Cause(ctx), busy)
	}
	start := time.Now()
	for {
		have, err := c.version(ctx, conn)
		if err != nil || have >= version {
			return have, ended(err)
		}
		got, err := conn.QueryInt(ctx, fmt.Sprintf("SELECT pg_catalog.pg_try_advisory_xact_lock(%d)::integer", int64(lockKey)))
		if err != nil {
			return 0, ended(err)
		}
		if got == 1 {
			return c.version(ctx, conn)
		}
		// Asked now, since there is no time for it once the context has ended.
		pid, err := conn.QueryInt(ctx, fmt.Sprintf(lockedBySQL, int64(lockKey)))
		if err != nil {
			return 0, ended(err)
		}
		busy = &BusyError{PID: pid, Waited: time.Since(start)}
		if busy.Waited >= lockWait {
			return 0, busy
		}
		pause := time.NewTimer(lockEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return 0, ended(ctx.Err())
		}
	}
}

const (
	lockEvery = 50 * time.Millisecond
	// lockedBySQL returns the process that has the lock of migrations, 0 if it is free by now.
	lockedBySQL = `SELECT coalesce(max(pid), 0)::bigint FROM pg_catalog.pg_locks
		WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
		AND classid::bigint << 32 | objid::bigint = %d AND objsubid = 1`
)

// Needs says what a role needs for [Component.Up].
const Needs = "it takes the owner of schema fencepost, or where there is none a role that may create it (GRANT CREATE ON DATABASE)"

// Unrecorded reports that Up found something that a step creates and that
// fencepost.migrations does not have: half a script was applied, or the schema was
// restored without its data. Nothing was changed, and nothing is until somebody
// repairs it.
func Unrecorded(err error) bool {
	var coded interface{ SQLState() string }
	if !errors.As(err, &coded) {
		return false
	}
	switch coded.SQLState() {
	case "42P07", "42723", "42710", "42701": // duplicate table, function, object, column
		return true
	}
	return false
}

func wayOut(have int64, err error) string {
	if !Unrecorded(err) {
		return ""
	}
	if have > 0 {
		return "; fencepost.migrations does not have this step, as after half of a script: undo what it did, or restore schema fencepost"
	}
	return "; fencepost.migrations does not have it, as after half of a script or a restore of the schema without its data: " +
		"restore the data of schema fencepost, or, if no holder is at work, DROP SCHEMA fencepost CASCADE and migrate"
}

// version reads the applied version as [Component.UsableSQL] does; 0 if there is no
// schema.
func (c Component) version(ctx context.Context, conn Conn) (int64, error) {
	there, err := conn.QueryInt(ctx, "SELECT count(*) FROM pg_catalog.pg_class WHERE oid = to_regclass('fencepost.migrations')")
	if err != nil || there == 0 {
		return 0, err
	}
	return conn.QueryInt(ctx, c.UsableSQL())
}

// UsableSQL is the query for the version of the component by which a build that
// knows [Component.Version] judges the database: the applied version, or the
// build's own where the schema is newer and allows it. It fails with SQLSTATE 42P01
// or 3F000 where there is no schema. The record may be from a build that did not
// know of usable_from.
func (c Component) UsableSQL() string {
	return fmt.Sprintf(`SELECT CASE WHEN pg_catalog.bool_and(coalesce((pg_catalog.to_jsonb(m) OPERATOR(pg_catalog.->>) 'usable_from')::integer, version) OPERATOR(pg_catalog.<=) %[1]d)
  THEN least(pg_catalog.max(version), %[1]d) ELSE coalesce(pg_catalog.max(version), 0) END::bigint
FROM fencepost.migrations m WHERE component OPERATOR(pg_catalog.=) '%[2]s'`, c.Version(), c.Name)
}

// VersionSQL is the query for the applied version of the component. It fails
// with SQLSTATE 42P01 or 3F000 where there is no schema.
func (c Component) VersionSQL() string {
	return "SELECT coalesce(pg_catalog.max(version), 0)::bigint FROM fencepost.migrations WHERE component OPERATOR(pg_catalog.=) '" + c.Name + "'"
}
