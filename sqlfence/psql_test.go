package sqlfence

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// findPSQL looks in PATH and next to the servers of the usual packages.
func findPSQL(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("psql"); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/psql", "/usr/pgsql-*/bin/psql", "/opt/homebrew/opt/postgresql*/bin/psql", "/usr/local/opt/postgresql*/bin/psql"} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Fatal("there is no psql in PATH or the usual places; run .ci/setup to install it with PostgreSQL")
	return ""
}

// psql runs a script and returns what it wrote. It goes on after an error, and ok
// is whether there was none.
func (e *env) psql(t *testing.T, script string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, findPSQL(t), "--no-psqlrc", "--set=VERBOSITY=verbose", "--quiet", "--dbname="+e.url)
	cmd.Stdin = strings.NewReader(script)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return b.String(), err == nil && !strings.Contains(b.String(), "ERROR:")
}

// TestPSQLIsRefused (P1, P5): a person at psql is refused like a program, COPY
// included, until the session presents a current claim; the control is the same
// script without triggers.
func TestPSQLIsRefused(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		before := e.text(contents)
		const copied = "COPY items FROM STDIN;\n9\ta\t9\n\\.\n"
		const present = "BEGIN; SELECT fencepost.present('a', 5, 'lease-5') \\g /dev/null\n"
		scripts := []string{
			"UPDATE items SET v = 9 WHERE id = 1;\n", copied, "TRUNCATE whole;\n", "COPY parts_low FROM STDIN;\n9\ta\t9\n\\.\n",
		}
		refused := func(what, out, state string, want int) {
			if n := strings.Count(out, state+":"); n != want {
				t.Errorf("%s: %d were refused with %s, want %d: %s", what, n, state, want, out)
			}
		}
		out, _ := e.psql(t, strings.Join(scripts, ""))
		refused("without a claim", out, "SF003", len(scripts))
		var lower strings.Builder
		for _, script := range scripts {
			lower.WriteString(strings.ReplaceAll(present, "5", "4") + script + "COMMIT;\n")
		}
		out, _ = e.psql(t, lower.String())
		refused("under a lower token", out, "SF001", len(scripts)-1)
		refused("under a claim for another resource", out, "SF003", 1) // the truncated one
		// A claim that is set outside a transaction is gone with its statement.
		out, _ = e.psql(t, "SELECT fencepost.present('a', 5, 'lease-5') \\g /dev/null\n"+scripts[0])
		refused("a claim of another transaction", out, "SF003", 1)
		e.wantText(before, "something was written", contents)
		if out, ok := e.psql(t, present+copied+"COMMIT;\nBEGIN; SELECT set_config('fencepost.claims', '[{\"resource\":\"a\",\"token\":\"5\",\"leaseId\":\"lease-5\"}]', true) \\g /dev/null\nUPDATE items SET v = 9 WHERE id = 9; COMMIT;\n"); !ok {
			t.Errorf("COPY under the claim, and under one set by hand: %s", out)
		}
		e.exec("DO $$ DECLARE t regclass; BEGIN FOR t IN SELECT DISTINCT tgrelid FROM pg_trigger WHERE tgname = 'fencepost_insert' LOOP EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', t); END LOOP; END $$; DELETE FROM items WHERE id = 9")
		if out, ok := e.psql(t, strings.Join(scripts, "")); !ok {
			t.Errorf("without triggers, the control: %s", out)
		}
	})
}
