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
	CREATE TABLE unfit (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0, lease text NOT NULL DEFAULT '', deleted_at timestamptz, changed timestamptz);
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

// TestVerifyUndoing: what silently undoes the mark of a row after a statement
// was counted as written, and an unsuitable deleted column.
func TestVerifyUndoing(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		v := Verification{WithoutSchema: true, Tables: []*Table{e.table("unfit", []string{"id"}, &TableOptions{LeaseColumn: "lease", DeletedColumn: "deleted_at"})}}
		e.exec(unfitSQL)
		e.wantFindings("a good table", v)
		e.exec("CREATE RULE off AS ON UPDATE TO unfit DO INSTEAD NOTHING; ALTER TABLE unfit DISABLE RULE off; CREATE RULE away AS ON DELETE TO unfit DO ALSO NOTHING")
		e.wantFindings("a rule that is off and one for deletions, which the first use refuses as well", v, "it has rules")
		e.exec("DROP RULE off ON unfit; DROP RULE away ON unfit")
		for _, c := range []struct{ do, undo, says string }{
			{"ALTER TABLE unfit SET UNLOGGED", "ALTER TABLE unfit SET LOGGED", "it is unlogged"},
			{"CREATE RULE away AS ON UPDATE TO unfit DO INSTEAD NOTHING", "DROP RULE away ON unfit", "it has rules"},
			{"CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep()", "DROP TRIGGER keep ON unfit", "the trigger keep runs before the row is written and puts a value of its own into the column last_fencing_token"},
			{"CREATE TRIGGER keep BEFORE INSERT ON unfit FOR EACH ROW EXECUTE FUNCTION keep_lease()", "DROP TRIGGER keep ON unfit", "into the column lease,"},
			{"CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION look('id', 'last_fencing_token')", "DROP TRIGGER keep ON unfit", "into the column last_fencing_token"},
			{"ALTER TABLE unfit ALTER deleted_at SET DEFAULT now(), ALTER deleted_at SET NOT NULL", "", "every row counts as deleted"},
			{"ALTER TABLE unfit ALTER deleted_at TYPE timestamp", "", "deleted column deleted_at is of type timestamp without time zone"},
			{"ALTER TABLE unfit DROP deleted_at", "", "deleted column deleted_at is missing"},
			{"ALTER TABLE unfit DROP lease; ALTER TABLE unfit ADD lease text NOT NULL GENERATED ALWAYS AS ('x') STORED", "", "column lease is generated"},
			{"ALTER TABLE unfit ALTER last_fencing_token DROP DEFAULT, ALTER last_fencing_token ADD GENERATED ALWAYS AS IDENTITY", "", "column last_fencing_token is generated"},
		} {
			if c.do == "ALTER TABLE unfit ALTER deleted_at SET DEFAULT now(), ALTER deleted_at SET NOT NULL" {
				e.exec("UPDATE unfit SET deleted_at = now()")
			}
			e.exec(c.do)
			found, err := e.db.Verify(t.Context(), v)
			if err != nil || len(found) != 1 || !strings.Contains(fmt.Sprint(found), c.says) {
				t.Errorf("%s: %v, %v, want %q", c.do, found, err, c.says)
			}
			if c.undo == "" {
				c.undo = "DROP TABLE unfit; DROP FUNCTION stamp, look, keep, keep_lease; " + unfitSQL
			}
			e.exec(c.undo)
		}
	})
}

// TestVerifyUnlogged (P1): a crash empties an unlogged table and what it has of
// marks, also if it is a partition, at any depth, or schema fencepost's own.
func TestVerifyUnlogged(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.exec(`CREATE TABLE parted (id int PRIMARY KEY, last_fencing_token bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
			CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (10);
			CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (10) TO (30) PARTITION BY RANGE (id);
			CREATE TABLE parted_higher PARTITION OF parted_high FOR VALUES FROM (20) TO (30)`)
		v := Verification{Tables: []*Table{e.table("parted", []string{"id"}, nil)}}
		e.wantFindings("all logged", v)
		for _, c := range []struct{ table, says string }{
			{"parted_low", "public.parted_low: it is unlogged"},
			{"parted_higher", "public.parted_higher: it is unlogged"},
			{"fencepost.marks", "table fencepost.marks: is unlogged"},
		} {
			e.exec("ALTER TABLE " + c.table + " SET UNLOGGED")
			e.wantFindings(c.table, v, c.says)
			e.exec("ALTER TABLE " + c.table + " SET LOGGED")
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
