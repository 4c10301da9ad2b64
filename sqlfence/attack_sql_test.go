package sqlfence

import (
	"context"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// TestMalformedClaims (P5, P6): whatever is in the setting that triggers read,
// nothing is written, and a malformed claim is not mistaken for a stale one.
func TestMalformedClaims(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(writersSQL)
		e.guardBy("items", `{tenant}`)
		e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('a', 5, 'lease-5'), ('b', 9223372036854775806, '')")
		before := e.text(contents)
		for claims, want := range map[string]guard.Reason{
			``: guard.ReasonMissing, `[]`: guard.ReasonMissing, `[null, 1, "a", ["a"], {}]`: guard.ReasonMissing,
			`[{"resource":"A","token":"5","leaseId":"lease-5"}]`:   guard.ReasonMissing,
			`[{"resource":["a"],"token":"5","leaseId":"lease-5"}]`: guard.ReasonMissing,
			`{`: guard.ReasonInvalid, `null`: guard.ReasonInvalid, `5`: guard.ReasonInvalid, `{"resource":"a","token":"5"}`: guard.ReasonInvalid,
			`[{"resource":"a"}]`: guard.ReasonInvalid, `[{"resource":"a","token":null}]`: guard.ReasonInvalid,
			`[{"resource":"a","token":"x"}]`: guard.ReasonInvalid, `[{"resource":"a","token":"5.0"}]`: guard.ReasonInvalid, `[{"resource":"a","token":{}}]`: guard.ReasonInvalid,
			`[{"resource":"a","token":"9223372036854775808"}]`: guard.ReasonInvalid,
			`[{"resource":"a","token":"0"}]`:                   guard.ReasonInvalid, `[{"resource":"a","token":"-5"}]`: guard.ReasonInvalid,
			`[{"resource":"a","token":"5"}]`: guard.ReasonConflict, `[{"resource":"a","token":5,"leaseId":"LEASE-5"}]`: guard.ReasonConflict,
			`[{"resource":"a","token":"4"},{"resource":"a","token":"5","leaseId":"lease-5"}]`: guard.ReasonStale,
		} {
			wantReason(t, ErrorFrom(e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if _, err := tx.exec(ctx, "SELECT set_config('fencepost.claims', $1, true)", claims); err != nil {
					return err
				}
				_, err := tx.exec(ctx, "UPDATE items SET v = 9 WHERE id = 1")
				return err
			})), want, "%s", claims)
			if after := e.text(contents); after != before {
				t.Fatalf("%s wrote %s", claims, after)
			}
		}
		noError(t, e.presenting("UPDATE items SET v = 9 WHERE id = 2", guard.Claim{Resource: "b", Token: guard.MaxToken}), "the highest token")
	})
}

// TestStatementsAfterDDL (P5, P6): a statement that was prepared before a
// column's type changed is refused by the server. That is ErrUnavailable,
// writes nothing, and is temporary.
func TestStatementsAfterDDL(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE n (id int PRIMARY KEY, v int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1, 7)")
		table := e.table("n", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		db := e.single()
		var v any
		take := func() error {
			return table.Raise(t.Context(), db, claimOf("n", 5), Key{1}, Dest{"v": &v})
		}
		must(t, take())
		e.exec("UPDATE n SET last_fencing_token = 4; ALTER TABLE n ALTER v TYPE text")
		if err := take(); guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "cached plan") {
			t.Errorf("got %v, want that it is unavailable", err)
		}
		e.wantInt(4, "the mark", "SELECT last_fencing_token FROM n")
		if err := take(); err != nil || v != "7" {
			t.Errorf("again: %v, %v", v, err)
		}
	})
}

// TestPublicHasNoRights: by default nobody has rights on anything in schema
// fencepost, or on what installing triggers created. The control is a new
// function.
func TestPublicHasNoRights(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		must(t, e.db.MigrateRoles(t.Context(), e.testRoles(t)))
		anybody := e.newRole("anybody", "")
		open := func() string {
			return e.text(strings.ReplaceAll(`SELECT coalesce(string_agg(what, ', '), '') FROM (
				SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'fencepost'::regnamespace AND has_function_privilege('anybody', p.oid, 'EXECUTE')
				UNION ALL SELECT c.oid::regclass::text FROM pg_class c WHERE relnamespace = 'fencepost'::regnamespace AND relkind IN ('r', 'v', 'm', 'p')
					AND has_table_privilege('anybody', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
				UNION ALL SELECT c.oid::regclass::text FROM pg_class c WHERE relnamespace = 'fencepost'::regnamespace AND CASE relkind WHEN 'S' THEN has_sequence_privilege('anybody', c.oid, 'USAGE, SELECT, UPDATE') END
				UNION ALL SELECT 'schema' WHERE has_schema_privilege('anybody', 'fencepost', 'USAGE, CREATE')) AS x(what)`, "'anybody'", "'"+anybody+"'"))
		}
		if got := open(); got != "" {
			t.Errorf("anybody may use %s", got)
		}
		e.exec("CREATE FUNCTION fencepost.open() RETURNS void LANGUAGE sql AS ''")
		if got := open(); got != "fencepost.open()" {
			t.Errorf("the control: anybody may use %q", got)
		}
	})
}
