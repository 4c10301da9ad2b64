package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// asProgram makes the test binary the program itself. Tests of signals,
// terminals, completion and exit codes start it as a process; all other tests
// call run.
const asProgram = "TEST_BINARY_IS_FENCECTL"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	// The program sees none of the machine's variables.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !wanted(name) {
			os.Unsetenv(name)
		}
	}
	os.Setenv("PGPASSFILE", os.DevNull)
	os.Setenv("FENCECTL_TIMEOUT", testkit.Patience.String())
	os.Exit(m.Run())
}

func wanted(variable string) bool {
	return !strings.HasPrefix(variable, "PG") && !strings.HasPrefix(variable, "FENCECTL") && variable != "DATABASE_URL"
}

// program returns the program as a process that has not been started.
func program(t testing.TB, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	return cmd
}

// result is how a run ended.
type result struct {
	code        int
	out, errOut string
}

// fencectl runs the program on a database, without a terminal. An argument is
// passed on as it is.
func fencectl(t testing.TB, url string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*testkit.Patience)
	defer cancel()
	var out, errOut strings.Builder
	code := run(ctx, onDatabase(url, args), nil, &out, &errOut)
	if ctx.Err() != nil {
		t.Fatalf("%q: %v\n%s", args, ctx.Err(), errOut.String())
	}
	return result{code, out.String(), errOut.String()}
}

// onDatabase returns the command line. An empty url is left out.
func onDatabase(url string, args []string) []string {
	line := []string{"fencectl"}
	if url != "" {
		line = append(line, "--database-url", url)
	}
	return append(line, args...)
}

// The program as a process: its environment, its exit code, and an interrupt, which ends
// a command that waits and says how far it got.
func TestProcess(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "worker-1", "first", time.Hour)
	env := []string{"DATABASE_URL=" + url, "FENCECTL_OUTPUT=json"}
	cmd := program(t, env, "lits")
	var errOut strings.Builder
	cmd.Stderr = &errOut
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(errOut.String(), `"reason":"usage"`) {
		t.Errorf("%v: %s", err, errOut.String())
	}
	if runtime.GOOS == "windows" {
		t.Log("an interrupt cannot be sent to one process there")
		return
	}
	if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: "other", Token: 7}); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		cmd = program(t, env, "marks", "retire", "--older-than", "1us", "--yes", "--wait", "1m", "-o", "table")
		out, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if lines := bufio.NewScanner(out); !lines.Scan() || !strings.HasPrefix(lines.Text(), "On ") || !lines.Scan() || !strings.Contains(lines.Text(), "waiting for 1 lease") {
			t.Errorf("%s", lines.Text())
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(out)
		if cmd.Wait(); cmd.ProcessState.ExitCode() != exitInterrupted || err != nil || !strings.Contains(string(rest), "no mark was retired") {
			t.Errorf("%v: %v, %v: %s", signal, cmd.ProcessState, err, rest)
		}
	}
	if n := value[int64](t, pool, "SELECT count(*) FROM fencepost.marks WHERE resource <> ''"); n != 1 {
		t.Errorf("%d marks", n)
	}
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
	url = pgtest.MigratedDatabase(t, "both", createSchemas)
	return url, dial(t, url)
}

func createSchemas(ctx context.Context, pool *pgxpool.Pool) error {
	if err := leasetest.CreateSchema(ctx, pool); err != nil {
		return err
	}
	return sqladmin.Pgx(pool).Migrate(ctx)
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

// holders are the clients of the tests, one for each owner on a pool: a client
// has connections of its own.
var holders sync.Map

type holder struct {
	pool  *pgxpool.Pool
	owner string
}

// hold acquires a lease that nobody renews. Give it a TTL that does not run out on
// a busy machine while the test looks at it.
func hold(t testing.TB, pool *pgxpool.Pool, owner, resource string, ttl time.Duration) *lockclient.Lease {
	t.Helper()
	key := holder{pool, owner}
	known, there := holders.Load(key)
	if !there {
		client, err := lockclient.New(leasetest.Patient(guard.Must(pglock.New(pool, nil))), owner, &lockclient.Options{Logger: testkit.Logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		holders.Store(key, client)
		t.Cleanup(func() {
			holders.Delete(key)
			client.Close(context.Background())
		})
		known = client
	}
	lease, err := known.(*lockclient.Client).TryAcquire(t.Context(), resource, &lockclient.AcquireOptions{TTL: ttl})
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
