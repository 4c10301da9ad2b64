package lockclient

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestSchemaVersion: a client refuses a schema that is not this build's, says
// what to do, changes nothing, and works once that has been done.
func TestSchemaVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, prepare, says string
		migrateHelps        bool
	}{
		{"no schema", "", "run pglock.Migrate", true},
		{"schema without migrations", "CREATE SCHEMA fencepost", "run pglock.Migrate", true},
		{"other component only", "CREATE SCHEMA fencepost; CREATE TABLE fencepost.migrations (component text, version int, name text)",
			"run pglock.Migrate", true},
		{"newer", pglock.MigrationSQL() + "INSERT INTO fencepost.migrations (component, version, name) VALUES ('lockclient', 1000, 'later')",
			"run a newer build", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := pgtest.Pool(t)
			mustSimple(t, pool, test.prepare)
			client := newTestClient(t, pool, nil)
			_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
			if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want a setup error and %q", err, test.says)
			}
			err = pglock.Migrate(t.Context(), pool)
			if !test.migrateHelps {
				if !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("Migrate: got %v, want a setup error and %q", err, test.says)
				}
				if n := countRows(t, pool); n != 0 {
					t.Errorf("%d rows were written", n)
				}
				return
			}
			testkit.Must(t, err)
			mustTry(t, client, "r", time.Minute)
		})
	}
}

// TestRollBack: a later build has migrated under a running holder. Where its step
// allows this build, a process of this build that starts afterwards acquires, and
// Migrate changes nothing; where it does not, both are refused. The holder goes on in
// both cases.
func TestRollBack(t *testing.T) {
	t.Parallel()
	know := pglease.Schema().Version()
	for _, usableFrom := range []int{know, know + 1} {
		t.Run(fmt.Sprint("usable from ", usableFrom-know), func(t *testing.T) {
			pool := migrated(t)
			holder := mustTry(t, newTestClient(t, pool, nil), "held", time.Minute)
			mustSimple(t, pool, fmt.Sprintf("INSERT INTO fencepost.migrations (component, version, name, usable_from) VALUES ('lockclient', %d, 'later', %d)", know+1, usableFrom))
			if err := holder.Renew(t.Context()); err != nil {
				t.Errorf("the holder: %v", err)
			}
			_, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
			for what, err := range map[string]error{"acquire": err, "migrate": pglock.Migrate(t.Context(), pool)} {
				if refused := errors.Is(err, guard.ErrSetup); refused != (usableFrom > know) || err != nil && !refused {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := holder.Release(t.Context()); err != nil {
				t.Errorf("the holder's release: %v", err)
			}
		})
	}
}

// TestSchemaCheckedOnce: once the version was right, it is not read again.
func TestSchemaCheckedOnce(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustTry(t, client, "a", time.Minute)
	mustExec(t, pool, "UPDATE fencepost.migrations SET version = version + 1000, usable_from = usable_from + 1000")
	mustTry(t, client, "b", time.Minute)
	if _, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "c", &AcquireOptions{TTL: time.Minute}); err == nil {
		t.Error("a new client did not check")
	}
}

func TestMigrateFails(t *testing.T) {
	t.Parallel()
	if err := pglock.Migrate(t.Context(), nil); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("nil pool: %v", err)
	}
	closed := pgtest.Pool(t)
	closed.Close()
	if err := pglock.Migrate(t.Context(), closed); !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("closed pool: %v", err)
	}
	pool := pgtest.Pool(t)
	mustSimple(t, pool, "CREATE SCHEMA fencepost; CREATE TABLE fencepost.leases (mine int)")
	if err := pglock.Migrate(t.Context(), pool); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("table in the way: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pglock.Migrate(ctx, pool); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func mustSimple(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	testkit.Must(t, err)
	defer conn.Release()
	if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

// refusing returns a pool on a server that refuses every statement with code,
// in the bubble's time, and counts the statements.
func refusing(t *testing.T, code string) (*pgxpool.Pool, *atomic.Int64) {
	t.Helper()
	config, err := pgxpool.ParseConfig("postgres://u@127.0.0.1/d?sslmode=disable")
	testkit.Must(t, err)
	var asked atomic.Int64
	config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			b := pgproto3.NewBackend(server, server)
			if _, err := b.ReceiveStartupMessage(); err != nil {
				return
			}
			b.Send(&pgproto3.AuthenticationOk{})
			for {
				b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
				if b.Flush() != nil {
					return
				}
				m, err := b.Receive()
				if _, ok := m.(*pgproto3.Query); err != nil || !ok {
					return
				}
				asked.Add(1)
				b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: code, Message: "simulated"})
			}
		}()
		return client, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool, &asked
}

// TestMigrateRepeats: a migration that a lock prevents is repeated for some
// seconds, until its context ends at the latest. Nothing else is repeated.
func TestMigrateRepeats(t *testing.T) {
	for name, test := range map[string]struct {
		code        string
		within      time.Duration // 0 is without a limit
		tries       [2]int64
		least, most time.Duration
	}{
		"a lock":                        {"55P03", 0, [2]int64{21, 21}, 1900 * time.Millisecond, 4 * time.Second},
		"a lock, and the context ends":  {"55P03", time.Second, [2]int64{7, 14}, time.Second, time.Second},
		"no right to create the schema": {"42501", 0, [2]int64{1, 1}, 0, 0},
	} {
		want := guard.ErrUnavailable
		if test.code == "42501" {
			want = guard.ErrSetup
		}
		testkit.Bubble(t, name, func(t *testing.T) {
			pool, asked := refusing(t, test.code)
			ctx := t.Context()
			if test.within > 0 {
				limited, cancel := context.WithTimeout(ctx, test.within)
				defer cancel()
				ctx = limited
			}
			began := time.Now()
			err := pglock.Migrate(ctx, pool)
			took := time.Since(began)
			if pg := pglease.Error(err); !errors.Is(err, want) || pg == nil || pg.Code != test.code {
				t.Errorf("got %v", err)
			}
			if n := asked.Load(); n < test.tries[0] || n > test.tries[1] || took < test.least || took > test.most {
				t.Errorf("%d tries in %v", n, took)
			}
		})
	}
}

var update = flag.Bool("update", false, "write testdata/schema.txt in place of comparing with it")

// TestSchema: what Migrate makes is what testdata/schema.txt says.
func TestSchema(t *testing.T) {
	t.Parallel()
	pgtest.CheckSchema(t, migrated(t), "fencepost", "testdata/schema.txt", *update)
}

// TestPlansUseTheIndex: plans that were made while the table was known to be tiny
// do not read all of it after it has grown: with 10,000 rows as with three, the
// functions of an issuer start no table scan, and read few rows through an index.
// The controls, in each of which one function may choose its plan, start a table
// scan with three rows, or join the whole index to the requested resources.
func TestPlansUseTheIndex(t *testing.T) {
	t.Parallel()
	scans := func(t *testing.T, control string, joins bool) (n, read int64) {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
		mustExec(t, pool, "ALTER TABLE fencepost.leases SET (autovacuum_enabled = off)")
		mustExec(t, pool, "ALTER TABLE fencepost.spent SET (autovacuum_enabled = off)")
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT 'few ' || i, 1 FROM generate_series(1, 3) i")
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id) VALUES ('few 1', 'x')")
		mustSimple(t, pool, "ANALYZE fencepost.leases, fencepost.spent")
		switch {
		case joins:
			mustSimple(t, pool, "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('fencepost."+control+"'::regproc), 'l.resource = ANY (p_resources)', 'true'); END $$")
		case control != "":
			mustExec(t, pool, "ALTER FUNCTION fencepost."+control+" RESET enable_seqscan")
		}
		all := func() {
			t.Helper()
			tx, err := pool.Begin(t.Context())
			testkit.Must(t, err)
			defer tx.Rollback(t.Context())
			both, ids, tokens := []string{"few 1", "few 2"}, []string{"a", "b"}, []int64{2, 2}
			for _, s := range []struct {
				sql  string
				args []any
			}{
				{grantSQL, grantArgs("few 1", "a", time.Hour)},
				{grantSQL, grantArgs("few 2", "b", time.Hour)},
				{grantSQL, grantArgs("few 2", "c", time.Hour)}, // refused
				{"SELECT FROM fencepost.watch('few 1', 'd', 'p', '1000')", nil},
				{"SELECT FROM fencepost.watch('few 1', '', 'p', '1000')", nil},
				{"SELECT FROM fencepost.renew($1, $2, $3, '{1000, 1000}', '1000')", []any{both[:1], ids[:1], tokens[:1]}},
				{"SELECT FROM fencepost.renew($1, $2, $3, '{1000, 1000}', '1000')", []any{both, ids, tokens}},
				{"SELECT FROM fencepost.release($1, $2, $3, '{x, y}', '1000')", []any{both, ids, tokens}},
				{"SELECT FROM fencepost.spend('few 1', 'a', 'x', '1000')", nil},
			} {
				if _, err := tx.Exec(t.Context(), s.sql, s.args...); err != nil {
					t.Fatal(s.sql, err)
				}
			}
			err = tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_numscans('fencepost.leases'::regclass) + pg_stat_get_xact_numscans('fencepost.spent'::regclass),
				pg_stat_get_xact_tuples_fetched('fencepost.leases_pkey'::regclass)`).Scan(&n, &read)
			testkit.Must(t, err)
		}
		all() // makes the plans
		if control != "" && !joins {
			return n, read
		}
		mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) SELECT 'a key ' || i, 1 FROM generate_series(1, 10000) i")
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id) SELECT 'a key ' || i, 'x' FROM generate_series(1, 1000) i")
		all()
		return n, read
	}
	if n, read := scans(t, "", false); n != 0 || read > 100 {
		t.Errorf("%d scans of a whole table, %d rows read by an index", n, read)
	}
	for _, control := range []string{"acquire", "renew", "release", "watch", "spend"} {
		if n, _ := scans(t, control, false); n == 0 {
			t.Errorf("%s, the control, scans nothing", control)
		}
	}
	for _, control := range []string{"acquire", "renew", "release"} {
		if _, read := scans(t, control, true); read < 10000 {
			t.Errorf("%s, the control, reads %d rows", control, read)
		}
	}
}

// TestSpentIDsAreNotRead: a release under a lease ID of the caller's own reads none of the
// IDs spent on its resource in the last hour, and deletes a bounded number of those whose
// hour has passed. The control has no index of their ends.
func TestSpentIDsAreNotRead(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, control bool) (rows, left int64) {
		pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
		if control {
			mustExec(t, pool, "DROP INDEX fencepost.spent_until")
		}
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id) SELECT 'r', 'job-' || i FROM generate_series(1, 10000) i")
		mustExec(t, pool, "INSERT INTO fencepost.spent (resource, lease_id, until) SELECT 'r', 'old-' || i, now() FROM generate_series(1, 150) i")
		mustSimple(t, pool, "VACUUM ANALYZE fencepost.spent")
		tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.spend('r', 'mine', 'x', '1000')")
		err := tx.QueryRow(t.Context(), `SELECT sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid)),
			(SELECT count(*) FROM fencepost.spent WHERE lease_id LIKE 'old-%')
			FROM pg_class WHERE oid = 'fencepost.spent'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'fencepost.spent'::regclass)`).Scan(&rows, &left)
		testkit.Must(t, err)
		return rows, left
	}
	if rows, left := read(t, false); rows > 1000 || left != 50 {
		t.Errorf("%d rows and entries read, %d of 150 that are over are left, want 50", rows, left)
	}
	if rows, _ := read(t, true); rows < 10000 {
		t.Errorf("the control reads %d rows and entries", rows)
	}
}

// TestPollingWaiter: a waiter that polls asks about once a second, and takes its process
// out of no queue, in which it never was.
func TestPollingWaiter(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustExec(t, pool, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = ''all''', current_database()); END $$")
	pool.Reset()
	calls := func(function string) int {
		return leasetest.Value[int](t, pool, "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'fencepost' AND funcname = $1", function)
	}
	mustTry(t, newTestClient(t, pool, nil), "r", time.Hour)
	client := newTuned(t, pool, pglock.Options{Poll: true}, nil)
	count := &counting{Issuer: client.issuer}
	client.issuer = count
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { _, err := client.Acquire(ctx, "r", nil); over <- err }()
	testkit.Eventually(t, "twelve tries", func() bool { return count.attempts.Load() >= 12 })
	cancel()
	<-over
	time.Sleep(300 * time.Millisecond) // it would leave a queue by then
	testkit.Must(t, client.Close(t.Context()))
	pool.Reset() // sessions say what they called when they end
	testkit.Eventually(t, "the counts of the sessions", func() bool { return calls("acquire") >= 12 })
	if n := calls("unwatch") + calls("watch"); n != 0 {
		t.Errorf("%d calls for a queue in which it is not", n)
	}
}

// offeredSQL is what a role can create in a schema of other roles' search_path:
// the names that the functions of an issuer use, for paths that name pg_catalog
// last, and overloads that match better than the system's own. Each leaves a
// trace that no rollback removes.
const offeredSQL = `CREATE SEQUENCE shared.ran;
	DO $do$ DECLARE o record; n integer := 0; BEGIN
		FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
			WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft = ANY ('{text,oid,bigint,integer,boolean,timestamptz,interval,double precision,numeric}'::regtype[])
			AND oprright = ANY ('{text,oid,bigint,integer,boolean,timestamptz,interval,double precision,numeric}'::regtype[])
			UNION ALL SELECT '*', 'bigint', 'interval', 'interval' UNION ALL SELECT '*', 'numeric', 'integer', 'numeric' LOOP
			n := n + 1;
			EXECUTE format('CREATE FUNCTION shared.op%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM nextval(''shared.ran''); RETURN NULL; END $f$', n, o.l, o.r, o.result);
			EXECUTE format('CREATE OPERATOR shared.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = shared.op%s)', o.oprname, o.l, o.r, n);
		END LOOP;
		FOR o IN SELECT proname, pg_get_function_identity_arguments(oid) AS args, prorettype::regtype AS result FROM pg_proc
			WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND proname = ANY (
				'{current_setting,set_config,clock_timestamp,pg_postmaster_start_time,pg_notify,pg_backend_pid}') LOOP
			EXECUTE format('CREATE FUNCTION shared.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM nextval(''shared.ran''); RETURN%s; END $f$',
				o.proname, o.args, o.result, CASE WHEN o.result <> 'void'::regtype THEN ' NULL' END);
		END LOOP;
		CREATE FUNCTION shared.traced() RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN PERFORM nextval('shared.ran'); RETURN true; END $f$;
		FOR o IN SELECT * FROM unnest('{text,oid,regclass,timestamptz}'::text[]) AS type LOOP
			EXECUTE format('CREATE DOMAIN shared.%I AS pg_catalog.%I CHECK (shared.traced())', o.type, o.type);
		END LOOP;
	END $do$;`

// TestHolderRunsNoCodeOfOthers: what another role put into a schema of the
// search_path does not run with the rights of a role that acquires, waits,
// renews and releases. The control is a function of the schema whose path is
// not pinned.
func TestHolderRunsNoCodeOfOthers(t *testing.T) {
	t.Parallel()
	admin := migrated(t)
	database := leasetest.Value[string](t, admin, "SELECT current_database()")
	role := pgx.Identifier{"app_" + database}.Sanitize()
	mustExec(t, admin, "CREATE ROLE "+role)
	defer mustExec(t, admin, "DROP ROLE "+role)
	defer mustExec(t, admin, "DROP OWNED BY "+role+" CASCADE")
	mustExec(t, admin, "CREATE SCHEMA shared AUTHORIZATION "+role)
	mustSimple(t, admin, "SET SESSION AUTHORIZATION "+role+";"+offeredSQL+"SET SESSION AUTHORIZATION DEFAULT")
	ran := func() (was bool) {
		t.Helper()
		testkit.Must(t, admin.QueryRow(t.Context(), "SELECT is_called FROM shared.ran").Scan(&was))
		mustExec(t, admin, "SELECT setval('shared.ran', 1, false)")
		return was
	}
	for _, path := range []string{"shared, public", "shared, public, pg_catalog"} {
		pool := dial(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = path })
		client, other := newTestClient(t, pool, nil), newTestClient(t, admin, nil)
		opts := &AcquireOptions{TTL: time.Hour}
		for _, step := range []struct {
			what string
			run  func() error
		}{
			{"acquire, renew, release", func() error {
				lease, err := client.TryAcquire(t.Context(), "r", opts)
				if err == nil {
					err = lease.Renew(t.Context())
				}
				if err == nil {
					err = lease.Release(t.Context())
				}
				return err
			}},
			{"several", func() error {
				a, b := mustTry(t, client, "a", time.Hour), mustTry(t, client, "b", time.Hour)
				results := make([]driver.Renewed, 2)
				client.issuer.Renew(t.Context(), []driver.Renewal{{Claim: a.Claim(), TTL: time.Hour}, {Claim: b.Claim(), TTL: time.Hour}}, results)
				if slices.ContainsFunc(results, func(r driver.Renewed) bool { return r.State != driver.Extended }) {
					t.Errorf("renewed %+v", results)
				}
				if _, err := client.issuer.Release(t.Context(), driver.Request{Resource: "a", LeaseID: a.ID()}.Claim()); err != nil {
					return err
				}
				return b.Release(t.Context())
			}},
			{"wait", func() error {
				listens(t, client)
				held := mustTry(t, other, "r", time.Hour)
				next := waits(t, client, "r", time.Hour)
				testkit.Eventually(t, "it waits", func() bool { return rests(t, admin, "r") })
				if err := held.Release(t.Context()); err != nil {
					return err
				}
				return (<-next).Release(context.Background())
			}},
		} {
			if err := step.run(); err != nil || ran() {
				t.Errorf("%s under %s: %v, or it ran the other role's code", step.what, path, err)
			}
		}
	}
	mustExec(t, admin, "ALTER FUNCTION fencepost.acquire RESET search_path")
	pool := dial(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "shared, public, pg_catalog" })
	newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
	if !ran() {
		t.Error("the control did not run it")
	}
}
