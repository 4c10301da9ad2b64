package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// recorder is a TB whose end the test controls.
type recorder struct {
	testing.TB
	cleanups []func()
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Fatalf(format string, args ...any) { panic(errors.Join(args[0].(error))) }

func (r *recorder) end() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

// ask connects, executes the statements and returns the result of the last.
func ask[T any](t *testing.T, url string, statements ...string) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for i, sql := range statements {
		if i < len(statements)-1 {
			_, err = conn.Exec(t.Context(), sql)
		} else {
			err = conn.QueryRow(t.Context(), sql).Scan(&value)
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return value
}

func shared(t *testing.T) *Server {
	t.Helper()
	server, err := sharedServer()
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// Tests that begin at once get databases of their own on one server, which are
// dropped with their sessions when the tests end.
func TestDatabase(t *testing.T) {
	t.Parallel()
	tests := make([]recorder, 8)
	urls := make([]string, len(tests))
	var group sync.WaitGroup
	for i := range tests {
		tests[i].TB = t
		group.Go(func() { urls[i] = Database(&tests[i]) })
	}
	group.Wait()
	const names = "SELECT count(*) FROM pg_database WHERE datname LIKE 'fencepost_scratch_testdatabase\\_%'"
	server := shared(t)
	if n := ask[int](t, server.URL(), names); n != len(tests) {
		t.Errorf("%d databases for %d tests", n, len(tests))
	}
	for _, url := range urls {
		if n := ask[int](t, url, "CREATE TABLE mine (n int)", "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'"); n != 1 {
			t.Errorf("%d tables", n)
		}
	}
	open, err := pgx.Connect(t.Context(), urls[0])
	if err != nil {
		t.Fatal(err)
	}
	for i := range tests {
		tests[i].end()
	}
	if n := ask[int](t, server.URL(), names); n != 0 || open.Ping(t.Context()) == nil {
		t.Errorf("%d databases after the tests", n)
	}
}

// Tests with one key share one migration and nothing else, also when they begin
// at once.
func TestMigrated(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	migrate := func(ctx context.Context, pool *pgxpool.Pool) error {
		calls.Add(1)
		_, err := pool.Exec(ctx, "CREATE TABLE mine (n int); INSERT INTO mine VALUES (1)")
		return err
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			url := MigratedDatabase(t, "TestMigrated", migrate)
			if sum := ask[int](t, url, "INSERT INTO mine VALUES (2)", "SELECT sum(n) FROM mine"); sum != 3 {
				t.Errorf("sum %d, want 3: what was migrated and what this copy added", sum)
			}
		})
	}
	group.Wait()
	MigratedDatabase(t, "TestMigrated with another key", migrate)
	if n := calls.Load(); n != 2 {
		t.Errorf("%d migrations for two keys", n)
	}
}

// With FENCEPOST_DATABASE_URL a scratch database is created and dropped there,
// and nothing else, without any server binaries.
func TestGivenServer(t *testing.T) {
	server := shared(t)
	given := ask[string](t, server.URL(), "CREATE ROLE given LOGIN CREATEDB PASSWORD 'p'", "SELECT 'given'")
	noBinaries(t)
	t.Setenv(databaseURLVariable, strings.Replace(server.URL(), "postgres:"+server.password, given+":p", 1)+"&dbname=postgres")
	const count = "SELECT count(*) FROM pg_database WHERE pg_get_userbyid(datdba) = 'given'"
	test := &recorder{TB: t}
	migrate := func(ctx context.Context, pool *pgxpool.Pool) error { return pool.Ping(ctx) }
	if err := Migrated(test, "given", migrate).Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	url, cleanup, err := Provide(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if name := ask[string](t, url, "SELECT current_database()"); !strings.HasPrefix(name, "fencepost_scratch_") {
		t.Errorf("Provide gives %s", name)
	}
	if n := ask[int](t, server.URL(), count); n != 2 {
		t.Errorf("%d databases, want 2", n)
	}
	cleanup()
	test.end()
	if n := ask[int](t, server.URL(), count); n != 0 {
		t.Errorf("%d databases are still there", n)
	}
}

// With FENCEPOST_SLOW_CONNECTIONS tests connect through the slow proxy.
func TestSlowConnections(t *testing.T) {
	t.Setenv(slowVariable, "1")
	url := Database(t)
	if direct := fmt.Sprintf(":%d/", shared(t).Port()); strings.Contains(url, direct) {
		t.Errorf("%s is the server's own", url)
	}
	began := time.Now()
	if n := ask[int](t, url, "CREATE TABLE mine (n int)", "SELECT count(*) FROM mine"); n != 0 {
		t.Errorf("%d rows", n)
	}
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("a connection took %v", took)
	}
}

// Without server binaries a test fails with one clear error; it is not skipped.
// FENCEPOST_DATABASE_URL is not enough for a server of one's own.
func TestNoServer(t *testing.T) {
	noBinaries(t)
	t.Setenv(databaseURLVariable, "postgres://127.0.0.1:1/postgres")
	_, err := Start(t.Context(), nil)
	if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), ".ci/setup") {
		t.Errorf("Start: %v", err)
	}
	t.Setenv(databaseURLVariable, "")
	before := sharedServer
	sharedServer = func() (*Server, error) { return Start(context.Background(), nil) }
	defer func() { sharedServer = before }()
	defer func() {
		if err, ok := recover().(error); !ok || !errors.Is(err, ErrNoServer) {
			t.Errorf("Database fails with %v", err)
		}
	}()
	Database(&recorder{TB: t})
	t.Error("Database returns without a server")
}

// noBinaries hides the server binaries from this test.
func noBinaries(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", "")
	t.Setenv(binariesVariable, "")
	directories := usualDirectories
	usualDirectories = nil
	t.Cleanup(func() { usualDirectories = directories })
}

func TestFindBinaries(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	binaries := func(version string, names ...string) string {
		dir := filepath.Join(root, version, "bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	old, newer := binaries("9.6", "initdb", "postgres"), binaries("17", "initdb", "postgres")
	clients, link := binaries("18", "psql"), binaries("link")
	if err := os.Symlink(filepath.Join(old, "postgres"), filepath.Join(link, "postgres")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ variable, path, want string }{
		{"", clients + string(filepath.ListSeparator) + old, old},
		{"", clients, newer},
		{"", link, old},
		{"", ".", newer},
		{old, newer, old},
		{clients, newer, ""},
		{"bin", newer, ""},
	} {
		t.Setenv(binariesVariable, c.variable)
		t.Setenv("PATH", c.path)
		got, err := findBinaries([]string{filepath.Join(root, "*", "bin")})
		if got != c.want || errors.Is(err, ErrNoServer) != (c.want == "") {
			t.Errorf("%+v: found %q, %v", c, got, err)
		}
	}
}
