package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// rowWay is how a holder reads and writes a row of table steps.
type rowWay struct {
	take  func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int) (v int64, err error)
	write func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error
}

var fencedWays = map[string]rowWay{
	"update": {take, func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
		return s.table.Update(ctx, q, claim, Key{id}, set)
	}},
	"upsert": {take, upsertStep},
}

func take(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int) (v int64, err error) {
	err = s.table.Raise(ctx, q, claim, Key{id}, Dest{"v": &v})
	return v, err
}

func readRow(ctx context.Context, q Querier, id int, v *int64) error {
	found, err := sqlkit.Row(ctx, q, "SELECT v FROM steps WHERE id = $1", []any{id}, v)
	if err == nil && !found {
		err = guard.ErrNotFound
	}
	return err
}

// steps is one torture run: clients that take over rows from each other,
// read, and write what they read plus one. Half of them pause between the two,
// and resume exactly when their successor has read and not yet written.
type steps struct {
	*env
	db         fence
	table      *Table
	level      string // "" = statements by themselves
	way        rowWay
	rows       int
	antagonist bool
	broken     bool // a control: marks may fall

	next    atomic.Int64
	missing atomic.Int64 // verdicts that called a row missing
	paused  []atomic.Pointer[func()]
	mu      sync.Mutex
	acked   map[string]bool // by operation: applied or refused
	marks   map[string]bool // "row mark" that refusals named
}

const createSteps = `DROP TABLE IF EXISTS steps, log;
	CREATE TABLE steps (id int PRIMARY KEY, v bigint NOT NULL DEFAULT 0, op text NOT NULL DEFAULT '', last_fencing_token bigint NOT NULL DEFAULT 0);
	CREATE TABLE log (n bigserial PRIMARY KEY, id int NOT NULL, token bigint NOT NULL, op text NOT NULL);
	CREATE OR REPLACE FUNCTION log_step() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN INSERT INTO log (id, token, op) VALUES (NEW.id, NEW.last_fencing_token, NEW.op); RETURN NULL; END';
	CREATE TRIGGER log AFTER INSERT OR UPDATE ON steps FOR EACH ROW EXECUTE FUNCTION log_step()`

// damage is what a torture found.
type damage struct{ writes, backwards, lost, contradicted, missing int64 }

// setUp recreates the tables.
func (s *steps) setUp() {
	s.exec(createSteps)
	s.exec("INSERT INTO steps (id) SELECT generate_series(0, $1::int)", s.rows)
	s.table = s.env.table("steps", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer})
	s.paused, s.acked, s.marks = make([]atomic.Pointer[func()], s.rows+1), map[string]bool{}, map[string]bool{}
}

func (s *steps) run(ctx context.Context, rounds int) damage {
	s.setUp()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	replacing := s.replace(ctx)
	var clients sync.WaitGroup
	for range crowd {
		clients.Go(func() {
			for range rounds {
				s.round(ctx)
			}
		})
	}
	clients.Wait()
	for i := range s.paused {
		if resume := s.paused[i].Load(); resume != nil {
			(*resume)()
		}
	}
	stop()
	<-replacing
	return s.damage()
}

// replaceRow deletes a row and inserts it again, mark and all.
const replaceRow = "WITH old AS (DELETE FROM steps WHERE id = $1 RETURNING *) INSERT INTO steps SELECT * FROM old"

// replace deletes rows and inserts them again, marks and all, in one
// transaction.
func (s *steps) replace(ctx context.Context) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for s.antagonist && ctx.Err() == nil {
			s.admin.Exec(ctx, replaceRow, 1+rand.IntN(s.rows))
			s.admin.Exec(ctx, "SELECT pg_sleep(0.002)")
		}
	}()
	return done
}

// in runs one statement by itself or in a transaction of the level.
func (s *steps) in(ctx context.Context, f func(q Querier) error) error {
	if s.level == "" {
		return f(s.db)
	}
	return s.db.plain(ctx, func(ctx context.Context, tx testTx) error {
		if _, err := tx.exec(ctx, "SET TRANSACTION ISOLATION LEVEL "+s.level); err != nil {
			return err
		}
		return f(tx.in())
	})
}

// round is one holder's life.
func (s *steps) round(ctx context.Context) {
	in := func(f func(q Querier) error) error { return s.in(ctx, f) }
	id := 1 + rand.IntN(s.rows)
	h := s.holder(ctx, in, id, s.next.Add(1))
	if h == nil {
		return
	}
	write := func() { h.write(ctx, in) }
	var mine *func()
	if rand.IntN(2) == 0 {
		mine = &write
	}
	if resume := s.paused[id].Swap(mine); resume != nil {
		(*resume)() // the older holder resumes between this one's read and write
	}
	if mine == nil {
		write()
	}
}

// noWrite reports whether err means that nothing was written; nil means that
// it was. Other errors fail the test.
func (s *steps) noWrite(id int, err error) bool {
	var rejected *guard.RejectedError
	if errors.As(err, &rejected) && rejected.Reason == guard.ReasonStale && rejected.Mark.Token > 0 {
		s.mu.Lock()
		s.marks[fmt.Sprint(id, " ", rejected.Mark.Token)] = true
		s.mu.Unlock()
	}
	switch reason := guard.ReasonOf(err); {
	case reason == guard.ReasonNotFound: // the row exists all the time
		s.missing.Add(1)
		return true
	case reason == guard.ReasonNone:
		return false
	case reason == guard.ReasonStale, pgerr.State(err) == "40001":
		return true
	// Replaced at every try, or by a control under a lower mark.
	case (s.antagonist || s.broken) && strings.Contains(err.Error(), "although the claim was admissible"):
		return true
	}
	s.Errorf("row %d: %v", id, err)
	return true
}

func (s *steps) damage() (d damage) {
	const before = "lag(token, 1, 0::bigint) OVER (PARTITION BY id ORDER BY n)"
	d.backwards = s.int("SELECT count(*) FROM (SELECT token < " + before + " AS b FROM log WHERE id > 0) x WHERE b")
	applied := map[string]bool{}
	rows, _ := s.admin.Query(context.Background(), "SELECT DISTINCT op FROM log WHERE id > 0 AND op <> ''")
	ops, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.Fatal(err)
	}
	for _, op := range ops {
		applied[op] = true
	}
	acked := int64(0)
	for op, told := range s.acked {
		if told != applied[op] {
			d.contradicted++
		}
		if told {
			acked++
		}
	}
	for mark := range s.marks {
		var id, token int
		fmt.Sscan(mark, &id, &token)
		if s.int("SELECT count(*) FROM log WHERE id = $1 AND token = $2", id, token) == 0 {
			d.contradicted++
		}
	}
	d.writes, d.missing = int64(len(ops)), s.missing.Load()
	d.lost = acked - s.int("SELECT coalesce(sum(v), 0)::bigint FROM steps")
	return d
}

// TestRowTorture (P1, P2, P6): whatever the statement and the isolation level,
// with an old holder that resumes between the new one's read and write, and
// while rows are replaced: no write goes backwards, no acknowledged update is
// lost, and the database's log agrees with every verdict.
func TestRowTorture(t *testing.T) {
	modes := map[string]struct{ level, serverDefault string }{
		"autocommit":              {},
		"in READ COMMITTED":       {level: "READ COMMITTED"},
		"in REPEATABLE READ":      {level: "REPEATABLE READ"},
		"in SERIALIZABLE":         {level: "SERIALIZABLE"},
		"default REPEATABLE READ": {serverDefault: "repeatable read"},
		"default SERIALIZABLE":    {serverDefault: "serializable"},
	}
	by := map[string]int{} // in the short form each mode is tortured by one driver
	for mode := range modes {
		by[mode] = rand.IntN(len(openers))
	}
	eachDriver(t, func(t *testing.T, e *env) {
		for mode, m := range modes {
			if !longtest.Long && mode != "autocommit" && openers[by[mode]].driver != e.driver {
				continue
			}
			db := e.db
			if m.serverDefault != "" {
				db = e.serverDefault("default_transaction_isolation", m.serverDefault)
			}
			ways := slices.Sorted(maps.Keys(fencedWays))
			if !longtest.Long && mode != "autocommit" {
				ways = ways[rand.IntN(len(ways)):][:1]
			}
			for _, name := range ways {
				way := fencedWays[name]
				for _, antagonist := range []bool{false, true} {
					if antagonist != (rand.IntN(2) == 0) && !longtest.Long {
						continue
					}
					s := &steps{env: e, db: db, level: m.level, way: way, rows: 2, antagonist: antagonist}
					d := s.run(t.Context(), longtest.ByLength(8, 60))
					if d.backwards != 0 || d.lost != 0 || d.contradicted != 0 || d.missing != 0 || d.writes == 0 {
						t.Errorf("%s, %s, rows replaced %v: %+v", name, mode, antagonist, d)
					}
				}
			}
		}
	})
}
