package lockclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	contendedKey   = "contended"
	databaseForKey = "FENCEPOST_LOCKCLIENT_DATABASE"
)

// Of the goroutines and the grants, each process has the same number.
var (
	processes     = byLength(2, 4)
	goroutines    = byLength(16, 64)
	grantsInTotal = byLength(200, 10_000)
)

func init() { children["contend"] = contend }

// TestNoTokenTwice is P3 and P4 under contention: 16 goroutines in 2 processes
// take one key 200 times (in the long form 64 in 4 take it 10,000 times), some
// renew, some let the lease run out, and connections are terminated throughout.
// By the server's own history tokens grow strictly and no two leases overlap; it
// contains what the holders were told.
func TestNoTokenTwice(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	url := pool.Config().ConnString()
	watchHistory(t, pool, "fencepost.leases")
	var crew []*child
	for range processes {
		crew = append(crew, startChild(t, "contend", databaseForKey+"="+url))
	}
	for _, c := range crew {
		if got := c.line(t); got != "ready" {
			t.Fatalf("the child says %q", got)
		}
	}
	began := time.Now()
	for _, c := range crew {
		c.say(t, "go")
	}
	stop := make(chan struct{})
	var terminated atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() { terminate(t, pool, stop, &terminated) })
	told := map[string]int64{} // token that the holder was told, by lease ID
	refused := 0
	for _, c := range crew {
		for {
			line := c.line(t)
			var n int
			if scan(line, "refused %d", &n) == nil {
				refused += n
				break // the last line
			}
			var id string
			var token int64
			if _, err := fmt.Sscan(line, &id, &token); err != nil {
				t.Fatalf("the child says %q", line)
			}
			if _, again := told[id]; again {
				t.Errorf("lease %s was handed out twice", id)
			}
			told[id] = token
		}
		if err := c.Wait(); err != nil {
			t.Errorf("a child: %v", err)
		}
	}
	close(stop)
	wg.Wait()
	took := time.Since(began)

	grants, problems := checkHistory(history(t, pool, contendedKey))
	for _, p := range problems[:min(len(problems), 10)] {
		t.Error(p)
	}
	holders := map[int64]string{}
	for id, token := range told {
		if grants[id] != token {
			t.Errorf("lease %s was told token %d, the server granted %d", id, token, grants[id])
		}
		if other, ok := holders[token]; ok {
			t.Errorf("token %d was handed out to %s and %s", token, id, other)
		}
		holders[token] = id
	}
	if len(told) != grantsInTotal {
		t.Errorf("%d grants, want %d", len(told), grantsInTotal)
	}
	t.Logf("%d grants handed out of %d made, %.0f/s, %d tries refused, %d connections terminated",
		len(told), len(grants), float64(len(told))/took.Seconds(), refused, terminated.Load())
	if terminated.Load() == 0 || refused < grantsInTotal/10 {
		t.Error("there was hardly any contention")
	}
}

// terminate ends a connection of the children every ten grants.
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

// contend is the child: it takes its share of the grants and prints them.
func contend() error {
	config, err := pgxpool.ParseConfig(os.Getenv(databaseForKey))
	if err != nil {
		return err
	}
	config.MaxConns = 4
	config.ConnConfig.RuntimeParams["application_name"] = "contend"
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	client, err := New(guard.Must(pglock.New(pool, nil)), "process "+strconv.Itoa(os.Getpid()), nil)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	share := int64(grantsInTotal / processes)
	var taken, refused atomic.Int64
	leases := make(chan *Lease, share)
	errs := make([]error, goroutines/processes)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = take(client, &taken, &refused, share, leases) })
	}
	wg.Wait()
	close(leases)
	out := bufio.NewWriter(os.Stdout)
	for l := range leases {
		fmt.Fprintln(out, l.ID(), l.Token())
	}
	fmt.Fprintln(out, "refused", refused.Load())
	return errors.Join(append(errs, out.Flush())...)
}

func take(client *Client, taken, refused *atomic.Int64, share int64, leases chan<- *Lease) error {
	ctx := context.Background()
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
