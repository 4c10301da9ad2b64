package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// Variants of triggers that were each shown to let a stale writer through, or
// to cost too much, kept to show that the tests detect them and why they are
// not used.

// shape replaces the triggers of a guarded table with others.
func (e *env) shape(table, sql string) {
	e.Helper()
	must(e, e.db.RemoveTrigger(context.Background(), []string{table}))
	e.exec(sql)
}

// wantWritten is for controls: the stale write must have taken effect.
func (e *env) wantWritten(what string, err error) {
	e.Helper()
	if err != nil {
		e.Errorf("%s, the control, did not let it through: %v", what, err)
	}
}

// TestTrapBeforeTrigger: a row that a later BEFORE trigger moves to another
// resource passes a check made before the write.
func TestTrapBeforeTrigger(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		const write, claim = "INSERT INTO moved VALUES (9, 'a')", "a"
		wantReason(t, e.presenting(write, claimOf(claim, 5)), guard.ReasonMissing)
		e.shape("moved", `CREATE FUNCTION before_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM fencepost.require(NEW.tenant, ''moved''); RETURN NEW; END';
			CREATE TRIGGER before_check BEFORE INSERT OR UPDATE ON moved FOR EACH ROW EXECUTE FUNCTION before_check()`)
		e.wantWritten("a check BEFORE", e.presenting(write, claimOf(claim, 5)))
	})
}

// TestTrapOneSideOfAnUpdate: an update must hold the resource that its rows
// leave and the one they come to.
func TestTrapOneSideOfAnUpdate(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		name := e.text("SELECT fencepost.guard_name('items'::regclass)")
		whole := e.text("SELECT pg_get_functiondef(('fencepost.' || $1)::regproc)", name)
		const both = `FROM fencepost_old UNION SELECT ARRAY[format('%s', tenant) COLLATE "C"] FROM fencepost_new`
		for side, claim := range map[string]string{"FROM fencepost_old": "a", "FROM fencepost_new": "c"} {
			const write = "UPDATE items SET tenant = 'c' WHERE tenant = 'a'"
			wantReason(t, e.presenting(write, claimOf(claim, 5)), guard.ReasonMissing, "under the claim for %s", claim)
			e.mutate(name, both, side)
			e.wantWritten("one side", e.presenting(write, claimOf(claim, 5)))
			e.wantWritten("the way back", e.presenting("UPDATE items SET tenant = 'a' WHERE tenant = 'c'", claimOf("a", 5), claimOf("c", 5)))
			e.exec(whole)
		}
	})
}

// TestTrapPartition: a statement trigger on the root does not see what is written
// directly into a partition that was attached later. The row triggers, which the
// partition has from its root, do; only TRUNCATE passes until the next
// installation, and Verify says so. The control is without row triggers.
func TestTrapPartition(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		const write = "UPDATE parts_late SET v = 9"
		g := triggerOn([]string{"parts"}, `{tenant}`)
		e.exec(`CREATE TABLE parts_late (id int, tenant text NOT NULL, v int NOT NULL); INSERT INTO parts_late VALUES (5000, 'a', 0);
			ALTER TABLE parts ATTACH PARTITION parts_late FOR VALUES FROM (5000) TO (6000)`)
		wantReason(t, e.presenting("UPDATE parts SET v = 9 WHERE id = 5000"), guard.ReasonMissing, "through the root")
		wantReason(t, e.presenting(write), guard.ReasonMissing, "directly")
		e.wantWritten("a TRUNCATE", e.presenting("TRUNCATE parts_late; INSERT INTO parts_late VALUES (5000, 'a', 0)", claimOf("a", 5)))
		found, err := e.db.Verify(t.Context(), Verification{Triggers: []Trigger{g}})
		if err != nil || len(found) != 5 || !strings.Contains(found[4].String(), "parts_late: the trigger fencepost_update is missing") {
			t.Errorf("Verify: %v, %v", found, err)
		}
		must(t, e.db.InstallTrigger(t.Context(), g))
		for _, write := range []string{write, "TRUNCATE parts_late"} {
			if err := e.presenting(write, claimOf("a", 5)); (guard.ReasonOf(err) == guard.ReasonMissing) != strings.HasPrefix(write, "TRUNCATE") {
				t.Errorf("after another installation, %s: %v", write, err)
			}
		}
		e.exec("ALTER TABLE parts DETACH PARTITION parts_late") // keeps the triggers on its statements
		wantReason(t, e.presenting(write), guard.ReasonMissing, "detached")
		e.exec(`ALTER TABLE parts ATTACH PARTITION parts_late FOR VALUES FROM (5000) TO (6000);
			DROP TRIGGER fencepost_update ON parts_late; DROP TRIGGER fencepost_row_update ON parts`)
		e.wantWritten("a trigger on the root", e.presenting(write))
	})
}

// TestTrapTokenColumn: a token on the row itself is lost with the row.
func TestTrapTokenColumn(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		e.exec("UPDATE fencepost.marks SET token = 6, lease_id = 'lease-6' WHERE resource = 'a'")
		stale := func() error { return e.presenting("INSERT INTO items VALUES (1, 'a', 9)", claimOf("a", 5)) }
		noError(t, e.presenting("DELETE FROM items WHERE id = 1", claimOf("a", 6)))
		wantReason(t, stale(), guard.ReasonStale, "an INSERT after the DELETE of a newer holder")
		e.shape("items", `ALTER TABLE items ADD last_fencing_token bigint NOT NULL DEFAULT 0; INSERT INTO items VALUES (1, 'a', 0, 6);
			CREATE FUNCTION by_column() RETURNS trigger LANGUAGE plpgsql AS $$
			DECLARE offered bigint := (current_setting('fencepost.claims')::jsonb -> 0 ->> 'token')::bigint;
			BEGIN
				IF TG_OP <> 'INSERT' AND OLD.last_fencing_token > offered THEN RAISE 'stale' USING ERRCODE = 'SF001'; END IF;
				IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
				NEW.last_fencing_token := offered; RETURN NEW;
			END $$;
			CREATE TRIGGER by_column BEFORE INSERT OR UPDATE OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION by_column()`)
		wantReason(t, e.presenting("UPDATE items SET v = 9 WHERE id = 1", claimOf("a", 5)), guard.ReasonStale, "the control refuses not even an UPDATE")
		noError(t, e.presenting("DELETE FROM items WHERE id = 1", claimOf("a", 6)))
		e.wantWritten("a token column", stale())
	})
}

// TestTrapRowLock: one holder's transactions run concurrently; if the check
// takes a conflicting lock on the mark's row, one waits for the other.
func TestTrapRowLock(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		together := func() error {
			return e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if err := tx.present(ctx, claimOf("a", 5)); err != nil {
					return err
				}
				if _, err := tx.exec(ctx, "INSERT INTO items VALUES (20, 'a', 0)"); err != nil {
					return err
				}
				return e.presenting("SET LOCAL lock_timeout = '200ms'; INSERT INTO items VALUES (21, 'a', 0)", claimOf("a", 5))
			})
		}
		for _, level := range isolationLevels {
			e.db = e.serverDefault("default_transaction_isolation", level)
			noError(t, together(), "%s", level)
			noError(t, e.presenting("DELETE FROM items WHERE id > 19", claimOf("a", 5)))
		}
		e.db = e.open(nil)
		e.mutate("judge", "LIMIT 1;", "LIMIT 1 FOR NO KEY UPDATE;")
		wantState(t, together(), "55P03", "under FOR NO KEY UPDATE, the control")
	})
}

// TestTrapSavepoint: the lock that a check took inside a savepoint is released
// when that is rolled back, and a successor comes; the next write must be
// checked again. The control remembers, in a sequence, which no rollback
// touches, that the transaction was checked.
func TestTrapSavepoint(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		resumed := func(token guard.Token) error {
			return ErrorFrom(e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if err := tx.present(ctx, claimOf("a", token)); err != nil {
					return err
				}
				if _, err := tx.exec(ctx, "DO $$ BEGIN UPDATE items SET v = 8 WHERE id = 1; RAISE 'x' USING ERRCODE = '22012'; EXCEPTION WHEN division_by_zero THEN NULL; END $$"); err != nil {
					return err
				}
				if err := e.db.Raise(ctx, claimOf("a", token+1)); err != nil {
					return err
				}
				_, err := tx.exec(ctx, "UPDATE items SET v = 9 WHERE id = 1")
				return err
			}))
		}
		wantReason(t, resumed(5), guard.ReasonStale)
		e.exec("CREATE SEQUENCE checked")
		e.mutate("require", "\nBEGIN\n", "\nBEGIN\n  IF (SELECT last_value FROM public.checked) = (txid_current() & 9223372036854775807) THEN RETURN; END IF;\n  PERFORM setval('public.checked', txid_current());\n")
		e.wantWritten("a check that is remembered", resumed(6))
	})
}

// TestTrapReplicaMode: an ordinary trigger does not fire for a session in
// replica mode.
func TestTrapReplicaMode(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		const write = "DO $$ BEGIN SET LOCAL session_replication_role = replica; UPDATE items SET v = 9 WHERE id = 1; END $$"
		wantReason(t, e.presenting(write), guard.ReasonMissing)
		e.exec("ALTER TABLE items ENABLE TRIGGER fencepost_update")
		e.wantWritten("a trigger that is not ENABLE ALWAYS", e.presenting(write))
	})
}

// TestTrapSnapshot: under REPEATABLE READ a check that reads the mark without
// locking its row sees the mark of the transaction's beginning.
func TestTrapSnapshot(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		resumed := func(token guard.Token) error {
			return ErrorFrom(e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if _, err := tx.exec(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
					return err
				}
				if err := tx.present(ctx, claimOf("a", token)); err != nil {
					return err
				}
				if _, err := tx.int(ctx, "SELECT count(*) FROM items"); err != nil {
					return err
				}
				if err := e.db.Raise(ctx, claimOf("a", token+1)); err != nil {
					return err
				}
				_, err := tx.exec(ctx, "UPDATE items SET v = 9 WHERE id = 1")
				return err
			}))
		}
		if err := resumed(5); guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != "40001" {
			t.Errorf("got %v", err)
		}
		e.mutate("enter_snapshot", "FOR SHARE", "")
		e.wantWritten("a plain read", resumed(6))
	})
}

// TestTriggersNotHijacked: names that a session puts in front of the system's,
// or of the schema's in pg_temp, are not what the triggers use.
func TestTriggersNotHijacked(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		e.hijacker()
		e.exec(`CREATE FUNCTION shared.jsonb_array_elements(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT ''{"resource":"a","token":"5","leaseId":"lease-5"}''::jsonb';`)
		const caller = "SET LOCAL search_path = shared, pg_temp, public, pg_catalog; CREATE TEMP TABLE marks (resource pg_catalog.text, token bigint, lease_id pg_catalog.text) ON COMMIT DROP; CREATE TEMP TABLE fencepost_new (tenant pg_catalog.text) ON COMMIT DROP;"
		attempt := func(claims string) error {
			defer e.admin.Reset() // a session has the application's search_path until its transaction ends
			_, err := e.admin.Exec(t.Context(), "BEGIN; SELECT set_config('fencepost.claims', "+quoteText(claims)+", true);"+caller+"UPDATE public.items SET v = 9 WHERE id OPERATOR(pg_catalog.=) 1; COMMIT")
			return ErrorFrom(err)
		}
		wantReason(t, attempt(claimsSetting(claimOf("b", 5))), guard.ReasonMissing, "under another's claim")
		noError(t, attempt(claimsSetting(claimOf("a", 5))), "under the claim")
		e.exec("ALTER FUNCTION fencepost.require RESET search_path; ALTER FUNCTION fencepost." + e.text("SELECT fencepost.guard_name('items'::regclass)") + " RESET search_path")
		if err := attempt(claimsSetting(claimOf("b", 5))); guard.ReasonOf(err) == guard.ReasonMissing {
			t.Errorf("without a pinned search_path, the control: %v", err)
		}
	})
}

// TestTrapDeadlock: a writer that only presents its claim has locked its rows
// when it comes to the resource's lock, and deadlocks with one that entered and
// comes to those rows. If both enter, one waits without holding any row.
func TestTrapDeadlock(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.guardWriters()
		e.db = e.serverDefault("deadlock_timeout", "10ms")
		const write = "UPDATE items SET v = 8 WHERE id = 1"
		// One raises the mark of "a" in its own transaction, then writes the row
		// that the other writes under the mark as it was.
		crossed := func(token guard.Token, other func() error) (entered, others error) {
			var ended chan error
			entered = e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				if err := tx.enter(ctx, claimOf("a", token)); err != nil {
					return err
				}
				if err := tx.present(ctx, claimOf("a", token)); err != nil {
					return err
				}
				ended = e.start(func(func()) error { return other() })
				_, err := tx.exec(ctx, write)
				return err
			})
			return ErrorFrom(entered), <-ended
		}
		entered, others := crossed(6, func() error {
			return e.db.fenced(t.Context(), claimOf("a", 5), func(ctx context.Context, tx testTx) error {
				if err := tx.present(ctx, claimOf("a", 5)); err != nil {
					return err
				}
				_, err := tx.exec(ctx, write)
				return err
			})
		})
		if entered != nil || guard.ReasonOf(others) != guard.ReasonStale {
			t.Errorf("both enter: %v, %v; want nil, stale", entered, others)
		}
		entered, others = crossed(7, func() error { return e.presenting(write, claimOf("a", 6)) })
		if err := errors.Join(entered, others); pgerr.State(err) != pgerr.Deadlock || guard.ReasonOf(err) != guard.ReasonUnavailable {
			t.Errorf("one only presents, the control: %v, %v; want a deadlock", entered, others)
		}
	})
}
