package lockclient

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// BenchmarkAcquireRelease measures an acquire and its release against two
// prepared single-row UPDATEs, each its own commit, taking turns in one run.
// The metric updates/pair is the time of the two UPDATEs divided by that of the
// pair: 1 is as fast, more is faster. Every client has a key of its own.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, durable := range []bool{false, true} {
		server, err := pgtest.Start(b.Context(), &pgtest.Options{Durable: durable})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { server.Stop() })
		pool := dial(b, server.URL(), func(c *pgxpool.Config) { c.MaxConns = 16 })
		if err := pglock.Migrate(b.Context(), pool); err != nil {
			b.Fatal(err)
		}
		mustExec(b, pool, "CREATE TABLE plain (id int PRIMARY KEY, n bigint, at timestamptz) WITH (fillfactor = 50)")
		mustExec(b, pool, "INSERT INTO plain SELECT i, 0, now() FROM generate_series(0, 63) i")
		// Like a user's: a test's logger, which keeps a line of each event, takes a fifth of the time.
		client, err := New(guard.Must(pglock.New(pool, nil)), "bench", nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { client.Close(context.Background()) })
		for _, clients := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("fsync=%t/clients=%d", durable, clients), func(b *testing.B) { benchmarkPair(b, pool, client, clients) })
		}
	}
}

func benchmarkPair(b *testing.B, pool *pgxpool.Pool, client *Client, clients int) {
	ctx := context.Background()
	opts := &AcquireOptions{TTL: time.Minute}
	pair := func(i int) error {
		lease, err := client.TryAcquire(ctx, fmt.Sprintf("key %d", i), opts)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
	updates := func(i int) error {
		for range 2 {
			if _, err := pool.Exec(ctx, "UPDATE plain SET n = n + 1, at = clock_timestamp() WHERE id = $1", i); err != nil {
				return err
			}
		}
		return nil
	}
	all := func(times int, f func(int) error) time.Duration {
		var wg sync.WaitGroup
		began := time.Now()
		for i := range clients {
			wg.Go(func() {
				for range times {
					if err := f(i); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	all(20, pair)
	all(20, updates)
	const turn = 50
	var pairs, plain time.Duration
	n := 0
	for b.Loop() {
		pairs += all(turn, pair)
		plain += all(turn, updates)
		n += turn * clients
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(pairs.Microseconds())/float64(n)*float64(clients), "µs/pair")
	b.ReportMetric(float64(n)/pairs.Seconds(), "pairs/s")
	b.ReportMetric(plain.Seconds()/pairs.Seconds(), "updates/pair")
}

func TestDeadline(t *testing.T) {
	for _, test := range []struct{ sent, ttl, want time.Duration }{
		{0, time.Second, 999 * time.Millisecond},
		{5, 1000, 1004},
		{5, 1001, 1004}, // the margin is rounded up
		{time.Hour, MaxTTL, time.Hour + MaxTTL - 86400*time.Millisecond},
	} {
		if got := deadline(test.sent, test.ttl); got != test.want {
			t.Errorf("sent %d, TTL %d: %d, want %d", test.sent, test.ttl, got, test.want)
		}
	}
}

func BenchmarkValid(b *testing.B) {
	client := simulate(b, simulation{driver.Now}, nil)
	defer client.Close(context.Background())
	lease := newLease(b.Context(), client, new(request), guard.Claim{Resource: "r"}, driver.Grant{AcquiredAt: time.Now()}, MaxTTL, client.clock()+MaxTTL, client.clock())
	for b.Loop() {
		if !lease.Valid() {
			b.Fatal("not valid")
		}
	}
}

// TestAskingAllocatesNothing: asking a lease whether it is valid allocates nothing.
func TestAskingAllocatesNothing(t *testing.T) {
	c := simulate(t, simulation{func() time.Duration { return 1 }}, nil)
	l := &Lease{client: c, ttl: time.Second, deadline: time.Hour, place: -1}
	if n := testing.AllocsPerRun(100, func() { l.Valid(); l.Err(); l.Remaining() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
