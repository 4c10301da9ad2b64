package sqlfence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// staleEntries counts the entries of older tokens that a newer token's entries
// did not see. The entries of every newer token must have seen them.
const staleEntries = `SELECT count(*) FROM entries old WHERE EXISTS (
	SELECT FROM entries new WHERE new.token > old.token AND new.seen < (SELECT count(*) FROM entries o WHERE o.token < new.token))`

// freshLedger recreates the tables of a ledger, and deletes the marks.
func (e *env) freshLedger() {
	e.Helper()
	e.exec("DROP TABLE IF EXISTS counter, entries; DELETE FROM fencepost.marks;" + ledger)
}

// interleaved runs holders 5 and 6 through the schedule in which a fence with a
// gap loses data: holder 5 has read, or, if written, has written and not
// committed; holder 6 takes over and reads, unless something keeps it waiting;
// holder 5 continues to the end of its transaction; holder 6 writes. Each adds
// one to a counter, if adds, and inserts an entry that says how many of lower
// tokens it saw. It returns how many were acknowledged, how many of their
// additions are missing, and how many entries holder 6 did not see.
func (e *env) interleaved(in work, adds, written bool) (acked, lost, stale int64) {
	e.Helper()
	hold := func(token guard.Token, afterRead, afterWrite func()) error {
		tried := false
		return in(context.Background(), claimOf("ledger", token), func(ctx context.Context, tx testTx) error {
			once := func(f func()) {
				if !tried { // another attempt is not scheduled
					f()
				}
			}
			defer func() { tried = true }()
			seen, err := tx.int(ctx, "SELECT count(*) FROM entries WHERE token < $1::bigint", int64(token))
			if err != nil {
				return err
			}
			v, err := tx.int(ctx, "SELECT v FROM counter")
			if err != nil {
				return err
			}
			once(afterRead)
			if adds {
				if _, err := tx.exec(ctx, "UPDATE counter SET v = $1", v+1); err != nil {
					return err
				}
			}
			if _, err := tx.exec(ctx, "INSERT INTO entries (token, seen) VALUES ($1::bigint, $2::bigint)", int64(token), seen); err != nil {
				return err
			}
			once(afterWrite)
			return nil
		})
	}
	var err6 chan error
	done5 := make(chan struct{})
	successor := func() {
		err6 = e.start(func(paused func()) error {
			return hold(6, func() { paused(); <-done5 }, func() {})
		})
	}
	pauses := [2]func(){successor, func() {}}
	if written {
		pauses[0], pauses[1] = pauses[1], pauses[0]
	}
	err5 := hold(5, pauses[0], pauses[1])
	close(done5)
	if err6 == nil {
		e.Fatalf("holder 5 did not come to its pause: %v", err5)
	}
	for _, err := range []error{err5, <-err6} {
		switch guard.ReasonOf(err) {
		case guard.ReasonNone:
			acked++
		case guard.ReasonStale:
		default:
			e.Error(err)
		}
	}
	if adds {
		lost = acked - e.int("SELECT v FROM counter")
	}
	if n := e.int("SELECT count(*) FROM entries"); n != acked { // a false verdict
		e.Errorf("%d entries were acknowledged, %d are there", acked, n)
	}
	return acked, lost, e.int(staleEntries)
}
