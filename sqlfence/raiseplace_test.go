package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

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
				if err := <-younger; err != nil {
					t.Errorf("%s: the younger transaction: %v", what, err)
				}
			} else {
				looked(3)
			}
			noError(t, errors.Join(end(), <-raised), "%s", what)
			if !c.passed {
				if err := <-younger; !errors.Is(err, guard.ErrStale) {
					t.Errorf("%s: the younger transaction: %v, want ErrStale", what, err)
				}
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
// after which an idle holder is ended get past it within 2 s in all, whether it
// is in InTx or writes under triggers. The control ends none, and gets nowhere.
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
			short := func(db fence) error {
				ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
				defer cancel()
				return db.Raise(ctx, claimOf("r", 6))
			}
			resume, old := begin()
			for range 4 {
				wantReason(t, short(e.open(&Options{TerminateAfter: -1})), guard.ReasonUnavailable, "%s, the control", what)
			}
			close(resume)
			if err := <-old; err != nil {
				t.Errorf("%s, the control's holder: %v", what, err)
			}
			for try := 1; ; try++ {
				resume, old := begin()
				db, start, err := e.open(&Options{}), time.Now(), errors.New("none")
				for err != nil && time.Since(start) < 10*time.Second { // less than the timeout of an idle session
					err = short(db)
				}
				took := time.Since(start)
				close(resume)
				if holderErr := <-old; err != nil || holderErr == nil || e.written() != 0 {
					t.Errorf("%s: the raises: %v, the holder: %v", what, err, holderErr)
				}
				if took <= 2*time.Second {
					break
				}
				if try == 3 {
					t.Fatalf("%s: the raises took %v, three times over 2 s", what, took)
				}
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
			if err := <-old; !errors.Is(err, guard.ErrStale) {
				t.Errorf("the holder: %v", err)
			}
			for _, b := range busy {
				if err := <-b; err != nil {
					t.Error(err)
				}
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
		err := e.open(&Options{RaiseTimeout: 300 * time.Millisecond, TerminateAfter: 100 * time.Millisecond}).Raise(t.Context(), claimOf("r", 6))
		if guard.ReasonOf(err) != guard.ReasonUnavailable || pgerr.State(err) != pgerr.LockTimeout || !strings.Contains(err.Error(), `the prepared transaction "close of april"`) {
			t.Errorf("%s: a raise got %v, want that it waits", when, err)
		}
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
