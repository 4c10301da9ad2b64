package sqlfence

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// unfitSQL is a correct table, with triggers that leave its mark alone: one
// that only reads it, and those that every table has.
const unfitSQL = `
	CREATE TABLE unfit (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '', deleted_at timestamptz, changed timestamptz, a text, b text);
	CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.changed := now(); RETURN NEW; END $$;
	CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.last_fencing_token < OLD.last_fencing_token OR NEW.lease = 'x' THEN RAISE EXCEPTION 'late'; END IF; RETURN NEW; END $$;
	CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.last_fencing_token := OLD.last_fencing_token; RETURN NEW; END $$;
	CREATE FUNCTION keep_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.v := 1;
		new."lease" = OLD.lease; RETURN NEW; END $$;
	CREATE TRIGGER stamp BEFORE INSERT OR UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION stamp();
	CREATE TRIGGER look BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION look('some', 'thing');
	CREATE TRIGGER late AFTER UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep();
	INSERT INTO unfit VALUES (1, 0)`

// TestVerifyTable (P1): what single statements need from a table, and what silently
// undoes the mark of a row after a statement was counted as written.
func TestVerifyTable(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		verify := func(name string, key ...string) Verification {
			return Verification{WithoutSchema: true, Tables: []*Table{e.table(name, key, &TableOptions{LeaseColumn: "lease", DeletedColumn: "deleted_at"})}}
		}
		const again = `DO $$ BEGIN EXECUTE (SELECT string_agg(format('DROP %s IF EXISTS %s CASCADE', CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass), '; ' ORDER BY relkind DESC)
			FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('v', 'r')); END $$;
			DROP FUNCTION stamp, look, keep, keep_lease; ` + unfitSQL
		e.exec(unfitSQL + "; CREATE UNIQUE INDEX ON unfit (a)")
		e.wantFindings("a good table", verify("unfit", "id"))
		e.wantFindings("a key that includes a unique one", verify("unfit", "b", "a"))
		for _, c := range []struct{ sql, says string }{
			{"ALTER TABLE unfit ALTER last_fencing_token DROP NOT NULL", "may be NULL"},
			{"ALTER TABLE unfit ALTER last_fencing_token TYPE int", "of type integer and must be bigint"},
			{"ALTER TABLE unfit ALTER last_fencing_token DROP DEFAULT, ALTER last_fencing_token ADD GENERATED ALWAYS AS IDENTITY", "column last_fencing_token is generated"},
			{"CREATE INDEX tok ON unfit (b, last_fencing_token)", "in index public.tok, which turns every update"},
			{"CREATE INDEX tok ON unfit ((last_fencing_token + 1))", "in index public.tok"},
			{"CREATE INDEX tok ON unfit (b) WHERE last_fencing_token > 0", "in index public.tok"},
			{"CREATE INDEX tok ON unfit (b) INCLUDE (last_fencing_token)", "in index public.tok"},
			{"ALTER TABLE unfit RENAME last_fencing_token TO other", "token column last_fencing_token is missing"},
			{"ALTER TABLE unfit ALTER lease DROP NOT NULL", "lease column lease may be NULL"},
			{"ALTER TABLE unfit ALTER lease TYPE varchar(3)", "lease column lease is of type character varying(3)"},
			{"ALTER TABLE unfit DROP lease", "lease column lease is missing"},
			{"ALTER TABLE unfit DROP lease; ALTER TABLE unfit ADD lease text NOT NULL GENERATED ALWAYS AS ('x') STORED", "column lease is generated"},
			{"UPDATE unfit SET deleted_at = now(); ALTER TABLE unfit ALTER deleted_at SET DEFAULT now(), ALTER deleted_at SET NOT NULL", "every row counts as deleted"},
			{"ALTER TABLE unfit ALTER deleted_at TYPE timestamp", "deleted column deleted_at is of type timestamp without time zone"},
			{"ALTER TABLE unfit DROP deleted_at", "deleted column deleted_at is missing"},
			{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey", "no unique index covers the key (id)"},
			{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey, ADD UNIQUE (id) DEFERRABLE", "no unique index covers the key (id)"},
			{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey; CREATE UNIQUE INDEX ON unfit (id, b)", "no unique index covers the key (id)"},
			{"ALTER TABLE unfit DROP CONSTRAINT unfit_pkey; CREATE UNIQUE INDEX ON unfit (id) WHERE b > ''", "no unique index covers the key (id)"},
			{"ALTER TABLE unfit DROP id", "key column id is missing"},
			{"CREATE TABLE unfit_child () INHERITS (unfit)", "inheritance children"},
			{"ALTER TABLE unfit RENAME TO other", "the table does not exist"},
			{"ALTER TABLE unfit RENAME TO other; CREATE VIEW unfit AS SELECT * FROM other", "is or has a view"},
			{"ALTER TABLE unfit SET UNLOGGED", "it is unlogged"},
			{"CREATE RULE away AS ON UPDATE TO unfit DO INSTEAD NOTHING", "it has rules"},
			// These the first use refuses as well.
			{"CREATE RULE off AS ON UPDATE TO unfit DO INSTEAD NOTHING; ALTER TABLE unfit DISABLE RULE off", "it has rules"},
			{"CREATE RULE away AS ON DELETE TO unfit DO ALSO NOTHING", "it has rules"},
			{"CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep()", "the trigger keep runs before the row is written and puts a value of its own into the column last_fencing_token"},
			{"CREATE TRIGGER keep BEFORE INSERT ON unfit FOR EACH ROW EXECUTE FUNCTION keep_lease()", "into the column lease,"},
			{"CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION look('id', 'last_fencing_token')", "into the column last_fencing_token"},
		} {
			e.exec(again)
			e.wantFindings("again", verify("unfit", "id"))
			e.exec(c.sql)
			found, err := e.db.Verify(t.Context(), verify("unfit", "id"))
			if err != nil || len(found) == 0 || !strings.Contains(fmt.Sprint(found), c.says) {
				t.Errorf("%s: %v, %v, want %q", c.sql, found, err, c.says)
			}
		}
		// Partitions, at any depth, and schema fencepost's own: a crash empties an
		// unlogged table and what it has of marks.
		e.exec(`CREATE TABLE parted (id int PRIMARY KEY, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
			CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10);
			CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
			CREATE TABLE parted_higher PARTITION OF parted_high FOR VALUES FROM (20) TO (30)`)
		parted := Verification{Tables: []*Table{e.table("parted", []string{"id"}, nil)}}
		e.wantDrifts(parted, []drift{
			{"ALTER TABLE parted_low SET UNLOGGED", "ALTER TABLE parted_low SET LOGGED", "public.parted_low: it is unlogged"},
			{"ALTER TABLE parted_higher SET UNLOGGED", "ALTER TABLE parted_higher SET LOGGED", "public.parted_higher: it is unlogged"},
			{"ALTER TABLE fencepost.marks SET UNLOGGED", "ALTER TABLE fencepost.marks SET LOGGED", "table fencepost.marks: is unlogged"},
		})
		e.exec(`CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing; CREATE TABLE far (id int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY LIST (id);
			CREATE FOREIGN TABLE far_1 PARTITION OF far FOR VALUES IN (1) SERVER nowhere`)
		found, err := e.db.Verify(t.Context(), Verification{WithoutSchema: true, Tables: []*Table{e.table("far", []string{"id"}, nil)}})
		if err != nil || !strings.Contains(fmt.Sprint(found), "foreign table") {
			t.Errorf("a foreign partition: %v, %v", found, err)
		}
	})
}

// TestTakeoverUndone (P2, P5): a mark that a trigger undoes was not raised,
// whatever the server counted; the control is the same table without it.
func TestTakeoverUndone(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(unfitSQL)
		for _, lease := range []string{"", "lease"} {
			table := e.table("unfit", []string{"id"}, &TableOptions{LeaseColumn: lease, Rule: guard.SameOrNewer})
			var v int
			var cause *guard.InvalidError
			take := func(token guard.Token) error {
				return table.Raise(t.Context(), e.db, claimOf("r", token), Key{1}, Dest{"v": &v})
			}
			must(t, take(5))
			function := "keep"
			if lease != "" {
				function = "keep_lease"
			}
			e.exec("CREATE TRIGGER undo BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION " + function + "()")
			if err := take(6); guard.ReasonOf(err) != guard.ReasonUnfenced || !errors.As(err, &cause) || !strings.Contains(cause.Error(), "trigger") {
				t.Errorf("with the trigger %s: got %v, want ErrUnfenced", function, err)
			}
			e.exec("DROP TRIGGER undo ON unfit")
			noError(t, take(7), "without it")
			e.exec("DELETE FROM unfit; INSERT INTO unfit VALUES (1, 0)")
		}
	})
}

// TestVerifyKeyColumns: key columns that the first use of a table refuses are found
// before it.
func TestVerifyKeyColumns(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE DOMAIN tenant AS text")
		table, err := sqlrow.NewTable([]string{"keyed"}, []string{"tenant", "no"}, template("{tenant}:{no:int}"), nil)
		must(t, err)
		for columns, says := range map[string]string{
			"tenant text, no int":                "",
			"tenant tenant, no bigint":           "",
			"tenant varchar(9), no smallint":     "",
			"tenant char(9), no int":             "tenant is character(9)",
			"tenant text COLLATE folded, no int": "tenant is text",
			"tenant uuid, no int":                "tenant is uuid",
			"tenant text, no text":               "no is text",
			"tenant date, no numeric":            "no is numeric",
		} {
			e.exec("DROP TABLE IF EXISTS keyed; CREATE TABLE keyed (" + columns + ", last_fencing_token bigint NOT NULL DEFAULT 0, PRIMARY KEY (tenant, no))")
			found, err := e.db.Verify(t.Context(), Verification{WithoutSchema: true, Tables: []*Table{table}})
			if err != nil || (len(found) == 0) != (says == "") || len(found) > 1 || !strings.Contains(fmt.Sprint(found), says) {
				t.Errorf("%s: %v, %v, want %q", columns, found, err, says)
			}
		}
	})
}
