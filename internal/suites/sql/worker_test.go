// Package sqlsuite tests what sqlfence/SQL.md says, by programs that are not written in Go.
package sqlsuite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

const (
	name       = "acme:billing-close:2026-04"
	installSQL = `SELECT fencepost.install_guard('billing.closes',
  '[{"variable": "tenant", "column": "tenant"}, {"text": "billing-close"}, {"variable": "period", "column": "period"}]', false, 5000)`
)

// ledger is a database with the schema, the tables of the page, and a role without rights
// of its own.
func ledger(t *testing.T) (pool *pgxpool.Pool, role string) {
	t.Helper()
	pool = pgtest.Migrated(t, "sqlsuite", func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, `CREATE SCHEMA billing;
			CREATE TABLE billing.closes (tenant text, period text, status text NOT NULL, PRIMARY KEY (tenant, period));
			CREATE TABLE billing.totals (tenant text PRIMARY KEY, total int NOT NULL);
			CREATE TABLE billing.runs (tenant text, period text, status text, last_fencing_token bigint NOT NULL DEFAULT 0, PRIMARY KEY (tenant, period));
			INSERT INTO billing.totals VALUES ('acme', 0); INSERT INTO billing.runs VALUES ('acme', '2026-04')`)
		return err
	})
	sql, err := sqladmin.RolesSQL(nil)
	testkit.Must(t, err)
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	role = pool.Config().ConnConfig.Database + "_app" // roles belong to all databases
	owner := pgx.Identifier{role}.Sanitize()
	if _, err := pool.Exec(t.Context(), `CREATE ROLE `+owner+` LOGIN; GRANT USAGE ON SCHEMA billing TO `+owner+`;
		GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA billing TO `+owner); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP OWNED BY `+owner+`; DROP ROLE `+owner); err != nil {
			t.Error(err)
		}
	})
	return pool, role
}

var blocks = regexp.MustCompile("(?s)```sql\n(.*?)```")

// TestPage: psql runs the page's SQL from its beginning to its end, and then the row that a
// stale holder writes is refused. The control is the same write under no claim before the
// table is guarded, which succeeds.
func TestPage(t *testing.T) {
	pool, role := ledger(t)
	// The grants are the page's own, to roles of this test.
	enforcer := role + "_enforcer"
	if _, err := pool.Exec(t.Context(), `CREATE ROLE `+enforcer); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), `DROP OWNED BY `+enforcer+`; DROP ROLE `+enforcer); err != nil {
			t.Error(err)
		}
	})
	page := string(guard.Must(os.ReadFile("../../../sqlfence/SQL.md")))
	script := strings.Builder{}
	for _, block := range blocks.FindAllStringSubmatch(page, -1) {
		script.WriteString(strings.NewReplacer("ledger_app", pgx.Identifier{role}.Sanitize(), "fencepost_enforcer", enforcer).Replace(block[1]))
	}
	as := `SET ROLE ` + pgx.Identifier{role}.Sanitize() + `; `
	if state, out := psql(t, pool, as+`SELECT fencepost.join_resource('a')`); state != "42501" {
		t.Errorf("control, before the grants: %s", out)
	}
	if n := strings.Count(script.String(), "fencepost."); n < 5 {
		t.Fatalf("%d calls found: the search is broken", n)
	}
	naked := `UPDATE billing.closes SET status = 'naked'`
	if state, out := psql(t, pool, naked); state != "" {
		t.Errorf("control: %s", out)
	}
	if state, out := psql(t, pool, script.String()); state != "" {
		t.Fatal(out)
	}
	if state, out := psql(t, pool, naked); state != "SF003" {
		t.Errorf("without a claim: %s", out)
	}
	// What the page does to write runs with the rights that it grants, and no others.
	for _, block := range blocks.FindAllStringSubmatch(page, -1) {
		if sql := block[1]; !strings.Contains(sql, "GRANT ") && !strings.Contains(sql, "install_guard") {
			if state, out := psql(t, pool, as+sql); state != "" {
				t.Errorf("%s: %s", sql, out)
			}
		}
	}
	for _, call := range []string{"enter_row('" + name + "', 34, 'lease-34', 0, 0)", "join_resource('a')"} {
		if state, out := psql(t, pool, as+"SELECT fencepost."+call); state != "" {
			t.Errorf("%s: %s", call, out)
		}
	}
	if state, out := psql(t, pool, as+"BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT fencepost.enter_snapshot('"+name+"', 34, 'lease-34', 0, 0)"); state != "" {
		t.Errorf("enter_snapshot: %s", out)
	}
	if state, out := psql(t, pool, as+"SELECT pg_xact_status(pg_current_xact_id()::text::xid8), stats_reset FROM pg_stat_bgwriter"); state != "" {
		t.Errorf("the outcome: %s", out)
	}
	for claim, want := range map[string]string{"33, 'lease-33'": "SF001", "34, 'another'": "SF002", "35, 'lease-35'": "SF004", "34, 'lease-34'": "", "0, ''": "22023"} {
		if state, out := psql(t, pool, `BEGIN; SELECT fencepost.present('`+name+`', `+claim+`); `+naked+`; COMMIT;`); state != want {
			t.Errorf("presented %s: %s", claim, out)
		}
	}
}

// TestInstallGuardIsTheOwners: a role that only writes can neither install nor remove.
func TestInstallGuardIsTheOwners(t *testing.T) {
	pool, role := ledger(t)
	as := `SET ROLE ` + pgx.Identifier{role}.Sanitize() + `; `
	for _, sql := range []string{installSQL, `SELECT fencepost.remove_guard('billing.closes', 5000)`, `SELECT * FROM fencepost.marks`, `SELECT fencepost.raise('a', 1, '', 0)`} {
		if state, out := psql(t, pool, as+sql); state != "42501" {
			t.Errorf("%s: %s", sql, out)
		}
		if state, out := psql(t, pool, sql); state != "" {
			t.Errorf("control: %s: %s", sql, out)
		}
	}
	if _, err := pool.Exec(t.Context(), `GRANT fencepost_enforcer TO `+pgx.Identifier{role}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	if state, out := psql(t, pool, as+`SELECT fencepost.raise('a', 2, '', 0)`); state != "" {
		t.Errorf("an enforcer: %s", out)
	}
}

// TestMalformedClaims: every function that takes a claim refuses a malformed one as 22023,
// before it compares, so that no holder stops or raises an alarm for it. The controls are
// the longest texts, and no lease ID.
func TestMalformedClaims(t *testing.T) {
	pool, _ := ledger(t)
	for _, c := range []struct{ resource, token, lease, want string }{
		{"repeat('r', 512)", "5", "repeat('l', 128)", ""},
		{"'r'", "9223372036854775806", "''", ""},
		{"repeat('\u00e4', 256)", "5", "repeat('\u00e4', 64)", ""},
		{"'r'", "9223372036854775806", "repeat('l', 129)", "22023"}, // the token is the mark's
		{"'r'", "9223372036854775806", "repeat('\u00e4', 65)", "22023"},
		{"'r'", "9223372036854775806", "E'l\\n'", "22023"},
		{"'r'", "9223372036854775806", "U&'\\0085'", "22023"},
		{"'r'", "9223372036854775806", "NULL", "22023"},
		{"'r'", "9223372036854775807", "'l'", "22023"},
		{"'r'", "0", "'l'", "22023"},
		{"'r'", "-1", "'l'", "22023"},
		{"'r'", "NULL", "'l'", "22023"},
		{"repeat('r', 513)", "5", "'l'", "22023"},
		{"repeat('\u00e4', 257)", "5", "'l'", "22023"},
		{"''", "5", "'l'", "22023"},
		{"NULL", "5", "'l'", "22023"},
		{"E'r\\x7f'", "5", "'l'", "22023"},
		{"E'r\\n'", "5", "'l'", "22023"},
	} {
		claim := c.resource + ", " + c.token + ", " + c.lease
		for _, call := range []string{"raise(" + claim + ", 0)", "enter(" + claim + ", 0, 0)", "enter_row(" + claim + ", 0, 0)",
			"present(" + claim + ")", "holders(" + claim + ")"} {
			if state, out := psql(t, pool, "SELECT fencepost."+call); state != c.want {
				t.Errorf("%s: %s %s", call, state, out)
			}
		}
		if state, out := psql(t, pool, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT fencepost.enter_snapshot("+claim+", 0, 0)"); state != c.want {
			t.Errorf("enter_snapshot(%s): %s %s", claim, state, out)
		}
	}
	var marks int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.marks").Scan(&marks); err != nil || marks != 3 {
		t.Errorf("%d marks, %v: the controls make three", marks, err)
	}
}

// psql runs a script and returns the SQLSTATE of its error.
func psql(t *testing.T, pool *pgxpool.Pool, script string) (state, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", pool.Config().ConnString())
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", ""
	}
	_, after, found := strings.Cut(string(out), "ERROR:  ")
	if !found || len(after) < 5 {
		t.Fatalf("psql, which .ci/setup servers installs: %v %s", err, out)
	}
	return after[:5], string(out)
}

// worker is sqlfence/testdata/worker.py, which was written from the page.
type worker struct {
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, pool *pgxpool.Pool, token int, lease string) *worker {
	t.Helper()
	cmd := exec.Command(interpreter(t), "../../../sqlfence/testdata/worker.py")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+pool.Config().ConnString(), "RESOURCE="+name, fmt.Sprint("TOKEN=", token), "LEASE="+lease)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		testkit.Check(t, cmd.Wait())
	})
	return &worker{in, bufio.NewReader(out)}
}

// interpreter is a Python that has psycopg: Debian's, if another one comes first in PATH.
func interpreter(t *testing.T) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import psycopg2").Run() == nil {
			return python
		}
	}
	t.Fatal("this test needs Python's psycopg2, which .ci/setup servers installs")
	return ""
}

// do sends a command, and expects what the worker says of it.
func (w *worker) do(t *testing.T, command, want string) {
	t.Helper()
	if _, err := fmt.Fprintln(w.in, command); err != nil {
		t.Fatal(err)
	}
	line, err := w.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("%s: %q, want %s (%v)", command, strings.TrimSpace(line), want, err)
	}
}

// TestPythonWorker: P1, P2, P4 between two workers in Python and one in Go, on a guarded table
// and in fenced transactions. The younger one takes over while the older one has an open
// transaction and has read the total: none of them loses an update.
func TestPythonWorker(t *testing.T) {
	pool, _ := ledger(t)
	old, young := start(t, pool, 33, "lease-33"), start(t, pool, 34, "lease-34")
	// The controls: an addition of a transaction that did not enter is lost to the next holder,
	// and before the table is guarded nothing stops a writer without a claim.
	first, second := start(t, pool, 31, "lease-31"), start(t, pool, 32, "lease-32")
	first.do(t, "unfenced", "done")
	second.do(t, "raise", "done")
	second.do(t, "add", "done")
	first.do(t, "commit", "done")
	old.do(t, "naked", "done")
	if _, err := pool.Exec(t.Context(), installSQL); err != nil {
		t.Fatal(err)
	}
	old.do(t, "naked", "missing")
	old.do(t, "write", "unavailable") // the mark was not raised
	old.do(t, "raise", "done")
	old.do(t, "write", "done")
	old.do(t, "add", "done")

	old.do(t, "open", "done") // and stops, with the total in its hands
	young.do(t, "raise", "done")
	young.do(t, "add", "done")
	old.do(t, "commit", "unavailable") // its session was ended
	for _, command := range []string{"add", "write", "raise"} {
		old.do(t, command, "stale")
	}
	young.do(t, "write", "done")
	start(t, pool, 34, "another").do(t, "write", "conflict")

	// One of the controls' two additions is lost, none of the others.
	var total int
	var status string
	if err := pool.QueryRow(t.Context(), `SELECT total, status FROM billing.totals, billing.closes`).Scan(&total, &status); err != nil || total != 1+2 || status != "closed by lease-34" {
		t.Errorf("total %d, status %q, %v", total, status, err)
	}

	// Go takes over, and is seen by both.
	db := guard.Must(sqlfence.Pgx(pool, &sqlfence.Options{Logger: testkit.Logger(t)}))
	claim := guard.Claim{Resource: name, Token: 35, LeaseID: "go"}
	if err := db.InTx(t.Context(), claim, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE billing.closes SET status = 'closed by go'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	young.do(t, "write", "stale")
	start(t, pool, 36, "lease-36").do(t, "raise", "done")
	if err := db.Raise(t.Context(), claim); !errors.Is(err, guard.ErrStale) {
		t.Errorf("Go after Python's raise: %v", err)
	}
}
