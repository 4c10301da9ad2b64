package pgadmin

import (
	"context"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5"
)

// TestInspectObjects: whatever of the schema was dropped or changed is found, and named.
// The control is the schema as it was migrated.
func TestInspectObjects(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	o := newRoleOperator(t, pool)
	objects := func() lockadmin.Finding {
		t.Helper()
		found, err := o.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return of(t, found, "schema objects")
	}
	if f := objects(); f.Severity != lockadmin.SeverityOK {
		t.Fatalf("control: %+v", f)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	wrong := func(statement string) (wrong string) { // by the statement, which is undone
		t.Helper()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		if err := tx.QueryRow(t.Context(), objectsSQL, pglease.Schema().ObjectsJSON()).Scan(&wrong); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		return wrong
	}
	kinds := map[string]int{}
	for _, e := range pglease.Schema().Objects() {
		kinds[e.Kind]++
		drop := "DROP " + e.Kind + " fencepost." + e.Name + " CASCADE"
		if e.Kind == "trigger" {
			drop = "DROP TRIGGER " + e.Name + " ON fencepost." + e.On
		}
		if e.Kind == "column" {
			drop = "ALTER TABLE fencepost." + e.On + " DROP COLUMN " + strings.TrimPrefix(e.Name, e.On+".") + " CASCADE"
		}
		if got, want := wrong(drop), e.Kind+" fencepost."+e.Name+" is missing"; !strings.Contains(got, want) {
			t.Errorf("%s: %q", drop, got)
		}
	}
	var functions, tables, columns, indexes, triggers int
	if err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace),
		(SELECT count(*) FROM pg_class WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'r' AND relname <> 'migrations'),
		(SELECT count(*) FROM pg_attribute a JOIN pg_class c ON a.attrelid = c.oid WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'r' AND c.relname <> 'migrations' AND a.attnum > 0),
		(SELECT count(*) FROM pg_class c WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'i' AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid)),
		(SELECT count(*) FROM pg_trigger WHERE tgname ~ '^(audit|epoch|leases)_' AND NOT tgisinternal)`).Scan(&functions, &tables, &columns, &indexes, &triggers); err != nil {
		t.Fatal(err)
	}
	if kinds["function"] != functions || kinds["table"] != tables || kinds["column"] != columns || kinds["trigger"] != triggers || kinds["index"] != indexes {
		t.Errorf("%v of %d functions, %d tables, %d columns, %d indexes and %d triggers", kinds, functions, tables, columns, indexes, triggers)
	}
	for statement, want := range map[string]string{
		"ALTER FUNCTION fencepost.force_unlock SECURITY INVOKER":                                           "force_unlock does not run with the rights",
		"GRANT EXECUTE ON FUNCTION fencepost.force_unlock TO PUBLIC":                                       "force_unlock may be executed by everybody",
		"ALTER FUNCTION fencepost.renew RESET ALL":                                                         "renew has no pinned search_path",
		"ALTER FUNCTION fencepost.watch SET work_mem = '1MB'":                                              "watch has other settings",
		"ALTER FUNCTION fencepost.check_lease STABLE":                                                      "check_lease has another volatility",
		"ALTER TABLE fencepost.audit ENABLE TRIGGER audit_is_append_only":                                  "audit_is_append_only is not enabled ALWAYS",
		"CREATE FUNCTION fencepost.is_spent(text) RETURNS boolean LANGUAGE sql AS 'SELECT false'":          "is_spent(text) is not of this build",
		"CREATE FUNCTION fencepost.is_spent(varchar, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'": "is_spent(character varying, text) is not of this build",
		"DROP FUNCTION fencepost.is_spent CASCADE; CREATE FUNCTION fencepost.is_spent(p_resource varchar, p_lease_id text) RETURNS boolean LANGUAGE sql AS 'SELECT false'": "is_spent is missing",
		"ALTER TABLE fencepost.leases ALTER COLUMN waiters TYPE varchar[]":                                                                                                 "column fencepost.leases.waiters has another type",
		`ALTER TABLE fencepost.spent ALTER COLUMN lease_id TYPE text COLLATE "POSIX"`:                                                                                      "column fencepost.spent.lease_id has another collation",
		"ALTER TABLE fencepost.leases ALTER COLUMN owner DROP NOT NULL":                                                                                                    "column fencepost.leases.owner may be null",
		"ALTER TABLE fencepost.spent ADD COLUMN mine int NOT NULL":                                                                                                         "column fencepost.spent.mine is not of this build",
		"ALTER TABLE fencepost.epoch SET UNLOGGED":                                                                                                                         "epoch is unlogged",
		"CREATE TRIGGER mine BEFORE INSERT ON fencepost.leases EXECUTE FUNCTION fencepost.refuse_change()":                                                                 "mine is not of this build",
	} {
		if got := wrong(statement); !strings.Contains(got, want) {
			t.Errorf("%s: %q", statement, got)
		}
	}
	mutate(t, pool, "unwatch", "BEGIN", "BEGIN /* changed */")
	if f := objects(); f.Severity != lockadmin.SeverityError || !strings.Contains(f.Detail, "unwatch is not the one of this build") {
		t.Errorf("%+v", f)
	}
}

// TestInspectHiddenSessions: a role that does not see the transactions of others gets its
// findings, with what it cannot see.
func TestInspectHiddenSessions(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "")
	conn, err := pgx.Connect(t.Context(), owner.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"); err != nil {
		t.Fatal(err)
	}
	found, err := newRoleOperator(t, as(names.Reader)).Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f := of(t, found, "old snapshot"); f.Severity != lockadmin.SeverityOK || !strings.Contains(f.Detail, "it does not see those of 1 sessions") {
		t.Errorf("%+v", f)
	}
}
