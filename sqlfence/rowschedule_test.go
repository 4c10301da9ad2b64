package sqlfence

import (
	"context"
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// within runs statements by themselves or in a transaction.
type within func(f func(q Querier) error) error

// holder has taken a row over.
type holder struct {
	*steps
	id    int
	claim guard.Claim
	v     int64
}

// holder takes a row over and reads it; nil if it was refused.
func (s *steps) holder(ctx context.Context, in within, id int, token int64) *holder {
	h := &holder{s, id, guard.Claim{Resource: fmt.Sprint("row:", id), Token: guard.Token(token)}, 0}
	err := in(func(q Querier) (err error) { h.v, err = s.way.take(ctx, s, q, h.claim, id); return err })
	if s.noWrite(id, err) {
		return nil
	}
	return h
}

// write writes what the holder read plus one.
func (h *holder) write(ctx context.Context, in within) {
	op := fmt.Sprint("op-", h.claim.Token)
	err := in(func(q Querier) error {
		return h.way.write(ctx, h.steps, q, h.claim, h.id, Set{"v": h.v + 1, "op": op})
	})
	refused := h.noWrite(h.id, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acked[op] = !refused
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
		if err != nil {
			s.Fatal(err)
		}
		<-late
	}, "op-2"},
	// The row is replaced while the holder's statement waits for it.
	"replaced": {func(ctx context.Context, s *steps) {
		h := s.taken(ctx, s.alone, 1)
		tx, err := s.admin.Begin(ctx)
		if err != nil {
			s.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if tag, err := tx.Exec(ctx, replaceRow, 1); err != nil || tag.RowsAffected() != 1 {
			s.Fatalf("replaced %d rows, %v", tag.RowsAffected(), err)
		}
		late := s.writeLate(h)
		if err := tx.Commit(ctx); err != nil {
			s.Fatal(err)
		}
		<-late
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
	someDriver(t, func(t *testing.T, e *env) {
		for name, trap := range traps {
			d, applied := e.scheduled(t, trap.schedule, trap.way, true)
			if trap.shows(d) == 0 {
				t.Errorf("%s: no damage", name)
			}
			t.Logf("%s: %+v, written: %q", name, d, applied)
		}
	})
}

// TestRowTortureControl: the harness of TestRowTorture finds damage by itself.
// Half of the holders write after their successor took over, so that the result
// does not depend on chance.
func TestRowTortureControl(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		s := &steps{env: e, db: e.db, way: traps["upsert without a comparison"].way, rows: 1, broken: true}
		if d := s.run(t.Context(), 10); d.backwards == 0 || d.lost == 0 {
			t.Errorf("%+v: no damage", d)
		}
	})
}
