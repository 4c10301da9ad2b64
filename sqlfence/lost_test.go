package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// TestLostCommit (P5): a COMMIT whose answer is lost is what the server says became of it. If no
// server can be asked, or if the transaction is committed and the marker was lost with the answer,
// as on pgx, it is an unknown outcome, and is resolved later, by another DB.
func TestLostCommit(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		for what, c := range map[string]struct {
			fate fate
			rows int64
			want guard.Reason
		}{"not forwarded": {cutBefore, 0, guard.ReasonUnavailable}, "answer cut": {cutAfter, 1, guard.ReasonNone}, "answer withheld": {mute, 1, guard.ReasonNone}} {
			for _, level := range []Isolation{ReadCommitted, Serializable} {
				for _, later := range []bool{false, true} {
					timeout := patience
					if c.fate == mute || later { // only the timeout ends the wait for a silent connection, or a server
						timeout = 200 * time.Millisecond
					}
					want := c.want
					if later || e.driver == "pgx" && c.rows == 1 {
						want = guard.ReasonOutcomeUnknown
					}
					var err error
					for again := true; again; timeout *= 2 {
						e.exec("TRUNCATE written, fencepost.marks")
						must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
						p, through := e.newProxy()
						lost := onCommit(c.fate)
						var met, down atomic.Bool
						p.set(func(message string) fate {
							what := lost(message)
							if down.Load() { // no server can be asked
								return cutBefore
							}
							if what != forward {
								met.Store(true)
								down.Store(later)
							}
							return what
						})
						opts := patient
						opts.CommitTimeout = timeout
						err = e.open(&opts, through).fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Isolation: level}, write5)
						p.set(nil)
						p.CutAll() // a driver waits for a silent connection before it gives up
						// The timeout was too short for the COMMIT, or for what asks for its outcome.
						again = timeout < patience && (!met.Load() || guard.ReasonOf(err) != want && guard.ReasonOf(err) == guard.ReasonOutcomeUnknown)
					}
					wantReason(t, err, want, "%s, later %t", what, later)
					// Once the server is done with the transaction, a successor sees it.
					must(t, e.db.Raise(t.Context(), claimOf("r", 6)))
					e.wantInt(c.rows, what+": rows, or the test is not what it says", "SELECT count(*) FROM written")
					if want == guard.ReasonOutcomeUnknown {
						wantResolved(t, e.db, err, c.rows == 1, "%s", what)
					}
				}
			}
		}
		_, err := e.db.Resolve(t.Context(), errors.New("another"))
		wantInvalid(t, "another error", err, "err", "another")
		_, err = e.db.Resolve(t.Context(), nil)
		wantInvalid(t, "nil", err, "err", "nil")
	})
}

// TestLostAnswers: an answer lost before any COMMIT was sent means that nothing
// was written, and is ErrUnavailable; a single statement commits by itself, so
// its lost answer is an unknown outcome.
func TestLostAnswers(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		for what, c := range map[string]struct {
			message, call string
			want          guard.Reason
		}{
			"begin":                         {"begin", "InTx", guard.ReasonUnavailable},
			"enter":                         {"fencepost.enter", "InTx", guard.ReasonUnavailable},
			"raise":                         {"fencepost.raise", "Raise", guard.ReasonUnavailable},
			"the commit of a raise":         {"commit\x00", "Raise", guard.ReasonOutcomeUnknown},
			"the commit of a raise in InTx": {"commit\x00", "InTx", guard.ReasonUnavailable},
			"mark":                          {"fencepost.mark(", "Mark", guard.ReasonUnavailable},
			"retire":                        {"fencepost.retire", "Retire", guard.ReasonUnavailable},
			"the commit of a retirement":    {"commit\x00", "Retire", guard.ReasonOutcomeUnknown},
			"update":                        {"update", "Update", guard.ReasonOutcomeUnknown},
		} {
			p, through := e.newProxy()
			p.set(on(c.message, cutBefore))
			wantReason(t, e.calls(e.open(nil, through), claimOf("r", 5))[c.call](t.Context()), c.want, what)
			p.set(nil)
		}
		p, through := e.newProxy()
		p.set(on("select", cutBefore))
		gone := e.table("pairs", []string{"a", "b"}, nil).Update(t.Context(), e.open(nil, through), claimOf("r", 5), Key{1, "gone"}, Set{"v": "new"})
		wantReason(t, gone, guard.ReasonUnavailable, "the verdict of an update")
		e.wantText("old0", "the row", "SELECT v || last_fencing_token FROM pairs")
	})
}

// TestCommitIgnoresCancel: a context that ends while the COMMIT is in flight
// does not turn a commit into an unknown outcome.
func TestCommitIgnoresCancel(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		p, through := e.newProxy()
		db := e.open(nil, through)
		must(t, db.Raise(t.Context(), claimOf("r", 5)))
		ctx, cancel := context.WithCancel(t.Context())
		commits := onCommit(cutBefore)
		p.set(func(message string) fate {
			if commits(message) != forward {
				cancel()
				time.Sleep(50 * time.Millisecond) // the client has time to give up
			}
			return forward
		})
		if err := db.fenced(ctx, claimOf("r", 5), write5); err != nil || ctx.Err() == nil || e.written() != 1 {
			t.Errorf("%v, %d rows", err, e.written())
		}
	})
}

// TestCancelledWaiting (P5): a context that ends while a call waits for a lock gives
// the connection back, leaves no transaction behind and writes nothing. A single
// statement commits by itself, so that its outcome is unknown, unless the server
// says that it cancelled it.
func TestCancelledWaiting(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		e.begin("SELECT fencepost.raise('r', 6, '', 1000), (SELECT 1 FROM pairs FOR UPDATE)")
		table, claim, key := e.table("pairs", []string{"a", "b"}, &TableOptions{Rule: guard.SameOrNewer}), claimOf("r", 5), Key{1, "x"}
		for what, c := range map[string]struct {
			call func(ctx context.Context) error
			want guard.Reason
		}{
			"InTx":        {func(ctx context.Context) error { return e.db.fenced(ctx, claim, ran) }, guard.ReasonUnavailable},
			"Raise":       {func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("r", 7)) }, guard.ReasonUnavailable},
			"Update":      {func(ctx context.Context) error { return table.Update(ctx, e.db, claim, key, Set{"v": "new"}) }, guard.ReasonOutcomeUnknown},
			"Upsert":      {func(ctx context.Context) error { return table.Upsert(ctx, e.db, claim, key, Set{"v": "new"}) }, guard.ReasonOutcomeUnknown},
			"Table.Raise": {func(ctx context.Context) error { return table.Raise(ctx, e.db, claim, key, nil) }, guard.ReasonOutcomeUnknown},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			called := e.start(func(func()) error { return c.call(ctx) })
			if len(called) > 0 {
				t.Errorf("%s does not wait for the lock", what)
			}
			cancel()
			if err := <-called; guard.ReasonOf(err) != c.want && pgerr.State(err) != pgerr.Canceled {
				t.Errorf("%s: got %v, want %s", what, err, c.want)
			}
			e.waitFor("the end of "+what, "SELECT ("+blockedSQL+") = 0")
		}
		e.wantText("old0", "the row", "SELECT v || last_fencing_token FROM pairs")
	})
}

// TestPoolExhausted: no connection in time is ErrUnavailable, nothing sent.
func TestPoolExhausted(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.createWritten()
		var held [2]func() error
		e.db = e.on(e.connect(len(held)), nil)
		for i := range held {
			held[i] = e.holding(claimOf("r", 5))
		}
		for what, call := range e.calls(e.db, claimOf("r", 5), "InTx", "Raise", "Update") {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			wantReason(t, call(ctx), guard.ReasonUnavailable, what)
			cancel()
		}
		for _, end := range held {
			noError(t, end())
		}
	})
}

// TestServerKilled (P5): a server that dies in the middle of an update, an
// enter, a raise and a COMMIT: never a success, an unknown outcome where
// something may have been committed, and the marks are there after it.
func TestServerKilled(t *testing.T) {
	s := mortalServer(t)
	for i := range openers {
		t.Run(openers[i].driver, func(t *testing.T) {
			e := newEnvOn(t, i, s)
			e.createPairs()
			e.createWritten()
			// A slow COMMIT, and a locked row and a locked resource.
			e.exec(`INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old');
				CREATE TABLE slow (id int);
				CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NULL; END';
				CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION sleep()`)
			for _, resource := range []string{"committing", "survives"} {
				must(t, e.db.Raise(t.Context(), claimOf(resource, 5)))
			}
			e.begin("SELECT fencepost.raise('locked', 5, 'other', 1000), (SELECT 1 FROM pairs FOR UPDATE)")
			table := e.table("pairs", []string{"a", "b"}, nil)
			calls := map[string]struct {
				call func(ctx context.Context) error
				want guard.Reason
			}{
				"update": {func(ctx context.Context) error {
					return table.Update(ctx, e.db, claimOf("r", 5), Key{1, "x"}, Set{"v": "new"})
				}, guard.ReasonOutcomeUnknown},
				"enter": {func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("locked", 5), ran) }, guard.ReasonUnavailable},
				"raise": {func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("locked", 6)) }, guard.ReasonUnavailable},
				"commit": {func(ctx context.Context) error {
					return e.db.fenced(ctx, claimOf("committing", 5), running("INSERT INTO slow VALUES (1)"))
				}, guard.ReasonOutcomeUnknown},
			}
			type result struct {
				what string
				err  error
			}
			results := make(chan result, len(calls))
			for what, c := range calls {
				go func() { results <- result{what, c.call(context.Background())} }()
			}
			e.waitFor("the calls", `SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')`, len(calls))
			must(t, s.Kill())
			for what, call := range e.calls(e.on(e.connect(1), nil), claimOf("r", 5), "InTx", "Raise", "Update") {
				wantReason(t, call(t.Context()), guard.ReasonUnavailable, "%s on a server that is down", what)
			}
			restart(t, s, e) // who has lost a COMMIT asks until the server is back
			for range calls {
				r := testkit.Receive(t, "the end of a call", results)
				wantReason(t, r.err, calls[r.what].want, "%s", r.what)
			}
			e.wantInt(0, "writes are there", "SELECT (SELECT count(*) FROM slow) + (SELECT count(*) FROM pairs WHERE v <> 'old')")
			wantMark(t, e.open(nil), "survives", 5)
		})
	}
}

// TestCommitAnsweredWithRollback (P5): a COMMIT that the server answers with
// ROLLBACK has committed nothing, and the error says so. The control is the same
// without the proxy's change.
func TestCommitAnsweredWithRollback(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
		e.exec("CREATE TABLE work (token bigint)")
		for _, mode := range modes {
			p, through := e.newProxy()
			db := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			other := &env{TB: e.TB, db: db}
			transactor, insert := other.transactor()
			calls := map[string]func() error{
				"InTx": func() error {
					return transactor.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context) error { return insert(ctx, 5) })
				},
				"Raise": func() error { return db.Raise(t.Context(), claimOf("s", 6)) },
			}
			must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
			p.change(rolledBack)
			for what, call := range calls {
				if err := call(); !errors.Is(err, sqlkit.ErrAborted) || guard.ReasonOf(err) != guard.ReasonOther || !strings.Contains(err.Error(), "nothing of this transaction was committed") {
					t.Errorf("%s, %v: got %v, want that nothing was committed", what, mode, err)
				}
			}
			e.wantInt(0, mode.String()+": rows", "SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM fencepost.marks WHERE resource = 's')")
			p.change(nil)
			control := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }) // no statement is prepared
			*other, db = env{TB: e.TB, db: control}, control
			transactor, insert = other.transactor()
			for what, call := range calls {
				noError(t, call(), "%s, %v: the control", what, mode)
			}
			e.wantInt(1, mode.String()+": rows of the control", "SELECT count(*) FROM work")
			e.exec("TRUNCATE work; DELETE FROM fencepost.marks")
		}
	})
}

// TestResolveUnknowable (P5): the outcome of a transaction in progress, of one
// that the server never saw and of one on another timeline is not guessed.
func TestResolveUnknowable(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		db := e.open(&Options{CommitTimeout: 300 * time.Millisecond}) // to which the one in progress is waited for
		var id transactionID
		tx, err := e.admin.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(context.Background())
		must(t, tx.QueryRow(t.Context(), transactionIDSQL).Scan(&id.xid, &id.server))
		resolve := func(db fence, id transactionID) (bool, error) {
			return db.Resolve(t.Context(), guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{id, errInjected}))
		}
		for what, id := range map[string]transactionID{"in progress": id, "of the future": {"999999999999", id.server}, "of another timeline": {id.xid, "000000FF" + id.server[8:]}, "of before a crash": {id.xid, id.server[:9] + "1"}, "forgotten": {"3", id.server}} {
			if committed, err := resolve(db, id); committed || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
				t.Errorf("%s: %v, %v, want ErrOutcomeUnknown", what, committed, err)
			}
		}
		must(t, tx.Commit(t.Context()))
		if committed, err := resolve(e.db, id); !committed || err != nil {
			t.Errorf("committed meanwhile: %v, %v", committed, err)
		}
	})
}

// mocked returns a DB on a driver with configured answers. It shows how a
// driver's errors are handled; the other tests ask PostgreSQL what it does.
func mocked(t *testing.T, expect func(m sqlmock.Sqlmock)) *DB[*sql.Tx] {
	t.Helper()
	pool, m, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	must(t, err)
	pool.SetMaxOpenConns(1) // so that a raise does not look for holders while it waits
	expect(m)
	t.Cleanup(func() {
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d connections were not given back", n)
		}
		noError(t, m.ExpectationsWereMet())
		pool.Close()
	})
	db, err := Std(pool, nil)
	must(t, err)
	return db
}

func state(code string) error {
	return &pgconn.PgError{Severity: "ERROR", Code: code, Message: "injected"}
}

var errInjected = errors.New("injected")

// entersSQL is the first statement of a transaction under one claim.
var entersSQL = (&DB[*sql.Tx]{}).enterStatements([]guard.Claim{{}}, ReadCommitted, new(transactionID))[0].sql

// TestFailureOfInTx (P5, P6): what a driver's error means at the steps of a fenced
// transaction, and that the transaction is ended. What a server makes of them is in
// TestLostAnswers, TestLostCommit, TestMarksDecide and TestCommitAnsweredWithRollback.
func TestFailureOfInTx(t *testing.T) {
	ok := sqlmock.NewResult(0, 0)
	entered := func(m sqlmock.Sqlmock) {
		m.ExpectBegin()
		m.ExpectQuery(entersSQL).WillReturnRows(sqlmock.NewRows(make([]string, 5)).AddRow("", "", "", "7", "00000001/1"))
	}
	refused := func(m sqlmock.Sqlmock) {
		m.ExpectBegin()
		m.ExpectQuery(entersSQL).WillReturnError(state(pgerr.MustRaise))
		m.ExpectRollback()
	}
	says := func(m sqlmock.Sqlmock, status string) {
		m.ExpectQuery(resolveSQL).WithArgs("7", "00000001/1").WillReturnRows(sqlmock.NewRows(make([]string, 4)).AddRow(false, true, status, false))
	}
	marking := func(cause error, status string) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectQuery(markedSQL).WillReturnError(cause)
			m.ExpectRollback()
			says(m, status)
		}
	}
	committing := func(cause error, status string) func(m sqlmock.Sqlmock) {
		return func(m sqlmock.Sqlmock) {
			entered(m)
			m.ExpectQuery(markedSQL).WillReturnRows(sqlmock.NewRows([]string{""}).AddRow(true))
			m.ExpectCommit().WillReturnError(cause)
			says(m, status)
		}
	}
	for what, c := range map[string]struct {
		want   guard.Reason
		ran    bool
		expect func(m sqlmock.Sqlmock)
	}{
		"raised for ever": {guard.ReasonUnavailable, false, func(m sqlmock.Sqlmock) {
			for range maxEnter - 1 {
				refused(m)
				m.ExpectBegin()
				m.ExpectExec(raiseSQL).WillReturnResult(ok)
				m.ExpectCommit()
			}
			refused(m) // and raises no more
		}},
		"marker":                   {guard.ReasonInvalid, true, marking(errInjected, "aborted")}, // the session lives: rows are open
		"marker, committed":        {guard.ReasonOutcomeUnknown, true, marking(errInjected, "committed")},
		"marker, 25P02":            {guard.ReasonOther, true, marking(state("25P02"), "aborted")},
		"marker, 25P02, committed": {guard.ReasonOutcomeUnknown, true, marking(state("25P02"), "committed")},
		"marker, ErrTxDone": {guard.ReasonOutcomeUnknown, true, func(m sqlmock.Sqlmock) { // nothing is asked: what it did afterwards is not known
			entered(m)
			m.ExpectQuery(markedSQL).WillReturnError(sql.ErrTxDone)
			m.ExpectRollback()
		}},
		"commit":                   {guard.ReasonUnavailable, true, committing(errInjected, "aborted")},
		"commit, committed":        {guard.ReasonNone, true, committing(errInjected, "committed")},
		"commit, conn closed":      {guard.ReasonUnavailable, true, committing(pgconn.ErrConnClosed, "aborted")},
		"commit, 57P01, committed": {guard.ReasonOutcomeUnknown, true, committing(state("57P01"), "committed")},
		"commit, 42P01":            {guard.ReasonOther, true, committing(state("42P01"), "aborted")},
	} {
		t.Run(what, func(t *testing.T) {
			ran := 0
			err := mocked(t, c.expect).InTx(t.Context(), claimOf("r", 5), func(context.Context, *sql.Tx) error { ran++; return nil })
			if guard.ReasonOf(err) != c.want || ran > 1 || (ran == 1) != c.ran {
				t.Errorf("got %v, want %q; the callback ran %d times", err, c.want, ran)
			}
		})
	}
}

// TestFailureOfLook: what a raise does when it may not look for the sessions
// that it waits for, and when the look shows that the claim is stale.
func TestFailureOfLook(t *testing.T) {
	privilege := state(pgerr.Privilege)
	for what, c := range map[string]struct {
		look   error
		again  func(m sqlmock.Sqlmock) // the raise after the look
		want   guard.Reason
		inside []error
	}{
		"stale": {state(pgerr.Stale), func(sqlmock.Sqlmock) {}, guard.ReasonStale, nil},
		"raised without a look": {privilege, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(unhurriedSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectExec(raiseSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectCommit()
		}, guard.ReasonNone, nil},
		"not raised": {privilege, func(m sqlmock.Sqlmock) {
			m.ExpectBegin()
			m.ExpectExec(unhurriedSQL).WillReturnResult(sqlmock.NewResult(0, 0))
			m.ExpectExec(raiseSQL).WillReturnError(errInjected)
			m.ExpectRollback()
		}, guard.ReasonUnavailable, []error{privilege, errInjected}},
	} {
		t.Run(what, func(t *testing.T) {
			db := mocked(t, func(m sqlmock.Sqlmock) {
				m.ExpectBegin()
				m.ExpectExec(raiseSQL).WillReturnError(state(pgerr.LockTimeout))
				m.ExpectRollback()
				m.ExpectBegin()
				m.ExpectExec(unhurriedSQL).WillReturnResult(sqlmock.NewResult(0, 0))
				m.ExpectQuery(holdersSQL).WillReturnError(c.look)
				m.ExpectRollback()
				c.again(m)
			})
			err := db.Raise(t.Context(), claimOf("r", 5))
			if guard.ReasonOf(err) != c.want || c.want == guard.ReasonStale && errors.Is(err, guard.ErrUnavailable) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			for _, inside := range c.inside {
				if !errors.Is(err, inside) {
					t.Errorf("%v has not %v inside", err, inside)
				}
			}
		})
	}
}

// TestFailureOfResolve (P5): what a server's answer about a lost COMMIT means that is a
// standby, or has forgotten the transaction.
func TestFailureOfResolve(t *testing.T) {
	lost := guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{transactionID{"7", "00000001/1"}, errInjected})
	for _, c := range []struct {
		standby, same bool
		status        string
		want          guard.Reason
		says          string
	}{
		{true, false, "", guard.ReasonUnavailable, sqlkit.ErrStandby.Error()},
		{false, true, "forgotten", guard.ReasonOutcomeUnknown, "the transaction is forgotten"},
		{false, false, "aborted", guard.ReasonOutcomeUnknown, "replaced"},
	} {
		db := mocked(t, func(m sqlmock.Sqlmock) {
			m.ExpectQuery(resolveSQL).WithArgs("7", "00000001/1").WillReturnRows(sqlmock.NewRows(make([]string, 4)).AddRow(c.standby, c.same, c.status, false))
		})
		if committed, err := db.Resolve(t.Context(), lost); committed || guard.ReasonOf(err) != c.want || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, %v, want %s that says %q", committed, err, c.want, c.says)
		}
	}
}

// deadServer gives connections that turn out to be dead, and counts them.
type deadServer struct{ begins int }

func (d *deadServer) Connect(context.Context) (driver.Conn, error) { return deadConn{d}, nil }

func (d *deadServer) Driver() driver.Driver { return nil }

type deadConn struct{ of *deadServer }

func (c deadConn) Prepare(string) (driver.Stmt, error) { return nil, driver.ErrBadConn }

func (c deadConn) Close() error { return nil }

func (c deadConn) Begin() (driver.Tx, error) { return nil, driver.ErrBadConn }

func (c deadConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) {
	c.of.begins++
	return nil, driver.ErrBadConn
}

// TestDeadConnections: two dead connections are replaced, as in database/sql; the
// third ends the call.
func TestDeadConnections(t *testing.T) {
	server := &deadServer{}
	pool := sql.OpenDB(server)
	pool.SetMaxOpenConns(1) // so that the raise does not look beside
	defer pool.Close()
	db, err := Std(pool, nil)
	must(t, err)
	if err := db.Raise(t.Context(), claimOf("r", 5)); guard.ReasonOf(err) != guard.ReasonUnavailable || server.begins != 3 {
		t.Errorf("got %v after %d connections", err, server.begins)
	}
}
