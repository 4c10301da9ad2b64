package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
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

// TestLossyNetwork: a proxy loses requests and answers of acquire, renew and
// release, with their connection: each of the four kinds of round twice, and in
// the long form 1,008 rounds. No lease is
// lost while it can be renewed, none comes back after its release, no lease ID
// gets a second lease, and no repeated release frees a successor's lease. A client
// without one of the protections must not survive the same losses.
func TestLossyNetwork(t *testing.T) {
	expectNoGoroutines(t)
	t.Run("as built", func(t *testing.T) {
		rounds := byLength(2*4, 63*16)
		bad, overtaken := lossy(t, rounds, func(i *pglease.Issuer) driver.Issuer { return i })
		for _, b := range bad[:min(10, len(bad))] {
			t.Error(b)
		}
		if overtaken != rounds/2 {
			t.Errorf("%d of %d releases were repeated after their successor's grant", overtaken, rounds)
		}
	})
	for name, mutant := range map[string]func(*pglease.Issuer) driver.Issuer{
		"control: release without the lease ID": func(i *pglease.Issuer) driver.Issuer { return anyRelease{i} },
		"control: a new lease ID each time":     func(i *pglease.Issuer) driver.Issuer { return &newIDs{Issuer: i} },
	} {
		t.Run(name, func(t *testing.T) {
			rounds := byLength(4, 2*16)
			bad, _ := lossy(t, rounds, mutant)
			if len(bad) < rounds/2 { // at least one of each lost answer
				t.Errorf("the losses do not tell the mutant: %d violations in %d rounds", len(bad), rounds)
			}
		})
	}
}

// anyRelease frees whatever lease it finds.
type anyRelease struct{ *pglease.Issuer }

func (a anyRelease) Release(ctx context.Context, claim guard.Claim) (freed bool, err error) {
	err = a.On(ctx, a.Pool, a.OpTimeout, func(ctx context.Context, conn *pgx.Conn, _ string) error {
		tag, err := conn.Exec(ctx, `WITH freed AS (UPDATE fencepost.leases SET lease_id = NULL, kept_for = NULL
			WHERE resource = $1 AND lease_id IS NOT NULL RETURNING resource)
			SELECT pg_notify($2, $3) FROM freed`, claim.Resource, pglease.Channel, pglease.Topic(claim.Resource)+" ")
		freed = tag.RowsAffected() > 0
		return err
	})
	return freed, pglease.Failure("release", claim, err)
}

// newIDs repeats an acquire under another lease ID.
type newIDs struct {
	*pglease.Issuer
	asked sync.Map
}

func (n *newIDs) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if _, again := n.asked.LoadOrStore(r.LeaseID, true); again {
		r.LeaseID = input.NewLeaseID()
	}
	return n.Issuer.Acquire(ctx, r)
}

// lossy runs rounds of acquire, renew and release, each of which loses its
// request or its answer. Half of the losses are requests.
func lossy(t *testing.T, rounds int, wrap func(*pglease.Issuer) driver.Issuer) (bad []string, overtaken int) {
	workers := byLength(4, 16)
	direct := migrated(t)
	successors := newTestClient(t, dial(t, direct.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = int32(workers) }), nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range workers {
		pool, proxy := behindProxy(t, direct.Config().ConnString())
		config := pool.Config()
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // one request, one answer
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		testkit.Must(t, err)
		t.Cleanup(pool.Close)
		// The time that a busy machine takes for a new connection is no loss.
		client := newTestClient(t, pool, nil)
		client.issuer = wrap(client.issuer.(*pglease.Issuer))
		wg.Go(func() {
			l := &losing{t: t, db: direct, proxy: proxy, client: client, successors: successors, resource: fmt.Sprint("r", w)}
			defer func() { // findings are reported even if a set-up statement ends the worker
				mu.Lock()
				defer mu.Unlock()
				bad, overtaken = append(bad, l.bad...), overtaken+l.overtaken
			}()
			for i := range rounds / workers {
				l.round(w + i)
			}
		})
	}
	wg.Wait()
	return bad, overtaken
}

type losing struct {
	t                  *testing.T
	db                 *pgxpool.Pool
	proxy              *proxy
	client, successors *Client
	resource           string
	token              guard.Token // the last one
	bad                []string
	overtaken          int
	warm               bool // both connections exist
}

func (l *losing) check(ok bool, format string, args ...any) bool {
	if !ok {
		l.bad = append(l.bad, l.resource+": "+fmt.Sprintf(format, args...))
	}
	return ok
}

// lose runs f under one loss.
func (l *losing) lose(n int, f func()) {
	count := &l.proxy.Drop
	if n%2 == 1 {
		count = &l.proxy.Cut
	}
	count.Store(1)
	f()
	if count.Swap(0) != 0 {
		l.t.Error("nothing was lost")
	}
}

func (l *losing) acquire() (lease *Lease, err error) {
	lease, err = l.client.TryAcquire(context.Background(), l.resource, &AcquireOptions{TTL: time.Hour})
	if err != nil {
		settled(l.client) // the request that spends the lease ID meets no later loss
	}
	return lease, err
}

// free is what an operator does.
func (l *losing) free() {
	// An acquire that failed need not have created the row.
	err := l.db.QueryRow(context.Background(), `WITH freed AS (UPDATE fencepost.leases SET lease_id = NULL WHERE resource = $1 RETURNING token)
		SELECT coalesce(max(token), 0) FROM freed`, l.resource).Scan((*int64)(&l.token))
	l.check(err == nil, "set-up: %v", err)
}

func (l *losing) round(n int) {
	ctx := context.Background()
	if !l.warm { // the first request of a connection is its start-up
		warm, err := l.client.TryAcquire(ctx, "warm "+l.resource, &AcquireOptions{TTL: time.Hour})
		if err == nil {
			err = errors.Join(warm.Renew(ctx), warm.Release(ctx))
		}
		if l.warm = l.check(err == nil, "nothing was lost: %v", err); !l.warm {
			return
		}
	}
	var lease *Lease
	var err error
	l.lose(n, func() { lease, err = l.acquire() })
	if !l.check(err == nil, "acquire: %v", err) {
		l.free()
		return
	}
	r := rowOf(l.t, l.db, l.resource)
	if !l.check(lease.Token() == l.token+1 && r.Token == int64(lease.Token()) && r.LeaseID != nil && *r.LeaseID == lease.ID(),
		"acquire: %+v after token %v, the row is %+v", lease.Claim(), l.token, r) {
		lease.end(ErrReleased)
		l.free()
		return
	}
	// A lease that was granted to a repeated attempt is released by spending its
	// lease ID, one that was granted at once by its token: both must be lost.
	if n/2%2 == 1 {
		err = lease.Release(ctx)
		l.token = lease.Token()
		if err == nil {
			lease, err = l.acquire()
		}
		if !l.check(err == nil && lease.Token() == l.token+1, "acquired anew after token %v: %v", l.token, err) {
			l.free()
			return
		}
		r = rowOf(l.t, l.db, l.resource)
	}

	l.lose(n, func() { err = lease.Renew(ctx) })
	now := rowOf(l.t, l.db, l.resource)
	l.check(err == nil && lease.Valid() && now.Live && now.ExpiresAt.After(r.ExpiresAt), "renew: %v, the row is %+v", err, now)

	next := waits(l.t, l.successors, l.resource, time.Hour)
	testkit.Eventually(l.t, "the successor rests", func() bool { return rests(l.t, l.db, l.resource) })
	// If the answer is lost, the successor is granted before the release is sent
	// again: nothing gets through until then.
	var successor *Lease
	if answer := n%2 == 1; answer {
		gate := make(chan struct{})
		l.proxy.Gate.Store(&gate)
		go func() {
			successor = <-next
			close(gate)
		}()
		l.lose(n, func() { err = lease.Release(ctx) })
		if over(gate) {
			l.overtaken++
		}
		<-gate
		l.proxy.Gate.Store(nil)
	} else {
		l.lose(n, func() { err = lease.Release(ctx) })
		successor = <-next
	}
	l.check(err == nil, "release: %v", err)
	held, err := renewAs(l.client, lease.Claim())
	l.check(!held && err == nil, "renewed after its release: %t, %v", held, err)
	if successor == nil {
		return
	}
	l.token = successor.Token()
	err = successor.Renew(ctx)
	l.check(err == nil && l.token == lease.Token()+1, "the successor %+v of %+v: %v", successor.Claim(), lease.Claim(), err)
	if err := successor.Release(ctx); err != nil && !errors.Is(err, ErrLeaseLost) {
		l.t.Error(err)
	}
}

// over reports whether a channel is closed.
func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
