package sqlfence

import (
	"context"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// work runs fn in some kind of transaction.
type work func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error

// unfenced is a plain transaction: the control.
func unfenced(e *env) work {
	return func(ctx context.Context, _ guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		return e.db.plain(ctx, fn)
	}
}

// after takes over with takeOver before each transaction.
func after(takeOver func(context.Context, guard.Claim) error, in work) work {
	return func(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx testTx) error) error {
		if err := takeOver(ctx, claim); err != nil {
			return err
		}
		return in(ctx, claim, fn)
	}
}

// takenOver reports what is lost when holder 6 takes over from holder 5, who has
// read and not yet written.
func (e *env) takenOver(what string, in work) {
	e.Helper()
	e.freshLedger()
	if acked, lost, stale := e.interleaved(in, true, false); acked != 2 || lost != 0 || stale != 0 {
		e.Errorf("%s: %d were acknowledged, want 2; %d lost, %d inserts stale", what, acked, lost, stale)
	}
}

// TestNoLostTakeover (P2): holder 6 reads every write that was acknowledged to
// holder 5, although holder 5 was still writing when holder 6 arrived. That a
// comparison in the write alone is not enough is one of the traps of TestRowTraps.
func TestNoLostTakeover(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		admit := func(ctx context.Context, c guard.Claim) error { _, err := e.db.Admit(ctx, c); return err }
		e.takenOver("Raise first", after(e.db.Raise, e.db.fenced))
		e.takenOver("Admit first", after(admit, e.db.fenced))
		e.takenOver("InTx alone", e.db.fenced)
	})
}

// TestNoLostUpdatesInSets (P1, P2): sets of rows, inserts included, lose no
// acknowledged update and get no stale row.
func TestNoLostUpdatesInSets(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.freshLedger()
		e.ledgerTorture("InTx", e.db.fenced, campaign(8))
	})
}

// TestNoLostUpdatesInSetsControls: plain transactions lose the update of an
// aimed schedule, and the harness of the torture finds damage by itself: most of
// its updates are lost without a fence, so no chance is needed.
func TestNoLostUpdatesInSetsControls(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.freshLedger()
		if acked, lost, stale := e.interleaved(unfenced(e), true, false); acked != 2 || lost != 1 || stale != 1 {
			t.Errorf("aimed: %d were acknowledged, %d lost, %d inserts stale; want 2, 1, 1", acked, lost, stale)
		}
		e.freshLedger()
		if d := e.torturedLedger(unfenced(e), 15); d.lost <= 0 || d.stale == 0 || d.backwards == 0 {
			t.Errorf("plain transactions: %+v: no damage", d)
		}
	})
}
