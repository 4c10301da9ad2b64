package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// binary is the program under test: the real one.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "fencectl")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "fencectl")
		if runtime.GOOS == "windows" {
			binary += ".exe"
		}
		if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// environment is what the program sees: none of the machine's PG variables.
func environment(extra ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "FENCE") {
			env = append(env, v)
		}
	}
	return append(append(env, "HOME="+filepath.Dir(binary)), extra...)
}

// result is how a run ended.
type result struct {
	code        int
	out, errOut string
}

// fencectl runs the program on a database, without a terminal. An argument or
// value of the environment is passed on as it is.
func fencectl(t testing.TB, url string, args ...string) result {
	t.Helper()
	return start(t, []string{"FENCECTL_DATABASE_URL=" + url}, args...)
}

func start(t testing.TB, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = environment(env...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%q: %v, %v\n%s", args, err, ctx.Err(), errOut.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// must runs the program and fails the test unless it ends with 0.
func must(t testing.TB, url string, args ...string) string {
	t.Helper()
	r := fencectl(t, url, args...)
	if r.code != exitOK {
		t.Fatalf("%q: exit code %d\n%s", args, r.code, r.errOut)
	}
	return r.out
}

// database returns a database with both schemas, and a pool on it.
func database(t testing.TB) (url string, pool *pgxpool.Pool) {
	t.Helper()
	url = pgtest.Database(t)
	pool = dial(t, url)
	if err := lockclient.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := fenced(t, pool).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return url, pool
}

func dial(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func fenced(t testing.TB, pool *pgxpool.Pool) *sqlfence.DB[pgx.Tx] {
	t.Helper()
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// hold acquires a lease that nobody renews. Give it a TTL that does not run out on
// a busy machine while the test looks at it.
func hold(t testing.TB, pool *pgxpool.Pool, owner, resource string, ttl time.Duration) *lockclient.Lease {
	t.Helper()
	client, err := lockclient.New(pool, owner, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) })
	lease, err := client.TryAcquire(t.Context(), resource, &lockclient.AcquireOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func exec1(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
