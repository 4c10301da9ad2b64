package sqlfence

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestClientEncoding (P1, P9): a session whose client_encoding is not UTF-8, in which
// a resource's name becomes another one, is refused before anything is sent. The
// control shows the other name.
func TestClientEncoding(t *testing.T) {
	eachDriver(t, func(t *testing.T, e *env) {
		latin := func(c *pgx.ConnConfig) { c.RuntimeParams["client_encoding"] = "LATIN1" }
		db, claim := e.open(nil, latin), claimOf("ü", 5)
		for what, call := range e.calls(db, claim, "InTx", "Raise", "Admit", "Mark") {
			wantReason(t, call(t.Context()), guard.ReasonInvalid, what)
		}
		e.createPairs()
		for what, in := range map[string]func(ctx context.Context, tx testTx) error{
			"Enter":   func(ctx context.Context, tx testTx) error { return tx.enter(ctx, claim) },
			"Present": func(ctx context.Context, tx testTx) error { return tx.present(ctx, claim) },
			"Update": func(ctx context.Context, tx testTx) error {
				return e.table("pairs", []string{"b"}, nil).Update(ctx, tx.in(), claim, Key{"ü"}, Set{"v": "x"})
			},
		} {
			if err := db.plain(t.Context(), in); guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), "client_encoding") {
				t.Errorf("%s in a transaction of the caller's: %v", what, err)
			}
		}
		e.wantInt(0, "marks", "SELECT count(*) FROM fencepost.marks")
		must(t, db.unfenced(t.Context(), "SELECT fencepost.raise($1, 5, 'lease-5', 1000)", "ü"))
		if got := e.text("SELECT resource FROM fencepost.marks"); got == "ü" {
			t.Errorf("the control: the resource is still %q", got)
		}
	})
}
