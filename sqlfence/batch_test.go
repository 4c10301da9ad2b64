package sqlfence

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
)

// execModes are the exec modes of pgx, below database/sql in the short form the
// two that differ most.
func (e *env) execModes() []pgx.QueryExecMode {
	if e.driver == "std" && !longtest.Long {
		return []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
	}
	return []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
}

// TestBatch (P1): a batch is committed as a whole under the mark or not at all,
// in every exec mode, and a refusal or an error has written nothing.
func TestBatch(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		modes := e.execModes()
		if e.driver == "std" {
			modes = modes[:1] // it sends statement by statement in each
		}
		for _, mode := range modes {
			e.exec("DROP TABLE IF EXISTS n; CREATE TABLE n (id int PRIMARY KEY, v text); DELETE FROM fencepost.marks")
			db := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			batch := func(token guard.Token, writes ...Expr) ([]int64, error) {
				return db.Batch(t.Context(), claimOf("r", token), writes...)
			}
			insert := Raw("INSERT INTO n VALUES ($1, $2)", 1, "a")
			rows, err := batch(5, insert, Raw("INSERT INTO n VALUES (2, $1), (3, $1)", "b"), Raw("DELETE FROM n WHERE id = 9"))
			if err != nil || !slices.Equal(rows, []int64{1, 2, 0}) { // it raised the mark
				t.Fatalf("%v: %v, %v", mode, rows, err)
			}
			update := Raw("UPDATE n SET v = $1", "new")
			if rows, err := batch(5, update); err != nil || rows[0] != 3 { // it is the mark
				t.Errorf("%v: %v, %v", mode, rows, err)
			}
			e.exec("UPDATE n SET v = 'old'")
			var pg *pgconn.PgError
			for what, c := range map[string]struct {
				token  guard.Token
				writes []Expr
				want   guard.Reason
			}{
				"stale":                  {4, []Expr{update}, guard.ReasonStale},
				"a violated key":         {5, []Expr{update, insert, update}, guard.ReasonOther},
				"a missing table":        {5, []Expr{update, Raw("DELETE FROM missing")}, guard.ReasonOther},
				"nothing a driver sends": {5, []Expr{update, {"UPDATE n SET v = $1", []any{make(chan int)}}}, guard.ReasonInvalid},
				"COMMIT":                 {5, []Expr{update, Raw(" commit"), update}, guard.ReasonInvalid},
				"a comment":              {5, []Expr{update, Raw("/* */ COMMIT"), update}, guard.ReasonInvalid},
				"empty":                  {5, []Expr{update, {}}, guard.ReasonInvalid},
				"none":                   {5, nil, guard.ReasonInvalid},
				"too many":               {5, slices.Repeat([]Expr{update}, maxWrites+1), guard.ReasonInvalid},
			} {
				if mode != modes[0] && c.want == guard.ReasonInvalid && what != "nothing a driver sends" {
					continue // refused before the mode matters
				}
				rows, err := batch(c.token, c.writes...)
				if e.driver == "std" && what == "nothing a driver sends" && guard.ReasonOf(err) == guard.ReasonUnavailable {
					continue // database/sql does not say where an error comes from
				}
				if guard.ReasonOf(err) != c.want || rows != nil {
					t.Errorf("%v, %s: %v, %v, want %q", mode, what, rows, err, c.want)
				}
				if what == "a violated key" && (!errors.As(err, &pg) || pg.Code != "23505") {
					t.Errorf("%v, %s: %v has not the driver's error", mode, what, err)
				}
				if n := e.int("SELECT count(*) FROM n WHERE v = 'old'"); n != 3 {
					t.Errorf("%v, %s: something was written", mode, what)
				}
			}
		}
		err := e.db.fenced(t.Context(), claimOf("r", 6), func(ctx context.Context, tx testTx) error {
			_, err := e.db.Batch(ctx, claimOf("r", 6), Raw("SELECT 1"))
			return err
		})
		wantInvalid(t, "inside InTx", err, "Batch", `"r"`)
		e.exec("DROP SCHEMA fencepost CASCADE")
		if _, err := e.db.Batch(t.Context(), claimOf("r", 6), Raw("SELECT 1")); guard.ReasonOf(err) != guard.ReasonSetup || !strings.Contains(err.Error(), "sqladmin's Migrate") {
			t.Errorf("without the schema: %v", err)
		}
	})
}

// TestBatchRoundTrips: on pgx a batch is one round trip. The control is InTx.
func TestBatchRoundTrips(t *testing.T) {
	t.Run("pgx", func(t *testing.T) {
		e := newEnvOf(t, "pgx")
		p, through := e.newProxy()
		db := e.open(nil, through)
		batch := func() error {
			_, err := db.Batch(t.Context(), claimOf("r", 5), Raw("SELECT 1"), Raw("SELECT 2"))
			return err
		}
		inTx := func() error {
			return db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				_, err := tx.exec(ctx, "SELECT 1")
				return err
			})
		}
		for what, c := range map[string]struct {
			call func() error
			want int32
		}{"batch": {batch, 1}, "InTx": {inTx, 3}} {
			if err := c.call(); err != nil { // statements are prepared
				t.Fatal(err)
			}
			var trips atomic.Int32
			p.set(func(message string) fate {
				// Sync, Query; not the ping of a pool that was not used for a second.
				if message[0] == 'S' || message[0] == 'Q' && !strings.Contains(message, "-- ping") {
					trips.Add(1)
				}
				return forward
			})
			err := c.call()
			p.set(nil)
			if err != nil || trips.Load() != c.want {
				t.Errorf("%s: %d round trips, %v, want %d", what, trips.Load(), err, c.want)
			}
		}
	})
}

// TestLostBatch (P5): a batch whose answer is lost has an unknown outcome and
// is sent once.
func TestLostBatch(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for what, c := range map[string]struct {
			fate fate
			rows int64
		}{"not forwarded": {cutBefore, 0}, "answer cut": {cutAfter, 1}} {
			e.exec("DROP TABLE IF EXISTS written; DELETE FROM fencepost.marks")
			e.createWritten()
			p, through := e.newProxy()
			db := e.open(nil, through)
			if _, err := db.Batch(t.Context(), claimOf("r", 5), Raw("DELETE FROM written"), Raw("INSERT INTO written VALUES (5)"), Raw("DELETE FROM written")); err != nil {
				t.Fatal(err)
			}
			var sent atomic.Int32
			if e.driver == "pgx" { // the server proceeds without a Sync
				at := map[fate]byte{cutBefore: 'B', cutAfter: 'S'}[c.fate]
				p.set(func(message string) fate {
					if message[0] != at {
						return forward
					}
					sent.Add(1)
					return c.fate
				})
			} else {
				p.set(func(message string) fate {
					what := on("commit\x00", c.fate)(message)
					if what != forward {
						sent.Add(1)
					}
					return what
				})
			}
			_, err := db.Batch(t.Context(), claimOf("r", 5), Raw("INSERT INTO written VALUES (5)"))
			p.set(nil)
			if guard.ReasonOf(err) != guard.ReasonOutcomeUnknown || sent.Load() != 1 {
				t.Errorf("%s: got %v, sent %d times, want ErrOutcomeUnknown", what, err, sent.Load())
			}
			if err := e.db.Raise(t.Context(), claimOf("r", 6)); err != nil { // the server is done with it
				t.Fatal(err)
			}
			if n := e.written(); n != c.rows {
				t.Errorf("%s: %d rows, want %d", what, n, c.rows)
			}
		}
	})
}
