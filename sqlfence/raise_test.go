package sqlfence

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// holding runs a fenced transaction in the background that inserts a row, has
// begun when holding returns, and ends when the returned function is called,
// which returns its error.
func (e *env) holding(claim guard.Claim) (end func() error) {
	e.Helper()
	return e.holdingOn(e.db, claim)
}

func (e *env) holdingOn(db fence, claim guard.Claim) (end func() error) {
	e.Helper()
	entered, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- db.fenced(context.Background(), claim, func(ctx context.Context, tx testTx) error {
			_, err := tx.exec(ctx, "INSERT INTO written VALUES ($1)", int64(claim.Token))
			close(entered)
			<-leave
			return err
		})
	}()
	select {
	case <-entered:
	case err := <-done:
		e.Fatalf("the transaction did not begin: %v", err)
	}
	end = sync.OnceValue(func() error { close(leave); return <-done })
	e.Cleanup(func() { end() })
	return end
}

// raising begins a raise; the function ends its context and returns its error.
func (e *env) raising(db fence, claim guard.Claim) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	raised := make(chan error, 1)
	go func() { raised <- db.Raise(ctx, claim) }()
	return func() error { cancel(); return <-raised }
}

// raise is the statement of a raise alone.
func (e *env) raise(claim guard.Claim) error {
	return e.db.unfenced(context.Background(), raiseSQL, claim.Resource, int64(claim.Token), claim.LeaseID, patience.Milliseconds())
}

// TestRaiseWaits (P2): a raise waits for the older holder's transactions, all
// of them, returns when they have committed, and what they wrote is then
// visible. An enter under the older token is stale from then on, and even while
// the raise waits, such enters cannot pass it forever. TestBrokenShapes has the control, a
// raise that does not take the lock.
func TestRaiseWaits(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		ends := []func() error{e.holding(claimOf("r", 5)), e.holding(claimOf("r", 5)), e.holding(claimOf("r", 5))}
		raised := e.start(func(func()) error { return e.raise(claimOf("r", 6)) })
		late := e.start(func(func()) error {
			return e.db.fenced(context.Background(), claimOf("r", 5), func(context.Context, testTx) error { return nil })
		})
		if len(raised)+len(late) != 0 {
			t.Fatal("a raise, or an enter behind it, did not wait for the older transactions")
		}
		for i, end := range ends {
			if n := e.int(waitersSQL); n != 2 {
				t.Errorf("%d wait with %d older transactions open, want the raise and the enter", n, len(ends)-i)
			}
			must(t, end())
		}
		must(t, <-raised)
		e.wantInt(int64(len(ends)), "rows that the successor sees", "SELECT count(*) FROM written")
		wantReason(t, <-late, guard.ReasonStale, "the enter behind the raise")
	})
}

// TestOneHolderSideBySide: transactions under one token do not wait for each
// other, and neither does a raise to the token that already is the mark.
func TestOneHolderSideBySide(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		var inside sync.WaitGroup
		inside.Add(2)
		errs := make(chan error, 2)
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		for range 2 {
			go func() {
				errs <- e.db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					inside.Done()
					inside.Wait() // both are in at once
					return e.db.Raise(ctx, claimOf("r", 5))
				})
			}()
		}
		for range 2 {
			noError(t, testkit.Receive(t, "two transactions of one holder side by side", errs))
		}
	})
}

// TestTimesOut: a holder that does not end makes the successor's raise
// ErrUnavailable, with the server's lock timeout inside, and no mark. Behind a raise
// that waits, an enter gives up after Options.LockTimeout. A raise that will be refused takes
// no lock and has its verdict at once: in the queue it would block the holder's next transactions.
func TestTimesOut(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		end := e.holding(claimOf("r", 5))
		impatient := e.open(&Options{RaiseTimeout: time.Millisecond}) // a raise that waits gets no verdict
		wantReason(t, impatient.Raise(t.Context(), claimOf("r", 4)), guard.ReasonStale, "an older token")
		wantReason(t, impatient.Raise(t.Context(), guard.Claim{Resource: "r", Token: 5, LeaseID: "another"}), guard.ReasonConflict, "another lease")
		db := e.open(&Options{RaiseTimeout: 30 * time.Millisecond, LockTimeout: 30 * time.Millisecond, TerminateAfter: endsNobody}) // else a slow machine ends the holder
		timesOut := func(what string, err error) {
			t.Helper()
			wantRefused(t, err, guard.ReasonUnavailable, pgerr.LockTimeout, what)
		}
		timesOut("Raise", db.Raise(t.Context(), claimOf("r", 6)))
		_, err := db.Admit(t.Context(), claimOf("r", 6))
		timesOut("Admit", err)
		timesOut("InTx", db.fenced(t.Context(), claimOf("r", 6), never(t)))
		wantMark(t, db, "r", 5)
		raised := e.start(func(func()) error { return e.raise(claimOf("r", 6)) })
		timesOut("InTx behind a raise", db.fenced(t.Context(), claimOf("r", 5), never(t)))
		noError(t, errors.Join(end(), <-raised), "the holder and the raise")
	})
}

// TestStoppedHolder: a holder that stops inside its transaction is ended by
// the server after Options.IdleTimeout, which frees the successor's raise; its
// own late COMMIT is no success.
func TestStoppedHolder(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		db := e.open(&Options{IdleTimeout: 200 * time.Millisecond})
		err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
			// It fails if this process was delayed before it, which is just as
			// good.
			tx.exec(ctx, "INSERT INTO written VALUES (5)")
			noError(t, e.db.Raise(context.WithoutCancel(ctx), claimOf("r", 6)), "the successor's raise") // the process is stopped meanwhile
			return nil
		})
		if reason := guard.ReasonOf(err); reason != guard.ReasonStale && reason != guard.ReasonOutcomeUnknown {
			t.Errorf("got %v, want ErrStale or, at COMMIT, ErrOutcomeUnknown", err)
		}
		e.wantInt(0, "the stopped holder's write is there", "SELECT count(*) FROM written")
	})
}

// TestRaiseKeepsItsPlace (P2): a raise that looks for the sessions in its way while
// it waits is passed by no younger transaction of the old holder, however long it
// waits. The control is a pool of one connection, where each look takes the
// raise's.
func TestRaiseKeepsItsPlace(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		enough := &Options{TerminateAfter: time.Hour, RaiseTimeout: 2 * time.Hour}
		for what, c := range map[string]struct {
			db     fence
			passed bool
		}{"a pool": {e.open(enough), false}, "one connection": {e.on(e.connect(1), enough), true}} {
			e.exec("TRUNCATE fencepost.marks, written")
			looked := e.countLooks()
			end := e.holding(claimOf("r", 5))
			raised := e.start(func(func()) error { return c.db.Raise(context.Background(), claimOf("r", 6)) })
			younger := make(chan error, 1)
			go func() {
				younger <- e.db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					return write5(ctx, tx)
				})
			}()
			if c.passed {
				noError(t, <-younger, "%s: the younger transaction", what)
			} else {
				looked(3)
			}
			noError(t, errors.Join(end(), <-raised), "%s", what)
			if !c.passed {
				wantReason(t, <-younger, guard.ReasonStale, "%s: the younger transaction", what)
			}
		}
	})
}

// countLooks counts the looks of raises from here on; the function waits for some.
func (e *env) countLooks() (wait func(n int)) {
	e.Helper()
	e.exec("DROP SEQUENCE IF EXISTS public.looks; CREATE SEQUENCE public.looks")
	if !strings.Contains(e.text("SELECT prosrc FROM pg_proc WHERE oid = 'fencepost.holders'::regproc"), "public.looks") {
		e.mutate("holders", "RETURN QUERY WITH", "PERFORM nextval('public.looks'); RETURN QUERY WITH")
	}
	return func(n int) {
		e.Helper()
		e.waitFor("looks of a raise", "SELECT is_called AND last_value >= $1 FROM public.looks", n)
	}
}

// TestShortRaisesEndAHolder (P2): callers whose contexts are shorter than the time
// after which an idle holder is ended get past it all the same, whether it
// is in InTx or writes under triggers (TestLateHolders: within 2 s in all). The control
// ends none, and gets nowhere.
func TestShortRaisesEndAHolder(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		e.exec("CREATE TABLE job (id int PRIMARY KEY, v int NOT NULL)")
		must(t, e.db.InstallTrigger(t.Context(), Trigger{Table: []string{"job"}, Resource: template("r")}))
		holders := map[string]func(idle func() error) error{
			"InTx": func(idle func() error) error {
				return e.db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					if err := write5(ctx, tx); err != nil {
						return err
					}
					return idle()
				})
			},
			"trigger": func(idle func() error) error {
				return e.db.plain(context.Background(), func(ctx context.Context, tx testTx) error {
					if err := tx.present(ctx, claimOf("r", 5)); err != nil {
						return err
					}
					if _, err := tx.exec(ctx, "INSERT INTO job VALUES (1, 1)"); err != nil {
						return err
					}
					return idle()
				})
			},
		}
		for what, hold := range holders {
			begin := func() (resume chan struct{}, old chan error) {
				e.exec("TRUNCATE fencepost.marks, written; ALTER TABLE job DISABLE TRIGGER fencepost_truncate; TRUNCATE job; ALTER TABLE job ENABLE ALWAYS TRIGGER fencepost_truncate")
				must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
				resume = make(chan struct{})
				return resume, e.start(func(paused func()) error {
					return hold(func() error { paused(); <-resume; return nil })
				})
			}
			resume, old := begin()
			looked := e.countLooks()
			for looks := range 4 {
				end := e.raising(e.open(&Options{TerminateAfter: endsNobody, RaiseTimeout: patience}), claimOf("r", 6))
				looked(looks + 1)
				wantReason(t, end(), guard.ReasonUnavailable, "%s, the control", what)
			}
			close(resume)
			noError(t, <-old, "%s, the control's holder", what)
			resume, old = begin()
			e.shortRaises(e.open(&Options{RaiseTimeout: patience}), claimOf("r", 6))
			close(resume)
			if err := <-old; err == nil || e.written() != 0 {
				t.Errorf("%s: the holder: %v", what, err)
			}
		}
	})
}

// TestRaiseWithoutASpareConnection (P2): a raise that gets no second connection for
// its looks, because the pool has one or the others are in use, ends an idle holder
// all the same.
func TestRaiseWithoutASpareConnection(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		for conns := range 2 {
			e.exec("TRUNCATE fencepost.marks")
			pool := e.connect(conns + 1)
			db := e.on(pool, &Options{TerminateAfter: 1500 * time.Millisecond, RaiseTimeout: patience})
			resume, release := make(chan struct{}), make(chan struct{})
			var busy []chan error
			old := e.start(func(paused func()) error {
				return e.db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					paused()
					<-resume
					return write5(ctx, tx)
				})
			})
			for range conns {
				busy = append(busy, e.start(func(paused func()) error {
					return db.plain(context.Background(), func(context.Context, testTx) error { paused(); <-release; return nil })
				}))
			}
			noError(t, db.Raise(t.Context(), claimOf("r", 6)), "%d connections", conns+1)
			close(resume)
			close(release)
			wantReason(t, <-old, guard.ReasonStale, "the holder")
			for _, b := range busy {
				noError(t, <-b)
			}
		}
	})
}

// TestPreparedTransaction (P1, P2, P6): a fenced transaction that is prepared for a
// two-phase commit keeps its fence until it is committed, across a restart of
// the server, too: no session holds it, so no session can be ended to release
// it. The error of a raise that waits for it has its name. So does one that wrote
// under triggers.
func TestPreparedTransaction(t *testing.T) {
	s := mortalServer(t)
	e := newEnvOn(t, 0, s)
	e.createWritten()
	e.exec("CREATE TABLE job (id int PRIMARY KEY, v int NOT NULL)")
	must(t, e.db.InstallTrigger(t.Context(), Trigger{Table: []string{"job"}, Resource: template("r")}))
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	prepare := func(ctx context.Context, tx testTx) error {
		return errors.Join(write5(ctx, tx), running("PREPARE TRANSACTION 'close of april'")(ctx, tx))
	}
	wantReason(t, e.db.fenced(t.Context(), claimOf("r", 5), prepare), guard.ReasonOutcomeUnknown, "a callback that prepares its transaction")
	waits := func(when string) {
		t.Helper()
		looked := e.countLooks()
		db := e.open(&Options{RaiseTimeout: patience, TerminateAfter: time.Millisecond})
		end := e.raising(db, claimOf("r", 6))
		looked(2)
		wantSays(t, end(), guard.ReasonUnavailable, `the prepared transaction "close of april"`, "%s: a raise", when)
	}
	waits("prepared")
	must(t, s.StopFast())
	restart(t, s, e)
	waits("prepared, after a restart")
	e.exec("COMMIT PREPARED 'close of april'")
	e.wantInt(1, "rows of the prepared transaction", "SELECT count(*) FROM written")
	e.exec("BEGIN; SELECT fencepost.present('r', 5, 'lease-5'); INSERT INTO job VALUES (1, 1); PREPARE TRANSACTION 'close of april'")
	waits("under triggers")
	e.exec("ROLLBACK PREPARED 'close of april'")
	noError(t, e.db.Raise(t.Context(), claimOf("r", 6)), "the control")
}

// TestP6LooksOfARaise: what a look beside a raise was refused with decides only what
// it can: a claim that is stale by then is stale, and not unavailable; an unknown
// outcome stays unknown, and a role that may not look does not make a setup error of
// a lock timeout.
func TestP6LooksOfARaise(t *testing.T) {
	claim := claimOf("r", 5)
	stale := &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim, Mark: guard.Mark{Token: 6}}
	denied := guard.Setup("look", claim, state(pgerr.Privilege))
	unavailable, unknown := guard.Unavailable("raise", claim, state(pgerr.LockTimeout)), guard.OutcomeUnknown("raise", claim, errInjected)
	for _, c := range []struct {
		raise, look error
		want        guard.Reason
		never       []error
	}{
		{unavailable, stale, guard.ReasonStale, []error{guard.ErrUnavailable}},
		{unknown, stale, guard.ReasonOutcomeUnknown, []error{guard.ErrStale}},
		{unavailable, denied, guard.ReasonUnavailable, []error{guard.ErrSetup}},
		{unknown, denied, guard.ReasonOutcomeUnknown, []error{guard.ErrSetup}},
		{nil, stale, guard.ReasonNone, nil},
	} {
		err := (&waitingRaise[pgx.Tx]{refused: c.look}).explain(c.raise)
		wantReason(t, err, c.want, "%v with a look of %v", c.raise, c.look)
		for _, never := range c.never {
			if errors.Is(err, never) {
				t.Errorf("%v is also %v", err, never)
			}
		}
	}
}

// TestRaiseUnderStatementTimeout: a session whose statement_timeout, or transaction_timeout
// where there is one (PostgreSQL 17), is shorter
// than the wait for an older holder, and than the look for it, still raises, once
// that holder has ended. The control is the statement alone, which is cancelled, or ends the session.
func TestRaiseUnderStatementTimeout(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.mutate("holders", "RETURN QUERY WITH", "PERFORM pg_sleep(0.2); RETURN QUERY WITH") // as on a busy server
		e.raisesUnder("statement_timeout", pgerr.Canceled)
		if e.int("SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'") > 0 {
			e.exec("DELETE FROM fencepost.marks; DROP TABLE written")
			e.raisesUnder("transaction_timeout", pgerr.TransactionTimeout)
		}
	})
}

func (e *env) raisesUnder(setting, state string) {
	e.Helper()
	t := e
	e.createWritten()
	looks := make(chan struct{}, 1)
	db := e.open(&Options{TerminateAfter: endsNobody, RaiseTimeout: patience, Observer: guard.ObserverFunc(func(_ context.Context, event guard.Event) {
		if event.Op == guard.OpContend {
			looks <- struct{}{}
		}
	})}, func(c *pgx.ConnConfig) { c.RuntimeParams[setting] = "100" })
	end := e.holding(claimOf("r", 5))
	wantState(t, db.unfenced(t.Context(), raiseSQL, "r", 6, "lease-6", patience.Milliseconds()), state, "the statement alone, under %s", setting)
	raised := make(chan error, 1)
	go func() { raised <- patiently(func() error { return db.Raise(context.Background(), claimOf("r", 6)) }) }()
	testkit.Receive(t, "a look that takes longer than the session allows", looks)
	e.waitFor("a raise that waits for longer than the session allows", `SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND strpos(query, 'fencepost.raise(') > 0 AND query_start < clock_timestamp() - interval '1 s'`)
	noError(t, end(), "the holder")
	noError(t, <-raised, "the raise")
	wantMark(t, e.db, "r", 6)
	var timeout int64
	noError(t, patiently(func() error {
		return db.plain(t.Context(), func(ctx context.Context, tx testTx) (err error) {
			timeout, err = tx.int(ctx, "SELECT setting::bigint FROM pg_settings WHERE name = $1", setting)
			return err
		})
	}))
	if timeout != 100 {
		t.Errorf("%s of the session is %d ms afterwards", setting, timeout)
	}
}

// patiently repeats a call that a timeout of the session ended in what takes no time on
// an idle machine.
func patiently(call func() error) error {
	for {
		err := call()
		if state := pgerr.State(err); state != pgerr.Canceled && state != pgerr.TransactionTimeout {
			return err
		}
	}
}
