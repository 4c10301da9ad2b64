package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
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
	if out := must(t, url, "migrate"); strings.Count(out, "nothing to do") != 2 {
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
	const cuts = 6
	for n := range cuts {
		exec1(t, pool, "DROP SCHEMA IF EXISTS fencepost CASCADE")
		psql(t, url, strings.Join(lines[:(n+1)*(len(lines)-1)/cuts-1], ""))
		if relations, records := left(t, pool); relations > 0 && records == 0 {
			t.Errorf("cut %d left %d relations without a record", n, relations)
		}
		must(t, url, "migrate")
	}

	exec1(t, pool, "DROP SCHEMA fencepost CASCADE")
	open := strings.NewReplacer("BEGIN;\n", "", "COMMIT;\n", "").Replace(strings.Join(lines[:len(lines)/4], ""))
	if out := psql(t, url, open); !strings.Contains(out, "in one transaction") {
		t.Errorf("the control was not told: %s", out)
	}
	if relations, records := left(t, pool); relations < 2 || records > 1 {
		t.Errorf("the control left %d relations and %d records, want half a schema", relations, records)
	}
	r := fencectl(t, url, "migrate")
	if r.code != exitSchema || !strings.Contains(r.errOut, "half of a script") {
		t.Errorf("on half a schema: %d, %s", r.code, r.errOut)
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
