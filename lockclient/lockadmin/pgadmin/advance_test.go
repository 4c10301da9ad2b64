package pgadmin

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestAdvance: later grants are above what another system has issued; nothing
// is ever lowered, no lease is lost, and other resources keep their numbers.
func TestAdvance(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	advance := func(resource string, above, want guard.Token) {
		t.Helper()
		if got, err := client.Advance(t.Context(), resource, above); err != nil || got != want {
			t.Errorf("Advance(%q, %v) = %v, %v, want %v", resource, above, got, err, want)
		}
	}
	advance("new", 41, 41)
	if next := grant(t, client, "new", 1); next != 42 {
		t.Errorf("token %v after 41", next)
	}
	advance("new", 7, 42)  // never lowers
	advance("new", 42, 42) // already there
	advance("new", 100, 100)
	advance("new", 100, 100)
	if next := grant(t, client, "new", 1); next != 101 {
		t.Errorf("token %v after 100", next)
	}
	if next := grant(t, client, "other", 1); next != 1 {
		t.Errorf("another resource has token %v", next)
	}

	lease := mustTry(t, client, "new", time.Hour)
	advance("new", 102, 102) // the lease's own token, so no lease is in the way
	var held *lockclient.HeldError
	if got, err := client.Advance(t.Context(), "new", 103); !errors.As(err, &held) || held.Token != 102 || got != guard.NoToken {
		t.Errorf("over a lease: %v, %v", got, err)
	}
	if err := lease.Renew(t.Context()); err != nil {
		t.Errorf("the lease is harmed: %v", err)
	}
	expired := mustTry(t, client, "expired", time.Hour)
	runOut(t, pool, "expired")
	advance("expired", 50, 50)
	if r := rowOf(t, pool, "expired"); r.LeaseID != nil {
		t.Errorf("the expired lease has another's token: %+v", r)
	}
	if err := expired.Renew(t.Context()); !errors.Is(err, lockclient.ErrLeaseLost) {
		t.Errorf("an expired lease renews: %v", err)
	}

	if floor, err := client.AdvanceFloor(t.Context(), 1000); err != nil || floor != 1000 {
		t.Errorf("AdvanceFloor = %v, %v", floor, err)
	}
	if floor, err := client.AdvanceFloor(t.Context(), 900); err != nil || floor != 1000 {
		t.Errorf("AdvanceFloor = %v, %v", floor, err)
	}
	advance("never seen", 5, 1000)
	if lease.Token() != 102 || lease.Renew(t.Context()) != nil {
		t.Error("the floor harmed a lease")
	}
	for resource, want := range map[string]guard.Token{"never seen": 1001, "other": 1001, "expired": 1001} {
		if next := grant(t, client, resource, 1); next != want {
			t.Errorf("%s: token %v, want %v", resource, next, want)
		}
	}

	const nanoseconds guard.Token = 1_700_000_000_000_000_000
	advance("clocked", nanoseconds, nanoseconds)
	if next := grant(t, client, "clocked", 1); next != nanoseconds+1 {
		t.Errorf("token %v after %v", next, nanoseconds)
	}
	if e, err := client.Epoch(t.Context()); err != nil || e.Number != int64(nanoseconds>>pglease.EpochShift) {
		t.Errorf("the epoch is %+v, %v: a failover would grant lower tokens", e, err)
	}
}

func TestAdvanceInvalid(t *testing.T) {
	t.Parallel()
	client := newTestClient(t, migrated(t), nil)
	for _, token := range []guard.Token{0, -1, math.MinInt64, lockadmin.MaxAdvance + 1, guard.MaxToken, math.MaxInt64} {
		if _, err := client.Advance(t.Context(), "r", token); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Advance %v: %v", token, err)
		}
		if _, err := client.AdvanceFloor(t.Context(), token); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("AdvanceFloor %v: %v", token, err)
		}
	}
	for _, resource := range []string{"", "a\nb", strings.Repeat("x", 513), "\xff"} {
		if _, err := client.Advance(t.Context(), resource, 5); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("Advance %q: %v", resource, err)
		}
	}
	if got, err := client.Advance(t.Context(), "r", lockadmin.MaxAdvance); err != nil || got != lockadmin.MaxAdvance {
		t.Errorf("the highest: %v, %v", got, err)
	}
	if next := grant(t, client, "r", 1); next != lockadmin.MaxAdvance+1 {
		t.Errorf("token %v", next)
	}
	if e, err := client.RaiseEpoch(t.Context()); err != nil || e.Number != 1<<22+1 {
		t.Errorf("there is no epoch left: %+v, %v", e, err)
	}
}

// TestCommitsWait: even if by default commits do not wait for the disk, those of
// an operator's calls do, or a crash would issue their tokens again. A trigger
// records the setting with which each transaction commits. The control is a
// statement under the default; lockclient's TestKilledControl shows what a crash
// takes from it.
func TestCommitsWait(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	mustExec(t, owner, `CREATE TABLE public.commits (setting text);
		CREATE FUNCTION public.note_commit() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS
			$$ BEGIN INSERT INTO public.commits VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT OR UPDATE OR DELETE ON fencepost.leases
			DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.note_commit()`)
	client := newTestClient(t, owner, nil)
	grant(t, client, "purged", 3)
	mustTry(t, client, "cut", time.Hour)
	pool := dial(t, owner.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	o := newRoleOperator(t, pool)
	// In this order: a raised epoch puts the floor above what the others ask for,
	// and a call that changes nothing commits nothing.
	for _, test := range []struct {
		what, want string
		call       func() error
	}{
		{"control", "{off}", func() error {
			_, err := pool.Exec(t.Context(), "INSERT INTO fencepost.leases (resource, token) VALUES ('control', 1)")
			return err
		}},
		{"advance", "{on}", func() error { _, err := o.Advance(t.Context(), "r", 1000); return err }},
		{"floor", "{on}", func() error { _, err := o.AdvanceFloor(t.Context(), 2000); return err }},
		{"raise", "{on}", func() error { _, err := o.RaiseEpoch(t.Context()); return err }},
		{"force unlock", "{on}", func() error { _, err := o.ForceUnlock(t.Context(), "cut", "a", "b", nil); return err }},
		{"purge", "{on}", func() error {
			_, err := o.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond})
			return err
		}},
	} {
		mustExec(t, owner, "TRUNCATE public.commits")
		if err := test.call(); err != nil {
			t.Errorf("%s: %v", test.what, err)
		}
		var settings string
		if err := owner.QueryRow(t.Context(), "SELECT array_agg(DISTINCT setting)::text FROM public.commits").Scan(&settings); err != nil || settings != test.want {
			t.Errorf("%s commits with synchronous_commit %s, want %s (%v)", test.what, settings, test.want, err)
		}
	}
}

// TestAdvanceFloorWaitsForGrants: an acquire that has read the old floor and
// waits for its row is over when AdvanceFloor returns.
func TestAdvanceFloorWaitsForGrants(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	grant(t, client, "r", 1)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	granted := make(chan guard.Token, 1)
	go func() {
		lease, err := client.TryAcquire(context.Background(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if err != nil {
			t.Error(err)
			granted <- 0
			return
		}
		granted <- lease.Token()
	}()
	pgtest.Blocked(t, pool, "fencepost.acquire(", 1)
	raised := make(chan error, 1)
	go func() {
		_, err := client.AdvanceFloor(context.Background(), 100)
		raised <- err
	}()
	select {
	case err := <-raised:
		t.Fatalf("the floor is raised beside an acquire that is under way: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	tx.Rollback(t.Context())
	if token := <-granted; token != 2 {
		t.Errorf("token %v", token)
	}
	if err := <-raised; err != nil {
		t.Error(err)
	}
}
