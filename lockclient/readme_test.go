package lockclient

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
)

// TestReadmeWithoutALock runs the README's alternatives to a lock, and each
// refuses or skips what the README says.
func TestReadmeWithoutALock(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	testkit.Must(t, err)
	_, section, _ := strings.Cut(string(readme), "\n## Is a unique constraint enough?\n")
	_, block, _ := strings.Cut(section, "```sql\n")
	block, _, there := strings.Cut(block, "```")
	if !there {
		t.Fatal("the README has no such section")
	}
	sql := map[string]string{} // by the first words of its comment
	for _, statement := range strings.Split(strings.TrimSpace(block), ";") {
		comment, code, _ := strings.Cut(strings.TrimSpace(statement), "\n")
		words, _, _ := strings.Cut(strings.TrimPrefix(comment, "-- "), ":")
		if code != "" {
			sql[words] = code
		}
	}
	pool := migrated(t)
	mustSimple(t, pool, `CREATE TABLE booking (room int, during tstzrange);
		CREATE TABLE requests (key text PRIMARY KEY);
		CREATE TABLE jobs (id bigint PRIMARY KEY, tenant text, state text);
		INSERT INTO jobs SELECT i, 'tenant ' || i, 'new' FROM generate_series(1, 100) i;
		CREATE TABLE doc (id int PRIMARY KEY, body text, version int);
		INSERT INTO doc VALUES (1, 'first', 1)`)
	affected := func(words string, args ...any) int64 {
		t.Helper()
		tag, err := pool.Exec(t.Context(), sql[words], args...)
		if err != nil {
			t.Fatal(words, err)
		}
		return tag.RowsAffected()
	}
	for words, run := range map[string]func(){
		"constraint": func() {
			there := leasetest.Value[bool](t, pool, "SELECT count(*) > 0 FROM pg_available_extensions WHERE name = 'btree_gist'")
			if !there {
				t.Log("this server has no btree_gist: the constraint is not run")
				return
			}
			mustExec(t, pool, "CREATE EXTENSION btree_gist")
			affected("constraint")
			mustExec(t, pool, "INSERT INTO booking VALUES (1, '[2026-01-01, 2026-01-03)')")
			if _, err := pool.Exec(t.Context(), "INSERT INTO booking VALUES (1, '[2026-01-02, 2026-01-04)')"); err == nil {
				t.Error("two bookings overlap")
			}
		},
		"idempotency key": func() {
			if first, again := affected("idempotency key", "k"), affected("idempotency key", "k"); first != 1 || again != 0 {
				t.Errorf("%d rows, then %d", first, again)
			}
		},
		"partition": func() {
			var all []int64
			for worker := range 3 {
				rows, _ := pool.Query(t.Context(), sql["partition"], worker, 3)
				ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
				if err != nil || len(ids) == 0 {
					t.Errorf("worker %d has %d jobs, %v", worker, len(ids), err)
				}
				all = append(all, ids...)
			}
			slices.Sort(all)
			if len(all) != 100 || len(slices.Compact(all)) != 100 {
				t.Errorf("%d jobs of 100 are given to somebody", len(all))
			}
		},
		"row lock": func() {
			var taken [2]int64
			for n := range taken {
				tx, err := pool.Begin(t.Context())
				testkit.Must(t, err)
				defer tx.Rollback(t.Context())
				testkit.Must(t, tx.QueryRow(t.Context(), sql["row lock"]).Scan(&taken[n]))
			}
			if taken != [2]int64{1, 2} {
				t.Errorf("jobs %v are taken", taken)
			}
		},
		"version column": func() {
			if first, second := affected("version column", "a", 1, 1), affected("version column", "b", 1, 1); first != 1 || second != 0 {
				t.Errorf("%d rows, then %d", first, second)
			}
		},
	} {
		if sql[words] == "" {
			t.Errorf("the README has no statement for: %s", words)
			continue
		}
		run()
		delete(sql, words)
	}
	for words := range sql {
		t.Errorf("not run: %s", words)
	}
}
