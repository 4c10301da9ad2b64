package migrate

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// tables is a component whose steps fail when they are applied twice.
func tables(name string) Component {
	return Load(name, fstest.MapFS{
		"0001_one.sql": {Data: []byte("CREATE TABLE fencepost." + name + "_one (id int); INSERT INTO fencepost." + name + "_one VALUES (1);")},
		"0002_two.sql": {Data: []byte("ALTER TABLE fencepost." + name + "_one ADD v text;")},
	})
}

// onConnections runs f with a Conn of each driver in turn.
func onConnections(t *testing.T, test func(t *testing.T, admin *pgxpool.Pool, with func(f func(Conn) error) error)) {
	t.Run("pgx", func(t *testing.T) {
		pool := pgtest.Pool(t)
		test(t, pool, func(f func(Conn) error) error {
			conn, err := pool.Acquire(context.Background())
			if err != nil {
				return err
			}
			defer conn.Release()
			return f(Pgx(conn.Conn()))
		})
	})
	t.Run("std", func(t *testing.T) {
		pool := pgtest.Pool(t)
		db, err := sql.Open("pgx", pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		test(t, pool, func(f func(Conn) error) error {
			conn, err := db.Conn(context.Background())
			if err != nil {
				return err
			}
			defer conn.Close()
			return f(Std(conn))
		})
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

// TestSchemaOfAnotherRole: a schema that another role made beforehand is
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
