package lockadmin

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestForceUnlocksAtOnce: several force unlocks at once are recorded under numbers
// without gaps above those there are, as after a switch-over by logical replication,
// which copies records and no sequence. The control takes no turns.
func TestForceUnlocksAtOnce(t *testing.T) {
	t.Parallel()
	owner := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 12 })
	client, o := newTestClient(t, owner, nil), newRoleOperator(t, owner)
	unlock := func(n int) error {
		resource := fmt.Sprint("r", n)
		mustTry(t, client, resource, time.Hour)
		_, err := o.ForceUnlock(t.Context(), resource, "ana", "switch-over", nil)
		return err
	}
	failures := func(from int) (n int) {
		errs := make([]error, 8)
		var wg sync.WaitGroup
		for k := range errs {
			wg.Go(func() { errs[k] = unlock(from + k) })
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				n++
			}
		}
		return n
	}
	if err := unlock(0); err != nil {
		t.Fatal(err)
	}
	if n := failures(1); n != 0 {
		t.Errorf("%d of 8 failed", n)
	}
	var records, first, last int
	if err := owner.QueryRow(t.Context(), "SELECT count(*), min(id), max(id) FROM fencepost.audit").Scan(&records, &first, &last); err != nil || records != 9 || first != 1 || last != 9 {
		t.Errorf("%d records, numbers %d to %d, %v", records, first, last, err)
	}
	mutate(t, owner, "force_unlock", "PERFORM FROM fencepost.epoch FOR UPDATE;", "")
	mutate(t, owner, "force_unlock", "RETURNING id, at INTO o_id, o_at;", "RETURNING id, at INTO o_id, o_at; PERFORM pg_advisory_xact_lock(1);")
	gate, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock(1)"); err != nil {
		t.Fatal(err)
	}
	failed := make(chan int)
	go func() { failed <- failures(20) }()
	// The first has its number and waits at the gate, the others for what becomes of it.
	pgtest.Blocked(t, owner, "fencepost.force_unlock(", 8)
	if err := gate.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if <-failed == 0 {
		t.Error("the control: without the lock all were recorded")
	}
}
