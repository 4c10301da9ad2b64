//go:build unix

package sqlfence

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/process"
)

const childURL = "FENCEPOST_SQLFENCE_CHILD_URL"

func init() { children["receive"] = receiveLarge }

// receiveLarge is a holder that writes and then receives a result that is too
// large for any buffer. It ignores the error of the result, so that a COMMIT
// follows.
func receiveLarge() error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv(childURL))
	if err != nil {
		return err
	}
	db, err := Pgx(pool, nil)
	if err != nil {
		return err
	}
	err = db.InTx(ctx, claimOf("r", 5), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO written VALUES (5)"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
		if err != nil {
			return err
		}
		defer rows.Close()
		rows.Next()
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		fmt.Println("receiving")
		<-continued // after it was stopped
		for rows.Next() {
		}
		return nil
	})
	fmt.Println("ended:", guard.ReasonOf(err), err != nil)
	return nil
}

// stopped starts a holder in its own process and stops it while it receives.
func (e *env) stopped(t *testing.T) *process.Worker {
	t.Helper()
	holder := startChild(t, "receive", childURL+"="+e.url)
	if line := holder.Line(); line != "receiving" {
		t.Fatalf("the holder says %q", line)
	}
	if !holder.Pause() {
		t.Fatal("the holder has ended")
	}
	e.waitFor("the holder's session to be stuck", "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND datname = current_database()")
	return holder
}

// TestStoppedWhileReceiving (P2): a process that is stopped while it receives a
// result keeps its transaction, and none of the server's timeouts reaches it.
// Without termination its successor's raise is ErrUnavailable after its
// timeout, the control; with it the raise is through, and the stopped process commits
// nothing when it resumes.
func TestStoppedWhileReceiving(t *testing.T) {
	bothDrivers(t, func(t *testing.T, e *env) {
		e.createWritten()
		holder := e.stopped(t)
		err := e.open(&Options{RaiseTimeout: 200 * time.Millisecond, TerminateAfter: endsNobody}).Raise(t.Context(), claimOf("r", 6))
		wantReason(t, err, guard.ReasonUnavailable, "without termination")
		// A raise whose context ends within the grace period ends no session.
		looked := e.countLooks()
		end := e.raising(e.open(&Options{TerminateAfter: time.Hour, RaiseTimeout: 2 * time.Hour}), claimOf("r", 6))
		looked(1)
		wantReason(t, end(), guard.ReasonUnavailable, "within the grace period")
		noError(t, e.open(&Options{TerminateAfter: 2 * time.Second, RaiseTimeout: patience}).Raise(t.Context(), claimOf("r", 6)), "with termination")
		holder.Resume()
		if line := holder.Line(); !strings.HasPrefix(line, "ended: ") || !strings.HasSuffix(line, " true") {
			t.Errorf("the stopped holder says %q", line)
		}
		if e.written() != 0 {
			t.Error("the stopped holder's write is there")
		}
	})
}

// TestResolveAfterCrash (P5): a server that crashes, or of which one process does,
// gives the transaction IDs again whose WAL was lost. The outcome of a transaction
// from before the crash is then unknown, or known to be nothing, never success.
func TestResolveAfterCrash(t *testing.T) {
	s := mortalServer(t)
	for what, crash := range map[string]func(t *testing.T, e *env, s *pgtest.Server, victim int) error{
		"the server": func(t *testing.T, e *env, s *pgtest.Server, _ int) error {
			if err := s.Kill(); err != nil {
				return err
			}
			restart(t, s, e)
			return nil
		},
		"one process": func(_ *testing.T, _ *env, _ *pgtest.Server, victim int) error {
			return syscall.Kill(victim, syscall.SIGKILL)
		},
	} {
		t.Run(what, func(t *testing.T) {
			e := newEnvOn(t, 0, s)
			e.createWritten()
			e.exec("CREATE TABLE elsewhere (id int)")
			must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
			victim, err := pgx.Connect(t.Context(), e.url)
			must(t, err)
			defer victim.Close(context.Background())
			var before, after transactionID
			must(t, e.admin.QueryRow(t.Context(), transactionIDSQL).Scan(&before.xid, &before.server))
			unknown := e.db.fenced(t.Context(), claimOf("r", 5), func(ctx context.Context, tx testTx) error {
				if err := write5(ctx, tx); err != nil {
					return err
				}
				if err := crash(t, e, s, int(victim.PgConn().PID())); err != nil {
					return err
				}
				for done := 0; done < 3; { // others get the same IDs
					c, err := pgx.Connect(ctx, e.url)
					if err != nil {
						continue
					}
					if _, err := c.Exec(ctx, "INSERT INTO elsewhere VALUES (1)"); err == nil {
						done++
					}
					c.Close(ctx)
				}
				return nil
			})
			e.admin.Reset()
			if e.written() != 0 {
				t.Fatal("the write survived, so this shows nothing")
			}
			switch guard.ReasonOf(unknown) {
			case guard.ReasonUnavailable:
			case guard.ReasonOutcomeUnknown:
				if committed, err := e.open(nil).Resolve(t.Context(), unknown); committed || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
					t.Errorf("resolved later: %t, %v", committed, err)
				}
			default:
				t.Errorf("got %v", unknown)
			}
			// The same ID is a committed transaction's by now; only the server tells.
			must(t, e.admin.QueryRow(t.Context(), "SELECT max(xmin::text::int)::text, "+serverSQL+" FROM elsewhere").Scan(&after.xid, &after.server))
			for server, known := range map[string]bool{before.server: false, after.server: true} {
				lost := guard.OutcomeUnknown("commit", claimOf("r", 5), &lostCommit{transactionID{after.xid, server}, errInjected})
				if committed, err := e.open(nil).Resolve(t.Context(), lost); committed != known || (err == nil) != known {
					t.Errorf("on %s: %t, %v", server, committed, err)
				}
			}
		})
	}
}
