package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/internal/waiting"
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
	state := func() string {
		return leasetest.Value[string](t, pool, "SELECT concat_ws(' ', pg_current_wal_insert_lsn(), ctid, xmin, xmax, leases::text) FROM fencepost.leases")
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

// expiresIn makes a lease run out soon, and returns when. It is not granted with
// that short a TTL because a slow machine would not get it at all.
func expiresIn(t testing.TB, pool *pgxpool.Pool, resource string, d time.Duration) time.Time {
	t.Helper()
	return leasetest.Value[time.Time](t, pool, `UPDATE fencepost.leases SET expires_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
		WHERE resource = $1 RETURNING expires_at`, resource, d.Microseconds())
}

// TestAcquireCancelledAnytime: whenever ctx ends, there is a lease, or none is
// left behind, or the outcome is reported as unknown.
func TestAcquireCancelledAnytime(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	mustTry(t, client, "warm", time.Minute)
	granted, refused, unknown, inARow := 0, 0, 0, 0
	// Each try gets a little more time than the one before, until it succeeds
	// repeatedly even on a busy machine.
	for d := time.Duration(0); inARow < 10 && d < testkit.Patience; d += 5*time.Microsecond + d/50 {
		// A separate resource: an unknown grant may last up to its TTL, since
		// the release may have overtaken it.
		resource := fmt.Sprint("r", d)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: time.Minute})
		cancel()
		if inARow++; err != nil {
			inARow = 0
		}
		switch {
		case err == nil:
			granted++
			testkit.Must(t, lease.Release(t.Context()))
		case errors.Is(err, guard.ErrOutcomeUnknown):
			unknown++
			var failed *guard.FailedError
			if !errors.As(err, &failed) || failed.Claim.LeaseID == "" || failed.Claim.Resource != resource {
				t.Fatalf("no lease ID in %v", err)
			}
			continue
		case errors.Is(err, guard.ErrUnavailable) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrLate)):
			refused++
		default:
			t.Fatal(err)
		}
		var live int
		if pool.QueryRow(t.Context(), `SELECT count(*) FROM fencepost.leases WHERE resource = $1 AND lease_id IS NOT NULL`, resource).Scan(&live) != nil || live != 0 {
			t.Fatalf("said %v and holds %+v", err, rowOf(t, pool, resource))
		}
	}
	t.Logf("granted %d, nothing written %d, unknown %d", granted, refused, unknown)
	if granted == 0 || refused == 0 {
		t.Error("the cases were not all met")
	}
}

// TestAcquireOutrun: a caller that does not wait is told after some attempts
// that others come first each time; one that waits goes on.
func TestAcquireOutrun(t *testing.T) {
	i := &answering{simulation: simulation{driver.Now}}
	i.acquire = func(_ context.Context, r driver.Request) (driver.Grant, error) {
		if n, _, _ := i.counts(); n <= 3*waiting.MaxRaces+1 {
			return driver.Grant{}, &HeldError{Resource: r.Resource} // others come first, and their lease has run out by now
		}
		return driver.Grant{Token: 7, From: i.Now(), TTL: r.TTL}, nil
	}
	c := i.client(t, nil)
	if _, err := c.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute}); !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, errRaced) {
		t.Errorf("without waiting: %v", err)
	}
	lease, err := c.Acquire(t.Context(), "r", &AcquireOptions{TTL: time.Minute})
	if err != nil {
		t.Fatalf("waiting: %v", err)
	}
	if lease.Token() != 7 {
		t.Errorf("the token is %v", lease.Token())
	}
}

// stray is an issuer whose first acquire is lost on the way and may arrive later.
type stray struct {
	driver.Issuer
	first *driver.Request
}

func (s *stray) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if s.first == nil {
		s.first = &r
		return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errors.New("the connection broke"))
	}
	return s.Issuer.Acquire(ctx, r)
}

// TestStrayAttemptResurrectsNothing: the connection breaks, the client repeats the
// attempt under the same lease ID, works and releases, and then the first attempt
// arrives: it is refused, as is any under an ID of the caller's own. The control is a
// client whose answer was not lost: its release spends nothing. (P8)
func TestStrayAttemptResurrectsNothing(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for name, test := range map[string]struct {
		lost, spent bool
		given       string
	}{
		"lost":    {lost: true, spent: true},
		"given":   {given: "mine", spent: true},
		"control": {},
	} {
		client := newTestClient(t, pool, nil)
		s := &stray{Issuer: client.issuer}
		if !test.lost {
			s.first = &driver.Request{}
		}
		client.issuer = s
		lease, err := client.TryAcquire(t.Context(), name, &AcquireOptions{TTL: time.Hour, LeaseID: test.given})
		testkit.Must(t, err)
		if !test.lost {
			*s.first = driver.Request{Resource: name, LeaseID: lease.ID(), Owner: lease.Owner(), TTL: time.Hour, Timeout: time.Minute}
		}
		testkit.Must(t, lease.Release(t.Context()))
		if _, err := s.Issuer.Acquire(t.Context(), *s.first); errors.Is(err, ErrLeaseIDSpent) != test.spent || s.first.LeaseID != lease.ID() {
			t.Errorf("%s: the first attempt arrives: %v", name, err)
		}
	}
}

// TestAnotherServer: behind a pooler a connection may reach another server, or
// the same one after a failover. The statement that grants notices, and the
// client enters again before it is granted anything, alone or with others.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	for n := range 2 {
		lease := mustTry(t, client, "r", time.Minute)
		if err := lease.Release(t.Context()); err != nil || lease.Token() != guard.Token(n+1) {
			t.Fatalf("token %v, %v", lease.Token(), err)
		}
	}
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '1'") // this is a copy now,
	in := client.issuer.(*pglease.Issuer).Entered()
	in.Started = in.Started.Add(-time.Hour) // on a server that was started later
	tokens := make(chan guard.Token)
	for _, name := range []string{"r", "s", "t", "u"} {
		go func() {
			lease, err := client.TryAcquire(t.Context(), name, &AcquireOptions{TTL: time.Minute})
			if err != nil {
				t.Error(err)
				tokens <- 0
				return
			}
			tokens <- lease.Token()
		}()
	}
	for range 4 {
		if token := <-tokens; token != 1<<pglease.EpochShift+1 {
			t.Errorf("token %v", token)
		}
	}
	// Control: a client that believes that the server is the one it entered.
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '2'")
	if token := mustTry(t, client, "v", time.Minute).Token(); token>>pglease.EpochShift != 1 {
		t.Errorf("control: token %v", token)
	}
}

// TestRowLocked: a statement that waits for the row gives up at lock_timeout,
// so that its outcome is known.
func TestRowLocked(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	client.issuer.(*pglease.Issuer).LockTimeout = 50 * time.Millisecond
	lease := mustTry(t, client, "r", time.Hour)
	mustTry(t, client, "free", time.Hour).Release(t.Context())
	tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.leases FOR UPDATE")
	_, tried := client.TryAcquire(t.Context(), "free", &AcquireOptions{TTL: time.Hour})
	for what, err := range map[string]error{"acquire": tried, "renew": lease.Renew(t.Context())} {
		if pg := pglease.Error(err); !errors.Is(err, guard.ErrUnavailable) || pg == nil || pg.Code != "55P03" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !lease.Valid() {
		t.Error("a failed renewal ended the lease")
	}
	// Acquire and Release wait it out: they are refused until the row is
	// unlocked.
	refusals := &refusals{Issuer: client.issuer}
	client.issuer = refusals
	acquired, released := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.Acquire(context.Background(), "free", &AcquireOptions{TTL: time.Hour})
		acquired <- err
	}()
	go func() { released <- lease.Release(context.Background()) }()
	testkit.Eventually(t, "both are refused twice", func() bool { return refusals.acquires.Load() > 1 && refusals.releases.Load() > 1 })
	if len(acquired) > 0 || len(released) > 0 {
		t.Error("one of them did not wait")
	}
	testkit.Must(t, tx.Rollback(t.Context()))
	if err := <-acquired; err != nil {
		t.Errorf("acquire: %v", err)
	}
	if err := <-released; err != nil {
		t.Errorf("release: %v", err)
	}
}

// refusals counts the requests that lock_timeout ended.
type refusals struct {
	driver.Issuer
	acquires, releases atomic.Int64
}

func (r *refusals) Acquire(ctx context.Context, req driver.Request) (driver.Grant, error) {
	g, err := r.Issuer.Acquire(ctx, req)
	if errors.Is(err, driver.ErrBusy) {
		r.acquires.Add(1)
	}
	return g, err
}

func (r *refusals) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	freed, err := r.Issuer.Release(ctx, claim)
	if errors.Is(err, driver.ErrBusy) {
		r.releases.Add(1)
	}
	return freed, err
}

// TestLockedReleasesDelayNoRenewal: releases that wait for locked rows leave
// connections to the renewals of other leases. (P7)
func TestLockedReleasesDelayNoRenewal(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	healthy := mustTry(t, client, "healthy", time.Hour)
	var leases []*Lease
	for n := range 12 {
		leases = append(leases, mustTry(t, client, fmt.Sprint("locked ", n), time.Hour))
	}
	if err := healthy.Renew(t.Context()); err != nil { // from now on releases use the issuer's own connections
		t.Fatal(err)
	}
	tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.leases WHERE resource LIKE 'locked %' FOR UPDATE")
	ctx, cancel := context.WithCancel(t.Context())
	var releases sync.WaitGroup
	for _, l := range leases {
		releases.Go(func() { l.Release(ctx) })
	}
	pgtest.Blocked(t, pool, "fencepost.release(", 2)
	for range 5 {
		time.Sleep(50 * time.Millisecond) // more of them would come by then
		testkit.Check(t, healthy.Renew(t.Context()))
		pgtest.Blocked(t, pool, "fencepost.release(", 2)
	}
	cancel()
	tx.Rollback(context.Background())
	releases.Wait()
}

// TestSpoiltLine: a release is carried out although somebody has written what cannot
// be notified into the line of waiters, and an acquire although the row's times are
// infinite.
func TestSpoiltLine(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	for _, id := range []string{"", "chosen"} {
		lease, err := client.TryAcquire(t.Context(), "r"+id, &AcquireOptions{TTL: time.Hour, LeaseID: id})
		testkit.Must(t, err)
		mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '50 s', waiters = ARRAY[repeat('x', 10000)], acquired_at = 'infinity' WHERE resource = $1", lease.Resource())
		if _, err := client.TryAcquire(t.Context(), lease.Resource(), &AcquireOptions{TTL: time.Hour}); !errors.Is(err, ErrHeld) {
			t.Errorf("another acquire: %v", err)
		}
		if _, err := client.TryAcquire(t.Context(), lease.Resource(), &AcquireOptions{TTL: time.Hour, LeaseID: lease.ID()}); err != nil {
			t.Errorf("the holder's own: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}
