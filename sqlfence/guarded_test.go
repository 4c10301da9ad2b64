package sqlfence

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// enforcement is what a DB of either driver has for guarded tables.
type enforcement interface {
	InstallTrigger(ctx context.Context, trigger Trigger) error
	RemoveTrigger(ctx context.Context, name []string) error
	MigrateRoles(ctx context.Context, roles *RoleNames) error
	Verify(ctx context.Context, v Verification) ([]Finding, error)
	Triggers(ctx context.Context) ([]TriggerStatus, error)
}

// triggerOn describes a table whose columns have the names of the variables, or
// those given, in their order.
func triggerOn(table []string, template string, columns ...string) Trigger {
	t := Trigger{Table: table, Resource: guard.Must(guard.NewTemplate(template)), Columns: map[string]string{}}
	for i, v := range t.Resource.Variables() {
		t.Columns[v] = append(columns, t.Resource.Variables()[len(columns):]...)[i]
	}
	return t
}

// guardBy puts a table under triggers. From then on the DBs of e present.
func (e *env) guardBy(table, template string) Trigger {
	e.Helper()
	g := triggerOn([]string{table}, template)
	must(e, e.db.InstallTrigger(context.Background(), g))
	if !e.defaults.PresentClaims {
		e.defaults.PresentClaims = true
		e.db = e.open(nil)
	}
	return g
}

// presenting runs SQL in the application's own transaction that presents
// claims, and returns guard's error for the result.
func (e *env) presenting(sql string, claims ...guard.Claim) error {
	return ErrorFrom(e.db.plain(context.Background(), func(ctx context.Context, tx testTx) error {
		if err := tx.present(ctx, claims...); err != nil {
			return err
		}
		_, err := tx.exec(ctx, sql)
		return err
	}))
}

// writers are the ways to write a guarded table: items is plain, parts has two
// partitions, family a child, and lines follows orders by foreign keys.
var writers = []struct {
	name, table, sql string
	resources        string // the resources that must be claimed
}{
	{"INSERT", "items", "INSERT INTO items VALUES (9, 'a', 9)", "a"},
	{"INSERT of two resources", "items", "INSERT INTO items VALUES (9, 'a', 9), (10, 'b', 9)", "a b"},
	{"UPDATE", "items", "UPDATE items SET v = 9 WHERE id = 1", "a"},
	{"UPDATE of two resources", "items", "UPDATE items SET v = 9", "a b"},
	{"UPDATE of the resource", "items", "UPDATE items SET tenant = 'c' WHERE id = 1", "a c"},
	{"UPDATE of the key", "items", "UPDATE items SET id = 9 WHERE id = 1", "a"},
	{"DELETE", "items", "DELETE FROM items WHERE id = 1", "a"},
	{"DELETE, then INSERT", "items", "DO $$ BEGIN DELETE FROM items WHERE id = 1; INSERT INTO items VALUES (1, 'a', 9); END $$", "a"},
	{"ON CONFLICT DO UPDATE", "items", "INSERT INTO items VALUES (1, 'z', 9) ON CONFLICT (id) DO UPDATE SET v = 9", "a"},
	{"ON CONFLICT DO UPDATE of both", "items", "INSERT INTO items VALUES (1, 'a', 9), (9, 'b', 9) ON CONFLICT (id) DO UPDATE SET v = 9", "a b"},
	{"a CTE", "items", "WITH gone AS (DELETE FROM items WHERE id = 1 RETURNING *) SELECT count(*) FROM gone", "a"},
	{"UPDATE FROM", "items", "UPDATE items SET v = 9 FROM (VALUES (1)) x(id) WHERE items.id = x.id", "a"},
	{"a view", "items", "UPDATE items_view SET v = 9 WHERE id = 1", "a"},
	{"another trigger's write", "items", "INSERT INTO follows VALUES (1)", "a"},
	{"a row that a BEFORE trigger moves", "moved", "INSERT INTO moved VALUES (9, 'a')", "z"},
	{"a row that a BEFORE trigger moves away", "moved", "UPDATE moved SET id = 9 WHERE tenant = 'b'", "b z"},
	{"a function of the owner's", "items", "SELECT touch(1)", "a"},
	{"replica mode", "items", "DO $$ BEGIN SET LOCAL session_replication_role = replica; UPDATE items SET v = 9 WHERE id = 1; END $$", "a"},
	{"a savepoint", "items", "DO $$ BEGIN BEGIN UPDATE items SET v = 8 WHERE id = 1; RAISE 'x' USING ERRCODE = '22012'; EXCEPTION WHEN division_by_zero THEN NULL; END; UPDATE items SET v = 9 WHERE id = 1; END $$", "a"},
	{"partitioned INSERT", "parts", "INSERT INTO parts VALUES (9, 'a', 9)", "a"},
	{"partitioned UPDATE", "parts", "UPDATE parts SET v = 9 WHERE id = 1", "a"},
	{"UPDATE that moves to another partition", "parts", "UPDATE parts SET id = 150 WHERE id = 1", "a"},
	{"UPDATE that moves to another partition and resource", "parts", "UPDATE parts SET id = 150, tenant = 'c' WHERE id = 1", "a c"},
	{"partitioned DELETE", "parts", "DELETE FROM parts WHERE id = 1", "a"},
	{"INSERT into a partition", "parts", "INSERT INTO parts_low VALUES (9, 'a', 9)", "a"},
	{"UPDATE of a partition", "parts", "UPDATE parts_low SET v = 9 WHERE id = 1", "a"},
	{"DELETE from a partition", "parts", "DELETE FROM parts_low WHERE id = 1", "a"},
	{"UPDATE of a partition of a partition", "parts", "UPDATE parts_high_a SET v = 9", "b"},
	{"inherited UPDATE", "family", "UPDATE family SET v = 9", "a b"},
	{"UPDATE of the child", "family", "UPDATE child SET v = 9", "b"},
	{"INSERT into the child", "family", "INSERT INTO child VALUES (9, 'b', 9)", "b"},
	{"ON DELETE CASCADE", "lines", "DELETE FROM orders WHERE id = 1", "a"},
	{"ON UPDATE CASCADE", "lines", "UPDATE orders SET id = 9 WHERE id = 1", "a"},
	{"ON DELETE CASCADE of two resources", "lines", "DELETE FROM orders", "a b"},
	{"TRUNCATE of one resource", "whole", "TRUNCATE whole", "all:of:it"},
	{"INSERT of one resource", "whole", "INSERT INTO whole VALUES (9)", "all:of:it"},
	{"TRUNCATE CASCADE", "whole", "TRUNCATE whole_parent CASCADE", "all:of:it"},
}

const writersSQL = `
	CREATE TABLE items (id int PRIMARY KEY, tenant text NOT NULL, v int NOT NULL);
	INSERT INTO items VALUES (1, 'a', 0), (2, 'b', 0);
	CREATE VIEW items_view AS SELECT * FROM items;
	CREATE TABLE follows (id int);
	CREATE FUNCTION touch(p int) RETURNS void LANGUAGE sql SECURITY DEFINER AS 'UPDATE items SET v = 9 WHERE id = p';
	CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE items SET v = 9 WHERE id = NEW.id; RETURN NEW; END';
	CREATE TRIGGER follow AFTER INSERT ON follows FOR EACH ROW EXECUTE FUNCTION follow();
	CREATE TABLE moved (id int PRIMARY KEY, tenant text NOT NULL);
	INSERT INTO moved VALUES (1, 'b');
	CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.tenant := ''z''; RETURN NEW; END';
	CREATE TRIGGER zzz_last BEFORE INSERT OR UPDATE ON moved FOR EACH ROW EXECUTE FUNCTION move();
	CREATE TABLE parts (id int, tenant text NOT NULL, v int NOT NULL) PARTITION BY RANGE (id);
	CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
	CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (1000) PARTITION BY RANGE (id);
	CREATE TABLE parts_high_a (v int NOT NULL, extra int, tenant text NOT NULL, id int);
	ALTER TABLE parts_high_a DROP extra;
	ALTER TABLE parts_high ATTACH PARTITION parts_high_a FOR VALUES FROM (100) TO (200);
	INSERT INTO parts VALUES (1, 'a', 0), (101, 'b', 0);
	CREATE TABLE family (id int, tenant text NOT NULL, v int NOT NULL);
	CREATE TABLE child () INHERITS (family);
	INSERT INTO family VALUES (1, 'a', 0); INSERT INTO child VALUES (2, 'b', 0);
	CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2), (3);
	CREATE TABLE lines (id int REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, tenant text NOT NULL, v int NOT NULL);
	INSERT INTO lines VALUES (1, 'a', 0), (2, 'b', 0);
	CREATE TABLE whole_parent (id int PRIMARY KEY);
	CREATE TABLE whole (id int REFERENCES whole_parent); INSERT INTO whole_parent VALUES (1), (9); INSERT INTO whole VALUES (1);`

// guardWriters makes the tables of writers and guards them.
func (e *env) guardWriters() {
	e.exec(writersSQL)
	for _, table := range []string{"items", "moved", "parts", "family", "lines"} {
		e.guardBy(table, `{tenant}`)
	}
	e.guardBy("whole", `all:of:it`)
	e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) SELECT unnest(ARRAY['a', 'b', 'c', 'z', 'all:of:it']), 5, 'lease-5'")
}

// contents returns everything that the writers could change.
const contents = `SELECT concat((SELECT json_agg(x ORDER BY id) FROM items x), (SELECT json_agg(x ORDER BY id) FROM moved x), (SELECT json_agg(x ORDER BY id) FROM parts x),
	(SELECT json_agg(x ORDER BY id) FROM family x), (SELECT json_agg(x ORDER BY id) FROM lines x), (SELECT json_agg(x ORDER BY id) FROM whole x))`

// TestEveryWriterIsRefused (P1, P4, P5, P6): whatever the way to write a
// guarded table, without a claim, under a lower token, another lease, or a
// claim for another resource it is refused for that reason and changes nothing;
// under the current claims it succeeds. The control: with the triggers disabled
// it succeeds without any claim.
func TestEveryWriterIsRefused(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		before := e.text(contents)
		cases := writers
		if e.int("SELECT current_setting('server_version_num')::int") >= 150000 {
			w := cases[0]
			w.name, w.resources = "MERGE", "a b c"
			w.sql = `MERGE INTO items USING (VALUES (1, 'z'), (2, 'z'), (9, 'c')) x(id, tenant) ON items.id = x.id
				WHEN MATCHED AND x.id = 1 THEN UPDATE SET v = 9 WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (x.id, x.tenant, 9)`
			cases = append(cases[:len(cases):len(cases)], w)
		}
		for _, w := range cases {
			resources := strings.Fields(w.resources)
			claims := func(token guard.Token) (all []guard.Claim) {
				for _, r := range resources {
					all = append(all, claimOf(r, token))
				}
				return all
			}
			refused := func(what string, want guard.Reason, claims ...guard.Claim) {
				t.Helper()
				wantReason(t, e.presenting(w.sql, claims...), want, "%s %s", w.name, what)
				if after := e.text(contents); after != before {
					t.Fatalf("%s %s: %s, it was %s", w.name, what, after, before)
				}
			}
			refused("without a claim", guard.ReasonMissing)
			refused("under another resource's claim", guard.ReasonMissing, claimOf("q", 5))
			for i := range resources { // one of the claims is not enough
				some := claims(5)
				some[i].Token = 4
				refused("under a lower token", guard.ReasonStale, some...)
				some[i].Token, some[i].LeaseID = 5, "other"
				refused("under another lease", guard.ReasonConflict, some...)
				some[i].Token = 6
				refused("under a claim above the mark", guard.ReasonUnavailable, some...)
				refused("under all but one claim", guard.ReasonMissing, append(claims(5)[:i:i], claims(5)[i+1:]...)...)
			}
			e.carriedOut(t, w.name, w.sql, before, true, claims(5)...)
			e.carriedOut(t, w.name+" without triggers, the control", w.sql, before, false)
		}
	})
}

// carriedOut runs SQL, checks that it changes something, and undoes it.
func (e *env) carriedOut(t *testing.T, what, sql, before string, triggers bool, claims ...guard.Claim) {
	t.Helper()
	undo := fmt.Errorf("undo")
	err := e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
		if !triggers {
			const off = `DO $$ DECLARE r record; BEGIN FOR r IN SELECT tgrelid::regclass AS t, tgname FROM pg_trigger WHERE tgname LIKE 'fencepost%' LOOP
				EXECUTE format('ALTER TABLE ONLY %s DISABLE TRIGGER %I', r.t, r.tgname); END LOOP; END $$`
			if _, err := tx.exec(ctx, off); err != nil {
				return err
			}
		} else if err := tx.present(ctx, claims...); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, sql); err != nil {
			return err
		}
		if same, err := tx.int(ctx, "SELECT (("+contents+") = $1::text)::int", before); err != nil || same == 1 {
			t.Errorf("%s changed nothing, %v", what, err)
		}
		return undo
	})
	if err != undo {
		t.Errorf("%s: %v", what, err)
	}
}
