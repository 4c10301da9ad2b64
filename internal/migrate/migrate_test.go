package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/fencepost-go/fencepost/internal/pgerr"
)

func files(names ...string) fstest.MapFS {
	dir := fstest.MapFS{}
	for _, name := range names {
		dir[name] = &fstest.MapFile{Data: []byte("-- " + name + "\n")}
	}
	return dir
}

func TestLoad(t *testing.T) {
	c := Load("lockclient", files("0001_leases.sql", "0002_audit_log.sql"))
	want := []Migration{{1, "leases", "-- 0001_leases.sql\n", 0}, {2, "audit_log", "-- 0002_audit_log.sql\n", 0}}
	if c.Name != "lockclient" || c.Version() != 2 || !slices.Equal(c.Migrations, want) {
		t.Errorf("got %+v", c)
	}
}

// TestLoadRefuses: files that would be left out or applied in another order
// are a broken build.
func TestLoadRefuses(t *testing.T) {
	for what, dir := range map[string]fstest.MapFS{
		"a gap":           files("0001_a.sql", "0003_b.sql"),
		"a number twice":  files("0001_a.sql", "0001_b.sql"),
		"begins late":     files("0002_a.sql"),
		"no number":       files("0001_a.sql", "readme.sql"),
		"another ending":  files("0001_a.sql", "0002_b.sql.bak"),
		"a directory":     files("0001_a.sql", "0002_b/c.sql"),
		"begins with 0":   files("0000_a.sql"),
		"nothing to name": files("0001.sql"),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: did not panic", what)
				}
			}()
			Load("x", dir)
		}()
	}
}

// recorder is a Conn that remembers what it was sent.
type recorder struct {
	version int64
	there   bool
	fail    string
	sent    []string
}

var errRefused = errors.New("refused")

func (r *recorder) Exec(ctx context.Context, sql string) error {
	r.sent = append(r.sent, sql)
	if sql == r.fail || len(r.fail) > len("COMMIT") && strings.Contains(sql, r.fail) { // the level has COMMIT in its name
		return errRefused
	}
	return ctx.Err()
}

func (r *recorder) QueryInt(_ context.Context, sql string) (int64, error) {
	r.sent = append(r.sent, sql)
	switch {
	case r.fail != "" && strings.Contains(sql, r.fail):
		return 0, errRefused
	case strings.Contains(sql, "to_regclass"):
		return map[bool]int64{true: 1}[r.there], nil
	case strings.Contains(sql, "pg_try_advisory_xact_lock"):
		return 1, nil
	}
	return r.version, nil
}

func (r *recorder) all() string { return strings.Join(r.sent, "\n") }

func component() Component { return Load("demo", files("0001_a.sql", "0002_b.sql", "0003_c.sql")) }

// TestUpApplies: from each version the missing steps are applied, in order,
// under the lock, inside one transaction of an explicit level, and recorded;
// creating the schema is tried only if nothing exists, and nothing is locked where
// nothing is missing.
func TestUpApplies(t *testing.T) {
	for version := range int64(4) {
		for _, to := range []int{1, 2, 3} {
			r := &recorder{version: version, there: version > 0}
			if err := component().UpTo(t.Context(), r, to); err != nil {
				t.Fatal(err)
			}
			begin, end := r.sent[0], r.sent[len(r.sent)-1]
			if begin != "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE" || strings.Contains(r.all(), "pg_try_advisory_xact_lock") != (version < int64(to)) || end != "COMMIT" {
				t.Errorf("sent %q", r.sent)
			}
			if got := strings.Contains(r.all(), "CREATE SCHEMA"); got != (version == 0) {
				t.Errorf("from %d: creating the schema: %t", version, got)
			}
			for n, name := range []string{"a", "b", "c"} {
				step := fmt.Sprintf("-- 000%d_%s.sql\n\nINSERT INTO fencepost.migrations (component, version, name, usable_from) VALUES ('demo', %d, '%s', %d);\n", n+1, name, n+1, name, n+1)
				if got, want := slices.Contains(r.sent, step), int64(n) >= version && n < to; got != want {
					t.Errorf("from %d to %d, step %d applied: %t, want %t in %q", version, to, n+1, got, want, r.sent)
				}
			}
		}
	}
}

func TestUpRefusesNewer(t *testing.T) {
	r := &recorder{version: 4, there: true}
	var newer *NewerError
	if err := component().Up(t.Context(), r); !errors.As(err, &newer) || *newer != (NewerError{"demo", 4, 3}) {
		t.Errorf("got %v", err)
	}
	if last := r.sent[len(r.sent)-1]; last != "ROLLBACK" || strings.Contains(r.all(), "INSERT") {
		t.Errorf("sent %q", r.sent)
	}
}

// TestUpRollsBack: whatever fails, the transaction is ended, even if the
// context is over, and the error names the step.
func TestUpRollsBack(t *testing.T) {
	for _, fail := range []string{"advisory", "to_regclass", "max(version)", "CREATE SCHEMA", "0002_b.sql", "COMMIT"} {
		r := &recorder{there: fail == "max(version)", fail: fail}
		err := component().Up(t.Context(), r)
		if !errors.Is(err, errRefused) {
			t.Errorf("%s: got %v", fail, err)
		}
		if fail == "0002_b.sql" && !strings.Contains(err.Error(), "demo version 2 (b)") {
			t.Errorf("%s: %v does not name the step", fail, err)
		}
		if last := r.sent[len(r.sent)-1]; last != "ROLLBACK" {
			t.Errorf("%s: sent %q", fail, r.sent)
		}
	}
	// No response to BEGIN is no unknown outcome.
	r := &recorder{fail: "BEGIN ISOLATION"}
	if err := component().Up(t.Context(), r); !errors.Is(err, errRefused) || len(r.sent) != 1 || !pgerr.Unsent(err) {
		t.Errorf("%v, sent %q", err, r.sent)
	}
}

// TestScript: the printed text has every step and its record, and begins no
// transaction of its own.
func TestScript(t *testing.T) {
	c := component()
	script := c.Script()
	at := -1
	for _, m := range c.Migrations {
		next := strings.Index(script, strings.TrimSpace(m.SQL)+"\n"+m.record("demo"))
		if next <= at {
			t.Errorf("step %d is not in its place in\n%s", m.Version, script)
		}
		at = next
		if one := m.Script("demo"); one != Pin+owned+prologue+strings.TrimSpace(m.SQL)+"\n"+m.record("demo")+sealed+unpin {
			t.Errorf("the script of step %d is\n%s", m.Version, one)
		}
	}
	script = strings.NewReplacer(Pin, "", owned, "", sealed, "", unpin, "", prologue, "").Replace(script)
	if strings.Contains(script, "BEGIN") || strings.Contains(script, "COMMIT") {
		t.Errorf("the script has a transaction of its own:\n%s", script)
	}
}
