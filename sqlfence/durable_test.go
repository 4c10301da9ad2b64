package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

var time2001 = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)

// mortal is the server that tests may kill and start again. They take turns, and
// each leaves it running.
var mortal struct {
	sync.Mutex
	server *pgtest.Server
}

func mortalServer(t *testing.T) *pgtest.Server {
	t.Helper()
	t.Parallel()
	mortal.Lock()
	t.Cleanup(mortal.Unlock)
	if mortal.server == nil {
		s, err := pgtest.Start(context.Background(), &pgtest.Options{Settings: map[string]string{
			"max_prepared_transactions": "4", "wal_level": "logical", "wal_writer_delay": "10s", "wal_retrieve_retry_interval": "100ms",
		}})
		must(t, err)
		mortal.server = s // it ends with this process
	}
	return mortal.server
}

// newEnvOn is a new database of a server.
func newEnvOn(t *testing.T, driver int, s *pgtest.Server) *env {
	t.Helper()
	url, drop, err := s.NewDatabase(t.Context())
	must(t, err)
	t.Cleanup(drop)
	return newEnvAt(t, driver, url)
}

func restart(t *testing.T, s *pgtest.Server, envs ...*env) {
	t.Helper()
	must(t, s.Restart(context.Background()))
	for _, e := range envs {
		e.admin.Reset()
		e.reconnect()
	}
}

// survivors are the ways to raise a mark, each with what must then be there.
var survivors = []struct {
	name  string
	raise func(ctx context.Context, e *env, db fence, token guard.Token) error
	there func(ctx context.Context, e *env, db fence, token guard.Token) bool
}{
	{"Raise", func(ctx context.Context, _ *env, db fence, token guard.Token) error {
		return db.Raise(ctx, claimOf("r", token))
	}, markIs("r")},
	{"Admit", func(ctx context.Context, _ *env, db fence, token guard.Token) error {
		_, err := db.Admit(ctx, claimOf("r", token))
		return err
	}, markIs("r")},
	{"Enter", func(ctx context.Context, _ *env, db fence, token guard.Token) error {
		return entering(db)(ctx, claimOf("r", token), func(context.Context, testTx) error { return nil })
	}, markIs("r")},
	{"Retire", func(ctx context.Context, e *env, db fence, token guard.Token) error {
		e.exec("INSERT INTO fencepost.marks (resource, token, raised_at) VALUES ('old', $1, '2000-01-01')", int64(token-1))
		r, err := db.Retire(ctx, time2001)
		if r.Count != 1 || r.Floor != token-1 {
			e.Errorf("%+v", r)
		}
		return err
	}, func(ctx context.Context, _ *env, db fence, token guard.Token) bool {
		mark, err := db.Mark(ctx, "unknown")
		return err == nil && mark == guard.Mark{Token: token - 1, Floor: true}
	}},
	{"Table.Raise", func(_ context.Context, e *env, db fence, token guard.Token) error { return e.take(db, token, "row") }, rowIs("row")},
	{"Table.Raise in a transaction", func(ctx context.Context, e *env, db fence, token guard.Token) error {
		return db.plain(ctx, func(_ context.Context, tx testTx) error { return e.take(tx.in(), token, "row") })
	}, rowIs("row")},
}

func markIs(resource string) func(context.Context, *env, fence, guard.Token) bool {
	return func(ctx context.Context, _ *env, db fence, token guard.Token) bool {
		mark, err := db.Mark(ctx, resource)
		return err == nil && mark.Token == token && !mark.Floor
	}
}

// rowIs reports whether the row's older holder is refused.
func rowIs(id string) func(context.Context, *env, fence, guard.Token) bool {
	return func(ctx context.Context, e *env, db fence, token guard.Token) bool {
		err := e.takenTable().Update(ctx, db, claimOf("r", token-1), Key{id}, Set{"v": 7})
		return errors.Is(err, guard.ErrStale)
	}
}

func (e *env) takenTable() *Table {
	return e.table("taken", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
}

func (e *env) take(q Querier, token guard.Token, id string) error {
	return e.takenTable().Raise(context.Background(), q, claimOf("r", token), Key{id}, nil)
}

// TestRaiseSurvivesCrash (P2, P3): on a server whose default is
// synchronous_commit=off, what raised a mark and was acknowledged is there after
// a crash. One way in each round, because each saves what was before it. The
// control in each round leaves the setting alone; it is made last, because a
// synchronous commit after it would save it.
func TestRaiseSurvivesCrash(t *testing.T) {
	s := mortalServer(t)
	envs := make([]*env, len(openers))
	for i := range openers {
		e := newEnvOn(t, i, s)
		e.exec("CREATE TABLE taken (id text PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO taken VALUES ('row'), ('control')")
		def := e.text("SELECT pg_get_functiondef('fencepost.raise'::regproc)")
		def = strings.Replace(def, "fencepost.raise(", "fencepost.raise_unsafe(", 1)
		e.exec(strings.Replace(def, "fencepost.make_durable(), ", "", 1))
		e.exec("ALTER DATABASE " + pgx.Identifier{e.text("SELECT current_database()")}.Sanitize() + " SET synchronous_commit = off")
		e.admin.Reset()
		e.reconnect()
		envs[i] = e
	}
	ctx, first := t.Context(), rand.IntN(len(envs))
	lost, rounds := map[bool]int{}, campaign(len(survivors))
	// The server may write a control to disk on its own, as it does with one in
	// ten; then there is another round.
	for round := 0; round < rounds || (lost[true] == 0 || lost[false] == 0) && round < rounds+20; round++ {
		token, way := guard.Token(2*round+2), survivors[round%len(survivors)]
		e := envs[(first+round+round/len(survivors))%len(envs)]
		if err := way.raise(ctx, e, e.db, token); err != nil {
			t.Fatalf("%s, %s: %v", e.driver, way.name, err)
		}
		ofRow := strings.HasPrefix(way.name, "Table.Raise")
		if ofRow {
			unlifted := e.altered(func(sql string) string {
				return strings.Replace(sql, "ANY (ARRAY['off', 'local'])", "ANY (ARRAY['never'])", 1)
			}, func() {})
			must(t, e.take(unlifted, token, "control"))
		} else {
			e.exec("SELECT fencepost.raise_unsafe('control', $1, '', 1000)", int64(token))
		}
		must(t, s.StopImmediate())
		restart(t, s, envs...)
		if !way.there(ctx, e, e.db, token) {
			t.Errorf("%s, %s: token %d is not there", e.driver, way.name, token)
		}
		control := markIs("control")
		if ofRow {
			control = rowIs("control")
		}
		if !control(ctx, e, e.db, token) {
			lost[ofRow]++
		}
	}
	if lost[false] == 0 || lost[true] == 0 {
		t.Error("no raise, or no raise of a row, of the control was lost: the test cannot fail")
	}
	t.Logf("the control lost %d raises and %d raises of rows", lost[false], lost[true])
}

// TestStandby (P5): a standby's marks lag behind the primary's and its locks
// are its own, so everything except the refusal of malformed input is
// ErrUnavailable there, including reads.
func TestStandby(t *testing.T) {
	s := mortalServer(t)
	envs := make([]*env, len(openers))
	for i := range openers {
		envs[i] = newEnvOn(t, i, s)
		envs[i].createPairs()
		envs[i].exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		must(t, envs[i].db.Raise(t.Context(), claimOf("r", 5)))
	}
	must(t, s.StopFast())
	// From its own data it starts as a standby without a primary.
	standby := filepath.Join(s.Dir(), "data", "standby.signal")
	must(t, os.WriteFile(standby, nil, 0o644))
	t.Cleanup(func() {
		must(t, errors.Join(s.StopFast(), os.Remove(standby)))
		restart(t, s)
	})
	restart(t, s, envs...)
	for _, e := range envs {
		t.Run(e.driver, func(t *testing.T) {
			db := e.open(nil)
			refused := func(claim guard.Claim, names ...string) {
				for what, call := range e.calls(db, claim, names...) {
					err := call(t.Context())
					if guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "standby") && !strings.Contains(err.Error(), "recovery") && !strings.Contains(err.Error(), "read-only") {
						t.Errorf("%s under token %d: got %v, want ErrUnavailable that says why", what, claim.Token, err)
					}
				}
			}
			refused(claimOf("r", 5), "Mark", "Admit", "InTx", "Raise", "Retire", "Migrate", "Update")
			refused(claimOf("r", 4), "Admit", "InTx")
			refused(claimOf("r", 6), "Admit", "Raise")
			_, err := e.admin.Exec(t.Context(), "SELECT fencepost.enter('r', 5, 'lease-5', 0, 0)")
			if pgerr.State(err) != "25006" || !strings.Contains(err.Error(), "standby") {
				t.Errorf("enter by itself: %v", err)
			}
		})
	}
}

// TestCancelledStandbyWait (P5): a COMMIT whose wait for the synchronous standby is
// cancelled ends in a warning only, and the standby may not have it; nor that of one that
// gives up. On connections
// that are watched the outcome of every call is unknown; the control is the same call
// on others, which is a success. A warning before the COMMIT is not taken for it.
func TestCancelledStandbyWait(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), nil)
	must(t, err)
	t.Cleanup(func() { server.Stop() })
	for driver := range openers {
		t.Run(openers[driver].driver, func(t *testing.T) {
			e := newEnvOn(t, driver, server)
			e.createWritten()
			e.exec("CREATE TABLE docs (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO docs VALUES (1, 'old'); CREATE VIEW seen AS TABLE docs")
			noticed := 0
			watched := e.open(nil, func(c *pgx.ConnConfig) {
				c.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { noticed++ }
				WatchWarnings(c)
			})
			err := watched.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				_, err := tx.exec(ctx, "ANALYZE seen") // a WARNING of 01000: a view cannot be analyzed
				return err
			})
			if err != nil || noticed != 1 {
				t.Errorf("%v after %d notices", err, noticed)
			}
			for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"} {
				must(t, e.db.unfenced(t.Context(), sql))
			}
			e.waitFor("the setting", "SELECT current_setting('synchronous_standby_names') = 'nobody'")
			e.givesUpTheStandby(t)
			ctx, cancel := context.WithCancel(context.Background())
			cancelled := make(chan struct{})
			var waits atomic.Int64
			go func() { // a person at psql, who cancels each statement once
				defer close(cancelled)
				for done := []string{}; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
					rows, _ := e.admin.Query(context.Background(), `WITH waiting AS MATERIALIZED (SELECT pid, concat(pid, ' ', query_start) AS id FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND concat(pid, ' ', query_start) <> ALL ($1))
						SELECT id FROM waiting WHERE pg_cancel_backend(pid)`, done)
					more, _ := pgx.CollectRows(rows, pgx.RowTo[string])
					done = append(done, more...)
					waits.Add(int64(len(more)))
				}
			}()
			for waits.Load() == 0 { // until the checkpointer knows the setting, commits do not wait
				e.exec("UPDATE docs SET v = 'old'")
			}
			defer func() {
				e.exec("ALTER SYSTEM RESET synchronous_standby_names")
				e.exec("SELECT pg_reload_conf()")
				cancel()
				<-cancelled
			}()
			table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
			for _, c := range []struct {
				what string
				call func(db fence) error
			}{
				{"Raise", func(db fence) error { return db.Raise(t.Context(), claimOf("raised", 5)) }},
				{"Admit", func(db fence) error { _, err := db.Admit(t.Context(), claimOf("admitted", 5)); return err }},
				{"InTx", func(db fence) error { return db.fenced(t.Context(), claimOf("r", 5), write5) }},
				{"Exec", func(db fence) error {
					_, err := db.fencedExec(t.Context(), claimOf("r", 5), "INSERT INTO written VALUES ($1)", 5)
					return err
				}},
				{"Update", func(db fence) error { return table.Update(t.Context(), db, claimOf("1", 5), Key{1}, Set{"v": "new"}) }},
				{"Table.Raise", func(db fence) error { return table.Raise(t.Context(), db, claimOf("1", 6), Key{1}, nil) }},
				{"Reset", func(db fence) error {
					return db.Reset(t.Context(), "r", guard.Mark{Token: 5, LeaseID: "lease-5"}, guard.Mark{Token: 4}, 9, "op", "why")
				}},
			} {
				for _, on := range []struct {
					db   fence
					want error
				}{{watched, pgerr.ErrUnreplicated}, {e.db, nil}} {
					e.exec("BEGIN; SET LOCAL synchronous_commit = local; TRUNCATE fencepost.marks; DELETE FROM written; UPDATE docs SET last_fencing_token = 0; COMMIT")
					e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
					err := c.call(on.db)
					if !errors.Is(err, on.want) || on.want != nil && guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
						t.Errorf("%s: got %v, want %v", c.what, err, on.want)
					}
				}
			}
			if noticed < 2 {
				t.Error("the caller's own handler got no notice of the waits")
			}
		})
	}
}

// givesUpTheStandby: a COMMIT that gives up its wait is committed on the primary alone,
// since the driver has the server stop waiting: Resolve does not call that a success. The
// control is a COMMIT that waits for no standby.
func (e *env) givesUpTheStandby(t *testing.T) {
	claim := claimOf("r", 5)
	// Until the checkpointer knows the setting, commits do not wait.
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		for ctx.Err() == nil {
			e.admin.Exec(ctx, "UPDATE docs SET v = v")
		}
	}()
	e.waitFor("a commit that waits", "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'")
	cancel()
	<-waits
	for timeout := 200 * time.Millisecond; ; timeout *= 2 {
		waiting := e.open(&Options{CommitTimeout: timeout})
		err := waiting.fenced(t.Context(), claim, write5)
		wantReason(t, err, guard.ReasonOutcomeUnknown, "without a standby")
		committed, err := waiting.Resolve(t.Context(), err)
		if committed || err != nil || timeout > patience {
			wantReason(t, err, guard.ReasonOutcomeUnknown, "asked later")
			break
		} // else the COMMIT was given up before it was sent
	}
	noError(t, e.serverDefault("synchronous_commit", "local").fenced(t.Context(), claim, write5), "the control")
}

// subscriptionSQL is tables that a publisher and its subscriber have.
const subscriptionSQL = `CREATE TABLE copied (id int PRIMARY KEY, tenant text NOT NULL, v int NOT NULL);
	CREATE TABLE ledger (id int PRIMARY KEY);
	CREATE TABLE split (id int, tenant text NOT NULL, state text, PRIMARY KEY (id, state)) PARTITION BY LIST (state);
	CREATE TABLE split_open PARTITION OF split FOR VALUES IN ('open'); CREATE TABLE split_done PARTITION OF split FOR VALUES IN ('done');
	CREATE TABLE local (id int PRIMARY KEY, tenant text NOT NULL)`

// TestSubscription: what a logical subscription writes was checked on the publisher and
// passes the triggers of the subscriber, whatever way it is written: the initial copy
// into a guarded table, every kind of change, a TRUNCATE that was legal under its claim,
// partitions by themselves or through their root, and a transaction in two phases. Local
// writers are refused, also those that only claim to be replicas, and Verify reports the
// subscription. The control does not tell the workers from others: a change never arrives.
func TestSubscription(t *testing.T) {
	server := mortalServer(t)
	for what, root := range map[string]bool{"through the root": true, "by partition": false} {
		t.Run(what, func(t *testing.T) {
			publisher, subscriber := newEnvOn(t, 0, server), newEnvOn(t, 0, server)
			for _, e := range []*env{publisher, subscriber} {
				e.exec(subscriptionSQL)
				e.guardBy("copied", "{tenant}")
				e.guardBy("split", "{tenant}")
				e.guardBy("ledger", "ledger")
				e.exec("INSERT INTO fencepost.marks (resource, token, lease_id) SELECT unnest(ARRAY['a', 'b', 'ledger']), 5, 'lease-5'")
			}
			local := subscriber.guardBy("local", "{tenant}")
			claims := formClaims("a", "b", "ledger")
			write := func(sql string) {
				t.Helper()
				noError(t, publisher.presenting(sql, claims...), "%s", sql)
			}
			arrives := func(what, sql string) {
				t.Helper()
				subscriber.waitFor(what, "SELECT ("+sql+")")
			}
			write("INSERT INTO copied VALUES (1, 'a', 0), (2, 'b', 0); INSERT INTO ledger VALUES (1); INSERT INTO split VALUES (1, 'a', 'open'), (2, 'b', 'done')")
			publisher.exec(fmt.Sprintf("CREATE PUBLICATION p FOR TABLE copied, ledger, split WITH (publish_via_partition_root = %t)", root))
			slot, twoPhase, inTwo := publisher.roleName("slot"), "", server15(publisher)
			if inTwo {
				twoPhase = ", two_phase = true"
				publisher.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", slot)
			} else {
				publisher.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
			}
			// The same server would wait for itself while it makes the slot.
			subscriber.exec("CREATE SUBSCRIPTION " + slot + " CONNECTION " + quoteText(publisher.url) + " PUBLICATION p WITH (create_slot = false, slot_name = " + slot + twoPhase + ")")
			t.Cleanup(func() {
				subscriber.exec("ALTER SUBSCRIPTION " + slot + " DISABLE")
				subscriber.exec("ALTER SUBSCRIPTION " + slot + " SET (slot_name = NONE)")
				subscriber.exec("DROP SUBSCRIPTION " + slot)
				publisher.waitFor("the slots to be free", "SELECT NOT bool_or(active) FROM pg_replication_slots WHERE database = current_database()")
				publisher.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
			})
			arrives("the initial copy", "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel")
			arrives("its rows", "SELECT (SELECT count(*) FROM copied) + (SELECT count(*) FROM ledger) + (SELECT count(*) FROM split) = 5")
			write("UPDATE copied SET tenant = 'a', v = 7 WHERE id = 2; DELETE FROM copied WHERE id = 1; INSERT INTO copied VALUES (3, 'b', 3)")
			arrives("changes", "SELECT coalesce(string_agg(concat_ws(' ', id, tenant, v), ', ' ORDER BY id), '') = '2 a 7, 3 b 3' FROM copied")
			write("UPDATE split SET state = 'done' WHERE id = 1; DELETE FROM split WHERE id = 2; INSERT INTO split VALUES (3, 'b', 'open')")
			arrives("changes of partitions", "SELECT coalesce(string_agg(concat_ws(' ', id, state), ', ' ORDER BY id), '') = '1 done, 3 open' FROM split")
			write("TRUNCATE ledger")
			write("INSERT INTO ledger VALUES (2)")
			arrives("a truncation and what came after it", "SELECT coalesce(string_agg(id::text, ' '), '') = '2' FROM ledger")
			if inTwo {
				publisher.exec("BEGIN; SELECT fencepost.present('a', 5, 'lease-5'); UPDATE copied SET v = 8 WHERE id = 2; PREPARE TRANSACTION '" + slot + "'")
				arrives("a prepared transaction", "SELECT count(*) = 1 FROM pg_prepared_xacts WHERE database = current_database()")
				publisher.exec("COMMIT PREPARED '" + slot + "'")
				arrives("its commit", "SELECT v = 8 FROM copied WHERE id = 2")
			}
			for _, sql := range []string{"UPDATE copied SET v = 78", "TRUNCATE ledger", "UPDATE split SET tenant = 'b' WHERE id = 1", "INSERT INTO ledger VALUES (9)"} {
				wantReason(t, subscriber.presenting(sql), guard.ReasonMissing, "a local writer: %s", sql)
			}
			// Not every session in replica mode is a worker.
			err := pgx.BeginFunc(t.Context(), subscriber.admin, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica"); err != nil {
					return err
				}
				_, err := tx.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader("9\ta\t9\n"), "COPY copied FROM STDIN")
				return err
			})
			wantReason(t, ErrorFrom(err), guard.ReasonMissing, "a copy in replica mode")
			subscriber.wantFindings("a subscriber", Verification{Triggers: []Trigger{triggerOn([]string{"copied"}, "{tenant}")}}, "a logical subscription writes it")
			subscriber.wantFindings("a table that is not replicated", Verification{Triggers: []Trigger{local}})
			undo := subscriber.mutate("replicated", "pid = pg_backend_pid()", "false")
			write("UPDATE copied SET v = 9 WHERE id = 2")
			if server15(subscriber) {
				arrives("the control's failure", "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats WHERE subname = '"+slot+"'")
			}
			undo()
			arrives("a change that was refused before", "SELECT v = 9 FROM copied WHERE id = 2")
		})
	}
}

// server15 reports that the server is PostgreSQL 15 or newer.
func server15(e *env) bool {
	e.Helper()
	return e.int("SELECT current_setting('server_version_num')::int") >= 150000
}
