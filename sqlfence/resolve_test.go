package sqlfence

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestResolve (P5): InTxAll, or Resolve later, asks the server for the outcome
// of a COMMIT whose answer was lost; committed and not committed are
// distinguished. Without TxOptions.Resolve, the control, it stays unknown.
func TestResolve(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		for what, c := range map[string]struct {
			fate fate
			rows int64
			want guard.Reason
		}{"not forwarded": {cutBefore, 0, guard.ReasonUnavailable}, "answer cut": {cutAfter, 1, guard.ReasonNone}} {
			for _, level := range []Isolation{ReadCommitted, Serializable} {
				e.exec("DROP TABLE IF EXISTS written; DELETE FROM fencepost.marks")
				e.createWritten()
				p, through := e.newProxy()
				db := e.open(nil, through)
				must(t, db.Raise(t.Context(), claimOf("r", 5)))
				p.set(onCommit(c.fate))
				err := db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, &TxOptions{Resolve: true, Isolation: level}, write5)
				if guard.ReasonOf(err) != c.want || e.written() != c.rows {
					t.Errorf("%s: got %v and %d rows, want %q and %d", what, err, e.written(), c.want, c.rows)
				}
			}
		}
	})
}

// TestResolveLater: an unknown outcome that could not be resolved at once is
// resolved by another DB; any other error given to Resolve is refused.
func TestResolveLater(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		for what, c := range map[string]struct {
			fate fate
			rows int64
		}{"not forwarded": {cutBefore, 0}, "answer cut": {cutAfter, 1}} {
			e.exec("DROP TABLE IF EXISTS written; DELETE FROM fencepost.marks")
			e.createWritten()
			p, through := e.newProxy()
			db := e.open(nil, through)
			must(t, db.Raise(t.Context(), claimOf("r", 5)))
			lose := func(opts *TxOptions) error {
				var down atomic.Bool
				lost := onCommit(c.fate)
				p.set(func(message string) fate {
					if down.Load() {
						return cutBefore // no server can be asked
					}
					what := lost(message)
					if what != forward {
						down.Store(true)
					}
					return what
				})
				defer p.set(nil)
				return db.fencedAll(t.Context(), []guard.Claim{claimOf("r", 5)}, opts, write5)
			}
			err := lose(&TxOptions{Resolve: true})
			if guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
				t.Fatalf("%s: got %v, want ErrOutcomeUnknown", what, err)
			}
			committed, resolveErr := e.db.Resolve(t.Context(), err)
			if resolveErr != nil || committed != (c.rows == 1) || e.written() != c.rows {
				t.Errorf("%s: committed %v, %v; %d rows", what, committed, resolveErr, e.written())
			}
			e.exec("DELETE FROM written")
			_, resolveErr = e.db.Resolve(t.Context(), lose(nil))
			wantInvalid(t, "without TxOptions.Resolve", resolveErr, "err", "TxOptions.Resolve")
		}
		_, err := e.db.Resolve(t.Context(), errors.New("another"))
		wantInvalid(t, "another error", err, "err", "another")
		_, err = e.db.Resolve(t.Context(), nil)
		wantInvalid(t, "nil", err, "err", "nil")
	})
}

// TestResolveUnknowable (P5): the outcome of a transaction in progress, of one
// that the server never saw and of one on another timeline is not guessed.
func TestResolveUnknowable(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		db := e.open(&Options{CommitTimeout: 300 * time.Millisecond}) // to which the one in progress is waited for
		var id transactionID
		tx, err := e.admin.Begin(t.Context())
		must(t, err)
		defer tx.Rollback(context.Background())
		must(t, tx.QueryRow(t.Context(), transactionIDSQL).Scan(&id.xid, &id.server))
		resolve := func(db fence, id transactionID) (bool, error) {
			return db.Resolve(t.Context(), guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{id, errInjected}))
		}
		for what, id := range map[string]transactionID{"in progress": id, "of the future": {"999999999999", id.server}, "of another timeline": {id.xid, "000000FF"}, "forgotten": {"3", "00000000"}} {
			if committed, err := resolve(db, id); committed || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
				t.Errorf("%s: %v, %v, want ErrOutcomeUnknown", what, committed, err)
			}
		}
		must(t, tx.Commit(t.Context()))
		if committed, err := resolve(e.db, id); !committed || err != nil {
			t.Errorf("committed meanwhile: %v, %v", committed, err)
		}
	})
}
