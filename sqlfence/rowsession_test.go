package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// rowExecutors are the ways to send a Table's statements: call is given each, and for
// transactions an end.
func (e *env) rowExecutors(change func(*pgx.ConnConfig), call func(way string, on sqlrow.Executor, end func() error)) {
	e.Helper()
	ctx := e.Context()
	config, err := pgxpool.ParseConfig(e.url)
	must(e, err)
	change(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(e, err)
	defer pool.Close()
	none := func() error { return nil }
	call("a pool", sqlrow.Pgx(pool), none)
	conn, err := pool.Acquire(ctx)
	must(e, err)
	defer conn.Release()
	call("a pool's connection", sqlrow.Pgx(conn), none)
	call("a connection", sqlrow.Pgx(conn.Conn()), none)
	tx, err := conn.Begin(ctx)
	must(e, err)
	call("a transaction", sqlrow.Pgx(tx), func() error { return tx.Commit(ctx) })
	tx.Rollback(ctx)
	for name, db := range map[string]*sql.DB{"std": stdlib.OpenDB(*config.ConnConfig), "wrapped": sql.OpenDB(wrappedConnector{stdlib.GetConnector(*config.ConnConfig)})} {
		defer db.Close()
		call(name+", a pool", sqlrow.Std(db), none)
		conn, err := db.Conn(ctx)
		must(e, err)
		defer conn.Close()
		call(name+", a connection", sqlrow.Std(conn), none)
		tx, err := conn.BeginTx(ctx, nil)
		must(e, err)
		call(name+", a transaction", sqlrow.Std(tx), tx.Commit)
		tx.Rollback()
	}
}

// TestRowEncodingOfEveryExecutor (P1, P9): a session that takes a key's bytes for other
// characters is refused by the statement itself, whatever driver hides the session; so
// no row but the key's is written. The controls are the statement without the fence, and
// a session of UTF-8.
func TestRowEncodingOfEveryExecutor(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.exec("CREATE TABLE places (name text PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0)")
	for _, encoding := range []string{"LATIN1", "UTF8"} {
		e.rowExecutors(func(c *pgx.ConnConfig) { c.RuntimeParams["client_encoding"] = encoding }, func(way string, on sqlrow.Executor, end func() error) {
			for kind, call := range map[string]func(table *Table) error{
				"Update": func(table *Table) error {
					return table.Update(t.Context(), on, claimOf("café", 6), Key{"café"}, Set{"v": "new"})
				},
				"Upsert": func(table *Table) error {
					return table.Upsert(t.Context(), on, claimOf("café", 6), Key{"café"}, Set{"v": "new"})
				},
				"Raise": func(table *Table) error { return table.Raise(t.Context(), on, claimOf("café", 6), Key{"café"}, nil) },
				"Update of no row": func(table *Table) error {
					return table.Update(t.Context(), on, claimOf("cafés", 6), Key{"cafés"}, Set{"v": "new"})
				},
			} {
				if strings.Contains(way, "transaction") && kind != "Update" { // the first refusal ends it
					continue
				}
				e.exec("TRUNCATE places; INSERT INTO places VALUES ('café', 'old', 0), ('cafÃ©', 'old', 0)")
				table, err := sqlrow.NewTable([]string{"places"}, []string{"name"}, guard.Must(guard.NewTemplate("{name}")), &TableOptions{Rule: guard.SameOrNewer})
				must(t, err)
				err = call(table)
				if encoding == "UTF8" {
					end()
					want := map[bool]guard.Reason{true: guard.ReasonNotFound, false: guard.ReasonNone}[kind == "Update of no row"]
					wantReason(t, err, want, "%s, %s, the control", way, kind)
					continue
				}
				wantSays(t, err, guard.ReasonInvalid, "client_encoding", "%s, %s", way, kind)
				end()
				e.wantInt(0, way+", "+kind+": rows that were written", "SELECT count(*) FROM places WHERE last_fencing_token > 0 OR v <> 'old'")
			}
		})
	}
	latin := e.connect(1, func(c *pgx.ConnConfig) { c.RuntimeParams["client_encoding"] = "LATIN1" })
	db := e.on(latin, nil)
	must(t, db.unfenced(t.Context(), "UPDATE places SET v = 'another' WHERE name = $1", "café"))
	e.wantText("cafÃ©", "the row that the control wrote", "SELECT name FROM places WHERE v = 'another'")
}

// refusing is a destination whose error is one of guard's.
type refusing struct{ err error }

func (r *refusing) Scan(any) error { return r.err }

// TestRowDestRefuses (P5, P6): a destination that does not take its value, whatever its
// error is, does not make "nothing was sent" of a row that was written: by itself the
// statement has an unknown outcome, in a transaction an error without a promise.
func TestRowDestRefuses(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createDocs()
	table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	own := errors.New("the destination's own")
	for what, dest := range map[string]Dest{
		"invalid": {"v": &refusing{guard.Invalid("a", "b", "c")}}, "stale": {"v": &refusing{&guard.RejectedError{Reason: guard.ReasonStale}}},
		"setup": {"v": &refusing{guard.Setup("a", guard.Claim{}, own)}}, "its own": {"v": &refusing{own}},
		"text as a number": {"v": new(int)}, "NULL as text": {"w": new(string)},
	} {
		e.rowExecutors(func(*pgx.ConnConfig) {}, func(way string, on sqlrow.Executor, end func() error) {
			for kind, call := range map[string]func(d Dest) error{
				"Update": func(d Dest) error {
					return table.Update(t.Context(), on, claimOf("r", 6), Key{1}, Set{"v": "new"}, Dest{"id": new(int)}, d)
				},
				"Raise": func(d Dest) error { return table.Raise(t.Context(), on, claimOf("r", 6), Key{1}, d) },
			} {
				if strings.Contains(way, "transaction") && kind == "Raise" { // it is over
					continue
				}
				e.exec("TRUNCATE docs; INSERT INTO docs VALUES (1, 'old', NULL, 0)")
				err := call(dest)
				must(t, end()) // the transaction goes on
				want := guard.ReasonOutcomeUnknown
				if strings.Contains(way, "transaction") {
					want = guard.ReasonOther
				}
				wantReason(t, err, want, "%s, %s, %s", way, kind, what)
				if want == guard.ReasonOther && errors.Is(err, own) != (what == "its own") {
					t.Errorf("%s, %s, %s: %v", way, kind, what, err)
				}
				e.wantInt(6, way+", "+kind+": the mark of the row, or the test is not what it says", "SELECT last_fencing_token FROM docs")
			}
		})
	}
}

// TestRowLocked (P2): a row that a stopped holder has locked makes a write and a raise
// unavailable within a bound of their own, and the error names the session; a session
// that bounds the wait itself keeps its bound. In a transaction the caller's bound
// counts. The control is the statement without the bound, which waits on.
func TestRowLocked(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.createDocs()
	e.exec("INSERT INTO docs VALUES (1, 'old', 'w', 0)")
	table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	holder, err := pgx.Connect(t.Context(), e.url+"&application_name=stopped")
	must(t, err)
	defer holder.Close(context.Background())
	_, err = holder.Exec(t.Context(), "BEGIN; UPDATE docs SET v = 'by a holder that stops here'")
	must(t, err)
	hurried := func(sql string) string { return strings.ReplaceAll(sql, "'20s'", "'30ms'") }
	alone := func(mutate func(string) string) sqlrow.Executor {
		return sqlrow.Pgx(plainly{alteredTx{pool: e.admin, mutate: mutate, then: func() {}}})
	}
	waits := func(what string, on sqlrow.Executor, named bool) {
		t.Helper()
		for kind, call := range map[string]func() error{
			"Update": func() error { return table.Update(t.Context(), on, claimOf("r", 6), Key{1}, Set{"v": "new"}) },
			"Upsert": func() error { return table.Upsert(t.Context(), on, claimOf("r", 6), Key{1}, Set{"v": "new"}) },
			"Raise":  func() error { return table.Raise(t.Context(), on, claimOf("r", 6), Key{1}, nil) },
		} {
			err := call()
			if wantReason(t, err, guard.ReasonUnavailable, "%s, %s", what, kind); err != nil && strings.Contains(err.Error(), `application "stopped", idle in transaction`) != named {
				t.Errorf("%s, %s: %v", what, kind, err)
			}
		}
	}
	waits("by itself", alone(hurried), true)
	e.exec("ALTER DATABASE " + e.text("SELECT quote_ident(current_database())") + " SET lock_timeout = '20ms'")
	e.admin.Reset()
	waits("in a session that has a bound", alone(same), true)
	tx, err := e.admin.Begin(t.Context())
	must(t, err)
	wantReason(t, table.Raise(t.Context(), sqlrow.Pgx(tx), claimOf("r", 6), Key{1}, nil), guard.ReasonUnavailable, "in a transaction")
	must(t, tx.Rollback(t.Context()))
	e.exec("ALTER DATABASE " + e.text("SELECT quote_ident(current_database())") + " RESET lock_timeout")
	e.admin.Reset()
	ended := make(chan error, 1)
	go func() {
		ended <- table.Raise(context.Background(), alone(func(sql string) string { return strings.ReplaceAll(sql, "'20s'", "'0'") }), claimOf("r", 6), Key{1}, nil)
	}()
	pgtest.Blocked(t, e.admin, `UPDATE "docs"`, 1)
	must(t, holder.Close(t.Context()))
	noError(t, <-ended, "the control, once the holder has ended")
}

// plainly hides that alteredTx has a transaction's methods.
type plainly struct{ tx alteredTx }

func (p plainly) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.tx.Exec(ctx, sql, args...)
}

func (p plainly) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.tx.Query(ctx, sql, args...)
}

// TestRowExecutorNil: nothing, a pool that is nil, and what is no pool, connection or
// transaction are refused with their field.
func TestRowExecutorNil(t *testing.T) {
	table, err := anyTable([]string{"docs"}, []string{"id"}, nil)
	must(t, err)
	for what, on := range map[string]sqlrow.Executor{
		"no executor": nil, "Pgx(nil)": sqlrow.Pgx(nil), "Std(nil)": sqlrow.Std(nil), "a pool that is nil": sqlrow.Pgx((*pgxpool.Pool)(nil)), "a DB that is nil": sqlrow.Std((*sql.DB)(nil)),
	} {
		wantInvalid(t, what, table.Update(t.Context(), on, claimOf("r", 5), Key{1}, Set{"v": 1}), "Executor", "nil")
	}
	db := stdlib.OpenDB(pgx.ConnConfig{})
	must(t, db.Close())
	wantInvalid(t, "a type that hides a pool", table.Update(t.Context(), sqlrow.Std(onlyRuns{db}), claimOf("r", 5), Key{1}, Set{"v": 1}), "Executor", "onlyRuns")
}

// Types that embed what a Table runs on, as sqlx's do and those that trace.
type (
	embedsDB   struct{ *sql.DB }
	embedsConn struct{ *sql.Conn }
	embedsTx   struct{ *sql.Tx }
	embedsPool struct{ *pgxpool.Pool }
)

// onlyRuns has a pool in it and hides it.
type onlyRuns struct{ db *sql.DB }

func (o onlyRuns) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return o.db.ExecContext(ctx, query, args...)
}

func (o onlyRuns) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return o.db.QueryContext(ctx, query, args...)
}

// loseUpdate loses the response to the next UPDATE, in each exec mode of pgx, once the
// server has it.
func loseUpdate() func(message string) fate {
	executed, lost := false, false
	return func(message string) fate {
		executed = executed || message[0] == 'E'
		if lost || !(message[0] == 'S' && executed) && !(message[0] == 'Q' && strings.Contains(message, "UPDATE")) {
			return forward
		}
		lost = true
		return cutAfter
	}
}

// TestRowLostResponse (P5): in each exec mode of pgx, a write whose response was lost is sent
// once, whatever type has the pool in it, and is an unknown outcome unless a transaction was lost
// with it: a driver that repeats it would write twice, or mistake its own write for another's. The
// row counts the writes. The control is a DB's own ExecContext, which sends it again.
func TestRowLostResponse(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.exec(`CREATE TABLE counts (id int PRIMARY KEY, v int, n int NOT NULL DEFAULT 0, last_fencing_token bigint NOT NULL DEFAULT 0);
		CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.n := OLD.n + 1; RETURN NEW; END';
		CREATE TRIGGER counts BEFORE UPDATE ON counts FOR EACH ROW EXECUTE FUNCTION counts()`)
	p, through := e.newProxy()
	table := e.table("counts", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	claim, key, dest := claimOf("r", 5), Key{1}, Dest{"v": new(*int)}
	calls := map[string]func(on sqlrow.Executor) error{
		"Update": func(on sqlrow.Executor) error { return table.Update(t.Context(), on, claim, key, Set{"v": 1}) },
		"Update that reads": func(on sqlrow.Executor) error {
			return table.Update(t.Context(), on, claim, key, Set{"v": 1}, dest)
		},
		"Upsert":      func(on sqlrow.Executor) error { return table.Upsert(t.Context(), on, claim, key, Set{"v": 1}) },
		"Table.Raise": func(on sqlrow.Executor) error { return table.Raise(t.Context(), on, claim, key, dest) },
	}
	inPgx := func(c *pgx.ConnConfig, use func(pool *pgxpool.Pool)) {
		s, err := openPgx(c, 4)
		must(t, err)
		defer s.close()
		use(s.pool)
	}
	inStd := func(c *pgx.ConnConfig, use func(db *sql.DB)) {
		db := stdlib.OpenDB(*c)
		defer db.Close()
		use(db)
	}
	type used = func(on sqlrow.Executor)
	conn := func(db *sql.DB) *sql.Conn { c, err := db.Conn(t.Context()); must(t, err); return c }
	for _, mode := range e.execModes() {
		for way, open := range map[string]func(c *pgx.ConnConfig, use used){
			"a pool":        func(c *pgx.ConnConfig, use used) { inPgx(c, func(p *pgxpool.Pool) { use(sqlrow.Pgx(p)) }) },
			"embeds a pool": func(c *pgx.ConnConfig, use used) { inPgx(c, func(p *pgxpool.Pool) { use(sqlrow.Pgx(embedsPool{p})) }) },
			"a DB":          func(c *pgx.ConnConfig, use used) { inStd(c, func(db *sql.DB) { use(sqlrow.Std(db)) }) },
			"embeds a DB":   func(c *pgx.ConnConfig, use used) { inStd(c, func(db *sql.DB) { use(sqlrow.Std(embedsDB{db})) }) },
			"a sql.Conn":    func(c *pgx.ConnConfig, use used) { inStd(c, func(db *sql.DB) { use(sqlrow.Std(conn(db))) }) },
			"embeds a sql.Conn": func(c *pgx.ConnConfig, use used) {
				inStd(c, func(db *sql.DB) { use(sqlrow.Std(embedsConn{conn(db)})) })
			},
			"embeds a hidden DB": func(c *pgx.ConnConfig, use used) {
				db := sql.OpenDB(wrappedConnector{stdlib.GetConnector(*c)})
				defer db.Close()
				use(sqlrow.Std(embedsDB{db}))
			},
			"embeds a transaction": func(c *pgx.ConnConfig, use used) {
				inStd(c, func(db *sql.DB) {
					tx, err := db.BeginTx(t.Context(), nil)
					must(t, err)
					defer tx.Rollback()
					use(sqlrow.Std(embedsTx{tx}))
				})
			},
		} {
			for kind, call := range calls {
				config, err := pgx.ParseConfig(e.url)
				must(t, err)
				through(config)
				config.DefaultQueryExecMode = mode
				e.exec("TRUNCATE counts; INSERT INTO counts VALUES (1)")
				want, rows := guard.ReasonOutcomeUnknown, int64(2)
				if strings.Contains(way, "transaction") {
					want, rows = guard.ReasonUnavailable, 0
				}
				open(config, func(on sqlrow.Executor) {
					defer p.set(nil)
					noError(t, call(on), "%v, %s, %s: a write", mode, way, kind)
					p.set(loseUpdate())
					wantReason(t, call(on), want, "%v, %s, %s", mode, way, kind)
				})
				e.wantInt(rows, mode.String()+", "+way+", "+kind+": the writes", "SELECT n FROM counts FOR UPDATE")
			}
		}
	}
	config, err := pgx.ParseConfig(e.url)
	must(t, err)
	through(config)
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	e.exec("TRUNCATE counts; INSERT INTO counts VALUES (1)")
	inStd(config, func(db *sql.DB) {
		p.set(loseUpdate())
		_, err := embedsDB{db}.ExecContext(t.Context(), "UPDATE counts SET v = 1")
		noError(t, err, "the control")
	})
	e.wantInt(2, "the writes of the control", "SELECT n FROM counts")
}

// TestRowExecutorKept (P5): whether a write was in a transaction, which a lost response
// undoes, is asked when it is sent, not when its executor was made.
func TestRowExecutorKept(t *testing.T) {
	e := newEnvOf(t, "pgx")
	e.exec("CREATE TABLE counts (id int PRIMARY KEY, n int NOT NULL, last_fencing_token bigint NOT NULL DEFAULT 0)")
	p, through := e.newProxy()
	table := e.table("counts", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	for way, make := range map[string]func(c *pgxpool.Conn) sqlrow.Executor{
		"a connection":        func(c *pgxpool.Conn) sqlrow.Executor { return sqlrow.Pgx(c.Conn()) },
		"a pool's connection": func(c *pgxpool.Conn) sqlrow.Executor { return sqlrow.Pgx(c) },
		"a transaction":       nil,
	} {
		for _, open := range []bool{false, true} { // is a transaction, when the write is sent?
			e.exec("TRUNCATE counts; INSERT INTO counts VALUES (1, 0)")
			config, err := pgx.ParseConfig(e.url)
			must(t, err)
			through(config)
			s, err := openPgx(config, 1)
			must(t, err)
			c, err := s.pool.Acquire(t.Context())
			must(t, err)
			run := func(sql string) { _, err := c.Exec(t.Context(), sql); must(t, err) }
			var on sqlrow.Executor
			switch {
			case make == nil:
				tx, err := c.Begin(t.Context())
				must(t, err)
				if on = sqlrow.Pgx(tx); !open {
					run("COMMIT")
				}
			case open:
				on = make(c)
				run("BEGIN")
			default:
				run("BEGIN")
				on = make(c)
				run("COMMIT")
			}
			increase := func() error {
				return table.Update(t.Context(), on, claimOf("r", 5), Key{1}, Set{"n": sqlrow.Raw("counts.n + 1")})
			}
			noError(t, increase(), "%s, open %v: a write", way, open)
			p.set(loseUpdate())
			want, rows := guard.ReasonOutcomeUnknown, int64(2)
			if open {
				want, rows = guard.ReasonUnavailable, 0
			}
			wantReason(t, increase(), want, "%s, open %v", way, open)
			p.set(nil)
			c.Release()
			s.close()
			e.wantInt(rows, way+": the writes", "SELECT n FROM counts FOR UPDATE")
		}
	}
}
