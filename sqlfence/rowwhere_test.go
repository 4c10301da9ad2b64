package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestWhere (P1, P6): a predicate with OR does not open the fence, is compared
// in the statement, and has its own reason, after those of the claim. So do
// two of them.
func TestWhere(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, DeletedColumn: "deleted_at"})
		open := table.Where(sqlrow.Raw("docs.v = $2 OR docs.v = $1", "open", "new")).Where(sqlrow.Raw("docs.w IS NULL OR docs.w <> $1", "never"))
		writes := map[string]func(q Querier, token guard.Token) error{
			"Update": func(q Querier, token guard.Token) error {
				return open.Update(t.Context(), q, claimOf("r", token), Key{1}, Set{"v": sqlrow.Raw("$1", "written")})
			},
			"Upsert": func(q Querier, token guard.Token) error {
				return open.Upsert(t.Context(), q, claimOf("r", token), Key{1}, Set{"v": "written"})
			},
			"Delete": func(q Querier, token guard.Token) error {
				return open.Delete(t.Context(), q, claimOf("r", token), Key{1}, Set{"v": "written"})
			},
			"Takeover": func(q Querier, token guard.Token) error {
				return open.Raise(t.Context(), q, claimOf("r", token), Key{1}, nil)
			},
		}
		for way, write := range writes {
			for _, c := range []struct {
				v, w  any
				token guard.Token
				want  guard.Reason
			}{
				{"open", nil, 6, guard.ReasonNone},
				{"new", "w", 7, guard.ReasonNone},
				{"open", "w", 4, guard.ReasonStale},
				{"new", nil, 4, guard.ReasonStale},
				{"closed", nil, 6, guard.ReasonNotFound},
				{"open", "never", 6, guard.ReasonNotFound},
				{"closed", nil, 4, guard.ReasonStale},
			} {
				e.exec("TRUNCATE docs")
				e.exec("INSERT INTO docs VALUES (1, $1, $2, 5)", c.v, c.w)
				err := write(e.db, c.token)
				if guard.ReasonOf(err) != c.want || errors.Is(err, sqlrow.ErrPredicate) != (c.want == guard.ReasonNotFound) {
					t.Errorf("%s, %v, %v, token %d: got %v, want %q", way, c.v, c.w, c.token, err, c.want)
				}
				var rejected *guard.RejectedError
				if c.want != guard.ReasonNone && (!errors.As(err, &rejected) || rejected.Claim != claimOf("r", c.token) || rejected.Mark.Token != 5) {
					t.Errorf("%s, %v, %v, token %d: %v has not the claim and the mark", way, c.v, c.w, c.token, err)
				}
				if changed := e.int("SELECT count(*) FROM docs WHERE last_fencing_token <> 5 OR v = 'written'"); (changed == 1) != (c.want == guard.ReasonNone) {
					t.Errorf("%s, %v, %v, token %d: %d rows were changed", way, c.v, c.w, c.token, changed)
				}
				if err := table.Upsert(t.Context(), e.db, claimOf("r", 7), Key{1}, Set{"v": "any"}); err != nil {
					t.Errorf("the table itself has a predicate now: %v", err)
				}
			}
		}
		err := open.Upsert(t.Context(), e.db, claimOf("r", 1), Key{2}, Set{"v": "closed"})
		if err != nil || e.int("SELECT count(*) FROM docs WHERE id = 2") != 1 {
			t.Errorf("an insert is not compared: %v", err)
		}
		// In an Upsert a bare name means two columns.
		err = table.Where(sqlrow.Raw("v = 'closed'")).Upsert(t.Context(), e.db, claimOf("r", 2), Key{2}, nil)
		if !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), "ambiguous") {
			t.Errorf("a bare name in an Upsert: %v", err)
		}
	})
}

// TestWhereControl: a predicate that is not in parentheses lets a
// stale write through, which is what TestWhere would then see.
func TestWhereControl(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		e.exec("INSERT INTO docs VALUES (1, 'open', NULL, 9)")
		loose := e.altered(func(sql string) string {
			return strings.Replace(sql, `AND ((v = $4 OR v = 'new')) IS TRUE`, `AND v = $4 OR v = 'open'`, 1)
		}, func() {})
		table := e.table("docs", []string{"id"}, nil).Where(sqlrow.Raw("v = $1 OR v = 'new'", "open"))
		noError(t, table.Update(context.Background(), loose, claimOf("r", 4), Key{1}, Set{"v": "written"}), "the stale write was refused")
		for what, predicate := range map[string]sqlrow.Expr{
			"closes the parenthesis": sqlrow.Raw("true) OR (true"), "a comment": sqlrow.Raw("true --"), "empty": sqlrow.Raw(" "), "another statement": sqlrow.Raw("true; SELECT 1"),
		} {
			closed := e.closed()
			bad := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer}).Where(predicate)
			wantInvalid(t, what, bad.Update(t.Context(), closed, claimOf("r", 1), Key{1}, Set{"v": 1}), "predicate", "")
			wantInvalid(t, what, bad.Upsert(t.Context(), closed, claimOf("r", 1), Key{1}, nil), "predicate", "")
			wantInvalid(t, what, bad.Raise(t.Context(), closed, claimOf("r", 1), Key{1}, nil), "predicate", "")
		}
	})
}
