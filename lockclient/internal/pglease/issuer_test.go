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
	"github.com/fencepost-go/fencepost/lockclient/pglock"

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
	tx := leasetest.Begun(t, pool, "SELECT FROM fencepost.leases FOR UPDATE")
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
	if pg := pglease.Error(err); !errors.Is(err, guard.ErrSetup) || pg == nil || pg.Code != "42883" || !strings.Contains(err.Error(), "fencectl migrate --repair") {
		t.Errorf("got %v", err)
	}
	if n := leasetest.Value[int](t, pool, "SELECT count(*) FROM fencepost.leases WHERE resource = 's'"); n != 0 {
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
		tx := leasetest.Begun(t, pool, "LOCK TABLE fencepost.leases IN ACCESS EXCLUSIVE MODE")
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

// TestCancelledStandbyWait: a wait for the synchronous standby that is cancelled ends
// in a warning alone, and the standby may not have the commit. The outcome of every
// call is unknown, also in a session that hides warnings; the control is the same
// statement by itself, which the driver calls a success. (P5)
func TestCancelledStandbyWait(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), nil)
	testkit.Must(t, err)
	t.Cleanup(func() { server.Stop() })
	pool := leasetest.Dial(t, server.URL(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_min_messages"] = "error" })
	testkit.Must(t, pglock.Migrate(t.Context(), pool))
	i := newIssuer(t, pool, nil)
	before := acquire(t, i, "before", "mine")
	operator := &pglease.Server{Pool: pool, OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2, Grace: pause.Grace, Operator: true}
	standby := func(names string) {
		mustExec(t, pool, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
		mustExec(t, pool, "SELECT pg_reload_conf()")
		testkit.Eventually(t, "all know it", func() bool {
			return names == leasetest.Value[string](t, pool, "SELECT current_setting('synchronous_standby_names')")
		})
	}
	standby("nobody")
	var cancelled atomic.Int64
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for done := []string{}; ; { // each statement is cancelled once
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				rows, _ := pool.Query(context.Background(), `WITH waiting AS MATERIALIZED (SELECT pid, concat(pid, ' ', query_start) AS id FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND concat(pid, ' ', query_start) <> ALL ($1))
					SELECT id FROM waiting WHERE pg_cancel_backend(pid)`, done)
				more, _ := pgx.CollectRows(rows, pgx.RowTo[string])
				done = append(done, more...)
				cancelled.Add(int64(len(more)))
			}
		}
	}()
	// Commits wait from when the checkpointer knows it, which may be later.
	testkit.Eventually(t, "commits wait", func() bool {
		mustExec(t, pool, "UPDATE fencepost.leases SET metadata = 'y' WHERE resource = 'before'")
		return cancelled.Load() > 0
	})
	raise := func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		_, err := operator.Reenter(ctx, conn, pglease.Raise{More: 1}, lockTimeout)
		return err
	}
	for what, call := range map[string]func() error{
		"the first acquire": func() error { _, err := i.Acquire(t.Context(), ask("first", "a")); return err },
		"an acquire":        func() error { _, err := i.Acquire(t.Context(), ask("later", "a")); return err },
		"a renewal": func() error {
			results := make([]driver.Renewed, 1)
			i.Renew(t.Context(), []driver.Renewal{{Claim: before, TTL: 2 * time.Hour}}, results)
			return results[0].Err
		},
		"a release that spends": func() error {
			_, err := i.Release(t.Context(), guard.Claim{Resource: "other", LeaseID: "a"})
			return err
		},
		"an operator's": func() error {
			return pglease.Failure("raise", guard.Claim{}, operator.On(t.Context(), pool, testkit.Patience, raise))
		},
	} {
		if err := call(); !errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want an unknown outcome", what, err)
		}
	}
	if _, err := pool.Exec(t.Context(), "UPDATE fencepost.leases SET metadata = 'x' WHERE resource = 'before'"); err != nil {
		t.Errorf("the control: %v", err)
	}
	close(stop)
	<-stopped
	standby("")
	granted := leasetest.Value[int64](t, pool, "SELECT token FROM fencepost.leases WHERE resource = 'later'")
	if again := acquire(t, i, "later", "a"); int64(again.Token) != granted {
		t.Errorf("the same lease ID finds token %v instead of %d", again.Token, granted)
	}
	operator = &pglease.Server{Pool: pool, OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2, Grace: pause.Grace, Operator: true}
	testkit.Check(t, operator.On(t.Context(), pool, testkit.Patience, raise))
}

// TestAnySession: settings of a session change no answer: the format of times with
// every way to send statements, and a statement_timeout that is shorter than the wait
// for a locked row, after which an acquire or a release is worth repeating.
func TestAnySession(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		i := newIssuer(t, dial(t, base, func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = mode
			c.ConnConfig.RuntimeParams["datestyle"] = "German"
		}), nil)
		name := mode.String()
		claim := acquire(t, i, name, "mine")
		if _, err := i.Acquire(t.Context(), ask(name, "other")); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: %v", name, err)
		}
		results := make([]driver.Renewed, 1)
		if i.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Hour}}, results); results[0].State != driver.Extended {
			t.Errorf("%s: renewed: %+v", name, results[0])
		}
		w, err := i.Watch(t.Context(), driver.Watch{Resource: name}, func() {})
		if err != nil || w.Held == nil || w.Held.Token != claim.Token {
			t.Errorf("%s: %+v, %v", name, w.Held, err)
		}
		release(t, i, claim)
	}
	i := newIssuer(t, dial(t, base, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "200" }), nil)
	held := acquire(t, newIssuer(t, base, nil), "held", "mine") // whose sessions have no timeout
	leasetest.Begun(t, base, "SELECT FROM fencepost.leases WHERE resource = 'held' FOR UPDATE")
	if _, err := i.Release(t.Context(), held); !errors.Is(err, driver.ErrBusy) || !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("a release that statement_timeout ended: %v", err)
	}
}

// TestRowSecurity: a policy that hides rows from the issuer's role is an error, and not
// a lease that is over. The control is the function without the setting.
func TestRowSecurity(t *testing.T) {
	t.Parallel()
	admin := migrated(t)
	i := newIssuer(t, dialAsIssuer(t, admin), nil)
	claim := acquire(t, i, "r", "mine")
	renew := func() driver.Renewed {
		results := make([]driver.Renewed, 1)
		i.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Hour}}, results)
		return results[0]
	}
	mustExec(t, admin, "ALTER TABLE fencepost.leases ENABLE ROW LEVEL SECURITY")
	_, acquired := i.Acquire(t.Context(), ask("r", "other"))
	_, released := i.Release(t.Context(), claim)
	_, found := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
	for what, err := range map[string]error{"acquire": acquired, "renew": renew().Err, "release": released, "look": found} {
		if pg := pglease.Error(err); !errors.Is(err, guard.ErrSetup) || pg == nil || pg.Code != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
	mustExec(t, admin, "ALTER FUNCTION fencepost.renew RESET row_security")
	if got := renew(); got.State != driver.Over {
		t.Errorf("the control: %+v", got)
	}
	mustExec(t, admin, "ALTER FUNCTION fencepost.watch RESET row_security")
	if got, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {}); got.Held != nil || err != nil {
		t.Errorf("the control: sees %v, %v", got.Held, err)
	}
	mustExec(t, admin, "ALTER TABLE fencepost.leases DISABLE ROW LEVEL SECURITY")
	if got := renew(); got.State != driver.Extended {
		t.Errorf("without the policy: %+v", got)
	}
	if got, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {}); err != nil || got.Held == nil || got.Held.LeaseID != claim.LeaseID {
		t.Errorf("without the policy: sees %v, %v", got.Held, err)
	}
}

// TestLookOnAStandby: a session that cannot write, as on a standby, may not have the
// latest leases yet: looking at one there fails, and does not say that it is over.
func TestLookOnAStandby(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	acquire(t, newIssuer(t, pool, nil), "r", "mine")
	i := newIssuer(t, dial(t, pool, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" }), nil)
	for _, resource := range []string{"r", "free"} {
		if got, err := i.Watch(t.Context(), driver.Watch{Resource: resource}, func() {}); got.Held != nil || guard.ReasonOf(err) != guard.ReasonUnavailable {
			t.Errorf("sees %v, %v", got.Held, err)
		}
	}
}
