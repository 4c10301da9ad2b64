package pgadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// manyRows is a table of n leases of 1,000 tenants.
func manyRows(t testing.TB, n int) *pgxpool.Pool {
	pool := migrated(t)
	mustExec(t, pool, `INSERT INTO fencepost.leases (resource, token, lease_id, owner, acquired_at, expires_at)
		SELECT 'tenant_' || lpad((i % 1000)::text, 4, '0') || ':job:' || i, i, CASE WHEN i % 10 = 0 THEN 'lease-' || i END, 'worker-' || i % 50,
		  clock_timestamp() - i * interval '1 second', clock_timestamp() + CASE WHEN i % 20 = 0 THEN interval '1 day' ELSE interval '-1 s' END
		FROM generate_series(1, $1::int) i`, n)
	mustExec(t, pool, "VACUUM ANALYZE fencepost.leases")
	return pool
}

// plan is what EXPLAIN says about one node.
type plan struct {
	Type    string  `json:"Node Type"`
	Index   string  `json:"Index Name"`
	Cond    string  `json:"Index Cond"`
	Rows    float64 `json:"Actual Rows"`
	Removed float64 `json:"Rows Removed by Filter"`
	Hit     int     `json:"Shared Hit Blocks"`
	Read    int     `json:"Shared Read Blocks"`
	Plans   []plan
}

func (p plan) walk(f func(plan)) {
	f(p)
	for _, below := range p.Plans {
		below.walk(f)
	}
}

// explain runs a prepared statement under a generic plan, which does not know
// the prefix, as after the fifth execution.
func explain(t *testing.T, pool *pgxpool.Pool, sql, types string, args ...string) (top plan) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var out []byte
	_, err = conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan; DEALLOCATE ALL; PREPARE q("+types+") AS "+sql, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		err = conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE q("+strings.Join(args, ", ")+")", pgx.QueryExecModeSimpleProtocol).Scan(&out)
	}
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal(out, &plans); err != nil {
		t.Fatal(err)
	}
	conn.Exec(t.Context(), "RESET plan_cache_mode; DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol)
	return plans[0].Plan
}

// TestListIsBounded: a page reads a range of the index and a bounded number of
// rows and blocks, wherever in 20,000 leases it is (200,000 in the long form),
// under the plan that does not know the parameters; and listing all of them takes
// bounded memory. The control is a prefix by starts_with, which reads everything.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	leases := longtest.ByLength(20_000, 200_000)
	pool := manyRows(t, leases)
	const types = "text, text, text, bigint, bigint, text[], boolean, text, bigint"
	for what, test := range map[string]struct {
		sql  string
		args []string
		rows float64
	}{
		"first page":         {listSQL, []string{"'tenant_0'", "'tenant_1'", "''", "101", "101", "NULL", "false", "NULL", "NULL"}, 101},
		"page in the middle": {listSQL, []string{"'tenant_05'", "'tenant_06'", "'tenant_0550:job:3'", "101", "101", "NULL", "false", "NULL", "NULL"}, 101},
		"no upper bound":     {pattern.Pattern{}.Bounded(listSQL, rangeEnd), []string{"''", "''", "'tenant_0900:'", "101", "101", "NULL", "false", "NULL", "NULL"}, 101},
		"held for long":      {listSQL, []string{"'tenant_'", "'tenant`'", "'tenant_0301:'", "5000", "101", "NULL", "false", "NULL", "3600000000"}, 5000},
		"nothing there":      {listSQL, []string{"'tenant_1'", "'tenant_2'", "''", "101", "101", "NULL", "false", "NULL", "NULL"}, 0},
		"by state, few":      {listSQL, []string{"'tenant_'", "'tenant`'", "'tenant_0301:'", "5000", "101", "ARRAY['held']", "true", "NULL", "NULL"}, 5000},
		"by state, many":     {listSQL, []string{"'tenant_'", "'tenant`'", "'tenant_0301:'", "5000", "101", "ARRAY['expired', 'free']", "false", "NULL", "NULL"}, 102}, // the window function looks one row ahead, until PostgreSQL 17
	} {
		top := explain(t, pool, test.sql, types, test.args...)
		scans := 0
		top.walk(func(p plan) {
			switch {
			case strings.Contains(p.Type, "Seq Scan") || strings.Contains(p.Type, "Bitmap"):
				t.Errorf("%s: %s", what, p.Type)
			case strings.HasPrefix(p.Type, "Index"):
				scans++
				bounds := strings.Count(p.Cond, "resource >") + strings.Count(p.Cond, "resource <")
				if p.Index != "leases_pkey" || bounds < 2 || p.Rows > test.rows || p.Rows < min(test.rows, 101) || p.Removed != 0 {
					t.Errorf("%s: %+v", what, p)
				}
			}
		})
		// At most, each row is on a page of its own; the index's pages are
		// extra.
		if blocks := top.Hit + top.Read; scans != 1 || float64(blocks) > test.rows*1.2+20 {
			t.Errorf("%s: %d index scans, %d blocks for %v rows", what, scans, blocks, test.rows)
		}
	}
	control := explain(t, pool, "SELECT * FROM fencepost.leases WHERE starts_with(resource, $1) ORDER BY resource LIMIT $2", "text, bigint", "'tenant_0999:'", "101")
	if control.Hit+control.Read < leases/200 {
		t.Errorf("the control reads %d blocks", control.Hit+control.Read)
	}

	o := newRoleOperator(t, pool)
	count := 0
	for _, err := range o.List(t.Context(), "", nil) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != leases {
		t.Errorf("%d of %d leases", count, leases)
	}
	long, err := all(o.List(t.Context(), "", &lockadmin.ListOptions{HeldFor: time.Hour}))
	if err != nil || len(long) == 0 || len(long) == leases || slices.ContainsFunc(long, func(l lockadmin.LeaseInfo) bool { return l.HeldFor < time.Hour }) {
		t.Errorf("%d of %d are held for an hour, %v", len(long), leases, err)
	}
}

// BenchmarkList is a page of 100 out of 200,000 leases.
func BenchmarkList(b *testing.B) {
	pool := manyRows(b, 200_000)
	o, err := New(pool, &Options{OpTimeout: patience})
	if err != nil {
		b.Fatal(err)
	}
	i := 0
	for b.Loop() {
		i = (i + 37) % 900
		q, err := o.listQuery(fmt.Sprintf("tenant_%04d:*", i), nil)
		if err != nil {
			b.Fatal(err)
		}
		if page, _, _, err := o.page(context.Background(), q); err != nil || len(page) != 100 {
			b.Fatal(len(page), err)
		}
	}
}
