package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

type testLease struct {
	claim guard.Claim
	valid bool
}

func (l *testLease) Claim() guard.Claim { return l.claim }
func (l *testLease) Valid() bool        { return l.valid }

// TestContextIsOver (P5, P6): a context that is over sends nothing and changes
// nothing, and the error has the cause. If it ended with its lease the error is
// ErrLeaseLost, not an unavailable store; one whose lease is still valid is the
// control.
func TestContextIsOver(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createPairs()
		e.exec("INSERT INTO pairs (a, b, v) VALUES (1, 'x', 'old')")
		over := errors.New("the hold ended")
		lease := &testLease{claim: claimOf("r", 5), valid: true}
		ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
		cancel(over)
		for _, want := range []guard.Reason{guard.ReasonUnavailable, guard.ReasonLeaseLost} {
			for what, call := range e.calls(e.db, lease.claim) {
				err := call(ctx)
				if wantReason(t, err, want, what); !errors.Is(err, over) {
					t.Errorf("%s: %v has not the cause", what, err)
				}
				if strings.Count(err.Error(), "store unavailable") > 1 {
					t.Errorf("%s says it twice: %v", what, err)
				}
				if lost := new(guard.LostError); !lease.valid && (!errors.As(err, &lost) || lost.Claim != lease.claim || !strings.Contains(err.Error(), "nothing was sent")) {
					t.Errorf("%s: %v does not say which lease was lost and that nothing was sent", what, err)
				}
			}
			lease.valid = false
		}
		e.wantInt(0, "something was written", "SELECT (SELECT count(*) FROM fencepost.marks) + (SELECT count(*) FROM pairs WHERE v <> 'old')")
	})
}

// TestLeaseLostMeanwhile (P6): an operation that waits when its lease is lost
// returns ErrLeaseLost with the cause, because nothing was written; if that is
// not known, ErrOutcomeUnknown, with the cause too. The control is a context
// that ends under a good lease.
func TestLeaseLostMeanwhile(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createWritten()
		e.exec(`CREATE TABLE docs (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO docs VALUES (1, 'old', 0)`)
		table, over := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}), errors.New("the hold ended")
		e.exec("CREATE TABLE work (token bigint, slept text DEFAULT pg_sleep(60)::text)")
		transactor, insert := e.transactor()
		e.holding(claimOf("r", 5))
		sleep := running("SELECT pg_sleep(60)")
		blocked := func() { e.waitForBlocked(1) }
		asleep := func() {
			e.waitFor("asleep", "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
		}
		for _, lost := range []bool{true, false} {
			for what, c := range map[string]struct {
				call func(ctx context.Context) error
				wait func()
				want guard.Reason // with a lost lease
			}{
				"Raise": {func(ctx context.Context) error { return e.db.Raise(ctx, claimOf("r", 6)) }, blocked, guard.ReasonLeaseLost},
				"Admit": {func(ctx context.Context) error { _, err := e.db.Admit(ctx, claimOf("r", 6)); return err }, blocked, guard.ReasonLeaseLost},
				"InTx":  {func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("r", 6), nil) }, blocked, guard.ReasonLeaseLost},
				"Transactor": {func(ctx context.Context) error {
					return transactor.InTx(ctx, claimOf("s", 6), func(ctx context.Context) error { return insert(ctx, 6) })
				}, asleep, guard.ReasonLeaseLost},
				"InsecureTx": {func(ctx context.Context) error {
					return transactor.InsecureTx(ctx, func(ctx context.Context) error { return insert(ctx, 6) })
				}, asleep, guard.ReasonLeaseLost},
				"callback": {func(ctx context.Context) error { return e.db.fenced(ctx, claimOf("s", 6), sleep) }, asleep, guard.ReasonLeaseLost},
				"Update": {func(ctx context.Context) error {
					return table.Update(ctx, e.db, claimOf("1", 6), Key{1}, Set{"v": "new"})
				}, blocked, ""},
				"Takeover": {func(ctx context.Context) error { return table.Raise(ctx, e.db, claimOf("1", 6), Key{1}, nil) }, blocked, ""},
			} {
				row, err := e.admin.Begin(t.Context())
				must(t, err)
				if _, err := row.Exec(t.Context(), "UPDATE docs SET v = v"); err != nil {
					t.Fatal(err)
				}
				lease := &testLease{claim: claimOf("r", 6), valid: true}
				ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
				done := make(chan error, 1)
				go func() { done <- c.call(ctx) }()
				c.wait()
				lease.valid = !lost
				cancel(over)
				err = <-done
				unknown := errors.Is(err, guard.ErrOutcomeUnknown)
				if !strings.Contains(err.Error(), over.Error()) || errors.Is(err, over) == unknown || errors.Is(err, guard.ErrLeaseLost) != (lost && !unknown) || errors.As(err, new(*guard.LostError)) != (lost && !unknown) {
					t.Errorf("%s, lease lost %v: %v", what, lost, err)
				}
				if got := guard.ReasonOf(err); lost && c.want != "" && got != c.want {
					t.Errorf("%s: reason %s", what, got)
				}
				row.Rollback(t.Context())
				e.waitFor("nobody asleep", "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
			}
		}
		// What has another reason keeps it.
		lease := &testLease{claim: claimOf("r", 6)}
		ctx, cancel := context.WithCancelCause(guard.WithLease(t.Context(), lease))
		cancel(over)
		lost := &guard.LostError{Claim: lease.claim}
		gone, drop := context.WithCancelCause(t.Context())
		drop(lost)
		if err := sqlkit.Interrupted(gone, guard.OutcomeUnknown("a", guard.Claim{}, context.Canceled)); errors.Is(err, guard.ErrLeaseLost) || !errors.Is(err, guard.ErrOutcomeUnknown) || !strings.Contains(err.Error(), lost.Error()) {
			t.Errorf("an unknown outcome promises that nothing was written: %v", err)
		}
		for _, err := range []error{nil, guard.Invalid("a", "b", "c"), state("23505")} {
			if got := sqlkit.Interrupted(ctx, err); got != err {
				t.Errorf("%v became %v", err, got)
			}
		}
		if err := sqlkit.Interrupted(t.Context(), guard.Unavailable("a", guard.Claim{}, context.Canceled)); strings.Contains(err.Error(), "lease") {
			t.Error(err)
		}
	})
}
