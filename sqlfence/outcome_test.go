package sqlfence

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// cancelling is a dest whose Scan ends the context.
type cancelling struct{ cancel func() }

func (c *cancelling) Scan(any) error {
	c.cancel()
	time.Sleep(50 * time.Millisecond) // database/sql closes the rows by itself
	return nil
}

// TestContextEndsWithTheRow (P5): a write whose context ends when its row has arrived
// already may be committed, and no error says that it is not.
func TestContextEndsWithTheRow(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE docs (id int PRIMARY KEY, v int, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO docs VALUES (1, 0)")
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
		for token := guard.Token(5); token <= 6; token++ {
			ctx, cancel := context.WithCancelCause(t.Context())
			dest := Dest{"v": &cancelling{func() { cancel(guard.ErrLeaseLost) }}}
			err := table.Update(ctx, e.db, claimOf("1", token), Key{1}, Set{"v": int(token)}, dest)
			if err != nil && (guard.ReasonOf(err) != guard.ReasonOutcomeUnknown || errors.Is(err, guard.ErrLeaseLost)) {
				t.Errorf("token %d: got %v, want an unknown outcome or success", token, err)
			}
			e.wantInt(int64(token), "the row", "SELECT v FROM docs")
		}
	})
}

// TestShortRaiseTimeout: the shortest RaiseTimeout bounds a raise, and so does one that
// is over when a raise comes to wait.
func TestShortRaiseTimeout(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		end := e.holding(claimOf("r", 5))
		e.exec("DROP FUNCTION fencepost.holders") // a raise on one connection waits on
		for conns := 1; conns <= 2; conns++ {
			db := e.on(e.connect(conns), &Options{RaiseTimeout: time.Millisecond, TerminateAfter: endsNobody})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			wantReason(t, db.Raise(ctx, claimOf("r", 6)), guard.ReasonUnavailable, "%d connections", conns)
			if ctx.Err() != nil {
				t.Errorf("%d connections: it waited until its context ended", conns)
			}
			cancel()
		}
		must(t, end())
	})
}

// TestEndedAtWork (P6): a holder whose session is ended at work learns that it is stale,
// although the raise that ended it has yet to raise the mark.
func TestEndedAtWork(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		db := e.open(&Options{TerminateAfter: 50 * time.Millisecond})
		for token := guard.Token(10); token < 26; token += 2 {
			must(t, db.Raise(t.Context(), claimOf("r", token)))
			inside, done := make(chan struct{}), make(chan error, 1)
			go func() {
				done <- db.fenced(context.Background(), claimOf("r", token), func(ctx context.Context, tx testTx) error {
					close(inside)
					_, err := tx.exec(ctx, "SELECT pg_sleep(60)")
					return err
				})
			}()
			<-inside
			must(t, db.Raise(t.Context(), claimOf("r", token+1)))
			wantReason(t, <-done, guard.ReasonStale, "token %v", token)
		}
	})
}

// TestEncodingOfATransaction (P9): a Table in a caller's transaction whose encoding was
// changed writes no other resource's row, though the table was used before.
func TestEncodingOfATransaction(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE named (b text PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO named VALUES ('ü', ''), ('Ã¼', '')")
		table, err := sqlrow.NewTable([]string{"named"}, []string{"b"}, guard.Must(guard.NewTemplate("{b}")), nil)
		must(t, err)
		must(t, table.Update(t.Context(), e.db, claimOf("ü", 5), Key{"ü"}, Set{"v": "x"}))
		for _, encoding := range []string{"LATIN1", "UTF8"} {
			err = e.db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
				_, err := tx.exec(ctx, "SET LOCAL client_encoding = '"+encoding+"'")
				must(t, err)
				return table.Update(ctx, tx.in(), claimOf("ü", 6), Key{"ü"}, Set{"v": "y"})
			})
			if encoding == "UTF8" {
				noError(t, err, "the control")
			} else {
				wantReason(t, err, guard.ReasonInvalid)
			}
		}
		e.wantText("Ã¼  0, ü y 6", "the rows", `SELECT string_agg(concat_ws(' ', b, v, last_fencing_token), ', ' ORDER BY b COLLATE "C") FROM named`)
	})
}

// TestStoppedInsideARaise: a client that stops between its raise and the COMMIT delays
// its successor no longer than a stopped holder does. The control is the setting that
// ends none.
func TestStoppedInsideARaise(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, ends := range []bool{true, false} {
			stopped, timeout := raiseSQL, time.Minute
			if !ends {
				stopped, timeout = "SELECT fencepost.raise($1, $2, $3, $4)", time.Second
			}
			tx := e.begin(stopped, "r", int64(5), "lease-5", int32(1000))
			err := e.open(&Options{RaiseTimeout: timeout}).Raise(t.Context(), claimOf("r", 6))
			if ends {
				noError(t, err)
			} else {
				wantReason(t, err, guard.ReasonUnavailable)
			}
			tx.Rollback(context.Background())
			e.exec("DELETE FROM fencepost.marks")
		}
	})
}

// TestEnforcerLearns (P6): a holder whose role may not read marks learns that it is
// stale when its session is ended, and that is all that its error says.
func TestEnforcerLearns(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		role := e.newRole("enforces", "LOGIN PASSWORD 'secret'")
		db := e.open(&Options{TerminateAfter: 50 * time.Millisecond}, func(c *pgx.ConnConfig) { c.User, c.Password = role, "secret" })
		e.exec("GRANT USAGE ON SCHEMA fencepost TO " + role + "; GRANT EXECUTE ON FUNCTION fencepost.raise, fencepost.enter, fencepost.holders, fencepost.session TO " + role)
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		for _, atCommit := range []bool{false, true} {
			token := guard.Token(5)
			if atCommit {
				token = 6
			}
			err := db.fenced(t.Context(), claimOf("r", token), func(ctx context.Context, tx testTx) error {
				must(t, db.Raise(context.Background(), claimOf("r", token+1))) // which ends this session
				if atCommit {
					return nil
				}
				_, err := tx.exec(ctx, "SELECT 1")
				return err
			})
			if reason := guard.ReasonOf(err); reason == guard.ReasonOutcomeUnknown && atCommit {
				continue // the COMMIT was the first to meet it
			}
			wantReason(t, err, guard.ReasonStale, "at COMMIT %v", atCommit)
			if errors.Is(err, guard.ErrUnavailable) {
				t.Errorf("%v is unavailable as well", err)
			}
		}
	})
}

// TestCancelledAsksNothing: InTx returns at once when its context ends, although the
// driver closes the connection then, and asks the server nothing more. The control
// is a context of the callback's own: the session may have been ended by a raise.
func TestCancelledAsksNothing(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		for _, own := range []bool{false, true} {
			var asked atomic.Int32
			sleeps := make(chan struct{}, 1)
			p, through := e.newProxy()
			p.set(func(message string) fate {
				if strings.Contains(message, "fencepost.enter(") {
					asked.Add(1)
				}
				if strings.Contains(message, "pg_sleep(") {
					sleeps <- struct{}{}
				}
				return forward
			})
			db := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol })
			ctx, cancel := context.WithCancel(t.Context())
			err := db.fenced(ctx, claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				if own {
					ctx, cancel = context.WithCancel(ctx)
				}
				go func() { <-sleeps; cancel() }() // the transaction has begun
				_, err := tx.exec(ctx, "SELECT pg_sleep(60)")
				return err
			})
			cancel()
			if !errors.Is(err, context.Canceled) || asked.Load() > 1 != own {
				t.Errorf("own %t: it entered %d times, %v", own, asked.Load(), err)
			}
		}
	})
}

// TestDriversWritesAfterwards (P5): a callback that rolls back by itself, and then writes what
// commits by itself, is not told that nothing was committed, whatever it returns: where it can be
// seen that its transaction was over, that is an unknown outcome. Where a failed statement hides
// it, nothing is said of what is not this transaction's.
func TestDriversWritesAfterwards(t *testing.T) {
	own := guard.Unavailable("its own", claimOf("other", 1), errors.New("its own"))
	eachWay(t, func(t *testing.T, e *env, open opened) {
		db := open(2, nil)
		for what, then := range map[string]func(ctx context.Context, tx testTx) error{
			"by the refused handle": func(ctx context.Context, tx testTx) error {
				if _, is := tx.(pgxTx); is {
					tx.end(false)
				}
				return nil
			},
			"rows left open": func(ctx context.Context, tx testTx) error {
				if tx, is := tx.(pgxTx); is {
					tx.tx.Query(ctx, "SELECT 1")
				}
				return nil
			},
			"its own error":              func(context.Context, testTx) error { return own },
			"another one, its own error": func(ctx context.Context, tx testTx) error { tx.exec(ctx, "BEGIN"); return own },
			"another one, which is failed": func(ctx context.Context, tx testTx) error {
				tx.exec(ctx, "BEGIN")
				tx.exec(ctx, "SELECT 1/0")
				return nil
			},
		} {
			e.exec("DELETE FROM written")
			err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				for _, sql := range []string{"ROLLBACK", "INSERT INTO written VALUES (5)"} {
					if _, err := tx.exec(ctx, sql); err != nil {
						return err
					}
				}
				return then(ctx, tx)
			})
			if e.wantInt(1, "rows", "SELECT count(*) FROM written"); err == nil {
				t.Errorf("%s: no error", what)
			}
			if what == "another one, which is failed" {
				wantSays(t, err, guard.ReasonOther, "nothing of this transaction was committed", what)
				continue
			}
			wantReason(t, err, guard.ReasonOutcomeUnknown, what)
			if errors.Is(err, guard.ErrUnavailable) {
				t.Errorf("%s: %v promises that nothing was written", what, err)
			}
		}
	})
}

// TestDriversStillInAStatement: a callback that returns while a goroutine of its own is in a
// statement, which takes ten minutes, gets an error after CommitTimeout, also on database/sql.
func TestDriversStillInAStatement(t *testing.T) {
	e := newEnvOf(t, "std")
	db := e.open(&Options{})
	for _, own := range []error{nil, errors.New("its own")} {
		ended := make(chan error, 1)
		left := make(chan struct{})
		go func() {
			ended <- db.fenced(context.Background(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				go func() {
					defer close(left)
					tx.exec(context.Background(), "SELECT pg_sleep(600)")
				}()
				e.waitFor("the statement", "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query = 'SELECT pg_sleep(600)'")
				return own
			})
		}()
		if err := testkit.Receive(t, "its end", ended); err == nil {
			t.Error("it is a success")
		}
		testkit.Receive(t, "the end of the goroutine", left)
		e.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query = 'SELECT pg_sleep(600)'")
	}
}

// TestDriversEndsThenLost (P5): a callback that ends its transaction in SQL, and whose session is
// then lost, is told neither that all is committed nor that nothing is, if that may be false. A
// driver that hides its connection shows nothing of a ROLLBACK.
func TestDriversEndsThenLost(t *testing.T) {
	eachWay(t, func(t *testing.T, e *env, open opened) {
		must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
		for _, c := range []struct {
			end, lost string // how it ends the transaction, and what gets no response then
			rows      int64  // of two
		}{
			{"COMMIT AND CHAIN", "commit", 1}, {"COMMIT; BEGIN", "commit", 1}, {"COMMIT AND CHAIN", "the write", 1},
			{"COMMIT", "the write", 2}, {"ROLLBACK", "the write", 1}, {"ROLLBACK", "commit", 1}, {"ROLLBACK", "after the write", 1},
		} {
			for _, returnsNil := range []bool{true, false} {
				what := c.end + ", " + c.lost
				e.exec("TRUNCATE written")
				p, through := e.newProxy()
				db := open(1, nil, through)
				must(t, db.fenced(t.Context(), claimOf("r", 5), write5)) // it is prepared from now on
				e.exec("TRUNCATE written")
				err := db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
					must(t, write5(ctx, tx))
					if _, err := tx.exec(ctx, c.end); err != nil {
						return err
					}
					lose := func() { // the next statement is executed, and its response lost
						p.set(func(message string) fate {
							if strings.ContainsAny(message[:1], "QS") {
								p.set(nil)
								return cutAfter
							}
							return forward
						})
					}
					if c.lost == "the write" {
						lose()
					}
					err := write5(ctx, tx)
					if c.lost == "after the write" {
						lose()
						_, err = tx.exec(ctx, "SELECT 1")
					}
					if c.lost == "commit" {
						lose()
					}
					if returnsNil {
						return nil
					}
					tx.end(false) // as a deferred tx.Rollback() does
					return err
				})
				e.waitFor("the rows", "SELECT count(*) = $1 FROM written", c.rows)
				if _, hidden := db.(stdFence); hidden && strings.Contains(t.Name(), "wrapped") && c.end == "ROLLBACK" && guard.ReasonOf(err) == guard.ReasonUnavailable {
					continue
				}
				wantReason(t, err, guard.ReasonOutcomeUnknown, "%s", what)
			}
		}
	})
}
