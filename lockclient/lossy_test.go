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
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestLossyNetwork: a proxy loses 1,008 requests or answers each of acquire,
// renew and release, with their connection; 80 in the short form. No lease is
// lost while it can be renewed, none comes back after its release, no lease ID
// gets a second lease, and no retried release frees a successor's lease. What
// each protection is taken out of must not survive the same losses.
func TestLossyNetwork(t *testing.T) {
	expectNoGoroutines(t)
	t.Run("as built", func(t *testing.T) {
		rounds := byLength(5*16, 63*16)
		bad, overtaken := lossy(t, rounds, func(p *postgres) issuer { return p })
		for _, b := range bad[:min(10, len(bad))] {
			t.Error(b)
		}
		if overtaken != rounds/2 {
			t.Errorf("%d of %d releases were repeated after their successor's grant", overtaken, rounds)
		}
	})
	for name, mutant := range map[string]func(*postgres) issuer{
		"control: release without the lease ID": func(p *postgres) issuer { return anyRelease{p} },
		"control: a new lease ID each time":     func(p *postgres) issuer { return &newIDs{postgres: p} },
	} {
		t.Run(name, func(t *testing.T) {
			bad, _ := lossy(t, 2*16, mutant)
			if len(bad) < 2*16/2 { // at least one of each lost answer
				t.Errorf("the losses do not tell the mutant: %d violations in 32 rounds", len(bad))
			}
		})
	}
}

// anyRelease frees whatever lease it finds.
type anyRelease struct{ *postgres }

func (a anyRelease) release(ctx context.Context, claim guard.Claim, timeout time.Duration) (freed bool, err error) {
	err = a.On(ctx, a.own, timeout, func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		sql := strings.Replace(releaseSQL, "l.lease_id = $2::text AND ($3::bigint = 0 OR l.token = $3::bigint)",
			"$2::text <> '' AND $3::bigint > 0", 1)
		tag, err := conn.Exec(ctx, sql, claim.Resource, claim.LeaseID, int64(claim.Token), lockTimeout, pglease.Topic(claim.Resource))
		freed = tag.RowsAffected() > 0
		return err
	})
	return freed, pglease.Failure("release", claim, err)
}

// newIDs repeats an acquire under another lease ID.
type newIDs struct {
	*postgres
	asked sync.Map
}

func (n *newIDs) acquire(ctx context.Context, r request) (answer, error) {
	if _, again := n.asked.LoadOrStore(r.leaseID, true); again {
		r.leaseID = pglease.NewLeaseID()
	}
	return n.postgres.acquire(ctx, r)
}

// lossy runs rounds of acquire, renew and release, each of which loses its
// request or its answer. Half of the losses are requests.
func lossy(t *testing.T, rounds int, wrap func(*postgres) issuer) (bad []string, overtaken int) {
	const workers = 16
	direct := migrated(t)
	successors := newTestClient(t, dial(t, direct.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = workers }), nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range workers {
		pool, proxy := behindProxy(t, direct.Config().ConnString())
		config := pool.Config()
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // one request, one answer
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		// What a busy machine takes for a new connection is no loss.
		client := newTestClient(t, pool, nil)
		client.issuer = wrap(client.issuer.(*postgres))
		wg.Go(func() {
			l := &losing{t: t, db: direct, proxy: proxy, client: client, successors: successors, resource: fmt.Sprint("r", w)}
			defer func() { // what was found is told also if a set-up statement ends the worker
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
	warm               bool // both connections are there
}

func (l *losing) check(ok bool, format string, args ...any) bool {
	if !ok {
		l.bad = append(l.bad, l.resource+": "+fmt.Sprintf(format, args...))
	}
	return ok
}

// lose runs f under one loss.
func (l *losing) lose(n int, f func()) {
	count := &l.proxy.drop
	if n%2 == 1 {
		count = &l.proxy.cut
	}
	count.Store(1)
	f()
	if count.Swap(0) != 0 {
		l.t.Error("nothing was lost")
	}
}

func (l *losing) round(n int) {
	ctx := context.Background()
	if !l.warm { // the first request of a connection is its start-up
		warm, err := l.client.TryAcquire(ctx, "warm "+l.resource, &AcquireOptions{TTL: time.Hour})
		if err == nil {
			err = warm.Release(ctx)
		}
		if l.warm = l.check(err == nil, "nothing was lost: %v", err); !l.warm {
			return
		}
	}
	var lease *Lease
	var err error
	l.lose(n, func() { lease, err = l.client.TryAcquire(ctx, l.resource, &AcquireOptions{TTL: time.Hour}) })
	free := func() {
		// An acquire that failed need not have made the row.
		err := l.db.QueryRow(ctx, `WITH freed AS (UPDATE fencepost.leases SET lease_id = NULL WHERE resource = $1 RETURNING token)
			SELECT coalesce(max(token), 0) FROM freed`, l.resource).Scan((*int64)(&l.token))
		l.check(err == nil, "set-up: %v", err)
	}
	if !l.check(err == nil, "acquire: %v", err) {
		free()
		return
	}
	r := rowOf(l.t, l.db, l.resource)
	if !l.check(lease.Token() == l.token+1 && r.Token == int64(lease.Token()) && r.LeaseID != nil && *r.LeaseID == lease.ID(),
		"acquire: %+v after token %v, the row is %+v", lease.Claim(), l.token, r) {
		lease.end(ErrReleased)
		free()
		return
	}

	l.lose(n, func() { err = lease.Renew(ctx) })
	now := rowOf(l.t, l.db, l.resource)
	l.check(err == nil && lease.Valid() && now.Live && now.ExpiresAt.After(r.ExpiresAt), "renew: %v, the row is %+v", err, now)

	next := waits(l.t, l.successors, l.resource, time.Hour)
	eventually(l.t, "the successor rests", func() bool { return rests(l.t, l.db, l.resource) })
	// Where the answer is lost the successor has been granted before the release
	// is sent again: nothing gets through until then.
	var successor *Lease
	if answer := n%2 == 1; answer {
		gate := make(chan struct{})
		l.proxy.gate.Store(&gate)
		go func() {
			successor = <-next
			close(gate)
		}()
		l.lose(n, func() { err = lease.Release(ctx) })
		if over(gate) {
			l.overtaken++
		}
		<-gate
		l.proxy.gate.Store(nil)
	} else {
		l.lose(n, func() { err = lease.Release(ctx) })
		successor = <-next
	}
	l.check(err == nil, "release: %v", err)
	_, held, err := l.client.issuer.renew(ctx, lease.Claim(), time.Minute, patience)
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

// takeOne takes one off a count that is not zero.
func takeOne(count *atomic.Int64) bool {
	for n := count.Load(); n > 0; n = count.Load() {
		if count.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}
