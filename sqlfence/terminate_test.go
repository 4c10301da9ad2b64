package sqlfence

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestTerminateIsNarrow: a raise ends only sessions that hold this resource's lock,
// under a lower token, of the same role, in the transaction that was seen.
func TestTerminateIsNarrow(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		role := e.newRole("app", "")
		e.exec("CREATE TABLE written (token bigint); GRANT USAGE ON SCHEMA fencepost TO " + role + "; GRANT EXECUTE ON FUNCTION fencepost.holders, fencepost.session TO " + role)
		for _, resource := range []string{"r", "other"} {
			must(t, e.db.Raise(t.Context(), claimOf(resource, 5)))
		}
		end, endOther := e.holding(claimOf("r", 5)), e.holding(claimOf("other", 5))
		// terminate ends the given sessions if it finds them in the way of the claim.
		keys := e.text("SELECT string_agg(pid || '@' || extract(epoch FROM xact_start), ' ') FROM pg_stat_activity WHERE xact_start IS NOT NULL")
		terminate := func(role string, claim guard.Claim, keys string) (n int64, err error) {
			err = pgx.BeginFunc(t.Context(), e.admin, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL SESSION AUTHORIZATION "+role); err != nil {
					return err
				}
				return tx.QueryRow(t.Context(), terminateSQL, claim.Resource, int64(claim.Token), claim.LeaseID, keys).Scan(&n)
			})
			return n, err
		}
		for what, c := range map[string]struct {
			role  string
			claim guard.Claim
			keys  string
		}{
			"another role":        {role, claimOf("r", 6), keys},
			"another transaction": {"DEFAULT", claimOf("r", 6), strings.ReplaceAll(keys, "@", "@1")},
			"another resource":    {"DEFAULT", claimOf("s", 6), keys},
			"the mark's holder":   {"DEFAULT", claimOf("r", 5), keys},
			"the same in prefix":  {"DEFAULT", claimOf("r ", 6), keys},
		} {
			if n, err := terminate(c.role, c.claim, c.keys); err != nil || n != 0 {
				t.Errorf("%s: %d sessions, %v", what, n, err)
			}
		}
		// A newer holder that raises in its own transaction cannot be
		// recognised by its lock, and is not ended for an older one.
		noError(t, entering(e.db)(t.Context(), claimOf("new", 7), func(context.Context, testTx) error {
			if n, err := terminate("DEFAULT", claimOf("new", 6), keys); err != nil || n != 0 {
				t.Errorf("a newer holder: %d sessions, %v", n, err)
			}
			return nil
		}))
		for what, claim := range map[string]guard.Claim{"an older holder": claimOf("r", 4), "another lease": {Resource: "r", Token: 5, LeaseID: "x"}} {
			if _, err := terminate("DEFAULT", claim, keys); pgerr.State(err) != pgerr.Stale && pgerr.State(err) != pgerr.Conflict {
				t.Errorf("%s: got %v, want a refusal", what, err)
			}
		}
		// The control: the session that none of these ended can be ended.
		if n, err := terminate("DEFAULT", claimOf("r", 6), keys); err != nil || n != 1 {
			t.Errorf("the older holder: %d sessions, %v", n, err)
		}
		if err := end(); err == nil {
			t.Error("a session that was ended committed")
		}
		noError(t, endOther(), "the other resource's holder")
	})
}

// TestTerminateNotGranted: a role that may not look for holders waits as long as
// one that does not terminate, and its error has both reasons.
func TestTerminateNotGranted(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		end := e.holding(claimOf("r", 5))
		looked := e.countLooks()
		e.mutate("holders", "RETURN QUERY WITH", "RAISE 'no right to holders' USING ERRCODE = '42501'; RETURN QUERY WITH")
		db := e.open(&Options{RaiseTimeout: patience, TerminateAfter: time.Millisecond})
		endRaise := e.raising(db, claimOf("r", 6))
		looked(3)
		wantSays(t, endRaise(), guard.ReasonUnavailable, "no right to holders", "a raise that ended while it waited")
		looked = e.countLooks()
		raised := make(chan error, 1)
		go func() { raised <- db.Raise(t.Context(), claimOf("r", 6)) }()
		looked(2)
		noError(t, end(), "the holder")
		noError(t, <-raised, "the raise, once the holder has ended")
	})
}

// events keeps the events of an observer.
type events struct {
	mu   sync.Mutex
	seen []guard.Event
}

func (e *events) Observe(_ context.Context, event guard.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, event)
}

func (e *events) of(op guard.Op) (of []guard.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.seen {
		if event.Op == op {
			of = append(of, event)
		}
	}
	return of
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// blocking is a logger and an observer that does not return before it is let go on.
type blocking struct {
	called atomic.Int32
	goOn   chan struct{}
}

func (b *blocking) Write(p []byte) (int, error) {
	b.called.Add(1)
	<-b.goOn
	return len(p), nil
}

func (b *blocking) Observe(_ context.Context, event guard.Event) {
	if event.Op == guard.OpContend {
		b.called.Add(1)
		<-b.goOn
	}
}

// TestBlockedReports (P2): a logger or an observer that blocks for good delays neither the end
// of an idle holder's session nor the return of the raise that waits for it, nor that of a raise
// whose context ends.
func TestBlockedReports(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		for _, what := range []string{"logger", "observer"} {
			for _, after := range []time.Duration{time.Millisecond, endsNobody} {
				e.exec("DELETE FROM fencepost.marks")
				must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
				b := &blocking{goOn: make(chan struct{})}
				defer close(b.goOn)
				opts := &Options{TerminateAfter: after, RaiseTimeout: patience, Logger: testkit.Logger(t)}
				if what == "logger" {
					opts.Logger = slog.New(slog.NewTextHandler(b, nil))
				} else {
					opts.Observer = b
				}
				end := e.holding(claimOf("r", 5))
				ctx, cancel := context.WithCancel(t.Context())
				raised := make(chan error, 1)
				go func() { raised <- e.open(opts).Raise(ctx, claimOf("r", 6)) }()
				testkit.Eventually(t, "the "+what+" to be called", func() bool { return b.called.Load() > 0 })
				if after == endsNobody {
					cancel()
					wantReason(t, testkit.Receive(t, "the raise's end", raised), guard.ReasonUnavailable, what)
					noError(t, end(), "the holder")
				} else {
					noError(t, testkit.Receive(t, "the raise's end", raised), what)
					if end() == nil {
						t.Error("the holder was not ended")
					}
				}
				cancel()
			}
		}
	})
}

// TestIdleHolderIsEnded (P2, P6): with the defaults a holder that sits idle in
// its transaction is ended; the raise reports the sessions it waits for; and the ended
// holder gets ErrStale. The control is the same without ending any session: the raise
// goes on waiting, and its error says for whom. TestLateHolders has the times.
func TestIdleHolderIsEnded(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		named := func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "the old holder" }
		next := make(chan struct{})
		old := e.start(func(paused func()) error {
			return e.open(nil, named).fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				if err := write5(ctx, tx); err != nil {
					return err
				}
				paused()
				<-next
				_, err := tx.exec(ctx, "SELECT 1")
				return err
			})
		})
		ctx, cancel := context.WithCancel(t.Context())
		reported := guard.ObserverFunc(func(_ context.Context, event guard.Event) {
			if event.Op == guard.OpContend {
				cancel()
			}
		})
		control := e.open(&Options{TerminateAfter: endsNobody, RaiseTimeout: patience, Observer: reported}).Raise(ctx, claimOf("r", 6))
		wantSays(t, control, guard.ReasonUnavailable, `application "the old holder"`, "the control")
		if len(old) > 0 {
			t.Fatalf("the control ended the holder: %v", <-old)
		}
		var log logged
		var seen events
		successor := e.open(&Options{Observer: &seen, RaiseTimeout: patience, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		noError(t, successor.Raise(t.Context(), claimOf("r", 6)), "the successor")
		close(next)
		var rejected *guard.RejectedError
		if err := <-old; !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Mark.Token != 6 || e.written() != 0 {
			t.Errorf("the holder that was ended: %v", err)
		}
		testkit.Eventually(t, "the reports", func() bool { return strings.Contains(log.String(), "terminating the session") })
		if contend := seen.of(guard.OpContend); len(contend) != 1 || !strings.Contains(contend[0].Err.Error(), "the old holder") || contend[0].Claim != claimOf("r", 6) || contend[0].Duration <= 0 {
			t.Errorf("events: %v", contend)
		}
		for _, want := range []string{"waits for older holders", "pid ", "the old holder", "idle in transaction", "terminating the session"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log has not %q:\n%s", want, &log)
			}
		}
	})
}

// TestLateHolders (P2): with the defaults a raise ends a holder that is idle, or that
// waits in the middle of a statement, within 2 s of its beginning, and one at work
// after 15 s, whatever the contexts of the raises in between. Nobody else is ended. It
// is the schedule of the looks alone; each takes 50 ms here.
func TestLateHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts, err := Options{}.resolve()
		must(t, err)
		const look = 50 * time.Millisecond
		inTheWay := session{key: "1@2", mayEnd: true, kind: "entered"}
		for what, c := range map[string]struct {
			session    func(sinceStart time.Duration) session
			least, max time.Duration // 0 for never
		}{
			"idle since before": {func(d time.Duration) session {
				s := inTheWay
				s.idle = (time.Hour + d).Milliseconds()
				return s
			}, 0, 100 * time.Millisecond},
			"idle from then on": {func(d time.Duration) session { s := inTheWay; s.idle = d.Milliseconds(); return s }, time.Second, 2 * time.Second},
			"in the middle":     {func(time.Duration) session { return inTheWay }, time.Second, 2 * time.Second},
			"at work":           {func(time.Duration) session { s := inTheWay; s.idle, s.open = -1, time.Hour.Milliseconds(); return s }, 15 * time.Second, 16 * time.Second},
			"another role's":    {func(time.Duration) session { s := inTheWay; s.mayEnd = false; return s }, 0, 0},
			"a stranger":        {func(time.Duration) session { s := inTheWay; s.kind = "stranger"; return s }, 0, 0},
			"not visible":       {func(time.Duration) session { s := inTheWay; s.key = ""; return s }, 0, 0},
		} {
			for _, short := range []bool{false, true} {
				db := &DB[pgx.Tx]{opts: opts}
				w := &waitingRaise[pgx.Tx]{db: db, start: time.Now()}
				start, ended := time.Now(), time.Duration(0)
				time.Sleep(w.beforeFirstLook(t.Context()))
				for ended == 0 && time.Since(start) < time.Minute {
					time.Sleep(look)
					next, late := w.late([]session{c.session(time.Since(start))})
					if len(late) > 0 {
						ended = time.Since(start)
					}
					if time.Sleep(next); short { // the next look is another raise's
						w = &waitingRaise[pgx.Tx]{db: db, start: time.Now()}
						time.Sleep(w.beforeFirstLook(t.Context()))
					}
				}
				if ended < c.least || ended > c.max {
					t.Errorf("%s, short raises %t: ended after %v, want %v to %v", what, short, ended, c.least, c.max)
				}
			}
		}
	})
}

// TestTerminateCountsFromEntering: a transaction that had been open for long
// when it entered has TerminateAfter from when a raise first found it, even if each
// raise that finds it is short; then it is ended, although it is working.
func TestTerminateCountsFromEntering(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		const after = 700 * time.Millisecond
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		db := e.open(&Options{TerminateAfter: after, RaiseTimeout: patience})
		old := e.start(func(paused func()) error {
			return e.db.plain(context.Background(), func(ctx context.Context, tx testTx) error {
				e.waitFor("the transaction to be old", "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND xact_start < clock_timestamp() - $1::int * interval '1 ms' AND pid <> pg_backend_pid()", after.Milliseconds())
				if err := tx.enter(ctx, claimOf("r", 5)); err != nil {
					return err
				}
				paused()
				_, err := tx.exec(ctx, "SELECT pg_sleep(600)")
				return err
			})
		})
		start := time.Now()
		e.shortRaises(db, claimOf("r", 6))
		if took := time.Since(start); took < after {
			t.Errorf("the holder was ended for the age of its transaction, after %v", took)
		}
		if err := <-old; err == nil {
			t.Error("the holder was not ended")
		}
	})
}

// shortRaises raises until a raise succeeds; the context of each ends once it has looked
// for the sessions in its way.
func (e *env) shortRaises(db fence, claim guard.Claim) {
	e.Helper()
	looked := e.countLooks()
	const looks = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.looks"
	testkit.Eventually(e, "a raise to succeed", func() bool {
		before := e.int(looks)
		ctx, cancel := context.WithCancel(context.Background())
		raised := make(chan error, 1)
		go func() { raised <- db.Raise(ctx, claim) }()
		testkit.Eventually(e, "a look, or the end of a raise", func() bool { return len(raised) > 0 || e.int(looks) > before })
		cancel()
		err := <-raised
		if err != nil {
			wantReason(e, err, guard.ReasonUnavailable, "a short raise")
		}
		return err == nil
	})
	looked(1) // else no raise was in anybody's way
}

// TestIdleConnections: a connection that the pool hands out in the middle of a
// transaction is refused, because for a BEGIN in it the server would only give
// a warning.
func TestIdleConnections(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		db := e.open(nil, func(c *pgx.ConnConfig) {
			c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
				_, err := conn.Exec(ctx, "BEGIN").ReadAll()
				return err
			}
		})
		e.createPairs()
		for what, call := range e.calls(db, claimOf("r", 9), "Update", "InTx", "Raise", "Mark") {
			wantInvalid(t, what, call(t.Context()), "connection", "")
		}
	})
}
