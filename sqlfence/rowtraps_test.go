package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// traps are ways to fence a row that look right and are not, under READ
// COMMITTED and statements by themselves. They share the harness with the ways
// that are.
var traps = map[string]struct {
	way      rowWay
	shows    func(d damage) int64
	replaced bool // rows are replaced meanwhile
}{
	// The token is compared in the write alone: an old holder, whose token is
	// still the highest that wrote, writes between the new one's read and write.
	"no raise before the read": {way: rowWay{readOnly, fencedWays["update"].write}, shows: lost},
	"read, then raise":         {way: rowWay{readThenRaise, fencedWays["update"].write}, shows: lost},
	// The comparison is with a token read elsewhere in the statement, which is
	// not read again when the row was locked.
	"self-join without a lock": {way: rowWay{take, raw(`UPDATE steps SET v = $2, op = $3, last_fencing_token = $4 FROM
		(SELECT id, last_fencing_token AS token, pg_sleep(0.001) FROM steps WHERE id = $1 OFFSET 0) AS was WHERE steps.id = was.id AND $4::bigint >= was.token`)}, shows: backwards},
	// The outer SELECT has the snapshot from before the write: the verdict that
	// it gives is not that of the UPDATE.
	"verdict outside the UPDATE": {way: rowWay{take, raw(`WITH done AS (UPDATE steps SET v = $2, op = $3, last_fencing_token = $4::bigint WHERE id = $1 AND $4::bigint >= last_fencing_token)
		SELECT 1 FROM steps, pg_sleep(0.001) WHERE id = $1 AND $4::bigint >= last_fencing_token`)}, shows: contradicted},
	"OR without parentheses": {way: rowWay{take, raw(`UPDATE steps SET v = $2, op = $3, last_fencing_token = $4::bigint
		WHERE id = $1 AND op <> '' OR id = $1 AND v >= 0 AND $4::bigint >= last_fencing_token`)}, shows: backwards},
	"many rows, compared with what was read": {way: rowWay{take, func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
		return fencedWays["update many"].write(ctx, s, mutantQuerier{q, func(sql string) string {
			sql = strings.ReplaceAll(sql, `"fence token" >= "last_fencing_token"`, `"fence token" >= "fence mark"`)
			return strings.ReplaceAll(sql, `FOR NO KEY UPDATE OF "steps"`, `LIMIT 2 + (pg_sleep(0.001) IS NULL)::int`)
		}}, claim, id, set)
	}}, shows: backwards},
	"upsert without a comparison": {way: rowWay{take, raw(`INSERT INTO steps (id, v, op, last_fencing_token) VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v, op = EXCLUDED.op, last_fencing_token = EXCLUDED.last_fencing_token`)}, shows: backwards},
	// DELETE takes the mark with it, and an older holder's upsert finds none.
	"DELETE forgets the mark": {way: rowWay{take, deleteAndUpsert}, shows: backwards},
	// A row that was deleted and inserted again is not missing.
	"zero rows mean missing": {way: rowWay{take, func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
		err := raw("UPDATE steps SET v = $2, op = $3, last_fencing_token = $4 WHERE id = $1 AND $4::bigint >= last_fencing_token")(ctx, s, q, claim, id, set)
		var mark int64
		if errors.Is(err, guard.ErrStale) {
			if _, err := q.row(ctx, "SELECT last_fencing_token FROM steps WHERE id = $1", []any{id}, &mark); err != nil {
				return err
			}
			if mark <= int64(claim.Token) {
				return guard.ErrNotFound
			}
		}
		return err
	}}, shows: misses, replaced: true},
	// The comparison and the write are two statements.
	"compare, then write": {way: rowWay{take, compareThenWrite}, shows: backwards},
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
		s.resume(id) // an old holder goes on between the read and the raise
		err = s.table.Takeover(ctx, q, claim, Key{id}, nil)
	}
	return v, err
}

// raw writes by a statement of its own; no row changed means stale.
func raw(sql string) func(context.Context, *steps, Querier, guard.Claim, int, Set) error {
	return func(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
		n, err := q.exec(ctx, sql, []any{id, set["v"], set["op"], int64(claim.Token)})
		if err == nil && n == 0 {
			return &guard.RejectedError{Reason: guard.ReasonStale}
		}
		return err
	}
}

func deleteAndUpsert(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
	if err := s.table.Upsert(ctx, q, claim, Key{id}, set); err != nil {
		return err
	}
	_, err := q.exec(ctx, "DELETE FROM steps WHERE id = $1 AND $2::bigint >= last_fencing_token", []any{id, int64(claim.Token)})
	return err
}

func compareThenWrite(ctx context.Context, s *steps, q Querier, claim guard.Claim, id int, set Set) error {
	var mark int64
	if _, err := q.row(ctx, "SELECT last_fencing_token FROM steps, pg_sleep(0.001) WHERE id = $1", []any{id}, &mark); err != nil {
		return err
	}
	if mark > int64(claim.Token) {
		return &guard.RejectedError{Reason: guard.ReasonStale}
	}
	return raw("UPDATE steps SET v = $2, op = $3, last_fencing_token = $4 WHERE id = $1")(ctx, s, q, claim, id, set)
}

// resume lets the holder that is paused on a row go on.
func (s *steps) resume(id int) {
	if resume := s.paused[id].Swap(nil); resume != nil {
		(*resume)()
	}
}

// TestRowTortureControls: each trap does the damage that it is known for.
func TestRowTortureControls(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		for name, trap := range traps {
			var all []string
			damaged := false
			for range 60 { // races, which a loaded machine may not give at once
				s := &steps{env: e, db: e.db, way: trap.way, rows: 1, broken: true, antagonist: trap.replaced}
				d := s.run(t.Context(), 10)
				all = append(all, fmt.Sprintf("%+v", d))
				if damaged = trap.shows(d) > 0; damaged {
					break
				}
			}
			if !damaged {
				t.Errorf("%s: no damage", name)
			}
			t.Logf("%s: %v", name, all)
		}
	})
}
