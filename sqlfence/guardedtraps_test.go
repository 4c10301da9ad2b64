package sqlfence

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// Variants of triggers that were each shown to let a stale writer through, or
// to cost too much, kept to show that the tests detect them and why they are
// not used.

// wantWritten is for controls: the stale write must have taken effect.
func (e *env) wantWritten(what string, err error) {
	e.Helper()
	if err != nil {
		e.Errorf("%s, the control, did not let it through: %v", what, err)
	}
}

// TestTraps: a check made before the write, which a row passes that a later BEFORE
// trigger moves to another resource, and an ordinary trigger, which does not fire for a
// session in replica mode.
func TestTraps(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	for what, trap := range map[string]struct{ write, sql string }{
		"a check BEFORE": {"INSERT INTO moved VALUES (9, 'a')", `SELECT fencepost.remove_guard('moved', 0);
			CREATE FUNCTION before_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM fencepost.require(NEW.tenant, ''moved''); RETURN NEW; END';
			CREATE TRIGGER before_check BEFORE INSERT OR UPDATE ON moved FOR EACH ROW EXECUTE FUNCTION before_check()`},
		"a trigger that is not ENABLE ALWAYS": {"DO $$ BEGIN SET LOCAL session_replication_role = replica; UPDATE items SET v = 9 WHERE id = 2; END $$",
			"ALTER TABLE items ENABLE TRIGGER fencepost_update"},
	} {
		wantReason(t, e.presenting(trap.write, claimOf("a", 5)), guard.ReasonMissing, what)
		e.exec(trap.sql)
		e.wantWritten(what, e.presenting(trap.write, claimOf("a", 5)))
	}
}

// TestTrapOneSideOfAnUpdate: an update must hold the resource that its rows
// leave and the one they come to.
func TestTrapOneSideOfAnUpdate(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	name := e.text("SELECT fencepost.guard_name('items'::regclass)")
	for side, claim := range map[string]string{"TG_OP <> 'INSERT'": "c", "TG_OP <> 'DELETE'": "a"} {
		const write = "UPDATE items SET tenant = 'c' WHERE tenant = 'a'"
		wantReason(t, e.presenting(write, claimOf(claim, 5)), guard.ReasonMissing, "under the claim for %s alone", claim)
		undo := e.mutate(name, side, "TG_OP = 'TRUNCATE'")
		e.wantWritten("one side", e.presenting(write, claimOf(claim, 5)))
		e.wantWritten("the way back", e.presenting("UPDATE items SET tenant = 'a' WHERE tenant = 'c'", claimOf("a", 5), claimOf("c", 5)))
		undo()
	}
}

// TestTrapPartition: a statement trigger on the root does not see what is written
// directly into a partition. The row triggers, which a partition that is attached later has
// from its root, do, until it is detached; only TRUNCATE passes until the next
// installation, and Verify says so where somebody may do it. The control is a statement trigger.
func TestTrapPartition(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	const write = "UPDATE parts_late SET v = 9"
	g := triggerOn([]string{"parts"}, `{tenant}`)
	e.exec(`CREATE TABLE parts_late (id int, tenant text NOT NULL, v int NOT NULL); INSERT INTO parts_late VALUES (5000, 'a', 0);
		ALTER TABLE parts ATTACH PARTITION parts_late FOR VALUES FROM (5000) TO (6000)`)
	wantReason(t, e.presenting("UPDATE parts SET v = 9 WHERE id = 5000"), guard.ReasonMissing, "through the root")
	wantReason(t, e.presenting(write), guard.ReasonMissing, "directly")
	e.wantWritten("a TRUNCATE", e.presenting("TRUNCATE parts_late; INSERT INTO parts_late VALUES (5000, 'a', 0)", claimOf("a", 5)))
	role := e.newRole("truncates", "")
	e.exec("CREATE TABLE parts_later PARTITION OF parts FOR VALUES FROM (6000) TO (7000)")
	for want, grant := range []string{"SELECT", "GRANT TRUNCATE ON parts_late, parts_later TO " + role} { // once for all partitions
		e.exec(grant)
		found, err := e.db.Verify(t.Context(), Verification{Triggers: []Trigger{g}})
		if err != nil || len(found) != want || want == 1 && !strings.Contains(found[0].String(), "public.parts: partitions that were attached after the triggers, such as public.parts_late, let the TRUNCATE of "+role) {
			t.Errorf("Verify: %v, %v", found, err)
		}
	}
	must(t, e.db.InstallTrigger(t.Context(), g))
	for _, write := range []string{write, "TRUNCATE parts_late"} {
		if err := e.presenting(write, claimOf("a", 5)); (guard.ReasonOf(err) == guard.ReasonMissing) != strings.HasPrefix(write, "TRUNCATE") {
			t.Errorf("after another installation, %s: %v", write, err)
		}
	}
	e.exec("ALTER TABLE parts DETACH PARTITION parts_late")
	e.wantWritten("a partition that was detached", e.presenting(write))
	e.exec("ALTER TABLE parts ATTACH PARTITION parts_late FOR VALUES FROM (5000) TO (6000)")
	wantReason(t, e.presenting(write), guard.ReasonMissing, "attached again")
	e.exec(`DROP TRIGGER fencepost_update ON parts; CREATE TRIGGER fencepost_update AFTER UPDATE ON parts FOR EACH STATEMENT EXECUTE FUNCTION fencepost.` + e.text("SELECT guard FROM fencepost.guarded WHERE table_name = 'parts'") + "()")
	e.wantWritten("a trigger on the root", e.presenting(write))
}

// TestTrapTokenColumn: a token on the row itself is lost with the row.
func TestTrapTokenColumn(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.exec("UPDATE fencepost.marks SET token = 6, lease_id = 'lease-6' WHERE resource = 'a'")
	stale := func() error { return e.presenting("INSERT INTO items VALUES (1, 'a', 9)", claimOf("a", 5)) }
	noError(t, e.presenting("DELETE FROM items WHERE id = 1", claimOf("a", 6)))
	wantReason(t, stale(), guard.ReasonStale, "an INSERT after the DELETE of a newer holder")
	e.exec(`SELECT fencepost.remove_guard('items', 0); ALTER TABLE items ADD last_fencing_token bigint NOT NULL DEFAULT 0; INSERT INTO items VALUES (1, 'a', 0, 6);
		CREATE FUNCTION by_column() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE offered bigint := (fencepost.claims() -> 0 ->> 'token')::bigint;
		BEGIN
			IF TG_OP <> 'INSERT' AND OLD.last_fencing_token > offered THEN RAISE 'stale' USING ERRCODE = 'SF001'; END IF;
			IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
			NEW.last_fencing_token := offered; RETURN NEW;
		END $$;
		CREATE TRIGGER by_column BEFORE INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION by_column()`)
	wantReason(t, e.presenting("UPDATE items SET v = 9 WHERE id = 1", claimOf("a", 5)), guard.ReasonStale, "the control refuses not even an UPDATE")
	noError(t, e.presenting("DELETE FROM items WHERE id = 1", claimOf("a", 6)))
	e.wantWritten("a token column", stale())
}

// TestTrapRowLock: one holder's transactions run concurrently; if the check
// takes a conflicting lock on the mark's row, one waits for the other.
func TestTrapRowLock(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	together := func() error {
		return e.db.plain(t.Context(), inTurn(presents(claimOf("a", 5)), running("INSERT INTO items VALUES (20, 'a', 0)"), func(context.Context, testTx) error {
			return e.presenting("SET LOCAL lock_timeout = '200ms'; INSERT INTO items VALUES (21, 'a', 0)", claimOf("a", 5))
		}))
	}
	for _, level := range isolationLevels {
		e.db = e.serverDefault("default_transaction_isolation", level)
		noError(t, together(), "%s", level)
		noError(t, e.presenting("DELETE FROM items WHERE id > 19", claimOf("a", 5)))
	}
	e.db = e.open(nil)
	e.mutate("judge", "LIMIT 1;", "LIMIT 1 FOR NO KEY UPDATE;")
	wantState(t, together(), "55P03", "under FOR NO KEY UPDATE, the control")
}

// TestTrapSavepoint: the lock that a check took inside a savepoint is released
// when that is rolled back, and a successor comes; the next write must be
// checked again. The control remembers, in a sequence, which no rollback
// touches, that the transaction was checked.
func TestTrapSavepoint(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	resumed := func(token guard.Token) error {
		return ErrorFrom(e.db.plain(t.Context(), inTurn(
			presents(claimOf("a", token)),
			running("DO $$ BEGIN UPDATE items SET v = 8 WHERE id = 1; RAISE 'x' USING ERRCODE = '22012'; EXCEPTION WHEN division_by_zero THEN NULL; END $$"),
			e.raises(claimOf("a", token+1)),
			running("UPDATE items SET v = 9 WHERE id = 1"),
		)))
	}
	wantReason(t, resumed(5), guard.ReasonStale)
	e.exec("CREATE SEQUENCE checked")
	e.mutate("require", "\nBEGIN\n", "\nBEGIN\n  IF (SELECT last_value FROM public.checked) = (txid_current() & 9223372036854775807) THEN RETURN; END IF;\n  PERFORM setval('public.checked', txid_current());\n")
	e.wantWritten("a check that is remembered", resumed(6))
}

// TestTrapSnapshot: under REPEATABLE READ a check that reads the mark without
// locking its row sees the mark of the transaction's beginning.
func TestTrapSnapshot(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	resumed := func(token guard.Token) error {
		return ErrorFrom(e.db.plain(t.Context(), inTurn(
			running("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
			presents(claimOf("a", token)), running("SELECT count(*) FROM items"),
			e.raises(claimOf("a", token+1)),
			running("UPDATE items SET v = 9 WHERE id = 1"),
		)))
	}
	wantRefused(t, resumed(5), guard.ReasonUnavailable, pgerr.Serialization)
	e.mutate("enter_snapshot", "FOR SHARE", "")
	e.wantWritten("a plain read", resumed(6))
}

// TestTriggersNotHijacked: names that a session puts in front of the system's,
// or of the schema's in pg_temp, are not what the triggers use.
func TestTriggersNotHijacked(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.hijacker()
	e.exec(`CREATE FUNCTION shared.jsonb_array_elements(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT ''{"resource":"a","token":"5","leaseId":"lease-5"}''::jsonb';`)
	const caller = "SET LOCAL search_path = shared, pg_temp, public, pg_catalog; CREATE TEMP TABLE marks (resource pg_catalog.text, token bigint, lease_id pg_catalog.text) ON COMMIT DROP; CREATE TEMP TABLE fencepost_new (tenant pg_catalog.text) ON COMMIT DROP;"
	attempt := func(claims string) error {
		defer e.admin.Reset() // a session has the application's search_path until its transaction ends
		_, err := e.admin.Exec(t.Context(), "BEGIN; SELECT set_config('fencepost.claims', concat(pg_current_xact_id(), ' ', "+quoteText(claims)+"), true);"+caller+"UPDATE public.items SET v = 9 WHERE id OPERATOR(pg_catalog.=) 1; COMMIT")
		return ErrorFrom(err)
	}
	wantReason(t, attempt(claimsSetting(claimOf("b", 5))), guard.ReasonMissing, "under another's claim")
	noError(t, attempt(claimsSetting(claimOf("a", 5))), "under the claim")
	e.exec("ALTER FUNCTION fencepost.require RESET search_path; ALTER FUNCTION fencepost." + e.text("SELECT fencepost.guard_name('items'::regclass)") + " RESET search_path")
	if err := attempt(claimsSetting(claimOf("b", 5))); guard.ReasonOf(err) == guard.ReasonMissing {
		t.Errorf("without a pinned search_path, the control: %v", err)
	}
}

// TestTrapDeadlock: a writer that only presents its claim has locked its rows
// when it comes to the resource's lock, and deadlocks with one that entered and
// comes to those rows. If both enter, one waits without holding any row.
func TestTrapDeadlock(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.db = e.serverDefault("deadlock_timeout", "10ms")
	const write = "UPDATE items SET v = 8 WHERE id = 1"
	// One raises the mark of "a" in its own transaction, then writes the row
	// that the other writes under the mark as it was.
	crossed := func(token guard.Token, other func() error) (entered, others error) {
		var ended chan error
		entered = e.db.plain(t.Context(), inTurn(enters(claimOf("a", token)), presents(claimOf("a", token)), func(ctx context.Context, tx testTx) error {
			ended = e.start(func(func()) error { return other() })
			return running(write)(ctx, tx)
		}))
		return ErrorFrom(entered), <-ended
	}
	entered, others := crossed(6, func() error {
		return e.db.fenced(t.Context(), claimOf("a", 5), inTurn(presents(claimOf("a", 5)), running(write)))
	})
	if entered != nil || guard.ReasonOf(others) != guard.ReasonStale {
		t.Errorf("both enter: %v, %v; want nil, stale", entered, others)
	}
	entered, others = crossed(7, func() error { return e.presenting(write, claimOf("a", 6)) })
	if err := errors.Join(entered, others); pgerr.State(err) != pgerr.Deadlock || guard.ReasonOf(err) != guard.ReasonUnavailable {
		t.Errorf("one only presents, the control: %v, %v; want a deadlock", entered, others)
	}
}

// isolationLevels are the levels of the torture: named in the transaction, and
// as the server's default.
var isolationLevels = []string{"read committed", "repeatable read", "serializable"}

// byTrigger is an application's own transaction on guarded tables: raise,
// begin, present, work. The tables are guarded, or broken on purpose, before
// the first. What fails with 40001 is started again, as an application would
// do.
func (e *env) byTrigger(db fence, level string, install func()) work {
	var once sync.Once
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		once.Do(install)
		if err := db.Raise(ctx, claim); err != nil {
			return err
		}
		for {
			steps := []step{presents(claim), fn}
			if level != "" {
				steps = append([]step{running("SET TRANSACTION ISOLATION LEVEL " + level)}, steps...)
			}
			err := ErrorFrom(db.plain(guard.WithClaim(ctx, claim), inTurn(steps...)))
			if pgerr.State(err) != "40001" {
				return err
			}
		}
	}
}

// ledger is a guarded counter and a guarded set of rows. Each entry says which
// token added it and how many entries of lower tokens it saw.
const ledger = `CREATE TABLE counter (v bigint NOT NULL); INSERT INTO counter VALUES (0);
	CREATE TABLE entries (n bigserial PRIMARY KEY, token bigint NOT NULL, seen bigint NOT NULL)`

func (e *env) guardLedger() {
	e.freshLedger()
	e.guardBy("counter", `ledger`)
	e.guardBy("entries", `ledger`)
}

// ledgerDamage is what a torture found: additions that were acknowledged and are
// missing, entries that a newer holder did not see, and entries that came in behind
// a newer holder's.
type ledgerDamage struct{ acked, lost, stale, backwards int64 }

// ledgerTorture is torturedLedger where there must be no damage.
func (e *env) ledgerTorture(what string, in work, rounds int) {
	e.Helper()
	d := e.torturedLedger(in, rounds)
	if d.lost != 0 || d.stale != 0 || d.backwards != 0 || d.acked == 0 {
		e.Errorf("%s: %+v", what, d)
	}
}

// torturedLedger lets a crowd of clients, most of them former holders, read, write and
// commit. It is targeted: a holder pauses before its write or before its COMMIT
// until a newer one has read, or for as long as nothing should prevent a newer
// one from reading.
func (e *env) torturedLedger(in work, rounds int) (d ledgerDamage) {
	var next, read, entries, additions atomic.Int64
	var wg sync.WaitGroup
	for range crowd {
		wg.Go(func() {
			token := next.Add(1)
			for range rounds {
				// The next takeover once the newest holder is between its read
				// and its end; the others come back under their old claims.
				if newest := next.Load(); read.Load() >= newest && rand.IntN(3) == 0 && next.CompareAndSwap(newest, newest+1) {
					token = newest + 1
				}
				aim, adds := rand.IntN(3), rand.IntN(2) == 0
				succeeded := func() {
					for end := time.Now().Add(15 * time.Millisecond); read.Load() <= token && time.Now().Before(end); {
						time.Sleep(100 * time.Microsecond)
					}
				}
				err := in(e.Context(), claimOf("ledger", guard.Token(token)), func(ctx context.Context, tx testTx) error {
					seen, err := tx.int(ctx, "SELECT count(*) FROM entries WHERE token < $1::bigint", token)
					if err != nil {
						return err
					}
					v, err := tx.int(ctx, "SELECT v FROM counter")
					if err != nil {
						return err
					}
					for old := read.Load(); old < token && !read.CompareAndSwap(old, token); old = read.Load() {
					}
					if aim == 0 {
						succeeded()
					}
					if adds {
						if _, err := tx.exec(ctx, "UPDATE counter SET v = $1", v+1); err != nil {
							return err
						}
					}
					_, err = tx.exec(ctx, "INSERT INTO entries (token, seen) VALUES ($1::bigint, $2::bigint)", token, seen)
					if err == nil && aim == 1 {
						succeeded()
					}
					return err
				})
				switch guard.ReasonOf(err) {
				case guard.ReasonNone:
					entries.Add(1)
					if adds {
						additions.Add(1)
					}
				case guard.ReasonStale:
					time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond) // others get a turn
				default:
					e.Errorf("token %d: %v", token, err)
					return
				}
			}
		})
	}
	wg.Wait()
	d.acked = entries.Load()
	d.lost = additions.Load() - e.int("SELECT v FROM counter")
	d.stale = e.int(staleEntries)
	d.backwards = e.int("SELECT count(*) FROM entries a WHERE EXISTS (SELECT FROM entries b WHERE b.n < a.n AND b.token > a.token)")
	e.wantInt(d.acked, "entries that are there, of those acknowledged", "SELECT count(*) FROM entries") // a false verdict
	return d
}

// TestTriggersUnderTorture (P1, P2): clients that take over from each other
// through triggers alone lose no acknowledged update, get no stale row and no
// false verdict, whatever the isolation level.
func TestTriggersUnderTorture(t *testing.T) {
	t.Parallel()
	for i, level := range isolationLevels {
		for j, way := range []string{"named", "the server's default"} {
			t.Run(level+"/"+way, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, (i+j)%len(openers))
				db, named := e.db, level
				if way != "named" {
					db, named = e.serverDefault("default_transaction_isolation", level), ""
				}
				e.ledgerTorture("by triggers", e.byTrigger(db, named, e.guardLedger), campaign(3))
			})
		}
	}
}

// TestTriggersInterleaved (P1, P2): when the successor comes before the older
// holder's write it is the write that is refused, and when it comes after it
// waits for the older holder's COMMIT. The control: triggers that compare but do
// not lock let it read without seeing what is not yet committed.
func TestTriggersInterleaved(t *testing.T) {
	t.Parallel()
	for i, level := range isolationLevels {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, i%len(openers))
			run := func(adds, written bool) (acked, lost, stale int64) {
				e.freshLedger()
				return e.interleaved(e.byTrigger(e.db, level, e.guardLedger), adds, written)
			}
			for _, adds := range []bool{false, true} {
				for _, written := range []bool{false, true} {
					want := int64(1)
					if written {
						want = 2
					}
					if acked, lost, stale := run(adds, written); acked != want || lost != 0 || stale != 0 {
						t.Errorf("adds %v, written %v: %d were acknowledged, want %d; %d lost, %d inserts stale", adds, written, acked, want, lost, stale)
					}
				}
			}
			if level == isolationLevels[2] {
				return // SERIALIZABLE refuses such histories by itself
			}
			e.mutate("require", `pg_try_advisory_xact_lock_shared(fencepost.lock_key(p_resource))`, "true")
			e.mutate("enter_snapshot", "PERFORM pg_advisory_xact_lock_shared(", "PERFORM hashtextextended('', ")
			e.mutate("enter_snapshot", "FOR SHARE", "")
			// REPEATABLE READ detects two updates of one row by itself.
			adds := level == isolationLevels[0]
			acked, lost, stale := run(adds, true)
			if acked != 2 || stale != 1 || adds && lost != 1 {
				t.Errorf("without the lock, the control: %d were acknowledged, %d lost, %d inserts stale", acked, lost, stale)
			}
		})
	}
}

// TestRenamedTable (P1, P6, P9): triggers belong to their table and not to its
// name. A new table that gets the old name and triggers for other resources leaves
// them as they are, and the renamed table is listed under the name that it has now.
// In the control the two tables share a trigger function, as they did once, and the
// renamed one admits a lower token and refuses its own holder.
func TestRenamedTable(t *testing.T) {
	e := someEnv(t)
	const inv = "CREATE TABLE inv (id int, tenant text NOT NULL, region text NOT NULL)"
	e.exec(inv)
	e.guardBy("inv", "{tenant}")
	e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('a', 10, 'lease-10'), ('eu', 1, 'lease-1')")
	e.exec("ALTER TABLE inv RENAME TO inv_old;" + inv)
	e.wantFindings("renamed", Verification{Triggers: []Trigger{triggerOn([]string{"inv_old"}, "{tenant}")}}, "guarded as public.inv and has been renamed since")
	e.wantFindings("what has the name now", Verification{Triggers: []Trigger{triggerOn([]string{"inv"}, "{tenant}")}}, "not listed", "is missing")
	e.guardBy("inv", "{region}")
	const write = "INSERT INTO inv_old VALUES (1, 'a', 'eu')"
	check := func(what string, stale, current guard.Reason) {
		t.Helper()
		wantReason(t, e.presenting(write, claimOf("a", 1), claimOf("eu", 1)), stale, "%s, a lower token", what)
		wantReason(t, e.presenting(write, claimOf("a", 10)), current, "%s, its holder", what)
	}
	check("a table that was renamed", guard.ReasonStale, guard.ReasonNone)
	tables, err := e.db.Triggers(t.Context())
	if err != nil || len(tables) != 2 || tables[0].Trigger.Table[1] != "inv" || len(tables[0].Findings) > 0 || tables[1].Trigger.Table[1] != "inv_old" ||
		tables[1].Trigger.Resource.String() != "{tenant}" || len(tables[1].Findings) != 1 {
		t.Errorf("listed: %+v, %v", tables, err)
	}
	e.guardBy("inv_old", "{tenant}") // takes note of the name
	e.wantFindings("installed again", Verification{Triggers: []Trigger{triggerOn([]string{"inv_old"}, "{tenant}"), triggerOn([]string{"inv"}, "{region}")}})
	must(t, e.db.RemoveTrigger(t.Context(), []string{"inv"}))
	check("after the triggers of the other are removed", guard.ReasonStale, guard.ReasonNone)
	// The control.
	e.guardBy("inv", "{region}")
	e.mutate("refuse_swapped", "IF EXISTS", "IF false AND EXISTS") // which would notice the other columns
	e.exec("CREATE OR REPLACE FUNCTION fencepost." + e.text("SELECT fencepost.guard_name('inv_old'::regclass)") +
		"() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS " +
		e.text("SELECT quote_literal(prosrc) FROM pg_proc WHERE proname = fencepost.guard_name('inv'::regclass)"))
	check("the control", guard.ReasonNone, guard.ReasonMissing)
}

// TestLatePartitionIsCheap: what is written directly into a partition that was attached later
// is checked once for each resource, as through the root, and not once for each row; again
// after the rollback of a savepoint, which frees the lock. The control counts the rows.
func TestLatePartitionIsCheap(t *testing.T) {
	e := someEnv(t)
	e.guardWriters()
	e.exec("CREATE TABLE parts_late PARTITION OF parts FOR VALUES FROM (5000) TO (9000); CREATE SEQUENCE public.checks")
	e.mutate("require", "SELECT * INTO claim", "PERFORM nextval('public.checks'); SELECT * INTO claim")
	db := e.single() // so that each transaction is the next one of a session
	const insert = "INSERT INTO parts_late SELECT g, CASE g % 2 WHEN 0 THEN 'a' ELSE 'b' END, 0 FROM generate_series(5000, 5999) g"
	checks := func(want int64, sql string) {
		t.Helper()
		e.exec("SELECT setval('public.checks', 1, false)")
		noError(t, presenting(db, sql, claimOf("a", 5), claimOf("b", 5)), "%s", sql)
		e.wantInt(want, "checks of "+sql, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.checks")
	}
	checks(2, insert)
	checks(2, "UPDATE parts_late SET v = 1")
	checks(1, "UPDATE parts_late SET v = 2 WHERE tenant = 'a'; UPDATE parts_late SET v = 3 WHERE tenant = 'a'")
	checks(2, "DO $$ BEGIN BEGIN UPDATE parts_late SET v = 4 WHERE tenant = 'a'; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END; UPDATE parts_late SET v = 5 WHERE tenant = 'a'; END $$")
	checks(2, "DELETE FROM parts_late")
	// Quotes, separators and parts that look like another's key are other resources.
	e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) VALUES ('x a', 5, 'lease-5')")
	wantReason(t, e.presenting("INSERT INTO parts_late VALUES (5000, 'x a', 0), (5001, 'a', 0)", claimOf("x a", 5)), guard.ReasonMissing, "the end of another's name")
	for _, tenant := range []string{"b'", " 'a';", "','", `\`, `a';`} {
		wantReason(t, e.presenting("INSERT INTO parts_late VALUES (5000, 'a', 0), (5001, "+quoteText(tenant)+", 0), (5002, 'a', 0)", claimOf("a", 5)), guard.ReasonMissing, "%q", tenant)
	}
	e.exec("DROP TRIGGER fencepost_insert ON parts; CREATE TRIGGER fencepost_insert AFTER INSERT ON parts FOR EACH ROW EXECUTE FUNCTION fencepost." + e.text("SELECT guard FROM fencepost.guarded WHERE table_name = 'parts'") + "()")
	checks(1000, insert)
}

// TestClaimsAreBounded: a transaction can present 64 claims, whatever presents them.
func TestClaimsAreBounded(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.guardWriters()
	claims := make([]guard.Claim, maxClaims)
	for i := range claims {
		claims[i] = claimOf("r"+itoa(i), 5)
	}
	claims[7] = claimOf("a", 5)
	const update = "UPDATE items SET v = 9 WHERE id = 1"
	noError(t, presenting(e.db, update, claims...))
	more := claimOf("one more", 5)
	wantInvalid(t, "one more at once", presenting(e.db, update, append(claims, more)...), "claims", "65")
	wantInvalid(t, "one more later", ErrorFrom(e.db.plain(t.Context(), inTurn(presents(claims...), presents(more), running(update)))), "claims", "one more")
	wantReason(t, ErrorFrom(e.db.plain(t.Context(), inTurn(running("SELECT set_config('fencepost.claims', concat(pg_current_xact_id(), ' ', $1::text), true)", claimsSetting(append(claims, more)...)),
		running(update)))), guard.ReasonInvalid, "one more, set")
}
