package sqltest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqltest"
)

const table = "CREATE TABLE closes (period text NOT NULL)"

func setup(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, table)
	return err
}

// TestPool: the database has the schema and what Setup made, and nothing of
// another test.
func TestPool(t *testing.T) {
	t.Parallel()
	for i := range 2 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			pool := sqltest.Pool(t, &sqltest.Options{Setup: setup})
			db, err := sqlfence.Pgx(pool, nil)
			testkit.Must(t, err)
			write := func(token guard.Token) error {
				claim := guard.Claim{Resource: "closes", Token: token, LeaseID: fmt.Sprint("lease-", token)}
				return db.InTx(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO closes VALUES ('2026-04')")
					return err
				})
			}
			testkit.Check(t, write(2))
			if err := write(1); !errors.Is(err, guard.ErrStale) {
				t.Errorf("a stale write: %v", err)
			}
			var n int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM closes").Scan(&n); err != nil || n != 1 {
				t.Errorf("%d rows, %v: want the one of this test", n, err)
			}
		})
	}
}

// TestServer: Options.Server is where the database is, and it is gone after the
// test, in spite of an open connection.
func TestServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Database(t)
	var name string
	t.Run("test", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), sqltest.URL(t, &sqltest.Options{Server: server}))
		testkit.Must(t, err)
		testkit.Must(t, conn.QueryRow(t.Context(), "SELECT current_database() FROM fencepost.migrations LIMIT 1").Scan(&name))
	})
	conn, err := pgx.Connect(t.Context(), server)
	testkit.Must(t, err)
	defer conn.Close(context.Background())
	var there bool
	testkit.Must(t, conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there))
	if there || !strings.HasPrefix(name, "fencepost_scratch_") {
		t.Errorf("the database %q was not dropped", name)
	}
}

// refusing is a test that keeps its failure for itself.
type refusing struct {
	testing.TB
	message string
}

func (r *refusing) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	panic(r)
}

// TestFailures: what is wrong fails the test that asked, and says why.
func TestFailures(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]*sqltest.Options{
		"Options.Setup: no table": {Setup: func(context.Context, *pgxpool.Pool) error { return errors.New("no table") }},
		"failed to connect":       {Server: "postgres://nobody@127.0.0.1:1/postgres"},
	} {
		r := &refusing{TB: t}
		func() {
			defer func() {
				if recovered := recover(); recovered != nil && recovered != r {
					panic(recovered)
				}
			}()
			sqltest.Pool(r, opts)
		}()
		if !strings.Contains(r.message, want) {
			t.Errorf("%q, want %q", r.message, want)
		}
	}
}

// TestOutside: another module can use the package, although what it is built on
// is internal.
func TestOutside(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	testkit.Must(t, err)
	dir := t.TempDir()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	testkit.Must(t, err)
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	testkit.Must(t, err)
	const own = "module github.com/fencepost-go/fencepost\n"
	if !strings.Contains(string(mod), own) {
		t.Fatal("go.mod does not begin as it did")
	}
	for name, content := range map[string]string{
		"go.mod": strings.Replace(string(mod), own, "module example.com/service\n", 1) +
			"\nrequire github.com/fencepost-go/fencepost v0.0.0\nreplace github.com/fencepost-go/fencepost => " + root + "\n",
		"go.sum": string(sum),
		"service_test.go": `package service

import (
	"testing"

	"github.com/fencepost-go/fencepost/sqlfence/sqltest"
)

func TestService(t *testing.T) {
	if err := sqltest.Pool(t, nil).Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
}
`,
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-mod=mod", "-run", "TestService", "-v", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOPROXY=off", "FENCEPOST_DATABASE_URL="+pgtest.Database(t))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestService") {
		t.Errorf("%v\n%s", err, out)
	}
}
