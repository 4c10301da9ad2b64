package sqlfence

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// endTracer calls end after each statement that contains text.
type endTracer struct {
	text string
	end  func()
}

type tracedSQL struct{}

func (endTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, tracedSQL{}, data.SQL)
}

func (t endTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(tracedSQL{}).(string); strings.Contains(sql, t.text) {
		t.end()
	}
}

// TestEndedAfterEnter (P5): if the context ends as soon as a transaction has
// entered, the callback does not run. Only database/sql sees this: pgx begins in
// one round trip.
func TestEndedAfterEnter(t *testing.T) {
	e := newEnvOf(t, "std")
	must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	db := e.open(nil, func(c *pgx.ConnConfig) { c.Tracer = endTracer{"fencepost.enter", func() { cancel(over) }} })
	err := db.fenced(ctx, claimOf("r", 5), func(context.Context, testTx) error { t.Error("the callback ran"); return nil })
	if guard.ReasonOf(err) != guard.ReasonUnavailable || !errors.Is(err, over) {
		t.Errorf("got %v, want ErrUnavailable with the cause", err)
	}
}

// TestResolveEnds (P5): a context that ends while the transaction is in progress
// leaves the outcome unknown, and the error has the cause.
func TestResolveEnds(t *testing.T) {
	e := newEnvOf(t, "pgx")
	tx, err := e.admin.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background())
	var id transactionID
	must(t, tx.QueryRow(t.Context(), transactionIDSQL).Scan(&id.xid, &id.server))
	over := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	db := e.open(nil, func(c *pgx.ConnConfig) { c.Tracer = endTracer{"pg_xact_status", func() { cancel(over) }} })
	committed, err := db.Resolve(ctx, guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{id, errInjected}))
	if committed || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown || !errors.Is(err, over) {
		t.Errorf("got %v, %v, want ErrOutcomeUnknown with the cause", committed, err)
	}
}

// TestCancelledAsksNothing: InTx returns at once when its context ends, although the
// driver closes the connection then, and asks the server nothing more. The control
// is a context of the callback's own: the session may have been ended by a raise.
func TestCancelledAsksNothing(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		for _, own := range []bool{false, true} {
			var asked atomic.Int32
			db := e.open(nil, func(c *pgx.ConnConfig) {
				c.Tracer = endTracer{markSQL, func() { asked.Add(1) }}
			})
			ctx, cancel := context.WithCancel(t.Context())
			err := db.fenced(ctx, claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				if own {
					ctx, cancel = context.WithCancel(ctx)
				}
				time.AfterFunc(50*time.Millisecond, cancel)
				_, err := tx.exec(ctx, "SELECT pg_sleep(60)")
				return err
			})
			cancel()
			if !errors.Is(err, context.Canceled) || asked.Load() > 0 != own {
				t.Errorf("own %t: the mark was read %d times, %v", own, asked.Load(), err)
			}
		}
	})
}

// TestNoConnectionForAWrite (P5): a write that gets no connection is
// ErrUnavailable and is not tried again, even if there would be one by then. The
// control is the same write after it.
func TestNoConnectionForAWrite(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE jobs (id int PRIMARY KEY, v text, last_fencing_token bigint NOT NULL DEFAULT 0); INSERT INTO jobs VALUES (1, 'old')")
		var dials atomic.Int32
		db := e.open(nil, func(c *pgx.ConnConfig) {
			dial := c.DialFunc
			c.Fallbacks = nil
			c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				if dials.Add(1) == 2 {
					return nil, errInjected
				}
				return dial(ctx, network, address)
			}
		})
		table := e.table("jobs", []string{"id"}, nil)
		write := func() error { return table.Update(t.Context(), db, claimOf("r", 5), Key{1}, Set{"v": "new"}) }
		must(t, table.Update(t.Context(), db, claimOf("r", 4), Key{1}, Set{"v": "old"}))     // looks at the table
		err := db.plain(t.Context(), func(context.Context, testTx) error { return write() }) // which has the first connection
		if guard.ReasonOf(err) != guard.ReasonUnavailable || !errors.Is(err, errInjected) || e.text("SELECT v FROM jobs") != "old" {
			t.Errorf("got %v and %q, want ErrUnavailable", err, e.text("SELECT v FROM jobs"))
		}
		if err := write(); err != nil || e.text("SELECT v FROM jobs") != "new" {
			t.Errorf("the control: %v", err)
		}
	})
}

// TestEnterDuringAReset (P1): an Enter that waits for a reset is not fenced by the
// mark that it saw before: if the claim is above the new mark, the transaction is
// to begin again, and if it is below, it is stale.
func TestEnterDuringAReset(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		for to, want := range map[int64]guard.Reason{4: guard.ReasonUnavailable, 6: guard.ReasonStale} {
			e.putMark("r", guard.Mark{Token: 5, LeaseID: "lease-5"})
			tx := e.begin("SELECT fencepost.reset('r', 5, 'lease-5', $1, '', 9, 'op', 'why', 1000)", to)
			ran := false
			entered := e.start(func(func()) error {
				return entering(e.db)(context.Background(), claimOf("r", 5), func(context.Context, testTx) error { ran = true; return nil })
			})
			must(t, tx.Commit(t.Context()))
			err := <-entered
			if guard.ReasonOf(err) != want || ran || want == guard.ReasonUnavailable && (!mayRetry(err) || !strings.Contains(err.Error(), "the mark was retired or reset in the meantime")) {
				t.Errorf("reset to %d: got %v, want %s", to, err, want)
			}
			if mark, err := e.db.Mark(t.Context(), "r"); err != nil || int64(mark.Token) != to {
				t.Errorf("reset to %d: the mark is %+v, %v", to, mark, err)
			}
		}
	})
}

var _ pgx.QueryTracer = endTracer{}
