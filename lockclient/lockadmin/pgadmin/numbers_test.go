package pgadmin

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestForceUnlocksAtOnce: several force unlocks at once are recorded under numbers
// without gaps above those there are, as after a switch-over by logical replication,
// which copies records and no sequence. The control takes no turns.
func TestForceUnlocksAtOnce(t *testing.T) {
	t.Parallel()
	owner := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 16 })
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
	mutate(t, owner, "force_unlock", "RETURNING id, at INTO o_id, o_at;", "RETURNING id, at INTO o_id, o_at; PERFORM pg_advisory_xact_lock(o_id);")
	gate := func(number int) (open func()) {
		tx, err := owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock($1::bigint)", number); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	first10, then11 := gate(10), gate(11)
	failed := make(chan int, 1)
	go func() { failed <- failures(20) }()
	// One has the number and waits at its gate, the others for what becomes of it. They try
	// once more, as after a collision of request IDs.
	behind := func(number, n int) {
		t.Helper()
		testkit.Eventually(t, "those behind the one with the number", func() bool {
			var behind int
			err := owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l ON l.locktype = 'advisory' AND l.objid = $1::bigint AND NOT l.granted
				AND l.pid = ANY (pg_blocking_pids(a.pid)) WHERE a.datname = current_database()`, number).Scan(&behind)
			return err == nil && behind == n
		})
	}
	behind(10, 7)
	first10()
	behind(11, 6)
	then11()
	if n := testkit.Receive(t, "the control", failed); n != 6 {
		t.Errorf("the control: without the lock %d of 8 failed", n)
	}
}
