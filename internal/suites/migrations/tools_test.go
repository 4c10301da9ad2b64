// Package migrations applies what fencectl migrate --print prints with the tools that
// users have: goose and golang-migrate, up, down and up again, on an empty database
// and on one whose application has tables of its own.
package migrations

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gomigrate "github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// printed runs fencectl migrate --print.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", ".", "migrate", "--print"}, args...)...)
	cmd.Dir = "../../../lockclient/cmd/fencectl"
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, &errOut)
	}
	return string(out)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(name, []byte(text), 0o600))
}

// tool is what a user migrates with.
type tool struct {
	up, down func() error
}

func withGoose(t *testing.T, url string) tool {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "00001_fencepost.sql"), printed(t, "--for", "goose"))
	db, err := sql.Open("pgx", url)
	testkit.Must(t, err)
	t.Cleanup(func() { db.Close() })
	p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(dir))
	testkit.Must(t, err)
	return tool{
		func() error { _, err := p.Up(t.Context()); return err },
		func() error { _, err := p.Down(t.Context()); return err },
	}
}

func withGolangMigrate(t *testing.T, url string) tool {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "000001_fencepost.up.sql"), printed(t, "--for", "golang-migrate"))
	write(t, filepath.Join(dir, "000001_fencepost.down.sql"), printed(t, "--for", "golang-migrate", "--down"))
	db, err := sql.Open("pgx", url)
	testkit.Must(t, err)
	driver, err := pgx.WithInstance(db, &pgx.Config{})
	testkit.Must(t, err)
	m, err := gomigrate.NewWithDatabaseInstance("file://"+dir, "pgx5", driver)
	testkit.Must(t, err)
	t.Cleanup(func() { m.Close() })
	return tool{m.Up, func() error {
		err := m.Steps(-1)
		if err != nil { // as its manual says: look, then say at which version the database is
			err = errors.Join(err, m.Force(1))
		}
		return err
	}}
}

// TestUpDownUp: both tools apply, remove and apply again what is printed; what they
// applied is what Migrate would, so that a client and a fence run on it. Nothing is
// removed while a lease runs or a table has triggers: that is the control.
func TestUpDownUp(t *testing.T) {
	for _, c := range []struct {
		name string
		open func(*testing.T, string) tool
	}{{"goose", withGoose}, {"golang-migrate", withGolangMigrate}} {
		for _, adopted := range []bool{false, true} {
			name := c.name + ", empty"
			if adopted {
				name = c.name + ", adopted"
			}
			t.Run(name, func(t *testing.T) {
				url := pgtest.Database(t)
				pool := pgtest.Connect(t, url)
				if adopted {
					execute(t, pool, "CREATE TABLE invoices (tenant text NOT NULL, cents bigint); INSERT INTO invoices VALUES ('acme', 1)")
				}
				tool := c.open(t, url)
				for round := range 2 {
					testkit.Must(t, tool.up())
					testkit.Must(t, pgadmin.Migrate(t.Context(), pool))
					if found, err := sqladmin.Pgx(pool).Verify(t.Context(), sqladmin.Verification{}); err != nil || len(found) > 0 {
						t.Errorf("after the tool: %v, %v", found, err)
					}
					works(t, pool)
					if adopted {
						inUse(t, pool, tool.down)
					}
					if err := tool.down(); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					var left int
					if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = 'fencepost'").Scan(&left); err != nil || left != 0 {
						t.Errorf("%d schemas are left, %v", left, err)
					}
				}
				if adopted {
					execute(t, pool, "SELECT 1 / count(*) FROM invoices") // they are there
				}
			})
		}
	}
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func works(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	client, err := lockclient.New(guard.Must(pglock.New(pool, nil)), "worker", nil)
	testkit.Must(t, err)
	defer client.Close(context.Background())
	lease, err := client.TryAcquire(t.Context(), "acme:invoices", &lockclient.AcquireOptions{TTL: time.Minute})
	testkit.Must(t, err)
	if lease.Token() != 1 {
		t.Errorf("the first token is %v", lease.Token())
	}
	testkit.Check(t, guard.Must(sqlfence.Pgx(pool, nil)).Raise(t.Context(), lease.Claim()))
	testkit.Check(t, lease.Release(t.Context()))
}

// inUse shows that down removes nothing while a lease runs or a trigger is there.
func inUse(t *testing.T, pool *pgxpool.Pool, down func() error) {
	t.Helper()
	admin := sqladmin.Pgx(pool)
	client, err := lockclient.New(guard.Must(pglock.New(pool, nil)), "worker", nil)
	testkit.Must(t, err)
	defer client.Close(context.Background())
	lease, err := client.TryAcquire(t.Context(), "held", &lockclient.AcquireOptions{TTL: time.Hour})
	testkit.Must(t, err)
	if err := down(); err == nil || !strings.Contains(err.Error(), "the lease of 'held' runs") {
		t.Errorf("while a lease runs: %v", err)
	}
	testkit.Must(t, lease.Release(t.Context()))
	err = admin.InstallTrigger(t.Context(), sqladmin.Trigger{
		Table: []string{"invoices"}, Resource: guard.Must(guard.NewTemplate("{tenant}:invoices")), Columns: map[string]string{"tenant": "tenant"},
	})
	testkit.Must(t, err)
	if err := down(); err == nil || !strings.Contains(err.Error(), "the triggers of public.") {
		t.Errorf("while a table has triggers: %v", err)
	}
	testkit.Must(t, admin.RemoveTrigger(t.Context(), []string{"invoices"}))
	if found, err := admin.Verify(t.Context(), sqladmin.Verification{}); err != nil || len(found) > 0 {
		t.Errorf("after it was refused: %v, %v", found, err)
	}
}
