package lockclient

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestLineOfWaiters: sixteen waiters of one client need one listening connection,
// are granted in the order of their arrival, and a release makes one of them
// ask. The connection is opened when somebody waits and closed when nobody does.
func TestLineOfWaiters(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	client.issuer.(*postgres).listener.idle = 100 * time.Millisecond
	client.issuer.(*postgres).listener.quiet = 50 * time.Millisecond
	count := &counted{postgres: client.issuer.(*postgres)}
	lease := mustTry(t, holder, "r", time.Minute)
	if n := listeners(t, pool); n != 0 {
		t.Errorf("%d connections listen and nobody waits", n)
	}
	client.issuer = count
	const crowd = 16
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range crowd {
		wg.Go(func() {
			l, err := client.Acquire(context.Background(), "r", &AcquireOptions{TTL: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			if err := l.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
		eventually(t, "it stands in line", func() bool { return inLine(client, "r") == i+1 })
	}
	eventually(t, "the first rests", func() bool { return count.listening() != nil && rests(t, pool, "r") })
	if n := listeners(t, pool); n != 1 {
		t.Errorf("%d connections listen for %d waiters", n, crowd)
	}
	before := count.acquires.Load()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if !slices.IsSorted(order) || len(order) != crowd {
		t.Errorf("granted in the order %v", order)
	}
	// A waiter asks when its turn comes and when it is woken.
	if n := count.acquires.Load() - before; n > 3*crowd {
		t.Errorf("%d tries for %d grants", n, crowd)
	}
	eventually(t, "the connection is closed", func() bool { return listeners(t, pool) == 0 })
	next := waits(t, client, "r", time.Minute)
	(<-next).Release(t.Context())
}

// TestOrderAfterFailure: a failure gives everybody his turn, so that nobody
// waits for the time-outs of the others.
func TestOrderAfterFailure(t *testing.T) {
	var w waiters
	places := []*place{w.join("r"), w.join("r"), w.join("r")}
	turns := func() (s string) {
		for _, p := range places {
			s += fmt.Sprint(p.first(), " ")
		}
		return s
	}
	if got := turns(); got != "true false false " {
		t.Error(got)
	}
	places[1].leave(false)
	places[0].leave(false)
	if got := turns(); got != "true false true " {
		t.Error(got)
	}
	places[0], places[1] = w.join("r"), w.join("r")
	places[2].leave(true)
	if got := turns(); got != "true true true " {
		t.Error(got)
	}
	places[0].leave(false)
	places[1].leave(false)
	if len(w.by) != 0 {
		t.Error("a line without waiters is left")
	}
}

// TestNotifiesOnlyWaiters: a release notifies when somebody waits and only then,
// and what it sends is not the resource's name.
func TestNotifiesOnlyWaiters(t *testing.T) {
	pool := migrated(t)
	holder, client := newTestClient(t, pool, nil), newTestClient(t, pool, nil)
	ear := listen(t, pool)
	resource := "tenant_123:" + strings.Repeat("x", 500)
	mustTry(t, holder, resource, time.Minute).Release(t.Context())
	lease := mustTry(t, holder, resource, time.Minute)
	next := waits(t, client, resource, time.Minute)
	eventually(t, "the waiter rests", func() bool { return rests(t, pool, resource) })
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-next
	heard := ear.heard(t, pool)
	if len(heard) != 1 || heard[0] != pglease.Topic(resource) || len(heard[0]) != 32 || strings.Contains(heard[0], "tenant") {
		t.Errorf("heard %q", heard)
	}
}

// TestPooler: where LISTEN is accepted and nothing is delivered, the client
// notices, says so once and polls; releases and expiries still reach waiters.
func TestPooler(t *testing.T) {
	expectNoGoroutines(t)
	direct := migrated(t)
	pool, lost := behindPooler(t, direct.Config().ConnString())
	rec := &recorder{}
	holder := newTestClient(t, direct, nil)
	client := newTestClient(t, pool, &Options{PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewJSONHandler(rec, nil))})
	client.issuer.(*postgres).listener.test = 100 * time.Millisecond
	lease := mustTry(t, holder, "r", time.Minute)
	next := waits(t, client, "r", time.Minute)
	eventually(t, "the self-test has failed twice", func() bool { return lost.Load() >= 2 })
	if listens(client) {
		t.Error("the client believes that it listens")
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the waiter's poll is granted", func() bool { return len(next) > 0 })
	client.Close()
	_, lines := rec.take(t)
	told := 0
	for _, line := range lines {
		if line["msg"] == "lock_listen_failed" {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times: %v", told, lines)
	}
}

// TestListenerBroken: the listening connection is cut again and again while
// waiters hand a lease around. None sleeps through a release that was notified to
// a connection that lasted, and what was lost is restored.
func TestListenerBroken(t *testing.T) {
	expectNoGoroutines(t)
	pool := migrated(t)
	rec := &recorder{}
	client := newTestClient(t, pool, &Options{PollInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewJSONHandler(rec, nil))})
	asleep := &sleepers{postgres: client.issuer.(*postgres), marked: map[string]<-chan struct{}{}}
	client.issuer = asleep
	stop := make(chan struct{})
	var grants atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				lease, err := client.Acquire(context.Background(), "r", &AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				grants.Add(1)
				time.Sleep(2 * time.Millisecond)
				if err := lease.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 8 {
		eventually(t, "it listens", func() bool { return asleep.listening() != nil })
		before := grants.Load()
		eventually(t, "the lease goes around", func() bool { return grants.Load() > before+2 })
		down := asleep.listening()
		mustExec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`)
		eventually(t, "the cut is noticed", func() bool { return down == nil || over(down) })
	}
	eventually(t, "it listens again", func() bool { return asleep.listening() != nil })
	close(stop)
	wg.Wait()
	t.Logf("%d grants, %d waiters looked by themselves", grants.Load(), asleep.looked.Load())
	if n := asleep.missed.Load(); n != 0 {
		t.Errorf("%d wake-ups were lost", n)
	}
	_, lines := rec.take(t)
	failed, restored := 0, 0
	for _, line := range lines {
		switch line["msg"] {
		case "lock_listen_failed":
			failed++
		case "lock_listen_restored":
			restored++
		}
	}
	if failed == 0 || restored == 0 || failed-restored > 1 {
		t.Errorf("%d failures and %d recoveries are told", failed, restored)
	}
}

// TestNotifyRefused: a role that may not notify, as on a server whose queue of
// notifications is full, still releases; only the wake-up is lost.
func TestNotifyRefused(t *testing.T) {
	admin := migrated(t)
	role := fmt.Sprintf("mute_%d", time.Now().UnixNano())
	mustExec(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() { mustExec(t, admin, "DROP OWNED BY "+role); mustExec(t, admin, "DROP ROLE "+role) })
	mustExec(t, admin, "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_notify(text, text) FROM PUBLIC")
	mustExec(t, admin, "GRANT USAGE ON SCHEMA fencepost TO "+role)
	mustExec(t, admin, "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA fencepost TO "+role)
	pool := dial(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "x" })
	client := newTestClient(t, pool, &Options{PollInterval: 10 * time.Millisecond})
	lease := mustTry(t, client, "r", time.Minute)
	mustExec(t, admin, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 minute'")
	next := waits(t, client, "r", time.Minute)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := <-next; l.Token() != lease.Token()+1 {
		t.Errorf("token %v after %v", l.Token(), lease.Token())
	}
	// The control: the statement with the notification fails.
	_, err := pool.Exec(t.Context(), releaseSQL, "r", "x", int64(guard.NoToken), "1000", pglease.Topic("r"))
	if pglease.Error(err) == nil {
		t.Errorf("got %v", err)
	}
}
