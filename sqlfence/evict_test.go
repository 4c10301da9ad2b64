package sqlfence

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// TestEvictIsNarrow: a raise ends only sessions that hold this resource's lock,
// under a lower token, of the same role, in the transaction that was seen.
func TestEvictIsNarrow(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		role := e.newRole("app", "")
		e.exec("CREATE TABLE written (token bigint); GRANT USAGE ON SCHEMA fencepost TO " + role + "; GRANT EXECUTE ON FUNCTION fencepost.holders(text, bigint, text) TO " + role)
		for _, resource := range []string{"r", "other"} {
			must(t, e.db.Raise(t.Context(), claimOf(resource, 5)))
		}
		end, endOther := e.holding(claimOf("r", 5)), e.holding(claimOf("other", 5))
		// evict ends the given sessions if it finds them in the way of the claim.
		keys := e.text("SELECT string_agg(pid || '@' || extract(epoch FROM xact_start), ' ') FROM pg_stat_activity WHERE xact_start IS NOT NULL")
		evict := func(role string, claim guard.Claim, keys string) (n int64, err error) {
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
			if n, err := evict(c.role, c.claim, c.keys); err != nil || n != 0 {
				t.Errorf("%s: %d sessions, %v", what, n, err)
			}
		}
		// A newer holder that raises in its own transaction cannot be
		// recognised by its lock, and is not ended for an older one.
		noError(t, entering(e.db)(t.Context(), claimOf("new", 7), func(context.Context, testTx) error {
			if n, err := evict("DEFAULT", claimOf("new", 6), keys); err != nil || n != 0 {
				t.Errorf("a newer holder: %d sessions, %v", n, err)
			}
			return nil
		}))
		for what, claim := range map[string]guard.Claim{"an older holder": claimOf("r", 4), "another lease": {Resource: "r", Token: 5, LeaseID: "x"}} {
			if _, err := evict("DEFAULT", claim, keys); pgerr.State(err) != pgerr.Stale && pgerr.State(err) != pgerr.Conflict {
				t.Errorf("%s: got %v, want a refusal", what, err)
			}
		}
		// The control: the session that none of these ended can be ended.
		if n, err := evict("DEFAULT", claimOf("r", 6), keys); err != nil || n != 1 {
			t.Errorf("the older holder: %d sessions, %v", n, err)
		}
		if err := end(); err == nil {
			t.Error("a session that was ended committed")
		}
		noError(t, endOther(), "the other resource's holder")
	})
}

// TestEvictNotGranted: a role that may not look for holders waits as long as
// one that does not terminate, and its error has both reasons.
func TestEvictNotGranted(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		end := e.holding(claimOf("r", 5))
		e.exec("DROP FUNCTION fencepost.holders")
		start := time.Now()
		err := e.open(&Options{RaiseTimeout: 600 * time.Millisecond, TerminateAfter: 100 * time.Millisecond}).Raise(t.Context(), claimOf("r", 6))
		if took := time.Since(start); guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "holders") || took < 500*time.Millisecond { // 100 ms would be the first wait alone
			t.Errorf("%v after %v", err, took)
		}
		noError(t, end())
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

// TestIdleHolderIsEnded (P2, P6): with the defaults a holder that sits idle in
// its transaction delays its successor by at most 2 s; the raise reports the
// sessions it waits for; and the ended holder gets ErrStale. The control is the
// same without ending any session: the raise is ErrUnavailable, and says why.
func TestIdleHolderIsEnded(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		named := func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "the old holder" }
		for try := 1; ; try++ {
			var log bytes.Buffer
			var seen events
			successor := e.open(&Options{Observer: &seen, Logger: slog.New(slog.NewTextHandler(&log, nil))})
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
			control := e.open(&Options{TerminateAfter: -1, RaiseTimeout: 700 * time.Millisecond}).Raise(t.Context(), claimOf("r", 6))
			if guard.ReasonOf(control) != guard.ReasonUnavailable || !strings.Contains(control.Error(), `application "the old holder"`) {
				t.Errorf("the control: %v", control)
			}
			start := time.Now()
			err := successor.Raise(t.Context(), claimOf("r", 6))
			took := time.Since(start)
			if err != nil {
				t.Errorf("the successor: %v", err)
			}
			close(next)
			var rejected *guard.RejectedError
			if err := <-old; !errors.As(err, &rejected) || rejected.Reason != guard.ReasonStale || rejected.Mark.Token != 6 || e.written() != 0 {
				t.Errorf("the holder that was ended: %v", err)
			}
			if contend := seen.of(guard.OpContend); len(contend) != 1 || !strings.Contains(contend[0].Err.Error(), "the old holder") || contend[0].Claim != claimOf("r", 6) ||
				contend[0].Duration <= 0 || contend[0].Duration > time.Minute {
				t.Errorf("events: %v", contend)
			}
			for _, want := range []string{"waits for older holders", "pid ", "the old holder", "idle in transaction", "terminating the session"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log has not %q:\n%s", want, &log)
				}
			}
			if took <= 2*time.Second {
				return
			}
			if try == 3 {
				t.Fatalf("the successor waited %v, three times over 2 s", took)
			}
			e.exec("DELETE FROM fencepost.marks")
		}
	})
}

// TestEndedHolderCommits (P1, P6): a holder that was ended and whose next use is
// the COMMIT learns that it is stale, and by which mark, if the server can say
// that nothing was committed: always on database/sql, which asks the server
// before the COMMIT, and with TxOptions.Resolve on pgx. The control is pgx
// without it, which does not know, unless the COMMIT's statements were to be
// prepared first. A COMMIT that was lost under the same mark stays what the server
// says: unavailable.
func TestEndedHolderCommits(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		for _, c := range []struct {
			resolve, raised, prepared bool
			want                      guard.Reason
		}{{true, true, true, guard.ReasonStale}, {true, false, true, guard.ReasonUnavailable}, {false, true, true, guard.ReasonOutcomeUnknown}, {false, true, false, guard.ReasonStale}} {
			e.exec("DELETE FROM fencepost.marks")
			if c.prepared {
				must(t, e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, nil, running("SET LOCAL work_mem = '1MB'")))
			}
			err := e.db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Resolve: c.resolve}, func(ctx context.Context, tx testTx) error {
				if err := write5(ctx, tx); err != nil {
					return err
				}
				if _, err := tx.exec(ctx, "SET LOCAL work_mem = '1MB'"); err != nil { // it might have ended the transaction
					return err
				}
				pid, err := tx.int(ctx, "SELECT pg_backend_pid()")
				if err != nil {
					return err
				}
				e.terminate(pid)
				if c.raised {
					return e.db.Raise(context.Background(), claimOf("r", 6))
				}
				return nil
			})
			want := c.want
			if e.driver == "std" && want == guard.ReasonOutcomeUnknown {
				want = guard.ReasonStale
			}
			var rejected *guard.RejectedError
			if guard.ReasonOf(err) != want || errors.As(err, &rejected) && rejected.Mark.Token != 6 || e.written() != 0 {
				t.Errorf("resolve %t, raised %t, prepared %t: got %v, want %s", c.resolve, c.raised, c.prepared, err, want)
			}
		}
	})
}

// TestRaiseNamesStrangers (P6): a raise that waits for a session that only took
// the advisory lock says so, and does not end it.
func TestRaiseNamesStrangers(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		stranger, err := e.admin.Acquire(t.Context())
		must(t, err)
		defer stranger.Release()
		run := func(sql string) {
			t.Helper()
			if _, err := stranger.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
		for _, begin := range []string{"", "BEGIN; "} {
			var log bytes.Buffer
			run(begin + "SELECT pg_advisory_lock_shared(fencepost.lock_key('r'))")
			db := e.open(&Options{RaiseTimeout: 2500 * time.Millisecond, TerminateAfter: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			err = db.Raise(t.Context(), claimOf("r", 6))
			if guard.ReasonOf(err) != guard.ReasonUnavailable || !strings.Contains(err.Error(), "without entering") || strings.Contains(log.String(), "terminating") {
				t.Errorf("%q: got %v, logged %s", begin, err, &log)
			}
			run("SELECT pg_advisory_unlock_shared(fencepost.lock_key('r')); COMMIT") // it was not ended
		}
		noError(t, e.db.Raise(t.Context(), claimOf("r", 6)))
	})
}

// TestTerminateCountsFromEntering: a transaction that had been open for long
// when it entered has TerminateAfter from then on, even if the raises that find
// it in their way are short; then it is ended, although it is working.
func TestTerminateCountsFromEntering(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		const after = 4 * time.Second
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
		short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := db.Raise(short, claimOf("r", 6)); err == nil {
			t.Error("a short raise is through")
		}
		if len(old) > 0 {
			t.Fatalf("the holder was ended for the age of its transaction: %v", <-old)
		}
		noError(t, db.Raise(t.Context(), claimOf("r", 6)))
		if err := <-old; err == nil {
			t.Error("the holder was not ended")
		}
	})
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
