package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestTokensGrow is P3 step by step: release, expiry, change of owner, the same
// lease ID again, a floor above the row, a resource without a row.
func TestTokensGrow(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	a, b := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	var last guard.Token
	grown := func(how string, l *Lease) {
		t.Helper()
		if l.Token() <= last {
			t.Errorf("%s: token %v after %v", how, l.Token(), last)
		}
		last = l.Token()
	}
	lease := mustTry(t, a, "r", time.Minute)
	grown("first", lease)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	lease = mustTry(t, a, "r", time.Minute)
	grown("release", lease)
	lease.Release(t.Context())
	grown("other owner after a release", mustTry(t, b, "r", time.Minute))
	runOut(t, pool, "r")
	grown("other owner after expiry", mustTry(t, a, "r", time.Minute))
	runOut(t, pool, "r")
	named := &AcquireOptions{TTL: time.Minute, LeaseID: "named"}
	for _, how := range []string{"lease ID of the caller", "the same lease ID after expiry"} {
		lease, err := a.TryAcquire(t.Context(), "r", named)
		if err != nil {
			t.Fatal(err)
		}
		grown(how, lease)
		runOut(t, pool, "r")
	}
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('', 500)")
	last = 500
	grown("floor above the row", mustTry(t, a, "r", time.Minute))
	if got := mustTry(t, b, "new", time.Minute).Token(); got != 501 {
		t.Errorf("a new resource above the floor of 500 starts at %v", got)
	}
}

// TestTokenExhausted: the last token is granted, and nothing after it.
func TestTokenExhausted(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('r', $1)", int64(guard.MaxToken-1))
	lease := mustTry(t, client, "r", time.Minute)
	if lease.Token() != guard.MaxToken {
		t.Fatalf("got token %v", lease.Token())
	}
	lease.Release(t.Context())
	for range 2 {
		_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
		if !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "used up") {
			t.Errorf("got %v", err)
		}
	}
	if r := rowOf(t, pool, "r"); r.Token != int64(guard.MaxToken) || r.Live {
		t.Errorf("the row is %+v", r)
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
		if err != nil {
			t.Fatal(err)
		}
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

// TestOwnGrantAgain: the same lease ID finds its running lease, as after a lost
// answer: same token, same start, later end, never an earlier one.
func TestOwnGrantAgain(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	acquire := func(ttl time.Duration) *Lease {
		t.Helper()
		lease, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: ttl, LeaseID: "mine"})
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	first := acquire(time.Minute)
	before := rowOf(t, pool, "r")
	again := acquire(time.Hour)
	after := rowOf(t, pool, "r")
	if again.Claim() != first.Claim() || !again.AcquiredAt().Equal(first.AcquiredAt()) {
		t.Errorf("got %+v since %v, then %+v since %v", first.Claim(), first.AcquiredAt(), again.Claim(), again.AcquiredAt())
	}
	if !after.ExpiresAt.After(before.ExpiresAt) {
		t.Errorf("expires at %v, before at %v", after.ExpiresAt, before.ExpiresAt)
	}
	if acquire(time.Minute); !rowOf(t, pool, "r").ExpiresAt.Equal(after.ExpiresAt) {
		t.Error("a shorter TTL took time away from a grant that was handed out")
	}
}

// TestIsolation: only READ COMMITTED grants. Under the other levels a statement
// that does not check the level grants a token twice (the control).
func TestIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "read uncommitted", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			url := pgtest.Database(t)
			pool := dial(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level })
			if err := pglock.Migrate(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			client := newTestClient(t, pool, nil)
			for range 10 { // so that a cached plan is used
				lease, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
				if level == "read committed" {
					if err != nil {
						t.Fatal(err)
					}
					lease.Release(t.Context())
					continue
				}
				if !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "default_transaction_isolation") {
					t.Fatalf("got %v", err)
				}
			}
			if n := countRows(t, pool); level != "read committed" && n != 0 {
				t.Errorf("%d rows were written", n)
			}
		})
	}
	t.Run("control", func(t *testing.T) {
		pool := migrated(t)
		alter(t, pool, "check_isolation", "current_setting('transaction_isolation') <> 'read committed'", "false")
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), grantSQL, grantArgs("r", "id", time.Second)...); err != nil {
			t.Fatalf("without its test the statement is refused anyway: %v", err)
		}
	})
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
			if err := pglock.Migrate(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			// A deferred trigger runs at commit and sees the settings of the
			// commit.
			mustSimple(t, pool, `CREATE TABLE IF NOT EXISTS seen (setting text, lock_timeout text);
				CREATE OR REPLACE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO seen SELECT current_setting('synchronous_commit'), current_setting('lock_timeout'); RETURN NULL; END $$;
				DROP TRIGGER IF EXISTS see ON fencepost.leases;
				CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON fencepost.leases DEFERRABLE INITIALLY DEFERRED
				FOR EACH ROW EXECUTE FUNCTION see(); TRUNCATE seen, fencepost.leases`)
			client := newTuned(t, pool, pglock.Options{LockTimeout: 1234 * time.Millisecond}, nil)
			lease := mustTry(t, client, "r", time.Minute)
			if err := lease.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			var grants int
			var settings, lockTimeouts, after, lockAfter string
			err := pool.QueryRow(t.Context(), `SELECT count(*), string_agg(DISTINCT setting, ' '), string_agg(DISTINCT lock_timeout, ' '),
				current_setting('synchronous_commit'), current_setting('lock_timeout') FROM seen`).
				Scan(&grants, &settings, &lockTimeouts, &after, &lockAfter)
			if err != nil {
				t.Fatal(err)
			}
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

// TestLeaseIDOfTwoOwners: two holders that chose one lease ID would both write
// under one token. The second is refused at once, however long it would wait, and
// the first keeps its lease.
func TestLeaseIDOfTwoOwners(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	first := newTestClient(t, pool, nil)
	second, err := New(guard.Must(pglock.New(pool, nil)), "another", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close(t.Context())
	opts := &AcquireOptions{TTL: time.Minute, LeaseID: "nightly-job"}
	lease, err := first.Acquire(t.Context(), "r", opts)
	if err != nil {
		t.Fatal(err)
	}
	for what, acquire := range map[string]func() error{
		"TryAcquire": func() error { _, err := second.TryAcquire(t.Context(), "r", opts); return err },
		"Acquire":    func() error { _, err := second.Acquire(t.Context(), "r", opts); return err },
		"Hold": func() error {
			return second.Hold(t.Context(), "r", &HoldOptions{TTL: time.Minute, LeaseID: "nightly-job"}, func(context.Context) error { t.Error("both hold it"); return nil })
		},
	} {
		if err := acquire(); !errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), strconv.Quote(lease.Owner())) {
			t.Errorf("%s: %v, want ErrInvalid that names the owner", what, err)
		}
	}
	if err := lease.Renew(t.Context()); err != nil {
		t.Error("the holder:", err)
	}
}
