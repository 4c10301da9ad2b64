package pglease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	"github.com/jackc/pgx/v5/pgxpool"
)

var mustExec = leasetest.MustExec

// migrated returns a pool on a fresh database that has the schema.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return leasetest.Migrated(t)
}

// dial returns a pool like base, changed by change.
func dial(t *testing.T, base *pgxpool.Pool, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config := base.Config()
	change(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// dialAsIssuer returns a pool of a role that has what an issuer needs.
func dialAsIssuer(t *testing.T, admin *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	role := "issuer_" + strings.ReplaceAll(input.NewLeaseID(), "-", "")
	mustExec(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() { mustExec(t, admin, "DROP OWNED BY "+role); mustExec(t, admin, "DROP ROLE "+role) })
	mustExec(t, admin, "GRANT USAGE ON SCHEMA fencepost TO "+role)
	mustExec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO "+role)
	mustExec(t, admin, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO "+role)
	return dial(t, admin, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "x" })
}

func newIssuer(t *testing.T, pool *pgxpool.Pool, logger *slog.Logger) *pglease.Issuer {
	t.Helper()
	if logger == nil {
		logger = testkit.Logger(t)
	}
	s := &pglease.Server{Pool: pool, OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2, Grace: pause.Grace, Logger: logger}
	i, err := pglease.NewIssuer(s, 2, false)
	testkit.Must(t, err)
	t.Cleanup(func() { i.Close() })
	return i
}

func listenerPIDs(t *testing.T, pool *pgxpool.Pool) []int32 {
	t.Helper()
	return leasetest.Value[[]int32](t, pool, `SELECT coalesce(array_agg(pid), '{}') FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
}

func ask(resource, id string) driver.Request {
	return driver.Request{Resource: resource, LeaseID: id, Owner: "o", TTL: time.Hour, Timeout: testkit.Patience}
}

func acquire(t *testing.T, i *pglease.Issuer, resource, id string) guard.Claim {
	t.Helper()
	g, err := i.Acquire(t.Context(), ask(resource, id))
	testkit.Must(t, err)
	return guard.Claim{Resource: resource, Token: g.Token, LeaseID: id}
}

func release(t *testing.T, i *pglease.Issuer, claim guard.Claim) {
	t.Helper()
	if freed, err := i.Release(t.Context(), claim); !freed || err != nil {
		t.Fatalf("freed %t, %v", freed, err)
	}
}

// releaseArgs returns the arguments of the statement that releases.
func releaseArgs(c guard.Claim) []any {
	return []any{[]string{c.Resource}, []string{c.LeaseID}, []int64{int64(c.Token)}, []string{pglease.Topic(c.Resource)}, "60000"}
}

// wakes counts how often a watch is woken.
type wakes struct{ n atomic.Int64 }

func (r *wakes) wake()       { r.n.Add(1) }
func (r *wakes) woken() bool { return r.n.Load() > 0 }

// settle returns when i has been notified of every release up to now:
// notifications arrive in the order of their commits.
func settle(t *testing.T, pool *pgxpool.Pool, i *pglease.Issuer) {
	t.Helper()
	testkit.Eventually(t, "it listens", i.Listening)
	var last wakes
	defer i.Subscribe("the last one", last.wake)()
	mustExec(t, pool, "SELECT pg_notify($1, $2)", pglease.Channel, pglease.Topic("the last one"))
	testkit.Eventually(t, "the last notification arrives", last.woken)
}

// schedule is one waiter, one holder and the moment of the release.
type schedule struct {
	t             *testing.T
	pool          *pgxpool.Pool
	holder        *pglease.Issuer
	waiter        *pglease.Issuer
	lease         guard.Claim
	gate          atomic.Pointer[chan struct{}] // keeps the waiter from listening
	wakes, breaks wakes
	marked        func() // called by watches that have marked and do not listen yet
}

// watches are the real Watch and variants that omit one of its steps.
var watches = map[string]func(s *schedule, w driver.Watch) (driver.Watching, error){
	"as built": func(s *schedule, w driver.Watch) (driver.Watching, error) {
		return s.waiter.Watch(s.t.Context(), w, s.wakes.wake)
	},
	"no mark": func(s *schedule, w driver.Watch) (driver.Watching, error) {
		stop := s.waiter.Subscribe(w.Resource, s.wakes.wake)
		held, err := s.waiter.Look(s.t.Context(), w)
		return driver.Watching{Held: held, Stop: stop}, err
	},
	"the mark does not look": func(s *schedule, w driver.Watch) (driver.Watching, error) {
		stop := s.waiter.Subscribe(w.Resource, s.wakes.wake)
		_, err := s.waiter.Mark(s.t.Context(), w)
		return driver.Watching{Held: &driver.HeldError{Resource: w.Resource}, Stop: stop}, err // as the refusal said
	},
	"looks before it marks": func(s *schedule, w driver.Watch) (driver.Watching, error) {
		stop := s.waiter.Subscribe(w.Resource, s.wakes.wake)
		held, err := s.waiter.Look(s.t.Context(), w)
		_, marks := s.waiter.Mark(s.t.Context(), w)
		return driver.Watching{Held: held, Stop: stop}, errors.Join(err, marks)
	},
	"marks before it listens": func(s *schedule, w driver.Watch) (driver.Watching, error) {
		held, err := s.waiter.Mark(s.t.Context(), w)
		s.marked()
		stop := s.waiter.Subscribe(w.Resource, s.wakes.wake)
		return driver.Watching{Held: held, Stop: stop}, err
	},
	"subscribes after it has marked": func(s *schedule, w driver.Watch) (driver.Watching, error) {
		held, err := s.waiter.Mark(s.t.Context(), w)
		stop := s.waiter.Subscribe(w.Resource, s.wakes.wake)
		return driver.Watching{Held: held, Stop: stop}, err
	},
}

// TestWatchAgainstRelease: whenever a release comes, the waiter is woken, or its
// Watch says that nobody has the lease or that it cannot watch. Each order is the
// worst one for the step that its control omits; the control sleeps through the
// release.
func TestWatchAgainstRelease(t *testing.T) {
	t.Parallel()
	for _, order := range []struct {
		name, flaw string
		run        func(s *schedule, watch func() error)
	}{
		{"released before the watch", "the mark does not look", func(s *schedule, watch func() error) {
			testkit.Eventually(s.t, "it listens", s.waiter.Listening)
			release(s.t, s.holder, s.lease)
			s.must(watch())
		}},
		{"released while it is marked", "looks before it marks", func(s *schedule, watch func() error) {
			testkit.Eventually(s.t, "it listens", s.waiter.Listening)
			s.behind(watch, pglease.ReleaseSQL, releaseArgs(s.lease)...)
		}},
		{"marked while it is released", "no mark", func(s *schedule, watch func() error) {
			testkit.Eventually(s.t, "it listens", s.waiter.Listening)
			s.behind(func() error { s.must(watch()); release(s.t, s.holder, s.lease); return nil }, "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE")
		}},
		{"released before LISTEN", "marks before it listens", func(s *schedule, watch func() error) {
			gate := make(chan struct{})
			s.gate.Store(&gate)
			s.marked = sync.OnceFunc(func() { release(s.t, s.holder, s.lease) })
			s.must(watch())
			s.marked()
			close(gate)
		}},
		{"released after the connection broke", "subscribes after it has marked", func(s *schedule, watch func() error) {
			testkit.Eventually(s.t, "it listens", s.waiter.Listening)
			defer s.waiter.Subscribe("other", s.breaks.wake)()
			gate := make(chan struct{})
			s.gate.Store(&gate)
			tx, err := s.pool.Begin(s.t.Context())
			s.must(err)
			defer tx.Rollback(context.Background())
			_, err = tx.Exec(s.t.Context(), "SELECT FROM fencepost.leases WHERE resource = 'r' FOR UPDATE")
			s.must(err)
			watched := make(chan error, 1)
			go func() { watched <- watch() }()
			pgtest.Blocked(s.t, s.pool, "fencepost.watch(", 1)
			for _, pid := range listenerPIDs(s.t, s.pool) {
				mustExec(s.t, s.pool, "SELECT pg_terminate_backend($1)", pid)
			}
			testkit.Eventually(s.t, "the break is noticed", s.breaks.woken)
			s.must(tx.Rollback(s.t.Context()))
			s.must(<-watched)
			release(s.t, s.holder, s.lease)
			close(gate)
		}},
	} {
		for _, flaw := range []string{"as built", order.flaw} {
			t.Run(order.name+"/"+flaw, func(t *testing.T) {
				t.Parallel()
				pool := migrated(t)
				s := &schedule{t: t, pool: pool, holder: newIssuer(t, pool, nil), waiter: newIssuer(t, pool, nil)}
				s.waiter.BeforeListen(func() error {
					if gate := s.gate.Load(); gate != nil {
						<-*gate
					}
					return nil
				})
				s.lease = acquire(t, s.holder, "r", "holder's")
				acquire(t, s.waiter, "warm", "waiter's")     // has checked the schema
				if order.flaw != "marks before it listens" { // it listens before
					defer s.waiter.Subscribe("somebody waits", func() {})()
				}
				var got driver.Watching
				var err error
				order.run(s, func() error {
					got, err = watches[flaw](s, driver.Watch{Resource: "r", LeaseID: "waiter's"})
					if errors.Is(err, driver.ErrNoWatch) { // it polls
						return nil
					}
					return err
				})
				settle(t, pool, s.waiter)
				slept := err == nil && got.Held != nil && !s.wakes.woken()
				if slept != (flaw != "as built") {
					t.Errorf("slept through the release: %t (%+v, %v)", slept, got.Held, err)
				}
				if got.Stop != nil {
					got.Stop()
				}
			})
		}
	}
}

func (s *schedule) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

// behind runs watch while a statement has been executed and not committed.
func (s *schedule) behind(watch func() error, sql string, args ...any) {
	tx, err := s.pool.Begin(s.t.Context())
	s.must(err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(s.t.Context(), sql, args...)
	s.must(err)
	watched := make(chan error, 1)
	go func() { watched <- watch() }()
	pgtest.Blocked(s.t, s.pool, "fencepost.", 1)
	s.must(tx.Commit(s.t.Context()))
	s.must(<-watched)
}

// TestListenerIdle: any number of waiters need one listening connection. It is
// opened when somebody waits, closed when nobody has for a while, and reopened.
func TestListenerIdle(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	holder, waiter := newIssuer(t, pool, nil), newIssuer(t, pool, nil)
	waiter.Listener(100 * time.Millisecond)
	acquire(t, holder, "r0", "holder's")
	for range 2 {
		if pids := listenerPIDs(t, pool); len(pids) != 0 {
			t.Errorf("%d connections listen and nobody waits", len(pids))
		}
		var stops []func()
		var wg sync.WaitGroup
		for n := range 16 {
			stops = append(stops, waiter.Subscribe(fmt.Sprint("r", n), func() {}))
		}
		testkit.Eventually(t, "it listens", waiter.Listening)
		before := listenerPIDs(t, pool)
		time.Sleep(300 * time.Millisecond) // longer than it would stay
		if after := listenerPIDs(t, pool); len(after) != 1 || !slices.Equal(before, after) {
			t.Errorf("connections %v listen for 16 waiters, then %v", before, after)
		}
		for _, stop := range stops {
			wg.Go(stop)
		}
		wg.Wait()
		testkit.Eventually(t, "the connection is closed", func() bool { return len(listenerPIDs(t, pool)) == 0 && !waiter.Listening() })
	}
}

// TestNotifyRefused: a role that may not notify, or one on a server whose
// notification queue is full, still releases, one lease and several at once;
// only the wake-up is lost.
func TestNotifyRefused(t *testing.T) {
	t.Parallel()
	admin := migrated(t)
	mustExec(t, admin, "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC")
	pool := dialAsIssuer(t, admin)
	issuer := newIssuer(t, pool, nil)
	for _, n := range []int{1, 20} {
		var leases []guard.Claim
		for k := range n {
			leases = append(leases, acquire(t, issuer, fmt.Sprint("r", k), input.NewLeaseID()))
		}
		mustExec(t, admin, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 minute' WHERE resource <> ''")
		var wg sync.WaitGroup
		for _, lease := range leases {
			wg.Go(func() {
				if freed, err := issuer.Release(t.Context(), lease); !freed || err != nil {
					t.Errorf("freed %t, %v", freed, err)
				}
			})
		}
		wg.Wait()
		if held := leasetest.Value[int](t, admin, "SELECT count(*) FROM fencepost.leases WHERE lease_id IS NOT NULL"); held != 0 {
			t.Errorf("%d of %d leases are held", held, n)
		}
	}
	// The control: the statement with the notification fails.
	lease := acquire(t, issuer, "r0", "the last")
	mustExec(t, admin, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 minute' WHERE resource = 'r0'")
	_, err := pool.Exec(t.Context(), pglease.ReleaseSQL, releaseArgs(lease)...)
	if pglease.Error(err) == nil || pglease.Error(err).Code != "42501" {
		t.Errorf("got %v", err)
	}
}

// TestWatchWhileOpening: a watch waits for the listening connection while it is
// being opened, for as long as it is told to, but not for one that follows a
// failed one.
func TestWatchWhileOpening(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	acquire(t, newIssuer(t, pool, nil), "r", "holder's")
	type gate struct {
		begun, result chan error
	}
	begin := func(t *testing.T) (*pglease.Issuer, gate) {
		g := gate{make(chan error, 100), make(chan error)}
		i := newIssuer(t, pool, nil)
		done := make(chan struct{})
		i.BeforeListen(func() error {
			g.begun <- nil
			select {
			case err := <-g.result:
				return err
			case <-done:
				return errors.New("the test is over")
			}
		})
		t.Cleanup(func() { close(done) })
		t.Cleanup(i.Subscribe("somebody waits", func() {}))
		return i, g
	}
	watch := func(ctx context.Context, i *pglease.Issuer, wait time.Duration) error {
		watching, err := i.Watch(ctx, driver.Watch{Resource: "r", LeaseID: input.NewLeaseID(), Wait: wait}, func() {})
		if err == nil {
			defer watching.Stop()
			if watching.Held == nil {
				return errors.New("nobody has the lease")
			}
		}
		return err
	}
	waits := func(i *pglease.Issuer) chan error {
		got := make(chan error, 1)
		go func() { got <- watch(context.Background(), i, time.Hour) }()
		return got
	}
	t.Run("not told to wait, or not for long", func(t *testing.T) {
		i, _ := begin(t)
		for _, wait := range []time.Duration{0, time.Millisecond} {
			if err := watch(t.Context(), i, wait); !errors.Is(err, driver.ErrNoWatch) {
				t.Errorf("%v: %v", wait, err)
			}
		}
	})
	t.Run("given up", func(t *testing.T) {
		i, _ := begin(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := watch(ctx, i, time.Hour); err == nil {
			t.Error("it watches")
		}
	})
	t.Run("closed", func(t *testing.T) {
		i, g := begin(t)
		got := waits(i)
		<-g.begun
		go func() { g.result <- errors.New("refused") }()
		i.Close()
		if err := <-got; err == nil {
			t.Error("it watches")
		}
	})
	t.Run("opened", func(t *testing.T) {
		i, g := begin(t)
		got := waits(i)
		g.result <- nil
		testkit.Check(t, <-got)
		// The connection breaks, and the watch waits for the next one too.
		pids := listenerPIDs(t, pool)
		mustExec(t, pool, "SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) AS p(pid)", pids)
		testkit.Eventually(t, "that is noticed", func() bool { return !i.Listening() })
		got = waits(i)
		g.result <- nil
		testkit.Check(t, <-got)
	})
	t.Run("failed", func(t *testing.T) {
		i, g := begin(t)
		got := waits(i)
		g.result <- errors.New("refused")
		if err := <-got; !errors.Is(err, driver.ErrNoWatch) {
			t.Error(err)
		}
		<-g.begun
		<-g.begun // once more
		if err := watch(t.Context(), i, time.Hour); !errors.Is(err, driver.ErrNoWatch) {
			t.Error(err)
		}
		g.result <- nil
		testkit.Eventually(t, "it listens", i.Listening)
		testkit.Check(t, watch(t.Context(), i, 0))
	})
}

// TestReleaseWithoutConnecting: a holder that has renewed nothing releases on an
// idle connection of its pool, and opens none for that; if the caller uses all
// of them, it opens one.
func TestReleaseWithoutConnecting(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	for _, taken := range []bool{false, true} {
		var opened atomic.Int64
		pool := dial(t, base, func(c *pgxpool.Config) {
			c.MaxConns = 1
			connect := c.BeforeConnect
			c.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
				opened.Add(1)
				if connect != nil {
					return connect(ctx, cc)
				}
				return nil
			}
		})
		i := newIssuer(t, pool, nil)
		claim := acquire(t, i, "r", input.NewLeaseID())
		want := int64(1)
		if taken {
			conn, err := pool.Acquire(t.Context())
			testkit.Must(t, err)
			defer conn.Release()
			want = 2
		}
		release(t, i, claim)
		if n := opened.Load(); n != want {
			t.Errorf("the caller has all connections: %t; %d were opened, want %d", taken, n, want)
		}
	}
}
