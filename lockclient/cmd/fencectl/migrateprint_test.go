package main

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// psql sends a script as psql does with a file: statement by statement, going on
// after an error.
func psql(t *testing.T, url, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "psql", "--no-psqlrc", "--quiet", "--dbname="+url, "--file=-")
	cmd.Env = append(cmd.Environ(), "PGOPTIONS=-c client_min_messages=warning")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v: %s", err, out)
	}
	return string(out)
}

// TestPrintedSchema: psql applies what migrate --print prints as it is. A file that
// is cut leaves nothing of the component that it is cut in, and migrate does the
// rest. The control is the text without its transactions: half of it stays, and
// migrate says that a person is needed.
func TestPrintedSchema(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := dial(t, url)
	script := must(t, url, "migrate", "--print")
	if out := psql(t, url, script); out != "" {
		t.Errorf("psql says %s", out)
	}
	if out := must(t, url, "migrate", "--yes"); strings.Count(out, "nothing to do") != 2 {
		t.Errorf("after psql, migrate did something: %s", out)
	}
	down := must(t, url, "migrate", "--print", "--down")
	if out := psql(t, url, down); out != "" || value[int64](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'fencepost'") != 0 {
		t.Errorf("psql left the schema, or says %s", out)
	}
	if out := psql(t, url, script); out != "" {
		t.Errorf("up again, psql says %s", out)
	}
	for _, args := range [][]string{{"--for", "goose"}, {"--down"}, {"--print", "--for", "ruby"}, {"--print", "--for", "goose", "--down"}} {
		if r := fencectl(t, url, append([]string{"migrate"}, args...)...); r.code != exitUsage {
			t.Errorf("%q: %d, %s", args, r.code, r.errOut)
		}
	}
	lines := strings.SplitAfter(script, "\n")
	cuts := longtest.ByLength(2, 6)
	for n := range cuts {
		exec1(t, pool, "DROP SCHEMA IF EXISTS fencepost CASCADE")
		psql(t, url, strings.Join(lines[:(n+1)*(len(lines)-1)/cuts-1], ""))
		if relations, records := left(t, pool); relations > 0 && records == 0 {
			t.Errorf("cut %d left %d relations without a record", n, relations)
		}
		must(t, url, "migrate", "--yes")
	}

	exec1(t, pool, "DROP SCHEMA fencepost CASCADE")
	open := strings.NewReplacer("BEGIN;\n", "", "COMMIT;\n", "").Replace(strings.Join(lines[:len(lines)/4], ""))
	if out := psql(t, url, open); !strings.Contains(out, "in one transaction") {
		t.Errorf("the control was not told: %s", out)
	}
	if relations, records := left(t, pool); relations < 2 || records > 1 {
		t.Errorf("the control left %d relations and %d records, want half a schema", relations, records)
	}
	r := fencectl(t, url, "migrate", "--yes")
	if r.code != exitSetup || !strings.Contains(r.errOut, "half of a script") {
		t.Errorf("on half a schema: %d, %s", r.code, r.errOut)
	}
}

// TestPrintedDownInUse: psql goes on after an error, and removes neither leases nor
// marks while one of them is in use. The control is the part that is not in use, by
// itself: it is removed.
func TestPrintedDownInUse(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	down := must(t, url, "migrate", "--print", "--down")
	refused := func(why string) {
		t.Helper()
		before := value[int64](t, pool, "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace")
		if out := psql(t, url, down); !strings.Contains(out, why) {
			t.Errorf("psql says %s, want %s", out, why)
		}
		if after := value[int64](t, pool, "SELECT count(*) FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace"); after != before {
			t.Errorf("%s: of %d relations %d are left", why, before, after)
		}
	}
	held := hold(t, pool, "worker", "held", time.Hour)
	refused("the lease of 'held' runs")
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec1(t, pool, "CREATE TABLE invoices (tenant text NOT NULL)")
	trigger := sqladmin.Trigger{Table: []string{"invoices"}, Resource: guard.Must(guard.NewTemplate("{tenant}")), Columns: map[string]string{"tenant": "tenant"}}
	if err := sqladmin.Pgx(pool).InstallTrigger(t.Context(), trigger); err != nil {
		t.Fatal(err)
	}
	refused("the triggers of public.invoices")
	if out := psql(t, url, "BEGIN;"+pglock.DownSQL()+"COMMIT;"); out != "" {
		t.Errorf("the control: psql says %s", out)
	}
}

// TestPrintedDownWaits: a transaction that is still open when down begins may grant a
// lease or install a trigger. Down waits for it, and is refused then.
func TestPrintedDownWaits(t *testing.T) {
	t.Parallel()
	const grant = `SELECT FROM fencepost.acquire(ARRAY['held'], ARRAY['late'], ARRAY['worker'], ARRAY[''], ARRAY[3600000000], ARRAY[clock_timestamp() + interval '1 minute'], ARRAY[false], '', '5s', NULL, 'fencepost.leases'::regclass::oid::bigint)`
	trigger, err := sqladmin.TriggerSQL(sqladmin.Trigger{Table: []string{"invoices"}, Resource: guard.Must(guard.NewTemplate("{tenant}")), Columns: map[string]string{"tenant": "tenant"}})
	if err != nil {
		t.Fatal(err)
	}
	for use, why := range map[string]string{grant: "the lease of 'held' runs", trigger: "the triggers of public.invoices"} {
		url, pool := database(t)
		down := must(t, url, "migrate", "--print", "--down")
		exec1(t, pool, "CREATE TABLE invoices (tenant text NOT NULL)")
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), use); err != nil {
			t.Fatal(err)
		}
		out := make(chan string, 1)
		go func() { out <- psql(t, url, down) }()
		testkit.Eventually(t, "down waits or ends", func() bool {
			return len(out) > 0 || value[bool](t, pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'psql' AND cardinality(pg_blocking_pids(pid)) > 0)")
		})
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if said := testkit.Receive(t, "psql", out); !strings.Contains(said, why) {
			t.Errorf("psql says %q, want %s", said, why)
		}
		if relations, _ := left(t, pool); relations < 9 {
			t.Errorf("%s: %d relations are left", why, relations)
		}
	}
}

// left counts the relations in the schema, and the steps on record.
func left(t *testing.T, pool *pgxpool.Pool) (relations, records int64) {
	t.Helper()
	relations = value[int64](t, pool, "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = to_regnamespace('fencepost')")
	if relations > 0 {
		records = value[int64](t, pool, "SELECT count(*) FROM fencepost.migrations")
	}
	return relations, records
}
