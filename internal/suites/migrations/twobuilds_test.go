package migrations

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// The next release, as a step for each component. The tables get a column, which is
// what expanding mostly does: statements that sessions have prepared must bear it.
const (
	expandLeases = "ALTER TABLE fencepost.leases ADD COLUMN later text NOT NULL DEFAULT '';\n"
	expandMarks  = "ALTER TABLE fencepost.marks ADD COLUMN later text NOT NULL DEFAULT '';\n"
)

// TestTwoBuilds: processes of two builds, this one and a later one, work on one
// database while it is migrated under running holders and the later build is rolled
// back. No lease is lost, no acquire refused, no write either. The control is a later
// build whose step contracts, so that it must not be rolled back: the holders go on,
// but a process of this build that starts then is refused, and says why.
func TestTwoBuilds(t *testing.T) {
	t.Parallel()
	this := buildWorker(t, nil)
	for what, later := range map[string]string{
		"expands": buildWorker(t, func(version int, change string) string {
			return fmt.Sprintf("-- Usable from version %d.\n%s", version, change)
		}),
		"contracts": buildWorker(t, func(_ int, change string) string { return change }),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			pool, err := pgxpool.New(t.Context(), url)
			testkit.Must(t, err)
			defer pool.Close()
			if _, err := pool.Exec(t.Context(), "CREATE TABLE work (resource text, token bigint)"); err != nil {
				t.Fatal(err)
			}
			work := func(program, resource string) *builtWorker { return startWorker(t, program, url, resource) }
			work(this, "migrate").ends(t, "done")
			running := work(this, "running")
			running.says(t, "token 1")
			work(later, "migrate").ends(t, "done")
			upgraded := work(later, "rolled")
			upgraded.says(t, "token 1")
			// A restart of this build, and the way back of the other.
			restarted := work(this, "restarted")
			if what == "contracts" {
				restarted.ends(t, "run a newer build")
				work(this, "migrate").ends(t, "run a newer build")
				upgraded.stop(t)
			} else {
				restarted.says(t, "token 1")
				work(this, "migrate").ends(t, "done")
				upgraded.stop(t)
				rolledBack := work(this, "rolled")
				rolledBack.says(t, "token 2")
				defer rolledBack.stop(t)
				defer restarted.stop(t)
			}
			renewed(t, pool)
			running.stop(t)
			if got := writes(t, pool, "running"); got != "1" {
				t.Errorf("the running worker wrote under the tokens %q", got)
			}
		})
	}
}

// renewed waits until each lease that is held has been renewed.
func renewed(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	const query = "SELECT count(*) FROM fencepost.leases WHERE lease_id IS NOT NULL AND expires_at <= $1"
	var latest time.Time
	testkit.Must(t, pool.QueryRow(t.Context(), "SELECT max(expires_at) FROM fencepost.leases").Scan(&latest))
	testkit.Eventually(t, "a renewal of each lease", func() bool {
		var n int
		testkit.Must(t, pool.QueryRow(t.Context(), query, latest).Scan(&n))
		return n == 0
	})
}

// writes lists the tokens under which a resource was written.
func writes(t *testing.T, pool *pgxpool.Pool, resource string) (tokens string) {
	t.Helper()
	testkit.Must(t, pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(DISTINCT token::text, ' '), '') FROM work WHERE resource = $1", resource).Scan(&tokens))
	return tokens
}

// buildWorker builds the worker in pgadmin's testdata, with a step after the last one of each
// component, which later writes from that one's version and the change, unless it is nil.
func buildWorker(t *testing.T, later func(version int, change string) string) string {
	t.Helper()
	dir := t.TempDir()
	program, overlay := filepath.Join(dir, "worker"), map[string]string{}
	for folder, change := range map[string]string{"lockclient/internal/pglease/migrations": expandLeases, "sqlfence/sqladmin/migrations": expandMarks} {
		if later == nil {
			continue
		}
		folder, err := filepath.Abs(filepath.Join("../../..", folder))
		testkit.Must(t, err)
		steps, err := filepath.Glob(filepath.Join(folder, "*.sql"))
		if err != nil || len(steps) == 0 { // each component counts its own
			t.Fatalf("%s has %d steps, %v", folder, len(steps), err)
		}
		name := fmt.Sprintf("%04d_later.sql", len(steps)+1)
		at := filepath.Join(folder, name)
		overlay[at] = filepath.Join(dir, filepath.Base(filepath.Dir(folder))+name)
		testkit.Must(t, os.WriteFile(overlay[at], []byte(later(len(steps), change)), 0o600))
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	testkit.Must(t, err)
	file := filepath.Join(dir, "overlay.json")
	testkit.Must(t, os.WriteFile(file, text, 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, "-o", program, "./lockclient/lockadmin/pgadmin/testdata/worker")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// builtWorker is a process of one build.
type builtWorker struct {
	cmd   *exec.Cmd
	input io.Closer
	lines *bufio.Scanner
}

func startWorker(t *testing.T, program, url, resource string) *builtWorker {
	t.Helper()
	cmd := exec.Command(program, resource)
	cmd.Env, cmd.Stderr = append(os.Environ(), "DATABASE_URL="+url), t.Output()
	input, err := cmd.StdinPipe()
	testkit.Must(t, err)
	output, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &builtWorker{cmd, input, bufio.NewScanner(output)}
}

// says waits for the next line, which must contain the text.
func (w *builtWorker) says(t *testing.T, want string) {
	t.Helper()
	if !w.lines.Scan() || !strings.Contains(w.lines.Text(), want) {
		t.Fatalf("%v printed %q, want %q", w.cmd.Args[1:], w.lines.Text(), want)
	}
}

// ends waits for the last line.
func (w *builtWorker) ends(t *testing.T, want string) {
	t.Helper()
	w.says(t, want)
	if err := w.cmd.Wait(); (err == nil) != (want == "done") {
		t.Errorf("%v ended with %v", w.cmd.Args[1:], err)
	}
}

// stop lets a worker release its lease and end.
func (w *builtWorker) stop(t *testing.T) {
	t.Helper()
	w.input.Close()
	w.ends(t, "done")
}
