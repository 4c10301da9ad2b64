package sqlfence

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestSubscription: what the documentation of triggers says about logical
// replication. On a subscriber replicated changes pass, local writers are
// refused, and Verify reports it; the initial copy of a guarded table is
// refused.
func TestSubscription(t *testing.T) {
	server := mortalServer(t)
	side := func() *env {
		e := newEnvOn(t, 0, server)
		e.exec(writersSQL)
		return e
	}
	publisher, subscriber := side(), side()
	subscriber.guardBy("items", `{tenant}`)
	local := subscriber.guardBy("parts", `{tenant}`)
	publisher.exec("CREATE PUBLICATION items FOR TABLE items")
	publisher.exec("SELECT pg_create_logical_replication_slot('items', 'pgoutput')") // the same server would wait for itself
	subscriber.exec("CREATE SUBSCRIPTION items CONNECTION " + quoteText(publisher.url) + " PUBLICATION items WITH (create_slot = false, slot_name = 'items', copy_data = false)")
	t.Cleanup(func() {
		subscriber.exec("ALTER SUBSCRIPTION items DISABLE")
		subscriber.exec("ALTER SUBSCRIPTION items SET (slot_name = NONE)")
		subscriber.exec("DROP SUBSCRIPTION items")
		publisher.waitFor("the slot to be free", "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'items'")
		publisher.exec("SELECT pg_drop_replication_slot('items')")
	})
	publisher.exec("UPDATE items SET v = 77 WHERE id = 1")
	subscriber.waitFor("the change", "SELECT v = 77 FROM items WHERE id = 1")
	wantReason(t, subscriber.presenting("UPDATE items SET v = 78 WHERE id = 1"), guard.ReasonMissing, "a local writer")
	subscriber.wantFindings("a subscriber", Verification{Triggers: []Trigger{triggerOn([]string{"items"}, `{tenant}`)}},
		"a logical subscription writes it")
	subscriber.wantFindings("a table that is not replicated", Verification{Triggers: []Trigger{local}})
	// The initial copy is a COPY.
	err := pgx.BeginFunc(t.Context(), subscriber.admin, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		_, err := tx.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader("9\ta\t9\n"), "COPY items FROM STDIN")
		return err
	})
	if guard.ReasonOf(ErrorFrom(err)) != guard.ReasonMissing {
		t.Errorf("a copy: %v", err)
	}
}
