package sqlfence

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestObserver: each call is one event with the error that the caller gets,
// the facts and a duration.
func TestObserver(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		var events []guard.Event
		db := e.open(&Options{Observer: guard.ObserverFunc(func(_ context.Context, event guard.Event) { events = append(events, event) })})
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b) VALUES (1, 'x')")
		table := e.table("pairs", []string{"a", "b"}, nil)
		opts := TableOptions{Rule: guard.SameOrNewer, DeletedColumn: "deleted_at"}
		e.exec("ALTER TABLE pairs ADD deleted_at timestamptz")
		rows := e.table("pairs", []string{"a", "b"}, &opts)
		failed := errors.New("failed")
		nothing := func(context.Context, testTx) error { return nil }
		ok, mark := claimOf("r", 5), guard.Mark{Token: 5, LeaseID: "lease-5"}
		old, bad := claimOf("r", 4), guard.Claim{Resource: "r"}
		update := func(q Querier, c guard.Claim) error {
			return table.Update(t.Context(), q, c, Key{1, "x"}, Set{"v": "new"})
		}
		for what, c := range map[string]struct {
			op   guard.Op
			mark guard.Mark
			call func() error
			all  int // events, the last of which is meant
		}{
			"raise":               {guard.OpRaise, mark, func() error { return db.Raise(t.Context(), ok) }, 1},
			"stale raise":         {guard.OpRaise, mark, func() error { return db.Raise(t.Context(), old) }, 1},
			"invalid raise":       {guard.OpRaise, guard.Mark{}, func() error { return db.Raise(t.Context(), bad) }, 1},
			"stale InTx":          {guard.OpTransaction, mark, func() error { return db.fenced(t.Context(), old, nil) }, 1},
			"update":              {guard.OpWrite, mark, func() error { return update(db, ok) }, 1},
			"stale update":        {guard.OpWrite, guard.Mark{Token: 5}, func() error { return update(db, old) }, 1},
			"invalid update":      {guard.OpWrite, guard.Mark{}, func() error { return update(db, bad) }, 1},
			"upsert":              {guard.OpWrite, mark, func() error { return rows.Upsert(t.Context(), db, ok, Key{1, "x"}, nil) }, 1},
			"takeover":            {guard.OpRaise, mark, func() error { return rows.Raise(t.Context(), db, ok, Key{1, "x"}, nil) }, 1},
			"delete":              {guard.OpWrite, mark, func() error { return rows.Delete(t.Context(), db, ok, Key{2, "x"}, nil) }, 1},
			"takeover of nothing": {guard.OpRaise, guard.Mark{}, func() error { return rows.Raise(t.Context(), db, ok, Key{3, "x"}, nil) }, 1},
			"InTx": {guard.OpTransaction, mark, func() error {
				return db.fenced(t.Context(), ok, func(context.Context, testTx) error { return nil })
			}, 1},
			"failed InTx": {guard.OpTransaction, guard.Mark{}, func() error {
				return db.fenced(t.Context(), ok, func(context.Context, testTx) error { return failed })
			}, 1},
			"enter":       {guard.OpTransaction, mark, func() error { return entering(db)(t.Context(), ok, nothing) }, 1},
			"stale enter": {guard.OpTransaction, mark, func() error { return entering(db)(t.Context(), old, nothing) }, 1},
			"update in InTx": {guard.OpTransaction, mark, func() error {
				return db.fenced(t.Context(), ok, func(_ context.Context, tx testTx) error { return update(tx.in(), ok) })
			}, 2},
		} {
			e.exec("UPDATE pairs SET last_fencing_token = $1", map[bool]int{true: 5, false: 0}[what == "stale update"])
			e.exec("INSERT INTO pairs (a, b) VALUES (2, 'x') ON CONFLICT (a, b) DO UPDATE SET deleted_at = NULL")
			must(t, e.db.Raise(t.Context(), ok))
			events = nil
			err := c.call()
			if len(events) != c.all {
				t.Errorf("%s: %d events", what, len(events))
				continue
			}
			got := events[len(events)-1]
			if got.Duration <= 0 || got.Duration > time.Minute {
				t.Errorf("%s took %v", what, got.Duration)
			}
			want := guard.Event{Op: c.op, Surface: "sql", Claim: got.Claim, Mark: c.mark, Reason: guard.ReasonOf(err), Duration: got.Duration, Err: err}
			if got != want || got.Claim.Resource != "r" {
				t.Errorf("%s: got\n%+v, want\n%+v", what, got, want)
			}
		}
	})
}
