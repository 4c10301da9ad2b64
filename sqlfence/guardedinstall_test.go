package sqlfence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestInstallWaits: an installation and a removal wait for another installation,
// for five seconds at most.
func TestInstallWaits(t *testing.T) {
	e := someEnv(t)
	e.exec(writersSQL)
	g := triggerOn([]string{"parts"}, `acct:{tenant}`)
	const another = "SELECT pg_advisory_xact_lock(hashtextextended('fencepost.guarded', 0))"
	for _, c := range []struct {
		what string
		call func() error
	}{
		{"install", func() error { return e.db.InstallTrigger(context.Background(), g) }},
		{"remove", func() error { return e.db.RemoveTrigger(context.Background(), g.Table) }},
	} {
		tx := e.begin(another)
		called := e.start(func(func()) error { return c.call() })
		if len(called) > 0 {
			t.Errorf("%s does not wait", c.what)
		}
		tx.Rollback(t.Context())
		noError(t, <-called, "%s", c.what)
	}
	tx := e.begin(another)
	err := e.db.unfenced(t.Context(), "SELECT fencepost.install_guard('parts', $1::text::jsonb, false, 30)", `[{"text": "acct"}]`)
	wantState(t, err, pgerr.LockTimeout, "behind another installation")
	e.wantInt(0, "triggers", "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencepost%'")
	must(t, tx.Rollback(t.Context()))
	must(t, e.db.InstallTrigger(t.Context(), g))
	e.begin(another)
	noError(t, e.db.InstallTrigger(t.Context(), g), "with nothing to do")
	e.wantText("off", "jit in an installation", "SELECT current_setting('jit') FROM (SELECT fencepost.install_guard('parts', parts, false, 0) FROM fencepost.guarded OFFSET 0) AS installed")
}

// TestInstallAgainBesideAWriter (P6): an installation over older triggers waits for a
// transaction that has read the table and writes it next, and neither is ended as a
// deadlock.
func TestInstallAgainBesideAWriter(t *testing.T) {
	e := someEnv(t)
	e.exec(writersSQL)
	g := triggerOn([]string{"parts"}, `acct:{tenant}`)
	g.InsecureReportOnly = true
	must(t, e.db.InstallTrigger(t.Context(), g))
	g.InsecureReportOnly = false
	writer := e.begin("SELECT FROM parts")
	installed := e.start(func(func()) error { return e.db.InstallTrigger(context.Background(), g) })
	if len(installed) > 0 {
		t.Error("the installation does not wait")
	}
	_, err := writer.Exec(t.Context(), "DELETE FROM parts")
	if err == nil {
		err = writer.Commit(t.Context())
	}
	noError(t, err, "the writer")
	noError(t, <-installed, "the installation")
}

// TestInstallRights (P6): the owner of a table alone may not install triggers, and the
// error says who may. As a member of the schema's owner it may, and may remove them. So
// it is with the roles, and a role that may not migrate is told what it lacks.
func TestInstallRights(t *testing.T) {
	e := someEnv(t)
	role, db := e.as("tableowner")
	e.exec("CREATE TABLE own (tenant text NOT NULL); ALTER TABLE own OWNER TO " + role)
	install := func() error { return db.InstallTrigger(t.Context(), triggerOn([]string{"own"}, `{tenant}`)) }
	wantSays(t, install(), guard.ReasonSetup, "member of the role that owns schema fencepost", "without the schema")
	wantSays(t, db.MigrateRoles(t.Context(), nil), guard.ReasonSetup, "CREATEROLE", "roles")
	owner := e.newRole("fenceowner", "NOLOGIN")
	e.exec("GRANT " + owner + " TO " + role + "; ALTER SCHEMA fencepost OWNER TO " + owner)
	e.exec("DROP SCHEMA fencepost CASCADE")
	wantSays(t, db.Migrate(t.Context()), guard.ReasonSetup, "GRANT CREATE ON DATABASE", "migrate")
	e.exec("CREATE SCHEMA fencepost AUTHORIZATION " + owner + "; ALTER ROLE " + role + " SET ROLE " + owner)
	schemaOwner := e.open(nil, func(c *pgx.ConnConfig) { c.User, c.Password = role, "secret" })
	must(t, schemaOwner.Migrate(t.Context()))
	e.exec("ALTER ROLE " + role + " RESET ROLE")
	noError(t, install(), "as a member of the schema's owner")
	noError(t, db.RemoveTrigger(t.Context(), []string{"own"}), "remove")
}

// TestInstallConcurrently: replicas that install at once all succeed; the
// result is what one installation makes, and installing again changes nothing.
func TestInstallConcurrently(t *testing.T) {
	e := someEnv(t)
	e.exec(writersSQL)
	g := triggerOn([]string{"parts"}, `acct:{tenant}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			noError(t, e.db.InstallTrigger(context.Background(), g))
		})
	}
	wg.Wait()
	const state = `SELECT concat((SELECT string_agg(oid::text || xmin, ' ' ORDER BY oid) FROM pg_trigger WHERE tgname LIKE 'fencepost%'), (SELECT string_agg(xmin::text, '') FROM fencepost.guarded))`
	e.wantInt(4*4, "triggers", "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencepost%'")
	before := e.text(state)
	// A writer in flight does not delay an installation that has nothing to do.
	noError(t, e.db.fenced(t.Context(), claimOf("acct:a", 5), func(ctx context.Context, tx testTx) error {
		if _, err := tx.exec(ctx, "UPDATE parts SET v = 9 WHERE id = 1"); err != nil {
			return err
		}
		return e.db.InstallTrigger(ctx, g)
	}))
	e.wantText(before, "the triggers, installed again", state)
	// Another description replaces the old one; a removal removes
	// everything.
	g = triggerOn(g.Table, "{tenant}")
	for range 2 {
		must(t, e.db.InstallTrigger(t.Context(), g))
	}
	wantReason(t, e.presenting("UPDATE parts SET v = 9 WHERE id = 1", claimOf("acct:a", 5)), guard.ReasonMissing, "under the old description's claim")
	for range 2 {
		must(t, e.db.RemoveTrigger(t.Context(), g.Table))
	}
	e.wantInt(0, "something is left", "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencepost%') + (SELECT count(*) FROM fencepost.guarded) + (SELECT count(*) FROM pg_proc WHERE proname ~ '^guard_[0-9a-f]{32}$')")
	noError(t, e.presenting("UPDATE parts SET v = 9 WHERE id = 1"), "after the removal")
}

// TestTriggerSQL: the printed text installs the same, with names that need
// quoting, including a backslash.
func TestTriggerSQL(t *testing.T) {
	e := someEnv(t)
	e.exec(`CREATE SCHEMA "O'Brien"; CREATE TABLE "O'Brien"."a.""b\" (id int, "parts" text NOT NULL, "TG_OP" text NOT NULL)`)
	g := triggerOn([]string{"O'Brien", `a."b\`}, `{parts}:it's \ 100:{TG_OP}`)
	text, err := sqladmin.TriggerSQL(g)
	must(t, err)
	e.exec(text)
	e.wantFindings("the printed text", Verification{Triggers: []Trigger{g}})
	const write = `INSERT INTO "O'Brien"."a.""b\" VALUES (1, 'x:y', 'z')`
	wantSays(t, e.presenting(write), guard.ReasonMissing, `x%3Ay:it's \\ 100:z`)
	c := claimOf(`x%3Ay:it's \ 100:z`, 5)
	must(t, e.db.Raise(t.Context(), c))
	noError(t, e.presenting(write, c))
	text, err = sqladmin.RemoveTriggerSQL(g.Table)
	must(t, err)
	e.exec(text)
	noError(t, e.presenting(write), "after the printed removal")
}

// TestInvalidTriggers: a malformed description is refused before anything is sent,
// by the printed text, too.
func TestInvalidTriggers(t *testing.T) {
	admin := new(sqladmin.Admin)
	for what, c := range map[string]struct {
		trigger      Trigger
		field, shown string
	}{
		"no column for a variable": {triggerOn([]string{"a"}, "x:{tenant}", ""), "Trigger.Columns[tenant]", `""`},
		"NUL in a column":          {triggerOn([]string{"a"}, "{tenant}", "a\x00"), "Trigger.Columns[tenant]", `a\x00`},
		"three parts":              {triggerOn([]string{"a", "b", "c"}, "{tenant}"), "Trigger.Table", "a.b.c"},
		"no resource":              {Trigger{Table: []string{"a"}}, "Trigger.Resource", "nil"},
	} {
		wantInvalid(t, what, admin.InstallTrigger(t.Context(), c.trigger), c.field, c.shown)
		text, err := sqladmin.TriggerSQL(c.trigger)
		if wantInvalid(t, what, err, c.field, c.shown); text != "" {
			t.Errorf("%s: printed %s", what, text)
		}
	}
	wantInvalid(t, "removal, three parts", admin.RemoveTrigger(t.Context(), []string{"a", "b", "c"}), "Trigger.Table", "a.b.c")
}

// TestInstallRefuses: what cannot be fully guarded is refused with the reason,
// and nothing is created.
func TestInstallRefuses(t *testing.T) {
	e := someEnv(t)
	e.exec(writersSQL + `
		CREATE TYPE mood AS ENUM ('sad', 'ok');
		CREATE COLLATION fuzzy (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE types (a text NOT NULL, b varchar(9) NOT NULL, c bigint NOT NULL, d uuid NOT NULL, e mood NOT NULL, f boolean NOT NULL, n text,
			num numeric NOT NULL, day date NOT NULL, pad char(4) NOT NULL, at timestamptz NOT NULL, fuzz text COLLATE fuzzy NOT NULL);
		CREATE TABLE made (id int NOT NULL, k text GENERATED ALWAYS AS ('k' || id) STORED NOT NULL) PARTITION BY LIST (id);
		CREATE TABLE made_whole (id int NOT NULL, k text GENERATED ALWAYS AS ('k' || id) STORED NOT NULL);
		CREATE TABLE clash (a text NOT NULL); CREATE TRIGGER fencepost_update BEFORE INSERT ON clash FOR EACH ROW EXECUTE FUNCTION move();
		CREATE MATERIALIZED VIEW mat AS SELECT * FROM items;
		CREATE FOREIGN DATA WRAPPER none; CREATE SERVER away FOREIGN DATA WRAPPER none;
		CREATE FOREIGN TABLE far (id int, tenant text NOT NULL, v int NOT NULL) SERVER away;
		CREATE TABLE mixed (id int, tenant text NOT NULL, v int NOT NULL) PARTITION BY RANGE (id);
		CREATE FOREIGN TABLE mixed_far PARTITION OF mixed FOR VALUES FROM (0) TO (9) SERVER away`)
	column := func(c string) Trigger { return triggerOn(nil, "{v}", c) }
	long := strings.Repeat("x", 64)
	for _, c := range []struct {
		table   []string
		trigger Trigger
		says    string
	}{
		{[]string{"nothing"}, column("a"), "nothing"},
		{[]string{"types"}, column("nothing"), "no column nothing"},
		{[]string{"types"}, column("n"), "may be NULL"},
		{[]string{"types"}, column("num"), "GENERATED ALWAYS AS (num::text) STORED"},
		{[]string{"types"}, column("day"), "of type date"},
		{[]string{"types"}, column("pad"), "of type bpchar"},
		{[]string{"types"}, column("f"), "of type bool"},
		{[]string{"types"}, column("at"), "of type timestamptz"},
		{[]string{"types"}, column("fuzz"), "collation"},
		{[]string{"types"}, column("xmin"), "no column xmin"},
		{[]string{"items_view"}, column("tenant"), "not a table"},
		{[]string{"mat"}, column("tenant"), "not a table"},
		{[]string{"far"}, column("tenant"), "not a table"},
		{[]string{"mixed"}, column("tenant"), "foreign table"},
		{[]string{"made"}, column("k"), "generated"},
		{[]string{"parts_low"}, column("tenant"), "partition or child of public.parts"},
		{[]string{"child"}, column("tenant"), "partition or child of public.family"},
		{[]string{"clash"}, column("a"), "somebody else's"},
		{[]string{"fencepost", "marks"}, column("resource"), "not the application's"},
		{[]string{"pg_catalog", "pg_class"}, column("relname"), "not the application's"},
		{nil, column("a"), "1 to 3 parts"},
		{[]string{""}, column("a"), "must not be empty"},
		{[]string{long}, column("a"), "64 bytes"},
		{[]string{"a\x00b"}, column("a"), "NUL"},
		{[]string{"types"}, Trigger{Resource: column("a").Resource}, `"v": of template {v} is not bound`},
		{[]string{"types"}, Trigger{Resource: column("a").Resource, Columns: map[string]string{"v": "a", "w": "b"}}, `"w"`},
		{[]string{"types"}, triggerOn(nil, "{v:int}", "a"), "of type text, but the variable v of the template is of type int"},
		{[]string{"types"}, triggerOn(nil, "{v:int}", "d"), "of type uuid, but the variable v of the template is of type int"},
		{[]string{"types"}, triggerOn(nil, "{v:uuid}", "c"), "of type int8, but the variable v of the template is of type uuid"},
		{[]string{"types"}, column(long), "64 bytes"},
	} {
		c.trigger.Table = c.table
		err := e.db.InstallTrigger(t.Context(), c.trigger)
		wantSays(t, err, guard.ReasonInvalid, c.says, "%q by %v", c.table, c.trigger)
	}
	e.wantInt(0, "a refused installation made something", "SELECT (SELECT count(*) FROM fencepost.guarded) + (SELECT count(*) FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid WHERE proname ~ '^guard_')")
	for _, c := range []string{"a", "b", "c", "d", "e"} { // the control
		noError(t, e.db.InstallTrigger(t.Context(), triggerOn([]string{"types"}, "{v}", c)))
	}
	noError(t, e.db.InstallTrigger(t.Context(), triggerOn([]string{"made_whole"}, "{v}", "k")))
}

// TestReportOnly: nothing is refused, whatever is presented, and the server
// logs what would be; switching the triggers on refuses.
func TestReportOnly(t *testing.T) {
	e := someEnv(t)
	e.exec(writersSQL)
	g := e.guardBy("items", `{tenant}`)
	g.InsecureReportOnly = true
	must(t, e.db.InstallTrigger(t.Context(), g))
	e.putMark("a", guard.Mark{Token: 5, LeaseID: "lease-5"})
	config, err := pgx.ParseConfig(e.url)
	must(t, err)
	var states []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { states = append(states, n.Code) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	must(t, err)
	defer conn.Close(context.Background())
	// The warning's SQLSTATE, as a client sees it.
	warned := func(setting, sql string) string {
		states = nil
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("BEGIN; SELECT set_config('fencepost.claims', concat(pg_current_xact_id(), ' ', %s), true); %s; ROLLBACK", quoteText(cmp.Or(setting, "[]")), sql)); err != nil {
			t.Errorf("%s under %s: %v", sql, setting, err)
		}
		return strings.Join(states, " ")
	}
	const update = "UPDATE items SET v = 1 WHERE id = 1"
	for _, c := range []struct{ setting, sql, want string }{
		{"", update, "SF003"},
		{claimsSetting(claimOf("b", 5)), update, "SF003"},
		{claimsSetting(claimOf("a", 4)), update, "SF001"},
		{claimsSetting(guard.Claim{Resource: "a", Token: 5, LeaseID: "other"}), update, "SF002"},
		{claimsSetting(claimOf("a", 6)), update, "SF004"},
		{claimsSetting(claimOf("a", 5)), update, ""},
		{"not JSON", update, "22P02"},
		{"", "INSERT INTO items VALUES (9, '', 9)", "22023"},
		{"", "TRUNCATE items", "SF003"},
	} {
		if got := warned(c.setting, c.sql); got != c.want {
			t.Errorf("%s under %q: warned %q, want %q", c.sql, c.setting, got, c.want)
		}
	}
	refusals := func() map[guard.Reason]int64 {
		t.Helper()
		tables, err := e.db.Triggers(t.Context())
		if err != nil || len(tables) != 1 || len(tables[0].Findings) != 0 {
			t.Fatalf("%+v, %v", tables, err)
		}
		return tables[0].Refusals
	}
	// Each was counted although its transaction was rolled back.
	want := map[guard.Reason]int64{guard.ReasonStale: 1, guard.ReasonConflict: 1, guard.ReasonMissing: 3, guard.ReasonUnavailable: 1, guard.ReasonOther: 2}
	if got := refusals(); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	// Writers do not wait for each other's counting.
	open := e.begin("UPDATE items SET v = 2 WHERE id = 1")
	if got := warned("", "SET LOCAL lock_timeout = '5s'; UPDATE items SET v = 2 WHERE id = 2"); got != "SF003" {
		t.Errorf("beside another writer: warned %q", got)
	}
	must(t, open.Rollback(t.Context()))
	warnings := 0
	for range 200 {
		if warned("", update) != "" {
			warnings++
		}
	}
	if got := refusals()[guard.ReasonMissing]; got != 205 || warnings != 95 {
		t.Errorf("of %d writes without a claim the last 200 raised %d warnings", got, warnings)
	}
	e.exec(fmt.Sprintf("SELECT setval('fencepost.%s_missing', 999)", e.text("SELECT guard FROM fencepost.guarded")))
	if got := warned("", update) + warned("", update); got != "SF003" {
		t.Errorf("around the thousandth: warned %q", got)
	}
	e.wantFindings("report-only", Verification{Triggers: []Trigger{g}}, "report-only")
	// Without its counter it still refuses nothing, which is found and repaired.
	e.exec(fmt.Sprintf("DROP SEQUENCE fencepost.%s_missing", e.text("SELECT guard FROM fencepost.guarded")))
	if got := warned("", update); got != "SF003" {
		t.Errorf("without a counter: warned %q", got)
	}
	if found, err := e.db.Verify(t.Context(), Verification{Triggers: []Trigger{g}}); err != nil || !strings.Contains(fmt.Sprint(found), "counters") {
		t.Errorf("Verify: %v, %v", found, err)
	}
	if err := e.db.InstallTrigger(t.Context(), g); err != nil || refusals()[guard.ReasonMissing] != 0 {
		t.Errorf("installed again: %v, %v", err, refusals())
	}
	g.InsecureReportOnly = false
	must(t, e.db.InstallTrigger(t.Context(), g))
	wantReason(t, e.presenting(update), guard.ReasonMissing, "no longer report-only")
	if got := refusals(); got != nil {
		t.Errorf("enforcing, and counting %v", got)
	}
	must(t, e.db.RemoveTrigger(t.Context(), []string{"items"}))
	e.wantInt(0, "counters are left", "SELECT count(*) FROM pg_class WHERE relkind = 'S' AND relnamespace = 'fencepost'::regnamespace AND relname ~ '^guard_'")
}

// TestReportOnlyByAnother: report-only refuses nobody and counts, also if another role
// than the schema's owner switches it on, and if the counters cannot be used. A table
// that is dropped and made again leaves nothing of its triggers.
func TestReportOnlyByAnother(t *testing.T) {
	e := someEnv(t)
	role, owner := e.as("schemaowner")
	e.exec("DROP SCHEMA fencepost CASCADE; GRANT CREATE ON DATABASE " + e.text("SELECT quote_ident(current_database())") + " TO " + role + "; GRANT ALL ON SCHEMA public TO " + role)
	defer e.exec("DROP SCHEMA fencepost CASCADE")
	must(t, owner.Migrate(t.Context()))
	const write = "INSERT INTO own VALUES (1, 'a')"
	install := func(db fence, report bool) {
		t.Helper()
		g := triggerOn([]string{"own"}, `{tenant}`)
		g.InsecureReportOnly = report
		must(t, db.InstallTrigger(t.Context(), g))
	}
	for range 2 {
		must(t, owner.unfenced(t.Context(), "CREATE TABLE own (id int, tenant text NOT NULL)"))
		install(owner, false)
		wantReason(t, ErrorFrom(owner.unfenced(t.Context(), write)), guard.ReasonMissing, "the control, enforcing")
		install(e.db, true)
		noError(t, owner.unfenced(t.Context(), write), "report-only")
		tables, err := owner.Triggers(t.Context())
		if err != nil || len(tables) != 1 || tables[0].Refusals[guard.ReasonMissing] != 1 {
			t.Errorf("%+v, %v", tables, err)
		}
		name := e.text("SELECT guard FROM fencepost.guarded")
		e.exec("REVOKE ALL ON SEQUENCE fencepost." + name + "_missing FROM " + role)
		noError(t, owner.unfenced(t.Context(), write), "report-only without rights on a counter")
		if tables, err = owner.Triggers(t.Context()); err != nil || len(tables) != 1 || !strings.Contains(fmt.Sprint(tables[0].Findings), "counters") {
			t.Errorf("a counter without rights: %+v, %v", tables, err)
		}
		e.wantInt(1, "trigger functions for one table", "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname ~ '^guard_[0-9a-f]{32}$'")
		e.wantInt(5, "counters for one table", "SELECT count(*) FROM pg_class WHERE relkind = 'S' AND relname ~ '^guard_'")
		e.exec("DROP TABLE own")
	}
}

// TestTriggerKeys (P1): the list of resources that a transaction's triggers have checked
// confuses no two of them, whatever their names have in them and whatever collations the
// columns have.
func TestTriggerKeys(t *testing.T) {
	e := someEnv(t)
	e.exec(`CREATE COLLATION german (provider = icu, locale = 'de')`)
	e.exec(`CREATE TABLE mixed (tenant text COLLATE german NOT NULL, period text COLLATE "C" NOT NULL, v int, PRIMARY KEY (tenant, period))`)
	e.guardBy("mixed", "{tenant}:{period}")
	a, b := claimOf("a:x", 5), claimOf("b:x", 5)
	noError(t, errors.Join(e.db.Raise(t.Context(), a), e.db.Raise(t.Context(), b)), "the raises")
	noError(t, e.presenting("INSERT INTO mixed VALUES ('a', 'x', 1); UPDATE mixed SET v = 2", a), "a row whose columns have two collations")
	wantReason(t, e.presenting("UPDATE mixed SET v = 3; INSERT INTO mixed VALUES ('b', 'x', 1)", a), guard.ReasonMissing, "a row of a resource without a claim")
	wantReason(t, e.presenting("UPDATE mixed SET tenant = 'b'", a), guard.ReasonMissing, "a row that becomes another resource's")

	// By the triggers' own expression: no key is in a list of two others.
	key := e.text(`SELECT fencepost.guard_key('r.', '[{"column": "tenant"}, {"column": "period"}]')`)
	confused := func(key string) int64 {
		return e.int(`WITH nasty AS (SELECT unnest(ARRAY['', ' ', 'x ', '''', ' ''', ''' ', ',', ''',''', ' '';', '\''', ' E''x', ',''x'';']) AS v),
			r AS (SELECT a.v AS tenant, b.v AS period FROM nasty a, nasty b),
			k AS (SELECT ` + key + ` AS key FROM r)
			SELECT count(*) FROM k a, k b, k c WHERE c.key NOT IN (a.key, b.key) AND a.key < b.key AND (strpos(a.key || b.key, c.key) > 0 OR strpos(b.key || a.key, c.key) > 0)`)
	}
	e.wantInt(0, "distinct keys that are the same", `SELECT count(*) - count(DISTINCT `+key+`) FROM (VALUES ('a', 'b,c'), ('a,b', 'c'), ('a'',''b', 'c'), ('a', 'b'',''c')) AS r (tenant, period)`)
	if n := confused(key); n != 0 {
		t.Errorf("%d lists have a key that is not in them", n)
	}
	if confused("format(' %s,%s;', r.tenant, r.period)") == 0 {
		t.Error("the control: keys that are not quoted are not confused")
	}
}

// TestSwappedColumns (P1): where a column that names the resource was renamed and another has
// its name now, the triggers' WHEN goes by one and their function by the other. Every write is
// refused, until they are installed again, on partitions too.
func TestSwappedColumns(t *testing.T) {
	e := someEnv(t)
	e.exec(`CREATE TABLE swapped (id int, pad text, tenant text NOT NULL, state text NOT NULL DEFAULT 'x') PARTITION BY LIST (state);
		CREATE TABLE swapped_x (state text NOT NULL DEFAULT 'x', id int, tenant text NOT NULL, pad text);
		ALTER TABLE swapped ATTACH PARTITION swapped_x FOR VALUES IN ('x')`)
	e.guardBy("swapped", "{tenant}")
	a := claimOf("a", 5)
	noError(t, e.db.Raise(t.Context(), a), "the raise")
	noError(t, e.presenting("INSERT INTO swapped (id, tenant) VALUES (1, 'a'); UPDATE swapped_x SET id = 2", a), "before")
	e.exec("ALTER TABLE swapped RENAME tenant TO was; ALTER TABLE swapped ADD tenant text NOT NULL DEFAULT 'a'")
	for _, sql := range []string{
		"INSERT INTO swapped (id, was, tenant) VALUES (3, 'a', 'a'), (4, 'a', 'b')",
		"UPDATE swapped_x SET tenant = 'b'",
		"DELETE FROM swapped",
	} {
		wantState(t, e.presenting(sql, a), "55000", sql)
	}
	e.guardBy("swapped", "{tenant}")
	noError(t, e.presenting("UPDATE swapped SET id = 5", a), "installed again")
	wantReason(t, e.presenting("UPDATE swapped SET tenant = 'b'", a), guard.ReasonMissing, "installed again")
}
