package pgadmin

import (
	"reflect"
	"slices"
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
)

// TestColumnsOfLeases: each column of fencepost.leases has a worst value, and the issuer's
// role may insert and update it, but for those that are named here with the reason.
func TestColumnsOfLeases(t *testing.T) {
	t.Parallel()
	owner, names, _ := testRoles(t, "")
	const begins = "begins as NULL: an acquire that finds no row has nothing to say there"
	except := map[string]map[string]string{
		"worst":  {"token": "the constraint leases_token_range bounds it, so that no row has a bad one"},
		"INSERT": {"wake_until": begins, "waiters": begins, "kept_for": begins, "reclaimed": begins},
		"UPDATE": {"resource": "a row that is renamed would restart the tokens of its name"},
	}
	type column struct {
		Name           string
		Insert, Update bool
	}
	rows, err := owner.Query(t.Context(), `SELECT attname::text AS name, has_column_privilege($1, attrelid, attnum, 'INSERT') AS insert,
		has_column_privilege($1, attrelid, attnum, 'UPDATE') AS update
		FROM pg_attribute WHERE attrelid = 'fencepost.leases'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, names.Issuer)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByName[column])
	if err != nil || len(columns) < 10 {
		t.Fatalf("%d columns, %v", len(columns), err)
	}
	for _, c := range columns {
		for list, has := range map[string]bool{"worst": slices.Contains(leasetest.WorstColumns(), c.Name), "INSERT": c.Insert, "UPDATE": c.Update} {
			reason, excepted := except[list][c.Name]
			switch {
			case !has && !excepted && list == "worst":
				t.Errorf("%s has no worst value in leasetest", c.Name)
			case !has && !excepted:
				t.Errorf("RolesSQL gives the issuer no %s of %s", list, c.Name)
			case has && excepted:
				t.Errorf("%s: %s is there, though excepted: %s", list, c.Name, reason)
			}
			delete(except[list], c.Name)
		}
	}
	for list, left := range except {
		for name := range left {
			t.Errorf("%s: there is no column %s", list, name)
		}
	}
}

// TestEveryFieldIsRead: of a row that has every value, Get and List leave no field zero.
func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	o := newTestClient(t, pool, nil).Operator
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('full', 7)")
	mustExec(t, pool, `UPDATE fencepost.leases SET lease_id = 'lease', owner = 'owner', metadata = 'metadata', acquired_at = clock_timestamp() - interval '1 hour',
		expires_at = clock_timestamp() + interval '1 hour', wake_until = clock_timestamp() + interval '59 seconds', waiters = ARRAY['a', 'b'],
		kept_for = 'a', not_after = clock_timestamp() + interval '1 hour', spent_until = clock_timestamp() + interval '1 hour', reclaimed = true`)
	var null []string
	err := pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(key), '{}') FROM fencepost.leases, jsonb_each(to_jsonb(leases)) WHERE value = 'null' OR value = '""'`).Scan(&null)
	if err != nil || len(null) > 0 {
		t.Fatalf("the row lacks %q, %v: fill it", null, err)
	}
	got, err := o.Get(t.Context(), "full")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := all(o.List(t.Context(), "", nil))
	if err != nil || len(listed) != 1 {
		t.Fatalf("listed %d, %v", len(listed), err)
	}
	for from, info := range map[string]lockadmin.LeaseInfo{"Get": got, "List": listed[0]} {
		fields := reflect.ValueOf(info)
		for i := range fields.NumField() {
			if fields.Field(i).IsZero() {
				t.Errorf("%s does not fill %s", from, fields.Type().Field(i).Name)
			}
		}
	}
}
