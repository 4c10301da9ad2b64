package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// database is a database with the schema and the sessions of one driver. Tests
// are given one after the other, because new sessions and a new database cost
// more than most tests: when a test ends it is cleared, and given to the next
// one if it is then, down to its catalog, what it was when it was new.
type database struct {
	driver int
	url    string
	admin  *pgxpool.Pool
	pool   sessions
	drops  []func()
	fresh  string
}

// idleDatabases are those that no test has, by driver.
var idleDatabases struct {
	sync.Mutex
	of map[int][]*database
}

func dropIdleDatabases() {
	for _, idle := range idleDatabases.of {
		for _, d := range idle {
			d.drop()
		}
	}
}

// lend gives a test a database until the test ends.
func lend(t testing.TB, driver int) *database {
	t.Helper()
	idle := &idleDatabases
	idle.Lock()
	var d *database
	if n := len(idle.of[driver]); n > 0 {
		d, idle.of[driver] = idle.of[driver][n-1], idle.of[driver][:n-1]
	}
	idle.Unlock()
	if d == nil {
		d = newDatabase(t, driver)
	}
	t.Cleanup(func() {
		if t.Failed() || !d.clear() {
			d.drop()
			return
		}
		idle.Lock()
		defer idle.Unlock()
		if idle.of == nil {
			idle.of = map[int][]*database{}
		}
		idle.of[driver] = append(idle.of[driver], d)
	})
	return d
}

func newDatabase(t testing.TB, driver int) *database {
	t.Helper()
	d := &database{driver: driver}
	d.url = pgtest.MigratedDatabase(owner{t, d}, "sqlfence", migrated)
	var err error
	if d.admin, err = pgxpool.New(context.Background(), d.url); err != nil {
		t.Fatal(err)
	}
	config, err := pgx.ParseConfig(d.url)
	must(t, err)
	if d.pool, err = openers[driver].open(config, poolSize); err != nil {
		t.Fatal(err)
	}
	must(t, d.admin.QueryRow(context.Background(), fingerprintSQL).Scan(&d.fresh))
	return d
}

// migrated makes the database that the databases of tests are copies of.
func migrated(ctx context.Context, pool *pgxpool.Pool) error {
	return sqladmin.Pgx(pool).Migrate(ctx)
}

// owner is a test whose database is dropped when [database.drop] is called, and
// not already when the test ends.
type owner struct {
	testing.TB
	d *database
}

func (o owner) Name() string { return "sqlfence" } // that of none of its tests

func (o owner) Cleanup(f func()) { o.d.drops = append(o.d.drops, f) }

// Logf outlives the test.
func (o owner) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (d *database) drop() {
	d.admin.Close()
	if d.pool.inUse() == 0 { // closing would wait for them
		d.pool.close()
	}
	for _, f := range d.drops {
		f()
	}
}

// clear removes what a test left and reports whether nothing else remains of it.
func (d *database) clear() bool {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if d.pool.inUse() != 0 || d.admin.Stat().AcquiredConns() != 0 {
		return false
	}
	var now string
	err := errors.Join(d.pool.forget(ctx), pgxSessions{d.admin}.forget(ctx))
	if err == nil {
		_, err = d.admin.Exec(ctx, clearSQL)
	}
	if err == nil {
		err = d.admin.QueryRow(ctx, fingerprintSQL).Scan(&now)
	}
	return err == nil && now == d.fresh
}

// clearSQL removes the schemas of a test, what it put into schema public, its
// triggers' functions and its marks.
const clearSQL = `SET client_min_messages = error; DO $$ DECLARE drop text; BEGIN
	LOOP
		SELECT format('DROP SCHEMA %I CASCADE', nspname) INTO drop FROM pg_namespace
			WHERE oid >= 16384 AND nspname <> 'fencepost' AND nspname !~ '^pg_' LIMIT 1;
		IF NOT FOUND THEN
			SELECT format('DROP %s %s CASCADE', replace(i.type, 'composite ', ''), i.identity) INTO drop
				FROM pg_depend d, pg_identify_object(d.classid, d.objid, 0) i
				WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'public'::regnamespace LIMIT 1;
		END IF;
		IF NOT FOUND THEN
			SELECT format('DROP FUNCTION %s CASCADE', oid::regprocedure) INTO drop FROM pg_proc
				WHERE pronamespace = 'fencepost'::regnamespace AND proname ~ '^guard_[0-9a-f]{32}$' LIMIT 1;
		END IF;
		EXIT WHEN NOT FOUND;
		EXECUTE drop;
	END LOOP;
	DELETE FROM fencepost.marks;
	DELETE FROM fencepost.guarded;
END $$; RESET client_min_messages`

// fingerprintSQL describes everything that a test may have changed, except its
// roles: the catalog apart from the system's own part, and the tables of schema
// fencepost.
const fingerprintSQL = `SELECT md5(concat(
	(SELECT string_agg(x::text, '' ORDER BY oid) FROM pg_namespace x WHERE nspname !~ '^pg_(toast_)?temp_'),
	(SELECT string_agg(x::text, '' ORDER BY oid) FROM pg_proc x WHERE oid >= 16384),
	(SELECT string_agg(concat_ws(' ', oid, relname, relnamespace, relowner, relkind, relpersistence, relrowsecurity, relhassubclass, relacl, reloptions), '' ORDER BY oid)
		FROM pg_class WHERE oid >= 16384),
	(SELECT string_agg(x::text, '' ORDER BY attrelid, attnum) FROM pg_attribute x WHERE attrelid >= 16384),
	(SELECT string_agg(x::text, '' ORDER BY oid) FROM pg_attrdef x),
	(SELECT string_agg(x::text, '' ORDER BY oid) FROM pg_type x WHERE oid >= 16384),
	(SELECT string_agg(x::text, '' ORDER BY oid) FROM pg_constraint x WHERE oid >= 16384),
	(SELECT string_agg(x::text, '' ORDER BY oid) FROM pg_trigger x),
	(SELECT string_agg(oid::text, '' ORDER BY oid) FROM pg_rewrite WHERE oid >= 16384),
	(SELECT string_agg(oid::text, '' ORDER BY oid) FROM pg_operator WHERE oid >= 16384),
	(SELECT string_agg(oid::text, '' ORDER BY oid) FROM pg_cast WHERE oid >= 16384),
	(SELECT string_agg(oid::text, '' ORDER BY oid) FROM pg_collation WHERE oid >= 16384),
	(SELECT string_agg(x::text, '') FROM pg_db_role_setting x JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()),
	(SELECT datacl FROM pg_database WHERE datname = current_database()),
	(SELECT count(*) FROM pg_default_acl), (SELECT count(*) FROM pg_foreign_data_wrapper), (SELECT count(*) FROM pg_foreign_server),
	(SELECT count(*) FROM pg_event_trigger), (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_largeobject_metadata),
	(SELECT string_agg(x::text, '' ORDER BY component, version) FROM fencepost.migrations x),
	(SELECT string_agg(x::text, '') FROM fencepost.lock_salt x),
	(SELECT count(*) FROM fencepost.marks), (SELECT count(*) FROM fencepost.guarded), (SELECT count(*) FROM fencepost.mark_resets),
	pg_relation_size('fencepost.marks') < 65536))`

// keptSessions is how many of a pool's sessions the next test gets.
const keptSessions = 3

// forget resets the idle sessions of a pool, and what the driver knows of them.
func forget(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.PgConn().Exec(ctx, "DISCARD ALL").ReadAll(); err != nil {
		return err
	}
	return conn.DeallocateAll(ctx)
}

func (s pgxSessions) forget(ctx context.Context) error {
	for i, conn := range s.pool.AcquireAllIdle(ctx) {
		if i >= keptSessions || forget(ctx, conn.Conn()) != nil { // a dead one
			conn.Conn().Close(ctx)
		}
		conn.Release()
	}
	return ctx.Err()
}

func (s stdSessions) forget(ctx context.Context) error {
	s.pool.SetMaxIdleConns(keptSessions)
	defer s.pool.SetMaxIdleConns(poolSize)
	for range s.pool.Stats().Idle {
		conn, err := s.pool.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close() // after the last, or it would be given again
		conn.Raw(func(c any) error {
			if err := forget(ctx, c.(*stdlib.Conn).Conn()); err != nil { // a dead one
				c.(*stdlib.Conn).Conn().Close(ctx)
			}
			return nil
		})
	}
	return ctx.Err()
}
