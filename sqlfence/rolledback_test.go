package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// TestCommitAnsweredWithRollback (P5): a COMMIT that the server answers with
// ROLLBACK has committed nothing, and the error says so. The control is the same
// without the proxy's change.
func TestCommitAnsweredWithRollback(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol}
		e.exec("CREATE TABLE work (token bigint)")
		for _, mode := range modes {
			p, through := e.newProxy()
			db := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			other := &env{TB: e.TB, db: db}
			transactor, insert := other.transactor()
			calls := map[string]func() error{
				"InTx": func() error {
					return transactor.InTx(t.Context(), claimOf("r", 5), func(ctx context.Context) error { return insert(ctx, 5) })
				},
				"InsecureTx": func() error {
					return transactor.InsecureTx(t.Context(), func(ctx context.Context) error { return insert(ctx, 5) })
				},
				"Raise": func() error { return db.Raise(t.Context(), claimOf("s", 6)) },
			}
			must(t, e.db.Raise(t.Context(), claimOf("r", 5)))
			p.change(rolledBack)
			for what, call := range calls {
				if err := call(); !errors.Is(err, sqlkit.ErrAborted) || guard.ReasonOf(err) != guard.ReasonOther || !strings.Contains(err.Error(), "nothing was committed") {
					t.Errorf("%s, %v: got %v, want that nothing was committed", what, mode, err)
				}
			}
			if n := e.int("SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM fencepost.marks WHERE resource = 's')"); n != 0 {
				t.Errorf("%v: %d rows", mode, n)
			}
			p.change(nil)
			control := e.open(nil, through, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode }) // no statement is prepared
			*other, db = env{TB: e.TB, db: control}, control
			transactor, insert = other.transactor()
			for what, call := range calls {
				noError(t, call(), "%s, %v: the control", what, mode)
			}
			if n := e.int("SELECT count(*) FROM work"); n != 2 {
				t.Errorf("%v: the control wrote %d rows", mode, n)
			}
			e.exec("TRUNCATE work; DELETE FROM fencepost.marks")
		}
	})
}

// TestSwallowedError (P5): a callback that returns nil although a statement of its
// own failed has committed nothing, and gets an error that says so.
func TestSwallowedError(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE work (token bigint CHECK (token < 9))")
		transactor, insert := e.transactor()
		swallow := func(ctx context.Context) error {
			if err := insert(ctx, 5); err != nil {
				return err
			}
			_ = insert(ctx, 9)
			return nil
		}
		for what, err := range map[string]error{
			"InTx": transactor.InTx(t.Context(), claimOf("r", 5), swallow), "InsecureTx": transactor.InsecureTx(t.Context(), swallow),
		} {
			if !errors.Is(err, sqlkit.ErrAborted) || guard.ReasonOf(err) != guard.ReasonOther || e.int("SELECT count(*) FROM work") != 0 {
				t.Errorf("%s: got %v and %d rows, want that nothing was committed", what, err, e.int("SELECT count(*) FROM work"))
			}
		}
	})
}
