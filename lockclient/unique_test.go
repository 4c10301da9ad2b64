package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

const contendedKey = "contended"

// Of the goroutines, each client has the same number.
var (
	clients       = byLength(2, 4)
	goroutines    = byLength(16, 64)
	grantsInTotal = byLength(200, 10_000)
)

// TestNoTokenTwice is P3 and P4 under contention: 16 goroutines of 2 clients take one
// key 200 times (in the long form 64 of 4 take it 10,000 times), some renew, some let
// the lease run out, and connections are terminated throughout. By the server's own
// history tokens grow strictly and no two leases overlap; it contains what the
// holders were told.
func TestNoTokenTwice(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	watchHistory(t, pool, "fencepost.leases")
	began := time.Now()
	stop := make(chan struct{})
	var terminated, taken, refused atomic.Int64
	var wg, holders sync.WaitGroup
	wg.Go(func() { terminate(t, pool, stop, &terminated) })
	leases := make(chan *Lease, grantsInTotal)
	for range clients {
		client, err := New(guard.Must(pglock.New(dial(t, pool.Config().ConnString(), func(c *pgxpool.Config) {
			c.MaxConns = 4
			c.ConnConfig.RuntimeParams["application_name"] = "contend"
		}), nil)), "o", &Options{Logger: slog.New(slog.DiscardHandler)})
		testkit.Must(t, err)
		t.Cleanup(func() { client.Close(context.Background()) })
		for range goroutines / clients {
			holders.Go(func() {
				testkit.Check(t, take(client, &taken, &refused, leases))
			})
		}
	}
	holders.Wait()
	close(leases)
	close(stop)
	wg.Wait()
	took := time.Since(began)

	grants, problems := checkHistory(history(t, pool, contendedKey))
	for _, p := range problems[:min(len(problems), 10)] {
		t.Error(p)
	}
	told := map[string]int64{} // token that the holder was told, by lease ID
	tokens := map[guard.Token]string{}
	for l := range leases {
		if _, again := told[l.ID()]; again {
			t.Errorf("lease %s was handed out twice", l.ID())
		}
		told[l.ID()] = int64(l.Token())
		if grants[l.ID()] != int64(l.Token()) {
			t.Errorf("lease %s was told token %v, the server granted %d", l.ID(), l.Token(), grants[l.ID()])
		}
		if other, ok := tokens[l.Token()]; ok {
			t.Errorf("token %v was handed out to %s and %s", l.Token(), l.ID(), other)
		}
		tokens[l.Token()] = l.ID()
	}
	if len(told) != grantsInTotal {
		t.Errorf("%d grants, want %d", len(told), grantsInTotal)
	}
	t.Logf("%d grants handed out of %d made, %.0f/s, %d tries refused, %d connections terminated",
		len(told), len(grants), float64(len(told))/took.Seconds(), refused.Load(), terminated.Load())
	if terminated.Load() == 0 || refused.Load() < int64(grantsInTotal/10) {
		t.Error("there was hardly any contention")
	}
}

// terminate ends a connection of the clients every ten grants.
func terminate(t *testing.T, pool *pgxpool.Pool, stop <-chan struct{}, n *atomic.Int64) {
	for next := int64(10); ; {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		var token int64
		if err := pool.QueryRow(context.Background(), "SELECT coalesce(max(token), 0) FROM fencepost.leases").Scan(&token); err != nil {
			t.Error(err)
			return
		}
		if token < next {
			continue
		}
		next = token + 10
		tag, err := pool.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'contend' ORDER BY random() LIMIT 1`)
		if err != nil {
			t.Error(err)
			return
		}
		n.Add(tag.RowsAffected())
	}
}

// take takes the key and releases it again, until that was done often enough.
func take(client *Client, taken, refused *atomic.Int64, leases chan<- *Lease) error {
	ctx := context.Background()
	share := int64(grantsInTotal)
	for taken.Load() < share {
		ttl := time.Minute
		abandon := rand.IntN(byLength(100, 400)) == 0
		if abandon {
			ttl = MinTTL
		}
		lease, err := client.TryAcquire(ctx, contendedKey, &AcquireOptions{TTL: ttl})
		switch {
		case err == nil:
		case errors.Is(err, ErrHeld):
			refused.Add(1)
			time.Sleep(time.Duration(rand.IntN(60_000)) * time.Microsecond)
			continue
		case errors.Is(err, guard.ErrUnavailable), errors.Is(err, guard.ErrOutcomeUnknown):
			continue
		default:
			return err
		}
		if taken.Add(1) > share {
			return lease.Release(ctx)
		}
		leases <- lease
		if rand.IntN(10) == 0 {
			// Short leases may be over by now, and a connection may break.
			if err := lease.Renew(ctx); err != nil && !errors.Is(err, ErrLeaseLost) && !errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, guard.ErrOutcomeUnknown) {
				return err
			}
		}
		for !abandon {
			if err := lease.Release(ctx); err == nil {
				break
			} else if !errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, guard.ErrOutcomeUnknown) {
				return err
			}
		}
	}
	return nil
}

// TestTextbookToken is the control of TestNoTokenTwice: the usual textbook
// acquire, which leaves the token to a BIGSERIAL column, grants tokens twice,
// and the same checker says so.
func TestTextbookToken(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	mustExec(t, pool, `CREATE TABLE textbook (resource text PRIMARY KEY, token bigserial, lease_id text,
		acquired_at timestamptz, expires_at timestamptz)`)
	watchHistory(t, pool, "textbook")
	const acquire = `INSERT INTO textbook AS l (resource, lease_id, acquired_at, expires_at)
		VALUES ($1, $2, clock_timestamp(), clock_timestamp() + interval '1 minute')
		ON CONFLICT (resource) DO UPDATE SET lease_id = excluded.lease_id, acquired_at = clock_timestamp(), expires_at = excluded.expires_at
		WHERE l.lease_id IS NULL OR l.expires_at <= clock_timestamp() RETURNING l.token`
	const release = `UPDATE textbook SET lease_id = NULL, expires_at = clock_timestamp() WHERE resource = $1 AND lease_id = $2`
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for taken.Load() < 200 {
				id := input.NewLeaseID()
				var token int64
				if pool.QueryRow(t.Context(), acquire, contendedKey, id).Scan(&token) == nil {
					taken.Add(1)
					mustExec(t, pool, release, contendedKey, id)
				}
			}
		})
	}
	wg.Wait()
	_, problems := checkHistory(history(t, pool, contendedKey))
	t.Logf("%d problems in %d grants", len(problems), taken.Load())
	if len(problems) == 0 {
		t.Error("the textbook's acquire passes the check")
	}
}
