package sqlfence

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// TestExecModes: the statements work in every exec mode of pgx, including those
// without prepared statements, which poolers need; in these the key's Go type
// must match the column's.
func TestExecModes(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.createDocs()
		table := e.table("docs", []string{"id"}, &TableOptions{Rule: guard.SameOrNewer, LeaseColumn: "last_lease_id", DeletedColumn: "deleted_at"})
		for _, mode := range e.execModes() {
			db := e.open(nil, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			e.exec("TRUNCATE docs")
			claim, older := claimOf("r", 5), claimOf("r", 4)
			narrow := table.Where(sqlrow.Raw("docs.v <> $1 OR docs.v IS NULL", "never"))
			for id := range 3 {
				noError(t, narrow.Upsert(t.Context(), db, claim, Key{id}, Set{"v": "new"}), "%v: Upsert", mode)
			}
			var v string
			if err := narrow.Raise(t.Context(), db, claim, Key{1}, Dest{"v": &v}); err != nil || v != "new" {
				t.Errorf("%v: Takeover: %q, %v", mode, v, err)
			}
			noError(t, narrow.Update(t.Context(), db, claim, Key{0}, Set{"v": "a", "w": sqlrow.Raw("v || $1::text", "!")}), "%v: Update", mode)
			wantReason(t, narrow.Update(t.Context(), db, older, Key{1}, Set{"v": "b"}), guard.ReasonStale, "%v: a stale Update", mode)
			noError(t, narrow.Delete(t.Context(), db, claim, Key{2}, Set{"v": "gone"}), "%v: Delete", mode)
			if got := e.text("SELECT string_agg(concat_ws(' ', id, v, w, deleted_at IS NULL), ', ' ORDER BY id) FROM docs"); got != "0 a new! t, 1 new default t, 2 gone default f" {
				t.Errorf("%v: the rows are %s", mode, got)
			}
		}
	})
}
