package sqlfence

import (
	"context"
	"errors"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

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
