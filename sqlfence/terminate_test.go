package sqlfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
		opts, err := Options{}.withDefaults()
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

// setRoles are the ways in which a login gets another role in each of its sessions.
var setRoles = map[string]struct {
	attributes string
	always     bool // ALTER ROLE ... SET ROLE, as Vault is told to; else the program asks for the role
}{
	"of the login":              {"LOGIN PASSWORD 'secret'", true},
	"of the login, NOINHERIT":   {"LOGIN NOINHERIT PASSWORD 'secret'", true},
	"of the program, NOINHERIT": {"LOGIN NOINHERIT PASSWORD 'secret'", false},
}

// group is a role with an enforcer's rights, of which login makes members that write as it.
func (e *env) group(what string) (group string, login func(what, attributes string, always bool, opts *Options) (string, fence)) {
	e.Helper()
	group = e.newRole(what, "NOLOGIN")
	e.exec("GRANT USAGE ON SCHEMA fencepost TO " + group + "; GRANT INSERT ON written TO " + group +
		"; GRANT EXECUTE ON FUNCTION fencepost.raise, fencepost.enter, fencepost.holders, fencepost.session TO " + group)
	return group, func(what, attributes string, always bool, opts *Options) (string, fence) {
		name := e.newRole(what, attributes+" IN ROLE "+group)
		if always {
			e.exec("ALTER ROLE " + name + " SET ROLE " + group)
		}
		return name, e.open(opts, func(c *pgx.ConnConfig) {
			c.User, c.Password = name, "secret"
			if !always {
				c.RuntimeParams["role"] = group
			}
		})
	}
}

// TestSetRole (P2): a raise ends the sessions of its own login whatever role they, and it,
// have taken: the server shows and ends sessions by the role at the moment.
func TestSetRole(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		for what, c := range setRoles {
			e.exec("DELETE FROM fencepost.marks; DELETE FROM written")
			group, login := e.group("g" + itoa(len(what)))
			_, db := login("l"+itoa(len(what)), c.attributes, c.always, &Options{TerminateAfter: time.Millisecond, RaiseTimeout: patience})
			for how, sql := range map[string]string{"idle": "SELECT 1", "at work": "SELECT pg_sleep(3600)"} {
				e.exec("DELETE FROM fencepost.marks")
				must(t, db.Raise(t.Context(), claimOf("r", 5)))
				var as string
				next := make(chan struct{})
				old := e.start(func(paused func()) error {
					return db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
						if _, err := tx.in().Exec(ctx, "INSERT INTO written VALUES (5)", nil); err != nil {
							return err
						}
						if err := tx.in().Query(ctx, "SELECT current_user::text", nil, func(scan func(...any) error) error { return scan(&as) }); err != nil {
							return err
						}
						paused()
						if how == "idle" {
							<-next
						}
						_, err := tx.exec(ctx, sql)
						return err
					})
				})
				noError(t, db.Raise(t.Context(), claimOf("r", 6)), "%s, %s", what, how)
				close(next)
				wantReason(t, <-old, guard.ReasonStale, "the holder: %s, %s", what, how)
				if as != group {
					t.Errorf("%s: the holder is %s, want %s", what, as, group)
				}
			}
			e.wantInt(0, "rows of the old holder", "SELECT count(*) FROM written")
		}
	})
}

// TestOtherLogin (P2, P6): a login may not see and end the sessions of another one, also if
// both write as the same role. A raise that waits for one says which rights it lacks, and
// Verify says so before. With the rights it ends the session.
func TestOtherLogin(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		group, login := e.group("group")
		_, old := login("old", "LOGIN PASSWORD 'secret'", true, nil)
		name, db := login("new", "LOGIN PASSWORD 'secret'", true, &Options{TerminateAfter: time.Millisecond, RaiseTimeout: patience})
		verify := func() (found []string) {
			t.Helper()
			all, err := e.db.Verify(t.Context(), Verification{Role: group})
			must(t, err)
			for _, f := range all {
				if strings.Contains(f.Problem, "may not see") {
					found = append(found, f.String())
				}
			}
			return found
		}
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		end := e.holdingOn(old, claimOf("r", 5))
		looked := e.countLooks()
		endRaise := e.raising(db, claimOf("r", 6))
		looked(3)
		wantSays(t, endRaise(), guard.ReasonUnavailable, "grant this login pg_read_all_stats and pg_signal_backend", "the raise")
		if found := verify(); len(found) != 2 || !strings.Contains(strings.Join(found, " "), name) {
			t.Errorf("Verify found %q, want one of each login", found)
		}
		e.exec("GRANT pg_read_all_stats TO " + name)
		endRaise = e.raising(db, claimOf("r", 6))
		looked(6)
		wantSays(t, endRaise(), guard.ReasonUnavailable, "may not end: grant it pg_signal_backend", "the raise, which sees")
		e.exec("REVOKE pg_read_all_stats FROM " + name + "; GRANT pg_read_all_stats, pg_signal_backend TO " + group)
		noError(t, db.Raise(t.Context(), claimOf("r", 6)), "the raise, which sees and may end")
		if end() == nil {
			t.Error("the old holder was not ended")
		}
		if found := verify(); len(found) != 0 {
			t.Errorf("Verify found %q", found)
		}
	})
}

// TestExclusiveStranger (P6): a raise that waits for a session that only took the resource's
// lock, for all or for one, says so and does not end it. Who holds it exclusively blocks the
// transactions of the holder, too, and they name the session.
func TestExclusiveStranger(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		stranger, err := e.admin.Acquire(t.Context())
		must(t, err)
		defer stranger.Release()
		pid := "pid " + itoa(int(stranger.Conn().PgConn().PID()))
		for _, lock := range []string{"SELECT pg_advisory_lock_shared(%s)", "BEGIN; SELECT pg_advisory_lock_shared(%s)", "SELECT pg_advisory_lock(%s)", "BEGIN; SELECT pg_advisory_xact_lock(%s)"} {
			_, err := stranger.Exec(t.Context(), fmt.Sprintf(lock, "fencepost.lock_key('r')"))
			must(t, err)
			var log logged
			looked := e.countLooks()
			endRaise := e.raising(e.open(&Options{RaiseTimeout: patience, TerminateAfter: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))}), claimOf("r", 6))
			looked(3)
			waited := map[string]error{"a raise": endRaise()}
			testkit.Eventually(t, "the report", func() bool { return strings.Contains(log.String(), "waits for older holders") })
			if strings.Contains(log.String(), "terminating") {
				t.Errorf("%q: logged %s", lock, &log)
			}
			if !strings.Contains(lock, "shared") {
				hasty := e.open(&Options{LockTimeout: time.Millisecond})
				waited["InTx"] = hasty.fenced(t.Context(), claimOf("r", 5), ran)
				_, waited["Exec"] = hasty.fencedExec(t.Context(), claimOf("r", 5), "SELECT 1")
				waited["Enter"] = hasty.plain(t.Context(), enters(claimOf("r", 5)))
			}
			for what, err := range waited {
				wantSays(t, err, guard.ReasonUnavailable, pid, "%s, %s", lock, what)
				wantSays(t, err, guard.ReasonUnavailable, "without entering", "%s, %s", lock, what)
			}
			_, err = stranger.Exec(t.Context(), "SELECT pg_advisory_unlock_all(); COMMIT") // it was not ended
			must(t, err)
		}
		noError(t, e.db.Raise(t.Context(), claimOf("r", 6)))
	})
}
