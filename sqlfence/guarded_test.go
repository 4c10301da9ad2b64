package sqlfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
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

// guardBy puts a table under triggers.
func (e *env) guardBy(table, template string) Trigger {
	e.Helper()
	g := triggerOn([]string{table}, template)
	must(e, e.db.InstallTrigger(context.Background(), g))
	return g
}

// presenting runs SQL in the application's own transaction that presents
// claims, and returns guard's error for the result.
func (e *env) presenting(sql string, claims ...guard.Claim) error {
	return presenting(e.db, sql, claims...)
}

func presenting(db fence, sql string, claims ...guard.Claim) error {
	return ErrorFrom(db.plain(context.Background(), inTurn(presents(claims...), running(sql))))
}

// writers are ways to write a guarded table: items is plain, parts has two
// partitions, family a child, and lines follows orders by foreign keys. The forms of
// a statement and the shapes of a table are those of TestEveryRowIsSeen.
var writers = []struct {
	name, table, sql string
	resources        string // the resources that must be claimed
}{
	{"INSERT", "items", "INSERT INTO items VALUES (9, 'a', 9)", "a"},
	{"UPDATE", "items", "UPDATE items SET v = 9 WHERE id = 1", "a"},
	{"UPDATE of two resources", "items", "UPDATE items SET v = 9", "a b"},
	{"UPDATE of the resource", "items", "UPDATE items SET tenant = 'c' WHERE id = 1", "a c"},
	{"UPDATE of the key", "items", "UPDATE items SET id = 9 WHERE id = 1", "a"},
	{"DELETE", "items", "DELETE FROM items WHERE id = 1", "a"},
	{"another trigger's write", "items", "INSERT INTO follows VALUES (1)", "a"},
	{"a row that a BEFORE trigger moves", "moved", "INSERT INTO moved VALUES (9, 'a')", "z"},
	{"a row that a BEFORE trigger moves away", "moved", "UPDATE moved SET id = 9 WHERE tenant = 'b'", "b z"},
	{"a function of the owner's", "items", "SELECT touch(1)", "a"},
	{"replica mode", "items", "DO $$ BEGIN SET LOCAL session_replication_role = replica; UPDATE items SET v = 9 WHERE id = 1; END $$", "a"},
	{"UPDATE that moves to another partition and resource", "parts", "UPDATE parts SET id = 150, tenant = 'c' WHERE id = 1", "a c"},
	{"UPDATE of a partition of a partition", "parts", "UPDATE parts_high_a SET v = 9", "b"},
	{"inherited UPDATE", "family", "UPDATE family SET v = 9", "a b"},
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
	e := someEnv(t)
	e.guardWriters()
	before := e.text(contents)
	for _, w := range writers {
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

// TestRefusal (P6): the error of a trigger or function has its reason however it is
// wrapped, and names the way out of a claim above the mark or of none; other errors are
// left unchanged. TestExecModesOfTheSchema has the facts.
func TestRefusal(t *testing.T) {
	refused := func(code, detail string) error {
		return fmt.Errorf("orm: %w", &pgconn.PgError{Severity: "ERROR", Code: code, Message: "refused", Detail: detail})
	}
	for state, want := range map[string]guard.Reason{
		pgerr.Stale: guard.ReasonStale, pgerr.Conflict: guard.ReasonConflict, pgerr.MustRaise: guard.ReasonUnavailable,
		pgerr.Serialization: guard.ReasonUnavailable, pgerr.Deadlock: guard.ReasonUnavailable,
	} {
		err := refused(state, "")
		got := ErrorFrom(err)
		if wantReason(t, got, want, state); !errors.Is(got, err) || strings.Contains(got.Error(), "raise the mark first") != (state == pgerr.MustRaise) {
			t.Errorf("%s: %v", state, got)
		}
	}
	missing := refused(pgerr.Missing, `{"resource":"r\u0007","table":"public.t"}`)
	if got := ErrorFrom(missing); !errors.Is(got, guard.ErrMissing) || !errors.Is(got, guard.ErrInvalid) || !errors.Is(got, missing) ||
		got.Error() != `sqlfence: guarded write: fencepost: claim for "r\a" is missing (InTx and Enter present theirs): `+missing.Error() {
		t.Errorf("got %v", got)
	}
	known := guard.Unavailable("x", guard.Claim{}, refused(pgerr.Stale, ""))
	for _, err := range []error{nil, refused("23505", ""), errInjected, context.Canceled, known} {
		if got := ErrorFrom(err); got != err {
			t.Errorf("%v: got %v", err, got)
		}
	}
}

// TestPresent: claims accumulate in a transaction, one for the same resource
// replaces the other, and InTx presents its own; a malformed one is
// refused before anything is sent.
func TestPresent(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(writersSQL)
		e.guardBy("items", `{tenant}`)
		e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('a', 5, 'lease-5'), ('b', 7, 'lease-7')")
		const both = "UPDATE items SET v = v + 1"
		noError(t, e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "a malformed claim", tx.present(ctx, claimOf("a", 5), guard.Claim{Resource: "b"}), "token", "")
			return inTurn(presents(), presents(claimOf("a", 4)), presents(claimOf("b", 7), claimOf("a", 5)), running(both))(ctx, tx)
		}))
		inTx := func(add ...guard.Claim) error {
			return ErrorFrom(e.db.fenced(t.Context(), claimOf("a", 5), inTurn(presents(add...), running(both))))
		}
		wantReason(t, inTx(), guard.ReasonMissing, "one of two claims")
		noError(t, inTx(claimOf("b", 7)), "both claims")
		e.wantInt(4, "the sum", "SELECT sum(v) FROM items")
	})
}

// TestEnteringPresents: every way to enter a transaction presents its claims to the
// triggers. A writer that does not enter is refused.
func TestEnteringPresents(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec(writersSQL)
		e.guardBy("items", `{tenant}`)
		claims := []guard.Claim{claimOf("b", 7), claimOf("a", 5)}
		const both = "UPDATE items SET v = v + 1"
		write := running(both)
		ways := func(db fence) map[string]error {
			all := map[string]error{}
			for _, level := range []Isolation{ReadCommitted, RepeatableRead, Serializable} {
				all["InTxAll "+level.String()] = db.fencedAll(t.Context(), claims, &TxOptions{Isolation: level}, write)
			}
			_, all["Exec"] = db.fencedExec(t.Context(), claims[1], both+" WHERE tenant = $1", "a")
			all["Enter"] = db.plain(t.Context(), inTurn(enters(claims...), write))
			all["Enter beside what was presented"] = db.plain(t.Context(), inTurn(presents(claims[1]), enters(claims[0]), write))
			return all
		}
		for way, err := range ways(e.db) {
			noError(t, err, "%s", way)
		}
		wantReason(t, ErrorFrom(e.db.unfenced(t.Context(), both)), guard.ReasonMissing, "none of them")
	})
}

// TestMalformedClaims (P5, P6): whatever is in the setting that triggers read, tokens in
// another spelling included, nothing is written, and a malformed claim is not mistaken for a stale one.
func TestMalformedClaims(t *testing.T) {
	e := someEnv(t)
	e.exec(writersSQL)
	e.guardBy("items", `{tenant}`)
	e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('a', 5, 'lease-5'), ('b', 9223372036854775806, '')")
	before := e.text(contents)
	for claims, want := range map[string]guard.Reason{
		`[]`: guard.ReasonMissing, `[null, 1, "a", ["a"], {}]`: guard.ReasonMissing,
		`[{"resource":"A","token":"5","leaseId":"lease-5"}]`:   guard.ReasonMissing,
		`[{"resource":["a"],"token":"5","leaseId":"lease-5"}]`: guard.ReasonMissing,
		``: guard.ReasonInvalid, `{`: guard.ReasonInvalid, `null`: guard.ReasonInvalid, `5`: guard.ReasonInvalid, `{"resource":"a","token":"5"}`: guard.ReasonInvalid,
		`[{"resource":"a"}]`: guard.ReasonInvalid, `[{"resource":"a","token":null}]`: guard.ReasonInvalid,
		`[{"resource":"a","token":"x"}]`: guard.ReasonInvalid, `[{"resource":"a","token":"5.0"}]`: guard.ReasonInvalid, `[{"resource":"a","token":{}}]`: guard.ReasonInvalid,
		`[{"resource":"a","token":"05"}]`: guard.ReasonInvalid, `[{"resource":"a","token":" 5 "}]`: guard.ReasonInvalid, `[{"resource":"a","token":"5e0"}]`: guard.ReasonInvalid,
		`[{"resource":"a","token":"9223372036854775806"}]`: guard.ReasonUnavailable, // the highest there is
		`[{"resource":"a","token":"9223372036854775807"}]`: guard.ReasonInvalid, `[{"resource":"a","token":"9999999999999999999"}]`: guard.ReasonInvalid,
		`[{"resource":"a","token":"0"}]`: guard.ReasonInvalid, `[{"resource":"a","token":"-5"}]`: guard.ReasonInvalid,
		`[{"resource":"a","token":"5"}]`: guard.ReasonConflict, `[{"resource":"a","token":5,"leaseId":"LEASE-5"}]`: guard.ReasonConflict,
		`[{"resource":"a","token":"4"},{"resource":"a","token":"5","leaseId":"lease-5"}]`: guard.ReasonStale,
	} {
		wantReason(t, ErrorFrom(e.db.plain(t.Context(), inTurn(running("SELECT set_config('fencepost.claims', concat(pg_current_xact_id(), ' ', $1::text), true)", claims),
			running("UPDATE items SET v = 9 WHERE id = 1")))), want, "%s", claims)
		if after := e.text(contents); after != before {
			t.Fatalf("%s wrote %s", claims, after)
		}
	}
	noError(t, e.presenting("UPDATE items SET v = 9 WHERE id = 2", guard.Claim{Resource: "b", Token: guard.MaxToken}), "the highest token")
	// The server runs it as READ COMMITTED, but no other function takes it as that.
	err := e.db.plain(t.Context(), running(`SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
		SELECT fencepost.present('a', 5, 'lease-5'); UPDATE items SET v = 9 WHERE id = 1`))
	if pgerr.State(err) != pgerr.Isolation || !strings.Contains(err.Error(), "must be READ COMMITTED or") {
		t.Errorf("read uncommitted: %v", err)
	}
}

// TestStatementsAfterDDL (P5, P6): a statement that was prepared before a
// column's type changed is refused by the server. That is ErrUnavailable,
// writes nothing, and is temporary.
func TestStatementsAfterDDL(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		name := "n_" + e.driver // the process remembers the statement
		e.exec("CREATE TABLE " + name + " (id int PRIMARY KEY, v int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO " + name + " VALUES (1, 7)")
		table := e.table(name, []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		db := e.single()
		var v any
		take := func() error {
			return table.Raise(t.Context(), db, claimOf("n", 5), Key{1}, Dest{"v": &v})
		}
		must(t, take())
		e.exec("UPDATE " + name + " SET last_fencing_token = 4; ALTER TABLE " + name + " ALTER v TYPE text")
		wantSays(t, take(), guard.ReasonUnavailable, "cached plan")
		e.wantInt(4, "the mark", "SELECT last_fencing_token FROM "+name)
		if err := take(); err != nil || v != "7" {
			t.Errorf("again: %v, %v", v, err)
		}
	})
}

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

// psql runs a script and returns what it wrote. It goes on after an error, and ok
// is whether there was none.
func (e *env) psql(t *testing.T, script string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, findPSQL(t), "--no-psqlrc", "--set=VERBOSITY=verbose", "--quiet", "--dbname="+e.url)
	cmd.Stdin = strings.NewReader(script)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return b.String(), err == nil && !strings.Contains(b.String(), "ERROR:")
}

// TestErrorFromInAnyLanguage (P6): what a function of the schema says of malformed input is
// recognised whatever the server's language, and a statement of the caller's that fails beside
// a call of one is not.
func TestErrorFromInAnyLanguage(t *testing.T) {
	for where, want := range map[string]guard.Reason{
		"JSON data, line 1: {\nPL/pgSQL function fencepost.presented(text,text) line 7 at SQL statement": guard.ReasonInvalid,
		"PL/pgSQL-Funktion fencepost.presented(text,text) Zeile 7 bei SQL-Anweisung":                     guard.ReasonInvalid,
		"fonction PL/pgSQL fencepost.guard_invoices_1(), ligne 7, à instruction SQL":                     guard.ReasonInvalid,
		"PL/pgSQL関数fencepost.present(text,bigint,text)の7行目 - SQL文":                                       guard.ReasonInvalid,
		"SQL statement \"SELECT fencepost.present($1, 'x'::bigint, '')\"":                                guard.ReasonOther,
		"PL/pgSQL function public.presented(text,text) line 7 at SQL statement":                          guard.ReasonOther,
		"": guard.ReasonOther,
	} {
		err := &pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: "m", Where: where}
		if got := ErrorFrom(err); guard.ReasonOf(got) != want || !errors.Is(got, err) {
			t.Errorf("%q: got %v, want %s", where, got, want)
		}
	}
}
