package sqlfence

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestOldStrings: a session whose standard_conforming_strings is off gets the
// same verdicts from triggers and from Verify, whose texts contain backslashes.
func TestOldStrings(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		old := e.open(nil, func(c *pgx.ConnConfig) { c.RuntimeParams["standard_conforming_strings"] = "off" })
		e.exec(unfitSQL + "; ALTER TABLE unfit ADD resource text NOT NULL DEFAULT 'r'; CREATE TRIGGER keep BEFORE UPDATE ON unfit FOR EACH ROW EXECUTE FUNCTION keep()")
		guarded := triggerOn([]string{"unfit"}, `{resource}:a\'b`)
		must(t, old.InstallTrigger(t.Context(), guarded))
		v := Verification{Tables: []*Table{e.table("unfit", []string{"id"}, nil)}, Triggers: []Trigger{guarded}}
		for name, db := range map[string]fence{"off": old, "on": e.db} {
			if found, err := db.Verify(t.Context(), v); err != nil || len(found) != 1 || !strings.Contains(found[0].Problem, "the trigger keep") {
				t.Errorf("%s: found %v, %v", name, found, err)
			}
			claim := guard.Claim{Resource: `r:a\'b`, Token: 5}
			noError(t, db.Raise(t.Context(), claim))
			write := func(claims ...guard.Claim) error {
				return ErrorFrom(db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
					if err := tx.present(ctx, claims...); err != nil {
						return err
					}
					_, err := tx.exec(ctx, "UPDATE unfit SET v = v + 1")
					return err
				}))
			}
			noError(t, write(claim), "%s", name)
			wantReason(t, write(guard.Claim{Resource: `r:a'b`, Token: 5}), guard.ReasonMissing, "%s, another resource", name)
		}
	})
}

// TestExecModesOfTheSchema: what needs schema fencepost works in every exec
// mode of pgx, with a resource and a lease that would end a literal, and still
// refuses stale claims; in the simple protocol BEGIN, enter and the rest are
// one text.
func TestExecModesOfTheSchema(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		e.exec("CREATE TABLE written (resource text NOT NULL, token bigint NOT NULL)")
		table := triggerOn([]string{"written"}, `{resource}`)
		for i, mode := range e.execModes() {
			db := e.open(&Options{PresentClaims: true}, func(c *pgx.ConnConfig) { c.DefaultQueryExecMode = mode })
			of := func(token guard.Token) guard.Claim {
				return guard.Claim{Resource: `it's \ $1 ` + itoa(i), Token: token, LeaseID: `l'\` + token.String()}
			}
			e.exec("TRUNCATE written")
			must(t, db.InstallTrigger(t.Context(), table))
			write := func(token guard.Token) func(context.Context, testTx) error {
				return running("INSERT INTO written VALUES ($1, $2)", of(token).Resource, int64(token))
			}
			for what, err := range []error{
				db.fenced(t.Context(), of(1), write(1)),
				db.fencedAll(t.Context(), []guard.Claim{of(2)}, &TxOptions{Isolation: RepeatableRead, Resolve: true}, write(2)),
				db.fencedAll(t.Context(), []guard.Claim{of(3)}, &TxOptions{Isolation: Serializable}, write(3)),
				db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
					return errors.Join(tx.enter(ctx, of(4)), write(4)(ctx, tx))
				}),
				db.Raise(t.Context(), of(5)),
			} {
				if err != nil {
					t.Errorf("%v, %d: %v", mode, what, err)
				}
			}
			noError(t, db.fenced(t.Context(), of(6), write(6)), "%v: above the mark", mode)
			if mark, err := db.Admit(t.Context(), of(6)); err != nil || mark.Token != 6 || mark.LeaseID != of(6).LeaseID {
				t.Errorf("%v: Admit: %+v, %v", mode, mark, err)
			}
			for what, err := range []error{
				db.fenced(t.Context(), of(5), write(5)), db.Raise(t.Context(), of(5)),
				ErrorFrom(db.plain(t.Context(), func(ctx context.Context, tx testTx) error {
					return errors.Join(tx.present(ctx, of(5)), write(5)(ctx, tx))
				})),
			} {
				var r *guard.RejectedError
				if !errors.As(err, &r) || r.Reason != guard.ReasonStale || r.Claim != of(5) || r.Mark.Token != 6 || r.Mark.LeaseID != of(6).LeaseID {
					t.Errorf("%v, stale %d: %v", mode, what, err)
				}
			}
			mark := guard.Mark{Token: 6, LeaseID: of(6).LeaseID}
			noError(t, db.Reset(t.Context(), of(6).Resource, mark, guard.Mark{Token: 2, LeaseID: `b\'`}, 6, `o'\`, `it's \`), "%v: Reset", mode)
			if all, err := collect(db.Marks(t.Context(), `it's \ $1 `+itoa(i))); err != nil || len(all) != 1 || all[0].LeaseID != `b\'` {
				t.Errorf("%v: Marks: %+v, %v", mode, all, err)
			}
			if _, err := db.Retire(t.Context(), time.Now().Add(-time.Hour)); err != nil {
				t.Errorf("%v: Retire: %v", mode, err)
			}
			if found, err := db.Verify(t.Context(), Verification{Triggers: []Trigger{table}, Role: "nobody"}); err != nil || len(found) != 1 {
				t.Errorf("%v: Verify: %v, %v", mode, found, err)
			}
			if n := e.text("SELECT string_agg(token::text, ' ' ORDER BY token) FROM written"); n != "1 2 3 4 6" {
				t.Errorf("%v: written are %s", mode, n)
			}
			noError(t, db.RemoveTrigger(t.Context(), table.Table))
		}
	})
}
