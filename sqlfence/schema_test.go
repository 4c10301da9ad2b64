package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// TestSchemaMissing: without schema fencepost everything that needs it returns
// ErrSetup and says what to do, and a table of the application still works.
func TestSchemaMissing(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		saysMigrate := func(what string, err error) {
			t.Helper()
			wantSays(t, err, guard.ReasonSetup, "sqladmin's Migrate", what)
		}
		e.exec("DROP TABLE fencepost.marks") // as if only half of the schema existed
		saysMigrate("without the table", e.db.Raise(t.Context(), claimOf("r", 1)))
		e.exec("DROP SCHEMA fencepost CASCADE")
		for what, call := range e.calls(e.db, claimOf("r", 1), "InTx", "Raise", "Admit", "Mark", "Retire", "Verify", "Triggers", "RemoveTrigger") {
			saysMigrate(what, call(t.Context()))
		}
		saysMigrate("Enter", entering(e.db)(t.Context(), claimOf("r", 1), ran))
		saysMigrate("InstallTrigger", e.db.InstallTrigger(t.Context(), triggerOn([]string{"pg_class"}, `x`)))
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x')")
		noError(t, e.calls(e.db, claimOf("r", 5))["Update"](t.Context()), "a single statement")
		must(t, e.db.Migrate(t.Context()))
		noError(t, e.db.Raise(t.Context(), claimOf("r", 1)), "after Migrate")
	})
}

// TestNested: InTx inside InTx of the same DB would be another transaction. It
// is refused, even if another DB's InTx is in between, and raises no mark.
func TestNested(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		other := e.open(nil)
		must(t, e.db.fenced(t.Context(), claimOf("a", 1), func(ctx context.Context, tx testTx) error {
			wantInvalid(t, "nested", e.db.fenced(ctx, claimOf("b", 1), never(t)), "InTx", `"b"`)
			return other.fenced(ctx, claimOf("c", 1), func(ctx context.Context, tx testTx) error {
				wantInvalid(t, "nested in another's", e.db.fenced(ctx, claimOf("b", 1), never(t)), "InTx", `"b"`)
				return nil
			})
		}))
		e.wantInt(0, "a refused call raised the mark", "SELECT count(*) FROM fencepost.marks WHERE resource = 'b'")
	})
}

// TestTokenColumnType: a mark of a type that rounds admits an older token, and
// one that is too short stops a holder after the first failover, so only bigint
// is accepted, also as a domain, before anything is written.
func TestTokenColumnType(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE DOMAIN mark AS bigint CHECK (VALUE >= 0)")
		for kind, good := range map[string]bool{"bigint": true, "mark": true, "real": false, "double precision": false, "numeric": false, "integer": false, "smallint": false} {
			e.exec(`DROP TABLE IF EXISTS marked; CREATE TABLE marked (id int PRIMARY KEY, v text, "the ""mark""" ` + kind + ` NOT NULL DEFAULT 0); INSERT INTO marked VALUES (1, 'old')`)
			for _, in := range []string{"", " in a transaction"} {
				table := e.table("marked", []string{"id"}, &TableOptions{TokenColumn: `the "mark"`, Rule: guard.SameOrNewer})
				update := func(q Querier, token guard.Token) error {
					return table.Update(t.Context(), q, claimOf("1", token), Key{1}, Set{"v": "new"})
				}
				if in == "" {
					db := e.single() // no statement is prepared
					newer, older := update(db, 1<<40+9), update(db, 1<<40+2)
					if good {
						if newer != nil || !errors.Is(older, guard.ErrStale) {
							t.Errorf("%s: %v, then %v", kind, newer, older)
						}
						continue
					}
					wantInvalid(t, kind, newer, `token column the "mark"`, kind)
				} else if !good {
					err := e.db.plain(t.Context(), func(_ context.Context, tx testTx) error { return update(tx.in(), 1<<40+9) })
					wantInvalid(t, kind+in, err, `token column the "mark"`, kind)
				}
			}
			if n := e.int("SELECT count(*) FROM marked WHERE v = 'old'"); n != 1 != good {
				t.Errorf("%s: %d rows are old", kind, n)
			}
		}
	})
}

type testLease struct {
	claim guard.Claim
	valid bool
}

func (l *testLease) Claim() guard.Claim { return l.claim }
func (l *testLease) Valid() bool        { return l.valid }

// TestContextIsOver (P5, P6): a context that is over sends nothing and changes
// nothing, and the error has the cause. If it ended with its lease the error is
// ErrLeaseLost, not an unavailable store; one whose lease is still valid is the
// control.
func TestContextIsOver(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		over := errors.New("the hold ended")
		lease := &testLease{claim: claimOf("r", 5), valid: true}
		ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
		cancel(over)
		for _, want := range []guard.Reason{guard.ReasonUnavailable, guard.ReasonLeaseLost} {
			for what, call := range e.calls(e.db, lease.claim) {
				err := call(ctx)
				if wantReason(t, err, want, what); !errors.Is(err, over) {
					t.Errorf("%s: %v has not the cause", what, err)
				}
				if strings.Count(err.Error(), "store unavailable") > 1 {
					t.Errorf("%s says it twice: %v", what, err)
				}
				if lost := new(guard.LostError); !lease.valid && (!errors.As(err, &lost) || lost.Claim != lease.claim || !strings.Contains(err.Error(), "nothing was sent")) {
					t.Errorf("%s: %v does not say which lease was lost and that nothing was sent", what, err)
				}
			}
			lease.valid = false
		}
		e.wantInt(0, "something was written", "SELECT (SELECT count(*) FROM fencepost.marks) + (SELECT count(*) FROM pairs WHERE v <> 'old')")
	})
}

// TestLeaseLostMeanwhile (P6): an operation that waits when its lease is lost
// returns ErrLeaseLost with the cause, because nothing was written; if that is
// not known, ErrOutcomeUnknown, with the cause too. The control is a context
// that ends under a good lease.
func TestLeaseLostMeanwhile(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		e.exec(`CREATE TABLE docs (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO docs VALUES (1, 'old', 0)`)
		table, over := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}), errors.New("the hold ended")
		e.exec("CREATE TABLE work (token bigint, slept text DEFAULT pg_sleep(60)::text)")
		transactor, insert := e.transactor()
		e.holding(claimOf("r", 5))
		sleep := running("SELECT pg_sleep(60)")
		blocked := func() { e.waitForBlocked(1) }
		asleep := func() {
			e.waitFor("asleep", "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
		}
		for _, lost := range []bool{true, false} {
			for what, c := range map[string]struct {
				call func(ctx context.Context) error
				wait func()
				want guard.Reason // with a lost lease
			}{
				"Raise": {func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("r", 6)) }, blocked, guard.ReasonLeaseLost},
				"Admit": {func(ctx context.Context) error { _, err := e.db.Admit(ctx, claimOf("r", 6)); return err }, blocked, guard.ReasonLeaseLost},
				"InTx":  {func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("r", 6), ran) }, blocked, guard.ReasonLeaseLost},
				"Transactor": {func(ctx context.Context) error {
					return transactor.InTx(ctx, claimOf("s", 6), func(ctx context.Context) error { return insert(ctx, 6) })
				}, asleep, guard.ReasonLeaseLost},
				"callback": {func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("s", 6), sleep) }, asleep, guard.ReasonLeaseLost},
				"Update": {func(ctx context.Context) error {
					return table.Update(ctx, e.db, claimOf("1", 6), Key{1}, Set{"v": "new"})
				}, blocked, ""},
				"Table.Raise": {func(ctx context.Context) error { return table.Raise(ctx, e.db, claimOf("1", 6), Key{1}, nil) }, blocked, ""},
			} {
				row := e.begin("UPDATE docs SET v = v")
				lease := &testLease{claim: claimOf("r", 6), valid: true}
				ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
				done := make(chan error, 1)
				go func() { done <- c.call(ctx) }()
				c.wait()
				lease.valid = !lost
				cancel(over)
				err := <-done
				unknown := errors.Is(err, guard.ErrOutcomeUnknown)
				if !strings.Contains(err.Error(), over.Error()) || errors.Is(err, over) == unknown || errors.Is(err, guard.ErrLeaseLost) != (lost && !unknown) || errors.As(err, new(*guard.LostError)) != (lost && !unknown) {
					t.Errorf("%s, lease lost %v: %v", what, lost, err)
				}
				if got := guard.ReasonOf(err); lost && c.want != "" && got != c.want {
					t.Errorf("%s: reason %s", what, got)
				}
				row.Rollback(t.Context())
				e.waitFor("nobody asleep", "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
			}
		}
		// What has another reason keeps it.
		lease := &testLease{claim: claimOf("r", 6)}
		ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
		cancel(over)
		lost := &guard.LostError{Claim: lease.claim}
		gone, drop := context.WithCancelCause(t.Context())
		drop(lost)
		if err := sqlkit.Interrupted(gone, guard.OutcomeUnknown("a", guard.Claim{}, context.Canceled)); errors.Is(err, guard.ErrLeaseLost) || !errors.Is(err, guard.ErrOutcomeUnknown) || !strings.Contains(err.Error(), lost.Error()) {
			t.Errorf("an unknown outcome promises that nothing was written: %v", err)
		}
		for _, err := range []error{nil, guard.Invalid("a", "b", "c"), state("23505")} {
			if got := sqlkit.Interrupted(ctx, err); got != err {
				t.Errorf("%v became %v", err, got)
			}
		}
		if err := sqlkit.Interrupted(t.Context(), guard.Unavailable("a", guard.Claim{}, context.Canceled)); strings.Contains(err.Error(), "lease") {
			t.Error(err)
		}
	})
}

// TestObserver: each call is one event with the error that the caller gets,
// the facts and a duration.
func TestObserver(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		var events []guard.Event
		observer := guard.ObserverFunc(func(_ context.Context, event guard.Event) { events = append(events, event) })
		db := e.open(&Options{Observer: observer})
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x')")
		table := e.table("pairs", []string{"a", "b"}, &TableOptions{Observer: observer})
		opts := TableOptions{Rule: guard.SameOrNewer, Observer: observer}
		rows := e.table("pairs", []string{"a", "b"}, &opts)
		failed := errors.New("failed")
		nothing := func(context.Context, testTx) error { return nil }
		ok, mark := claimOf("r", 5), guard.Mark{Token: 5, LeaseID: "lease-5"}
		old, bad := claimOf("r", 4), guard.Claim{Resource: "r"}
		update := func(q Querier, c guard.Claim) error {
			return table.Update(t.Context(), q, c, Key{1, "x"}, Set{"v": "new"})
		}
		for what, c := range map[string]struct {
			op   guard.Op
			mark guard.Mark
			call func() error
			all  int // events, the last of which is meant
		}{
			"raise":                  {guard.OpRaise, mark, func() error { return db.Raise(t.Context(), ok) }, 1},
			"stale raise":            {guard.OpRaise, mark, func() error { return db.Raise(t.Context(), old) }, 1},
			"invalid raise":          {guard.OpRaise, guard.Mark{}, func() error { return db.Raise(t.Context(), bad) }, 1},
			"stale InTx":             {guard.OpTransaction, mark, func() error { return db.fenced(t.Context(), old, nothing) }, 1},
			"update":                 {guard.OpWrite, mark, func() error { return update(db, ok) }, 1},
			"stale update":           {guard.OpWrite, guard.Mark{Token: 5}, func() error { return update(db, old) }, 1},
			"invalid update":         {guard.OpWrite, guard.Mark{}, func() error { return update(db, bad) }, 1},
			"upsert":                 {guard.OpWrite, mark, func() error { return rows.Upsert(t.Context(), db, ok, Key{1, "x"}, nil) }, 1},
			"table raise":            {guard.OpRaise, mark, func() error { return rows.Raise(t.Context(), db, ok, Key{1, "x"}, nil) }, 1},
			"table raise of nothing": {guard.OpRaise, guard.Mark{}, func() error { return rows.Raise(t.Context(), db, ok, Key{3, "x"}, nil) }, 1},
			"InTx": {guard.OpTransaction, mark, func() error {
				return db.fenced(t.Context(), ok, func(context.Context, testTx) error { return nil })
			}, 1},
			"failed InTx": {guard.OpTransaction, guard.Mark{}, func() error {
				return db.fenced(t.Context(), ok, func(context.Context, testTx) error { return failed })
			}, 1},
			"enter":       {guard.OpTransaction, mark, func() error { return entering(db)(t.Context(), ok, nothing) }, 1},
			"stale enter": {guard.OpTransaction, mark, func() error { return entering(db)(t.Context(), old, nothing) }, 1},
			"update in InTx": {guard.OpTransaction, mark, func() error {
				return db.fenced(t.Context(), ok, func(_ context.Context, tx testTx) error { return update(tx.in(), ok) })
			}, 2},
		} {
			e.exec("UPDATE pairs SET last_fencing_token = $1", map[bool]int{true: 5, false: 0}[what == "stale update"])
			must(t, e.db.Raise(t.Context(), ok))
			events = nil
			err := c.call()
			if len(events) != c.all {
				t.Errorf("%s: %d events", what, len(events))
				continue
			}
			got := events[len(events)-1]
			if got.Duration <= 0 || got.Duration > time.Minute {
				t.Errorf("%s took %v", what, got.Duration)
			}
			want := guard.Event{Op: c.op, Surface: "sql", Claim: got.Claim, Mark: c.mark, Reason: guard.ReasonOf(err), Duration: got.Duration, Err: err}
			if got != want || got.Claim.Resource != "r" {
				t.Errorf("%s: got\n%+v, want\n%+v", what, got, want)
			}
		}
	})
}

// TestTellingNobodyAllocatesNothing: without an observer an event costs no
// allocation; with one, the event of a success does not either.
func TestTellingNobodyAllocatesNothing(t *testing.T) {
	ctx, start := context.Background(), time.Now()
	claim := guard.Claim{Resource: "r", Token: 1, LeaseID: "l"}
	told := 0
	for name, observer := range map[string]guard.Observer{
		"nobody": nil, "an observer": guard.ObserverFunc(func(context.Context, guard.Event) { told++ }),
	} {
		d := &DB[pgx.Tx]{opts: Options{Observer: observer}}
		if n := testing.AllocsPerRun(100, func() {
			d.observe(ctx, guard.Event{Op: guard.OpWrite, Claim: claim, Mark: markOf(claim, nil), Duration: time.Since(start)})
		}); n != 0 {
			t.Errorf("told to %s: %v allocations", name, n)
		}
	}
	if told == 0 {
		t.Error("the observer was not told")
	}
}

// TestOneConnection (P5): inside InTx on a pool of one connection, every call on the
// DB that would wait for the connection of its own caller is refused at once, and the
// error says what to do. The control is the same with two.
func TestOneConnection(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for conns := 1; conns <= 2; conns++ {
			db := e.on(e.connect(conns), nil)
			names := []string{"Mark", "Admit", "Raise", "Retire"}
			if e.driver == "pgx" { // on database/sql the operators' pool is another one
				names = append(names, "Verify", "Marks", "Migrate")
			}
			calls := e.calls(db, claimOf("s", 5), names...)
			noError(t, db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, _ testTx) error {
				for what, call := range calls {
					if err := call(ctx); conns == 1 {
						wantInvalid(t, what, err, "connection", "")
					} else {
						noError(t, err, "%s, the control", what)
					}
				}
				return nil
			}))
			for what, call := range calls {
				noError(t, call(t.Context()), "%s outside of InTx", what)
			}
		}
	})
}
