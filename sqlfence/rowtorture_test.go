package sqlfence

import (
	"cmp"
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
	level      string     // "" = statements by themselves
	rule       guard.Rule // 0 = SameOrNewer
	shared     int64      // how many holders have each token; 0 = one
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
	s.table = s.env.table("steps", []string{"id"}, &TableOptions{Rule: cmp.Or(s.rule, guard.SameOrNewer)})
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
	case reason == guard.ReasonStale, reason == guard.ReasonSpent, pgerr.State(err) == "40001":
		return true
	// Replaced between the statement and its verdict, or by a control under a lower mark.
	case (s.antagonist || s.broken) && reason == guard.ReasonUnavailable && strings.Contains(err.Error(), "other writers replaced"):
		return true
	}
	s.Errorf("row %d: %v", id, err)
	return true
}

func (s *steps) damage() (d damage) {
	const before = "lag(token, 1, 0::bigint) OVER (PARTITION BY id ORDER BY n)"
	least := "<" // under OncePerToken a second write of a token is as bad
	if s.rule == guard.OncePerToken {
		least = "> 0 AND token <=" // the rows begin with 0
	}
	d.backwards = s.int("SELECT count(*) FROM (SELECT token " + least + " " + before + " AS b FROM log WHERE id > 0) x WHERE b")
	applied := map[string]bool{}
	rows, _ := s.admin.Query(context.Background(), "SELECT DISTINCT op FROM log WHERE id > 0 AND op <> ''")
	ops, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(s, err)
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

// TestNoStaleWrite (P1): many clients on one row and on three, both rules, and some
// under each token: no write that took effect was under a lower token than one before
// it, or under OncePerToken under the same. TestRowTortureControl shows that the
// harness finds damage.
func TestNoStaleWrite(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, rule := range []guard.Rule{guard.OncePerToken, guard.SameOrNewer} {
			for _, rows := range []int{1, 3} {
				s := &steps{env: e, db: e.db, rule: rule, shared: 3, way: rowWay{readOnly, fencedWays["update"].write}, rows: rows}
				if d := s.run(t.Context(), campaign(20)); d.backwards != 0 || d.contradicted != 0 || d.missing != 0 || d.writes == 0 {
					t.Errorf("%v, %d rows: %+v", rule, rows, d)
				}
			}
		}
	})
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

// within runs statements by themselves or in a transaction.
type within func(f func(q Querier) error) error

// holder has taken a row over.
type holder struct {
	*steps
	id    int
	op    string
	claim guard.Claim
	v     int64
}

// holder is the holder of a number, which takes a row over and reads it; nil if it
// was refused. Its number is its token, unless tokens are shared.
func (s *steps) holder(ctx context.Context, in within, id int, number int64) *holder {
	token := 1 + (number-1)/max(s.shared, 1)
	h := &holder{s, id, fmt.Sprint("op-", number), guard.Claim{Resource: fmt.Sprint("row:", id), Token: guard.Token(token)}, 0}
	err := in(func(q Querier) (err error) { h.v, err = s.way.take(ctx, s, q, h.claim, id); return err })
	if s.noWrite(id, err) {
		return nil
	}
	return h
}

// write writes what the holder read plus one.
func (h *holder) write(ctx context.Context, in within) {
	err := in(func(q Querier) error {
		return h.way.write(ctx, h.steps, q, h.claim, h.id, Set{"v": h.v + 1, "op": h.op})
	})
	refused := h.noWrite(h.id, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acked[h.op] = !refused
}

// schedules are exact sequences of events on one row: a statement that waits
// for a lock is seen to wait before the next event. A wrongly fenced statement
// does its damage in one of them every time.
var schedules = map[string]struct {
	run     func(ctx context.Context, s *steps)
	applied string // the only writes if all is well
}{
	// Holder 1 resumes when holder 2 has read and not yet written.
	"resumed after the read": {func(ctx context.Context, s *steps) {
		old := s.taken(ctx, s.alone, 1)
		newer := s.taken(ctx, func(f func(q Querier) error) error {
			resumed := false
			return f(s.altered(same, func() {
				if !resumed {
					resumed = true
					old.write(ctx, s.alone)
				}
			}))
		}, 2)
		newer.write(ctx, s.alone)
	}, "op-2"},
	// The statement of holder 1 has begun, and waits for the transaction in
	// which holder 2 takes over and writes.
	"waiting for the newer": {func(ctx context.Context, s *steps) {
		old := s.taken(ctx, s.alone, 1)
		var late chan error
		err := s.db.plain(ctx, func(ctx context.Context, tx testTx) error {
			in := func(f func(q Querier) error) error { return f(tx.in()) }
			s.taken(ctx, in, 2).write(ctx, in)
			late = s.writeLate(old)
			return nil
		})
		must(s, err)
		<-late
	}, "op-2"},
	// The row is replaced while the holder's statement waits for it. Another try writes it.
	"replaced": {func(ctx context.Context, s *steps) {
		s.antagonist = true
		h := s.taken(ctx, s.alone, 1)
		tx, err := s.admin.Begin(ctx)
		must(s, err)
		defer tx.Rollback(context.Background())
		if tag, err := tx.Exec(ctx, replaceRow, 1); err != nil || tag.RowsAffected() != 1 {
			s.Fatalf("replaced %d rows, %v", tag.RowsAffected(), err)
		}
		late := s.writeLate(h)
		must(s, tx.Commit(ctx))
		<-late
		if s.int("SELECT count(*) FROM log WHERE op = 'op-1'") == 0 { // an update is unavailable
			h.write(ctx, s.alone)
		}
	}, "op-1"},
}

func (s *steps) alone(f func(q Querier) error) error { return f(s.db) }

// taken is holder for row 1, where nothing is refused.
func (s *steps) taken(ctx context.Context, in within, token int64) *holder {
	s.Helper()
	h := s.holder(ctx, in, 1, token)
	if h == nil {
		s.Fatalf("token %d was not to be had", token)
	}
	return h
}

// writeLate lets a holder write with a statement that must wait.
func (s *steps) writeLate(h *holder) (done chan error) {
	s.Helper()
	done = s.start(func(func()) error { h.write(context.Background(), s.alone); return nil })
	if len(done) > 0 {
		s.Fatal("the statement did not wait: the schedule is not what it says")
	}
	return done
}

// scheduled runs one schedule by one way and returns the damage, and the
// operations that were written.
func (e *env) scheduled(t *testing.T, name string, way rowWay, broken bool) (d damage, applied string) {
	s := &steps{env: e, db: e.db, way: way, rows: 1, broken: broken}
	s.setUp()
	schedules[name].run(t.Context(), s)
	return s.damage(), e.text("SELECT coalesce(string_agg(DISTINCT op, ' ' ORDER BY op), '') FROM log WHERE id = 1 AND op <> ''")
}

// TestRowSchedules (P1, P2, P6): no schedule in which one of the traps does
// damage harms a correctly fenced statement.
func TestRowSchedules(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for name, schedule := range schedules {
			for way := range fencedWays {
				d, applied := e.scheduled(t, name, fencedWays[way], false)
				if d != (damage{writes: 1}) || applied != schedule.applied {
					t.Errorf("%s, %s: %+v, written: %q, want %q", name, way, d, applied, schedule.applied)
				}
			}
		}
	})
}

// TestRowTraps: each trap does the damage that it is known for, in a single
// run.
func TestRowTraps(t *testing.T) {
	e := someEnv(t)
	for name, trap := range traps {
		d, applied := e.scheduled(t, trap.schedule, trap.way, true)
		if trap.shows(d) == 0 {
			t.Errorf("%s: no damage", name)
		}
		t.Logf("%s: %+v, written: %q", name, d, applied)
	}
}

// TestRowTortureControl: the harness of TestRowTorture finds damage by itself.
// Half of the holders write after their successor took over, so that the result
// does not depend on chance.
func TestRowTortureControl(t *testing.T) {
	e := someEnv(t)
	s := &steps{env: e, db: e.db, way: traps["upsert without a comparison"].way, rows: 1, broken: true}
	if d := s.run(t.Context(), 10); d.backwards == 0 || d.lost == 0 {
		t.Errorf("%+v: no damage", d)
	}
}

// traps are ways to fence a row that look right but are not, under READ
// COMMITTED and as single statements, each with the schedule in which it does
// damage. They share the harness with the correct ways.
var traps = map[string]struct {
	way      rowWay
	schedule string
	shows    func(d damage) int64
}{
	// The token is compared only in the write: an old holder, whose token is
	// still the highest that wrote, writes between the new one's read and write.
	"no raise before the read": {rowWay{readOnly, fencedWays["update"].write}, "resumed after the read", lost},
	"read, then raise":         {rowWay{readThenRaise, fencedWays["update"].write}, "resumed after the read", lost},
	// The comparison is with a token read elsewhere in the statement, which is
	// not read again when the row was locked.
	"self-join without a lock": {rowWay{take, raw(`UPDATE steps SET v = $2, op = $3, last_fencing_token = $4 FROM
		(SELECT id, last_fencing_token AS token FROM steps WHERE id = $1 OFFSET 0) AS was WHERE steps.id = was.id AND $4::bigint >= was.token`)}, "waiting for the newer", backwards},
	// The outer SELECT has the snapshot from before the write: its verdict is
	// not the UPDATE's.
	"verdict outside the UPDATE": {rowWay{take, raw(`WITH done AS (UPDATE steps SET v = $2, op = $3, last_fencing_token = $4::bigint WHERE id = $1 AND $4::bigint >= last_fencing_token RETURNING id)
		SELECT (SELECT count(*) FROM done) FROM steps WHERE id = $1 AND $4::bigint >= last_fencing_token`)}, "waiting for the newer", contradicted},
	"OR without parentheses": {rowWay{take, raw(`UPDATE steps SET v = $2, op = $3, last_fencing_token = $4::bigint
		WHERE id = $1 AND op <> '' OR id = $1 AND v >= 0 AND $4::bigint >= last_fencing_token`)}, "waiting for the newer", backwards},
	"upsert without a comparison": {rowWay{take, raw(`INSERT INTO steps (id, v, op, last_fencing_token) VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v, op = EXCLUDED.op, last_fencing_token = EXCLUDED.last_fencing_token`)}, "waiting for the newer", backwards},
	// DELETE takes the mark with it, and an older holder's upsert finds none.
	"DELETE forgets the mark": {rowWay{take, deleteAndUpsert}, "waiting for the newer", backwards},
	// A row that was deleted and inserted again is not missing.
	"zero rows mean missing": {rowWay{take, func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
		err := raw("UPDATE steps SET v = $2, op = $3, last_fencing_token = $4 WHERE id = $1 AND $4::bigint >= last_fencing_token")(ctx, s, q, claim, id, set)
		var mark int64
		if errors.Is(err, guard.ErrStale) {
			if _, err := sqlkit.Row(ctx, q, "SELECT last_fencing_token FROM steps WHERE id = $1", []any{id}, &mark); err != nil {
				return err
			}
			if mark <= int64(claim.Token) {
				return guard.ErrNotFound
			}
		}
		return err
	}}, "replaced", misses},
	// The comparison and the write are two statements.
	"compare, then write": {rowWay{take, compareThenWrite}, "waiting for the newer", backwards},
}

func lost(d damage) int64         { return d.lost }
func backwards(d damage) int64    { return d.backwards }
func contradicted(d damage) int64 { return d.contradicted }
func misses(d damage) int64       { return d.missing }

func readOnly(ctx context.Context, s *steps, q Querier, _ guard.Claim, id int) (v int64, err error) {
	err = readRow(ctx, q, id, &v)
	return v, err
}

func readThenRaise(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int) (v int64, err error) {
	if err = readRow(ctx, q, id, &v); err == nil {
		err = s.table.Raise(ctx, q, claim, Key{id}, nil)
	}
	return v, err
}

// raw writes with its own statement; no row changed means stale.
func raw(sql string) func(context.Context, *steps, Querier, guard.Claim, int, Set) error {
	return func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
		n, err := q.Exec(ctx, sql, []any{id, set["v"], set["op"], int64(claim.Token)})
		if err == nil && n == 0 {
			return &guard.RejectedError{Reason: guard.ReasonStale}
		}
		return err
	}
}

func upsertStep(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
	return s.table.Upsert(ctx, q, claim, Key{id}, set)
}

func deleteAndUpsert(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
	if err := upsertStep(ctx, s, q, claim, id, set); err != nil {
		return err
	}
	_, err := q.Exec(ctx, "DELETE FROM steps WHERE id = $1 AND $2::bigint >= last_fencing_token", []any{id, int64(claim.Token)})
	return err
}

func compareThenWrite(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
	var mark int64
	if _, err := sqlkit.Row(ctx, q, "SELECT last_fencing_token FROM steps WHERE id = $1", []any{id}, &mark); err != nil {
		return err
	}
	if mark > int64(claim.Token) {
		return &guard.RejectedError{Reason: guard.ReasonStale}
	}
	return raw("UPDATE steps SET v = $2, op = $3, last_fencing_token = $4 WHERE id = $1")(ctx, s, q, claim, id, set)
}
