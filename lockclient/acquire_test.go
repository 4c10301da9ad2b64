package lockclient

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestTokensGrow is P3 step by step: release, expiry, change of owner, the same
// lease ID again, a floor above the row, a resource without a row. A grant says whether
// it replaced another's lease that had run out.
func TestTokensGrow(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	a, b := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	var last guard.Token
	grown := func(how string, l *Lease, reclaimed bool) {
		t.Helper()
		if l.Token() <= last || l.reclaimed != reclaimed {
			t.Errorf("%s: token %v after %v, reclaimed %t", how, l.Token(), last, l.reclaimed)
		}
		last = l.Token()
	}
	lease := mustTry(t, a, "r", time.Minute)
	grown("first", lease, false)
	testkit.Must(t, lease.Release(t.Context()))
	lease = mustTry(t, a, "r", time.Minute)
	grown("release", lease, false)
	lease.Release(t.Context())
	grown("other owner after a release", mustTry(t, b, "r", time.Minute), false)
	runOut(t, pool, "r")
	grown("other owner after expiry", mustTry(t, a, "r", time.Minute), true)
	runOut(t, pool, "r")
	named := &AcquireOptions{TTL: time.Minute, LeaseID: "named"}
	for n, how := range []string{"lease ID of the caller", "the same lease ID after expiry"} {
		lease, err := a.TryAcquire(t.Context(), "r", named)
		testkit.Must(t, err)
		grown(how, lease, n == 0)
		runOut(t, pool, "r")
	}
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('', 500)")
	last = 500
	grown("floor above the row", mustTry(t, a, "r", time.Minute), true)
	if got := mustTry(t, b, "new", time.Minute).Token(); got != 501 {
		t.Errorf("a new resource above the floor of 500 starts at %v", got)
	}
}

// TestHeld: a refusal names the holder and writes nothing at all.
func TestHeld(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	holder := mustTry(t, newTestClient(t, pool, nil), "r", time.Minute)
	client := newTestClient(t, pool, nil)
	state := func() (s string) {
		err := pool.QueryRow(t.Context(), `SELECT concat_ws(' ', pg_current_wal_insert_lsn(), ctid, xmin, xmax, leases::text) FROM fencepost.leases`).Scan(&s)
		testkit.Must(t, err)
		return s
	}
	try := func() {
		t.Helper()
		lease, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
		var held *HeldError
		if lease != nil || !errors.Is(err, ErrHeld) || !errors.As(err, &held) {
			t.Fatalf("got %v, %v", lease, err)
		}
		want := HeldError{Resource: "r", Owner: holder.Owner(), Metadata: whereabouts(), Token: holder.Token(), LeaseID: holder.ID(), ExpiresAt: held.ExpiresAt, Remaining: held.Remaining}
		if *held != want || held.Remaining <= 0 || held.Remaining > time.Minute ||
			!held.ExpiresAt.Equal(rowOf(t, pool, "r").ExpiresAt) {
			t.Fatalf("got %+v", *held)
		}
	}
	for range 20 { // may set hint bits, and reach the cached plan
		try()
	}
	// Another process of the server, such as a checkpoint, may write to the log
	// now and then; a refused try that wrote would do so every time.
	for round := 1; ; round++ {
		before := state()
		try()
		if after := state(); before == after {
			break
		} else if round == 100 {
			t.Fatalf("each of %d refused tries wrote, the last one changed %q into %q", round, before, after)
		}
	}
}

// TestGrantIsDurable: the statement waits for the disk even if the default
// would not, and leaves the connection as it found it.
func TestGrantIsDurable(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for configured, want := range map[string]string{"off": "on", "local": "on", "on": "on", "remote_write": "remote_write"} {
		t.Run(configured, func(t *testing.T) {
			pool := dial(t, url, func(c *pgxpool.Config) {
				c.MaxConns = 1
				c.ConnConfig.RuntimeParams["synchronous_commit"] = configured
				c.ConnConfig.RuntimeParams["lock_timeout"] = "77s"
			})
			testkit.Must(t, pglock.Migrate(t.Context(), pool))
			// A deferred trigger runs at commit and sees the settings of the
			// commit.
			mustSimple(t, pool, `CREATE TABLE IF NOT EXISTS seen (setting text, lock_timeout text);
				CREATE OR REPLACE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO seen SELECT current_setting('synchronous_commit'), current_setting('lock_timeout'); RETURN NULL; END $$;
				DROP TRIGGER IF EXISTS see ON fencepost.leases;
				CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON fencepost.leases DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION see(); TRUNCATE seen, fencepost.leases`)
			client := newTestClient(t, pool, nil)
			client.issuer.(*pglease.Issuer).LockTimeout = 1234 * time.Millisecond
			lease := mustTry(t, client, "r", time.Minute)
			testkit.Must(t, lease.Renew(t.Context()))
			var grants int
			var settings, lockTimeouts, after, lockAfter string
			err := pool.QueryRow(t.Context(), `SELECT count(*), string_agg(DISTINCT setting, ' '), string_agg(DISTINCT lock_timeout, ' '),
				current_setting('synchronous_commit'), current_setting('lock_timeout') FROM seen`).
				Scan(&grants, &settings, &lockTimeouts, &after, &lockAfter)
			testkit.Must(t, err)
			if grants != 2 || settings != want || lockTimeouts != "1234ms" {
				t.Errorf("%d commits under synchronous_commit %q and lock_timeout %q", grants, settings, lockTimeouts)
			}
			if after != configured || lockAfter != "77s" {
				t.Errorf("the connection was left with %q and %q", after, lockAfter)
			}
		})
	}
}

// TestCommitFails: a grant that fails at its commit, after the row was
// returned, is not a grant.
func TestCommitFails(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustSimple(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'at the commit'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON fencepost.leases DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION refuse()`)
	lease, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
	if lease != nil || !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "at the commit") {
		t.Fatalf("got %v, %v", lease, err)
	}
}

func ExampleHeldError() {
	var err error = &HeldError{Resource: "billing", Owner: "worker-7", Token: 12, Remaining: 8 * time.Second}
	fmt.Println(err)
	// Output: fencepost: lease is held: "billing" by "worker-7", token 12, for another 8s unless renewed
}
