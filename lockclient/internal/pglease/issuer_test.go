package pglease_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestNewIssuerInvalid: a pool of no connections is refused.
func TestNewIssuerInvalid(t *testing.T) {
	t.Parallel()
	i, err := pglease.NewIssuer(&pglease.Server{Pool: pgtest.Pool(t), OpTimeout: time.Second, LockTimeout: time.Second, Grace: pause.Grace}, 0, false)
	if i != nil || !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("got %v, %v", i, err)
	}
}

// TestAcquiresBesideALockedRow: of two acquires in one statement, the one whose
// row is locked waits alone.
func TestAcquiresBesideALockedRow(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	release(t, i, acquire(t, i, "locked", "a"))
	tx, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	sent := i.Together(2)
	waits, free := make(chan error, 1), make(chan error, 1)
	go func() { _, err := i.Acquire(context.Background(), ask("locked", "b")); waits <- err }()
	go func() { _, err := i.Acquire(context.Background(), ask("free", "b")); free <- err }()
	<-sent
	testkit.Check(t, <-free)
	if len(waits) > 0 {
		t.Errorf("the other did not wait: %v", <-waits)
	}
	testkit.Must(t, tx.Rollback(t.Context()))
	testkit.Check(t, <-waits)
}

// TestServerClockUnknown: an acquire that is late only because the server's clock
// is ahead of what the issuer knew is sent again.
func TestServerClockUnknown(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, migrated(t), nil)
	acquire(t, i, "r", "a")
	i.SetBack(2 * testkit.Patience)
	if token := acquire(t, i, "s", "a").Token; token != 1 {
		t.Errorf("token %v", token)
	}
}

// TestP8PreparingTakesTime: the time that an issuer takes to enter a server counts against
// the timeout of the request that waits for it. The next request finds it prepared.
func TestP8PreparingTakesTime(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, migrated(t), nil)
	i.Grace = testkit.Patience
	r := ask("r", "a")
	r.Timeout = time.Nanosecond
	if _, err := i.Acquire(t.Context(), r); !errors.Is(err, driver.ErrLate) || guard.ReasonOf(err) != guard.ReasonUnavailable {
		t.Errorf("got %v", err)
	}
	acquire(t, i, "r", "a")
}

// TestReenterFails: if the server is another one and cannot be entered, nothing is
// granted.
func TestReenterFails(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	acquire(t, i, "r", "a")
	i.Entered().Started = i.Entered().Started.Add(-time.Hour)
	mustExec(t, pool, "ALTER FUNCTION fencepost.adopt_epoch RENAME TO gone")
	_, err := i.Acquire(t.Context(), ask("s", "a"))
	if pg := pglease.Error(err); !errors.Is(err, guard.ErrSetup) || pg == nil || pg.Code != "42883" {
		t.Errorf("got %v", err)
	}
	if n := value[int](t, pool, "SELECT count(*) FROM fencepost.leases WHERE resource = 's'"); n != 0 {
		t.Error("it was granted")
	}
}

// TestWatchFails: without the schema, or without the function.
func TestWatchFails(t *testing.T) {
	t.Parallel()
	without, altered := pgtest.Pool(t), migrated(t)
	mustExec(t, altered, "ALTER FUNCTION fencepost.watch RENAME TO gone")
	for says, pool := range map[string]*pgxpool.Pool{"lockclient version 0": without, "fencepost.watch": altered} {
		watching, err := newIssuer(t, pool, nil).Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
		if watching.Held != nil || watching.Stop != nil || !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %+v, %v, want an error with %q", watching, err, says)
		}
	}
}

// TestListenerConnectsAsThePool: the listening connection is opened with the
// functions of the pool's configuration, and handles its notifications itself.
func TestListenerConnectsAsThePool(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	var before, after atomic.Pointer[error]
	var stolen atomic.Int64
	pool := dial(t, base, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, settings *pgx.ConnConfig) error {
			settings.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { stolen.Add(1) }
			if err := before.Load(); err != nil {
				return *err
			}
			return nil
		}
		c.AfterConnect = func(context.Context, *pgx.Conn) error {
			if err := after.Load(); err != nil {
				return *err
			}
			return nil
		}
	})
	for _, fails := range []*atomic.Pointer[error]{&before, &after} {
		var log leasetest.Text
		i := newIssuer(t, pool, slog.New(slog.NewTextHandler(&log, nil)))
		i.Listener(testkit.Patience)
		acquire(t, i, "r", input.NewLeaseID()) // the pool has its connections
		err := errors.New("refused by the pool")
		fails.Store(&err)
		stop := i.Subscribe("r", func() {})
		testkit.Eventually(t, "it says so", func() bool { return strings.Count(log.String(), "refused by the pool") == 1 })
		if i.Listening() || len(listenerPIDs(t, base)) > 0 {
			t.Error("it listens")
		}
		fails.Store(nil)
		testkit.Eventually(t, "it listens", i.Listening)
		stop()
		i.Close()
		mustExec(t, base, "UPDATE fencepost.leases SET lease_id = NULL")
		testkit.Eventually(t, "the connection is closed", func() bool { return len(listenerPIDs(t, base)) == 0 })
	}
	if n := stolen.Load(); n != 0 {
		t.Errorf("%d notifications went to the pool's function", n)
	}
}

// TestRefusedAlone: of acquires in one statement, one that is refused for good does
// not fail the others, and its error names it.
func TestRefusedAlone(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	release(t, i, acquire(t, i, "warm", "a"))
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('used up', 9223372036854775806)")
	names := []string{"free", "fresh", "used up"}
	sent := i.Together(len(names))
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for n, name := range names {
		wg.Go(func() { _, errs[n] = i.Acquire(context.Background(), ask(name, "b")) })
	}
	<-sent
	wg.Wait()
	if errs[0] != nil || errs[1] != nil {
		t.Errorf("the others: %v, %v", errs[0], errs[1])
	}
	if !errors.Is(errs[2], guard.ErrSetup) || !strings.Contains(errs[2].Error(), `the tokens of "used up" are used up`) {
		t.Errorf("got %v", errs[2])
	}
}

// TestWatchReads: a watch that only looks writes nothing, so one whose connection breaks
// is repeated; a waiter's has an unknown outcome.
func TestWatchReads(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	acquire(t, i, "r", "a")
	testkit.Eventually(t, "it listens", func() bool {
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: "b", Wait: testkit.Patience}, func() {})
		if err == nil {
			w.Stop()
		}
		return err == nil
	})
	for id, want := range map[string]error{"": nil, "b": guard.ErrOutcomeUnknown} {
		tx, err := pool.Begin(t.Context())
		testkit.Must(t, err)
		if _, err := tx.Exec(t.Context(), "LOCK TABLE fencepost.leases IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			w, err := i.Watch(context.Background(), driver.Watch{Resource: "r", LeaseID: id, Wait: testkit.Patience}, func() {})
			if err == nil {
				w.Stop()
			}
			got <- err
		}()
		mustExec(t, pool, "SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) AS w(pid)", pgtest.Blocked(t, pool, "fencepost.watch(", 1))
		testkit.Must(t, tx.Rollback(t.Context()))
		if err := <-got; !errors.Is(err, want) {
			t.Errorf("lease ID %q: %v", id, err)
		}
	}
}

// TestWarnsWithoutLogger: without a logger, what operators must know goes to slog's
// default, and the rest nowhere.
func TestWarnsWithoutLogger(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var log leasetest.Text
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	var refuses atomic.Bool
	pool := dial(t, migrated(t), func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if refuses.Load() {
				return errors.New("no more connections")
			}
			return nil
		}
	})
	i := newIssuer(t, pool, nil)
	i.Logger = nil
	acquire(t, i, "r", "a")
	refuses.Store(true)
	defer i.Subscribe("r", func() {})()
	testkit.Eventually(t, "it says that it does not listen", func() bool { return strings.Count(log.String(), "lock_listen_failed") == 1 })
	refuses.Store(false)
	testkit.Eventually(t, "it listens", i.Listening)
	if strings.Count(log.String(), "lock_listen_restored") != 0 {
		t.Error("what is no warning was logged too")
	}
}

// TestWatchWithoutAMark: a waiter whose mark could not be set is not told that
// somebody has the lease, since no release would wake it: it asks at once. One that
// only looks, and sets none, is told.
func TestWatchWithoutAMark(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	i := newIssuer(t, pool, nil)
	acquire(t, i, "r", "a")
	watch := func(leaseID string) *driver.HeldError {
		w, err := i.Watch(t.Context(), driver.Watch{Resource: "r", LeaseID: leaseID, Wait: testkit.Patience}, func() {})
		testkit.Must(t, err)
		w.Stop()
		return w.Held
	}
	mustExec(t, pool, "CREATE FUNCTION skips() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
	mustExec(t, pool, "CREATE TRIGGER skips BEFORE UPDATE OF wake_until ON fencepost.leases FOR EACH ROW EXECUTE FUNCTION skips()")
	if waiter, look := watch("b"), watch(""); waiter != nil || look == nil {
		t.Errorf("without a mark the waiter is told %+v, the one that looks %+v", waiter, look)
	}
	mustExec(t, pool, "DROP TRIGGER skips ON fencepost.leases")
	if watch("b") == nil {
		t.Error("the control, a mark that is set: the waiter is told nothing")
	}
}
