package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// recorder is a TB whose end the test controls.
type recorder struct {
	testing.TB
	cleanups []func()
	logged   []string
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Logf(format string, args ...any) {
	r.logged = append(r.logged, fmt.Sprintf(format, args...))
}

func (r *recorder) end() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	r.cleanups = nil
}

// failure is what Fatalf of a failing TB panics with.
type failure string

type failing struct{ recorder }

func (f *failing) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func databaseName(t *testing.T, connString string) string {
	t.Helper()
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		t.Fatal(err)
	}
	return config.Database
}

func exists(t *testing.T, server, name string) bool {
	t.Helper()
	return query[bool](t, server, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name)
}

func TestDatabasesAreIsolated(t *testing.T) {
	t.Parallel()
	a, b := Database(t), Database(t)
	execAll(t, a, "CREATE TABLE mine (n int)")
	const tables = "SELECT count(*)::int FROM pg_tables WHERE schemaname = 'public'"
	if n := queryInt(t, a, tables); n != 1 {
		t.Errorf("%d tables where one was made", n)
	}
	if n := queryInt(t, b, tables); n != 0 {
		t.Errorf("%d tables in the other database", n)
	}
	if !strings.Contains(databaseName(t, a), "testdatabasesareisolated") {
		t.Errorf("the database %s does not tell its test", databaseName(t, a))
	}
}

// The tests of a process share one server, and many can begin at once.
func TestSharedServer(t *testing.T) {
	t.Parallel()
	urls := make([]string, 8)
	var group sync.WaitGroup
	for i := range urls {
		group.Go(func() { urls[i] = Database(t) })
	}
	group.Wait()
	names, hosts := map[string]bool{}, map[string]bool{}
	for _, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		names[u.Path], hosts[u.Host] = true, true
	}
	if len(names) != len(urls) || len(hosts) != 1 {
		t.Errorf("%d databases on %d servers, want %d on 1", len(names), len(hosts), len(urls))
	}
}

// A database is dropped when its test ends, even with a session in it.
func TestDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	server := shared(t)
	test := &recorder{TB: t}
	connString := Database(test)
	name := databaseName(t, connString)
	connect(t, connString)
	if !exists(t, server.URL(), name) {
		t.Fatalf("there is no database %s", name)
	}
	test.end()
	if exists(t, server.URL(), name) {
		t.Errorf("the database %s is still there", name)
	}
	if len(test.logged) > 0 {
		t.Errorf("logged %q", test.logged)
	}
}

func TestPool(t *testing.T) {
	t.Parallel()
	test := &recorder{TB: t}
	pool := Pool(test)
	var name string
	if err := pool.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	test.end()
	if err := pool.Ping(context.Background()); err == nil {
		t.Error("the pool is open after the test")
	}
	server := shared(t)
	if exists(t, server.URL(), name) {
		t.Errorf("the database %s is still there", name)
	}
}

func TestNewDatabase(t *testing.T) {
	t.Parallel()
	server := shared(t)
	connString, drop, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	connect(t, connString)
	name := databaseName(t, connString)
	if !exists(t, server.URL(), name) {
		t.Errorf("there is no database %s", name)
	}
	drop()
	if exists(t, server.URL(), name) {
		t.Errorf("the database %s is still there", name)
	}
}

// With FENCEPOST_DATABASE_URL a scratch database is created and dropped, and no
// server is started.
func TestGivenServer(t *testing.T) {
	server := shared(t)
	noBinaries(t)
	keywords := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres password=%s dbname=postgres sslmode=disable",
		server.Port(), server.password)
	for name, given := range map[string]string{
		"URL":                        server.URL(),
		"URL with database in query": strings.Replace(server.URL(), "/postgres?", "?dbname=postgres&", 1),
		"keywords":                   keywords,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(databaseURLVariable, given)
			test := &recorder{TB: t}
			var database string
			if err := Pool(test).QueryRow(t.Context(), "SELECT current_database()").Scan(&database); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(database, "fencepost_scratch_") || !exists(t, server.URL(), database) {
				t.Errorf("the database is %s", database)
			}
			test.end()
			if exists(t, server.URL(), database) {
				t.Errorf("the database %s is still there", database)
			}

			connString, cleanup, err := Provide(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			database = query[string](t, connString, "SELECT current_database()")
			if !strings.HasPrefix(database, "fencepost_scratch_") {
				t.Errorf("Provide gives %s", database)
			}
			cleanup()
			if exists(t, server.URL(), database) {
				t.Errorf("the database %s is still there", database)
			}
		})
	}
}

// Without a server a test fails with one clear error; it is not skipped.
func TestNoServerFailsTheTest(t *testing.T) {
	noBinaries(t)
	t.Setenv(databaseURLVariable, "")
	before := sharedServer
	sharedServer = func() (*Server, error) { return Start(context.Background(), nil) }
	defer func() { sharedServer = before }()
	defer func() {
		message, ok := recover().(failure)
		if !ok || !strings.Contains(string(message), ".ci/setup") {
			t.Errorf("Fatalf was called with %q", message)
		}
	}()
	Database(&failing{recorder{TB: t}})
	t.Error("Database returns without a server")
}

// Start reports that FENCEPOST_DATABASE_URL is not enough for it.
func TestStartNeedsBinaries(t *testing.T) {
	noBinaries(t)
	t.Setenv(databaseURLVariable, "postgres://127.0.0.1:1/postgres")
	_, err := Start(t.Context(), nil)
	if !errors.Is(err, ErrNoServer) {
		t.Fatalf("error %v, want ErrNoServer", err)
	}
	for _, want := range []string{".ci/setup", databaseURLVariable} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}
