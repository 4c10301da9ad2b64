//go:build unix

package sqlfence

import (
	"context"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

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
			opts := &TxOptions{Resolve: true}
			claims := []guard.Claim{claimOf("r", 5)}
			for range 2 { // so that the COMMIT's statements are prepared
				must(t, e.db.fencedAll(t.Context(), claims, opts, func(context.Context, testTx) error { return nil }))
			}
			var before, after transactionID
			must(t, e.admin.QueryRow(t.Context(), transactionIDSQL).Scan(&before.xid, &before.server))
			unknown := e.db.fencedAll(t.Context(), claims, opts, func(ctx context.Context, tx testTx) error {
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
