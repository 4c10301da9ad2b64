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

// psql runs a script and returns what it wrote; it stops at the first error.
func (e *env) psql(t *testing.T, script string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, findPSQL(t), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--set=VERBOSITY=verbose", "--quiet", "--dbname="+e.url)
	cmd.Stdin = strings.NewReader(script)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return b.String(), err == nil
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
		scripts := map[string]string{
			"UPDATE": "UPDATE items SET v = 9 WHERE id = 1;\n", "COPY": copied, "TRUNCATE": "TRUNCATE whole;\n",
			"COPY into a partition": "COPY parts_low FROM STDIN;\n9\ta\t9\n\\.\n",
		}
		for what, script := range scripts {
			if out, ok := e.psql(t, script); ok || !strings.Contains(out, "SF003") {
				t.Errorf("%s without a claim: %s", what, out)
			}
			if out, ok := e.psql(t, strings.ReplaceAll(present, "5", "4")+script+"COMMIT;\n"); ok || !strings.Contains(out, "SF001") && what != "TRUNCATE" {
				t.Errorf("%s under a lower token: %s", what, out)
			}
		}
		// A claim that is set outside a transaction is gone with its statement.
		if out, ok := e.psql(t, "SELECT fencepost.present('a', 5, 'lease-5') \\g /dev/null\nUPDATE items SET v = 9 WHERE id = 1;\n"); ok || !strings.Contains(out, "SF003") {
			t.Errorf("a claim of another transaction: %s", out)
		}
		if after := e.text(contents); after != before {
			t.Errorf("something was written: %s", after)
		}
		if out, ok := e.psql(t, present+copied+"COMMIT;\n"); !ok {
			t.Errorf("COPY under the claim: %s", out)
		}
		if out, ok := e.psql(t, "BEGIN; SELECT set_config('fencepost.claims', '[{\"resource\":\"a\",\"token\":\"5\",\"leaseId\":\"lease-5\"}]', true) \\g /dev/null\nUPDATE items SET v = 9 WHERE id = 9; COMMIT;\n"); !ok {
			t.Errorf("a claim set by hand: %s", out)
		}
		e.exec("DO $$ DECLARE t regclass; BEGIN FOR t IN SELECT DISTINCT tgrelid FROM pg_trigger WHERE tgname = 'fencepost_insert' LOOP EXECUTE format('ALTER TABLE %s DISABLE TRIGGER USER', t); END LOOP; END $$; DELETE FROM items WHERE id = 9")
		for what, script := range scripts {
			if out, ok := e.psql(t, script); !ok {
				t.Errorf("%s without triggers, the control: %s", what, out)
			}
		}
	})
}
