package migrate

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// tables is a component whose steps fail when they are applied twice.
func tables(name string) Component {
	return Load(name, fstest.MapFS{
		"0001_one.sql": {Data: []byte("CREATE TABLE fencepost." + name + "_one (id int); INSERT INTO fencepost." + name + "_one VALUES (1);")},
		"0002_two.sql": {Data: []byte("ALTER TABLE fencepost." + name + "_one ADD v text;")},
	})
}

// onConnections runs test with connections of a pool.
func onConnections(t *testing.T, test func(t *testing.T, admin *pgxpool.Pool, with func(f func(Conn) error) error)) {
	pool := pgtest.Pool(t)
	test(t, pool, func(f func(Conn) error) error {
		conn, err := pool.Acquire(context.Background())
		if err != nil {
			return err
		}
		defer conn.Release()
		return f(Pgx(conn.Conn()))
	})
}

// TestUpTogether: two components that start at once on an empty database, in
// several processes, from the first version and from the second, both end up
// applied once.
func TestUpTogether(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		var wg sync.WaitGroup
		for i := range 12 {
			c := tables([]string{"alpha", "beta"}[i%2])
			wg.Go(func() {
				err := with(func(conn Conn) error { return c.UpTo(context.Background(), conn, 1+i/6) })
				if err == nil {
					err = with(func(conn Conn) error { return c.Up(context.Background(), conn) })
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		var applied string
		if err := admin.QueryRow(t.Context(), `SELECT string_agg(component || version || name, ' ' ORDER BY component, version) FROM fencepost.migrations`).Scan(&applied); err != nil {
			t.Fatal(err)
		}
		if applied != "alpha1one alpha2two beta1one beta2two" {
			t.Errorf("applied: %s", applied)
		}
	})
}

// TestUpIsBounded: a migration that has something to do waits for another one for a
// bounded time, then names its session, and has changed nothing; it goes on as soon as
// the other has done its work.
func TestUpIsBounded(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		c := tables("alpha")
		bound := lockWait
		t.Cleanup(func() { lockWait = bound })
		lockWait = 20 * time.Millisecond
		other, err := admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Rollback(context.Background())
		if _, err := other.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1)", int64(lockKey)); err != nil {
			t.Fatal(err)
		}
		var busy *BusyError
		if err := with(func(conn Conn) error { return c.Up(t.Context(), conn) }); !errors.As(err, &busy) || busy.PID != int64(other.Conn().PgConn().PID()) || pgerr.Reason(err, pgerr.Commit) != guard.ReasonUnavailable {
			t.Errorf("got %v, want that process %d has the lock", err, other.Conn().PgConn().PID())
		}
		lockWait = testkit.Patience
		done := make(chan error, 1)
		go func() { done <- with(func(conn Conn) error { return c.Up(context.Background(), conn) }) }()
		testkit.Eventually(t, "a migration that tries the lock", func() bool {
			var tries bool
			err := admin.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND strpos(query, 'pg_try_advisory_xact_lock') > 0").Scan(&tries)
			return err == nil && tries
		})
		if err := other.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := testkit.Receive(t, "the migration", done); err != nil {
			t.Error(err)
		}
	})
}

// TestUpLeavesNothing: a step that fails takes the earlier ones with it, and
// the connection is usable afterwards.
func TestUpLeavesNothing(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		c := tables("alpha")
		c.Migrations[1].SQL = "SELECT 1/0;"
		err := with(func(conn Conn) error {
			err := c.Up(t.Context(), conn)
			if n, again := conn.QueryInt(t.Context(), "SELECT 1"); again != nil || n != 1 {
				t.Errorf("the connection afterwards: %v", again)
			}
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "alpha version 2 (two)") {
			t.Errorf("got %v", err)
		}
		var schemas int
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = 'fencepost'").Scan(&schemas); err != nil || schemas != 0 {
			t.Errorf("%d schemas, %v", schemas, err)
		}
	})
}

// TestScriptIsApplied: Up finds what another tool applied, step by step or at
// once.
func TestScriptIsApplied(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		alpha, beta := tables("alpha"), tables("beta")
		scripts := []string{alpha.Script(), beta.Migrations[0].Script("beta"), beta.Migrations[1].Script("beta")}
		for _, script := range scripts {
			if err := with(func(conn Conn) error { return conn.Exec(t.Context(), "BEGIN;"+script+"COMMIT") }); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []Component{alpha, beta} {
			if err := with(func(conn Conn) error { return c.Up(t.Context(), conn) }); err != nil {
				t.Error(err)
			}
			var newer *NewerError
			older := Component{Name: c.Name, Migrations: c.Migrations[:1]}
			if err := with(func(conn Conn) error { return older.Up(t.Context(), conn) }); !errors.As(err, &newer) || newer.Have != 2 {
				t.Errorf("an older build: %v", err)
			}
		}
	})
}

// TestWindow: a build runs on a newer schema whose steps all allow it, also where the
// record was made before it had that column, and on no other.
func TestWindow(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		all := Load("alpha", fstest.MapFS{
			"0001_one.sql":   {Data: []byte("CREATE TABLE fencepost.one (id int);")},
			"0002_two.sql":   {Data: []byte("ALTER TABLE fencepost.one ADD v text;")},
			"0003_three.sql": {Data: []byte("-- A column more.\n--\n-- Usable from version 2.\nALTER TABLE fencepost.one ADD w text;")},
			"0004_four.sql":  {Data: []byte("-- Usable from version 1.\nALTER TABLE fencepost.one ADD x text;")},
			"0005_five.sql":  {Data: []byte("ALTER TABLE fencepost.one DROP v;")},
		})
		build := func(knows int) Component { return Component{Name: all.Name, Migrations: all.Migrations[:knows]} }
		up := func(knows int) error {
			return with(func(conn Conn) error { return build(knows).Up(t.Context(), conn) })
		}
		if err := up(2); err != nil {
			t.Fatal(err)
		}
		// As an earlier build left it.
		if _, err := admin.Exec(t.Context(), "ALTER TABLE fencepost.migrations DROP COLUMN usable_from"); err != nil {
			t.Fatal(err)
		}
		// A dump has the table open: the step fails before anybody waits behind it for long.
		dump, err := admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dump.Exec(t.Context(), "LOCK TABLE fencepost.migrations IN ACCESS SHARE MODE"); err != nil {
			t.Fatal(err)
		}
		var coded interface{ SQLState() string }
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		if err := with(func(conn Conn) error { return build(3).Up(ctx, conn) }); !errors.As(err, &coded) || coded.SQLState() != "55P03" {
			t.Errorf("beside a dump: %v", err)
		}
		cancel()
		if err := dump.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ knows, from, has int }{{2, 2, 2}, {3, 2, 3}, {4, 2, 4}, {5, 5, 5}} {
			if err := up(c.knows); err != nil {
				t.Fatal(err)
			}
			for older := 1; older <= c.knows; older++ {
				var newer *NewerError
				switch err := up(older); {
				case older >= c.from && err != nil:
					t.Errorf("version %d, a build that knows %d: %v", c.has, older, err)
				case older < c.from && (!errors.As(err, &newer) || newer.Have != int64(c.has) || newer.Know != older):
					t.Errorf("version %d, a build that knows %d: %v; want it refused", c.has, older, err)
				}
			}
			var applied int
			if err := admin.QueryRow(t.Context(), build(1).VersionSQL()).Scan(&applied); err != nil || applied != c.has {
				t.Errorf("version %d, %v; want %d", applied, err, c.has)
			}
		}
	})
	defer func() {
		if recover() == nil {
			t.Error("a step that says it is usable from a later version was loaded")
		}
	}()
	Load("beta", fstest.MapFS{"0001_one.sql": {Data: []byte("-- Usable from version 2.\n")}})
}

// TestSchemaOfAnotherRole: a schema that another role created earlier is
// refused, by Up and by the printed script, with both roles' names. That role
// could drop what is in it, which the control shows.
func TestSchemaOfAnotherRole(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		conn, err := admin.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		exec := func(sql string) error {
			_, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
			return err
		}
		var role string
		if err := conn.QueryRow(t.Context(), "SELECT 'squatter_' || md5(current_database())").Scan(&role); err != nil {
			t.Fatal(err)
		}
		if err := exec("CREATE ROLE " + role + "; CREATE SCHEMA fencepost AUTHORIZATION " + role); err != nil {
			t.Fatal(err)
		}
		defer exec("DROP OWNED BY " + role + " CASCADE; DROP ROLE " + role)
		c := tables("alpha")
		up := func() error { return with(func(conn Conn) error { return c.Up(t.Context(), conn) }) }
		for what, err := range map[string]error{"Up": up(), "the script": exec("BEGIN;" + c.Script() + "COMMIT")} {
			if err == nil || !strings.Contains(err.Error(), "schema fencepost belongs to role "+role) || !strings.Contains(err.Error(), "42501") {
				t.Errorf("%s: %v", what, err)
			}
		}
		exec("ROLLBACK")
		if err := exec("BEGIN;" + strings.ReplaceAll(c.Script(), owned, "") + "COMMIT"); err != nil {
			t.Errorf("the control: %v", err)
		}
		if err := exec("SET ROLE " + role + "; DROP SCHEMA fencepost CASCADE; RESET ROLE"); err != nil {
			t.Errorf("the control: the owner of the schema could not drop it: %v", err)
		}
		if err := up(); err != nil {
			t.Errorf("once the schema is gone: %v", err)
		}
	})
}

// TestDefaultPrivileges: a role with default privileges from the migrating role
// on every new table, function, sequence and schema, as applications' roles are
// often set up, has none on what was migrated, by Up and by the printed script,
// in a savepoint, too; what was granted before a later step stays. The control is
// the script without the part that revokes them.
func TestDefaultPrivileges(t *testing.T) {
	onConnections(t, func(t *testing.T, admin *pgxpool.Pool, with func(func(Conn) error) error) {
		exec := func(sql string) {
			t.Helper()
			conn, err := admin.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			if _, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		text := func(sql string) (s string) {
			t.Helper()
			if err := admin.QueryRow(t.Context(), sql).Scan(&s); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
			return s
		}
		role := text(`SELECT 'App "' || md5(current_database())`)
		quoted := text("SELECT quote_ident('" + role + "')")
		exec("CREATE ROLE " + quoted)
		exec("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO " + quoted + ", PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO " + quoted +
			"; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO " + quoted + "; ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO " + quoted)
		defer exec("DROP OWNED BY " + quoted + " CASCADE; ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC; DROP ROLE " + quoted)
		c := Load("alpha", fstest.MapFS{
			"0001_one.sql": {Data: []byte("CREATE TABLE fencepost.one (id int GENERATED ALWAYS AS IDENTITY); CREATE FUNCTION fencepost.f(a int, b text) RETURNS void LANGUAGE sql AS '';")},
			"0002_two.sql": {Data: []byte(`CREATE TABLE fencepost."Two" (id int);`)},
		})
		up := func(version int) error {
			return with(func(conn Conn) error { return c.UpTo(t.Context(), conn, version) })
		}
		granted := func() string {
			return text(`SELECT coalesce(string_agg(DISTINCT name || ' to ' || CASE grantee WHEN 0 THEN 'PUBLIC' ELSE 'app' END, ', '), '') FROM (
				SELECT relname AS name, relacl AS acl FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind IN ('r', 'S')
				UNION ALL SELECT proname, proacl FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace
				UNION ALL SELECT nspname, nspacl FROM pg_namespace WHERE nspname = 'fencepost') o, aclexplode(acl)
				WHERE grantee IN (0, '` + quoted + `'::regrole) AND NOT (name = 'f' AND grantee = 0)`)
		}
		for what, apply := range map[string]func(){
			"Up": func() {
				if err := up(2); err != nil {
					t.Fatal(err)
				}
			},
			"the script":                func() { exec("BEGIN;" + c.Script() + "COMMIT") },
			"the script in a savepoint": func() { exec("BEGIN; SAVEPOINT a; SAVEPOINT b;" + c.Script() + "COMMIT") },
			"the script of each step":   func() { exec(c.Migrations[0].Script("alpha")); exec(c.Migrations[1].Script("alpha")) },
			"what was granted": func() {
				exec(c.Migrations[0].Script("alpha") + "GRANT SELECT ON fencepost.one TO " + quoted)
				if err := up(2); err != nil {
					t.Fatal(err)
				}
			},
			"the control": func() { exec("BEGIN;" + strings.ReplaceAll(c.Script(), sealed, "") + "COMMIT") },
		} {
			apply()
			want := map[string]string{"what was granted": "one to app",
				"the control": "Two to PUBLIC, Two to app, f to app, fencepost to app, migrations to PUBLIC, migrations to app, one to PUBLIC, one to app, one_id_seq to app"}[what]
			if got := granted(); got != want {
				t.Errorf("%s: granted is %q, want %q", what, got, want)
			}
			exec("DROP SCHEMA fencepost CASCADE")
		}
	})
}

// TestScriptInOneTransaction: a script whose statements are sent one by one, each
// in a transaction of its own, is refused before it creates anything. The control
// is the same without the refusal, which applies all of it.
func TestScriptInOneTransaction(t *testing.T) {
	pool := pgtest.Pool(t)
	apply := func(script string) error {
		for _, statement := range strings.SplitAfter(script, "$;\n") { // after each DO
			if _, err := pool.Exec(t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	}
	const there = "SELECT count(*) FROM pg_namespace WHERE nspname = 'fencepost'"
	for what, c := range map[string]struct {
		script  string
		refused bool
		schemas int
	}{
		"whole":       {tables("alpha").Script(), true, 0},
		"step":        {tables("alpha").Migrations[0].Script("alpha"), true, 0},
		"the control": {strings.ReplaceAll(tables("alpha").Script(), together, ""), false, 1},
	} {
		err := apply(c.script)
		if refused := err != nil && strings.Contains(err.Error(), "in one transaction"); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: %v", what, err)
		}
		var schemas int
		if err := pool.QueryRow(t.Context(), there).Scan(&schemas); err != nil || schemas != c.schemas {
			t.Errorf("%s: %d schemas, %v", what, schemas, err)
		}
		if _, err := pool.Exec(t.Context(), "DROP SCHEMA IF EXISTS fencepost CASCADE"); err != nil {
			t.Fatal(err)
		}
	}
}
