// Package failover_test takes down, disconnects and stops the issuers' servers
// while processes hold leases, and checks what the processes believed.
package failover_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/servers"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// grant is a lease as its holder saw it. Times are readings of one clock, the
// machine's, which all holders share.
type grant struct {
	token  guard.Token
	holder int // the contender's number
	// answered is when the holder learned of the grant, which came before.
	answered time.Duration
	// valid is when the holder last found it valid.
	valid time.Duration
}

// history is all grants.
type history struct {
	mu     sync.Mutex
	grants []*grant
}

// overlaps returns the leases that their holder still found valid after another
// had been granted under a higher token, which is the servers' own order. A
// grant counts from its answer, so that a reported overlap is certain.
func (h *history) overlaps() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.grants {
		for _, b := range h.grants {
			if a.token < b.token && a.valid > b.answered {
				out = append(out, fmt.Sprintf("token %v was valid %v after token %v was granted", a.token, a.valid-b.answered, b.token))
			}
		}
	}
	return out
}

// disorder returns which tokens repeated or fell: a grant requested after
// another was answered must have the higher token.
func (h *history) disorder() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sorted := slices.Clone(h.grants)
	slices.SortFunc(sorted, func(a, b *grant) int { return int(a.answered - b.answered) })
	last := guard.NoToken
	for _, g := range sorted {
		if g.token <= last {
			out = append(out, fmt.Sprintf("token %v after %v", g.token, last))
		}
		last = g.token
	}
	return out
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.grants)
}

// holder returns who was last granted the lease.
func (h *history) holder() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grants[len(h.grants)-1].holder
}

// contend holds one resource in turns until ctx ends: it acquires, keeps the
// lease alive for a while, checks it all the time, and releases it.
func (h *history) contend(ctx context.Context, t *testing.T, issuer driver.Issuer, n int, ttl time.Duration) {
	locks, err := lockclient.New(issuer, fmt.Sprint("contender-", n), &lockclient.Options{
		OpTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		lease, err := locks.Acquire(ctx, "r", &lockclient.AcquireOptions{TTL: ttl})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		g := &grant{token: lease.Token(), holder: n, answered: driver.Now()}
		h.mu.Lock()
		h.grants = append(h.grants, g)
		h.mu.Unlock()
		testkit.Check(t, lease.KeepAlive(0))
		_, believes := issuer.(believer) // it holds its lease until another has it
		for until := driver.Now() + ttl*3/2; ; time.Sleep(time.Millisecond) {
			now := driver.Now() // before the look: it was valid then or later
			if !lease.Valid() {
				break
			}
			h.mu.Lock()
			g.valid = now
			h.mu.Unlock()
			if now > until && (!believes || h.holder() != n) || ctx.Err() != nil {
				break
			}
		}
		release, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		lease.Release(release) // may fail while servers are away
		cancel()
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	locks.Close(closing)
}

// run makes contenders hold a resource while it injects one failure after the
// other. After each there must be another grant, or the failure does not count.
func (h *history) run(t *testing.T, issuers []driver.Issuer, ttl time.Duration, n int, fail func(round int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for k, i := range issuers {
		wg.Go(func() { h.contend(ctx, t, i, k, ttl) })
	}
	defer wg.Wait()
	defer cancel()
	more := func(since int) {
		for began := time.Now(); h.count() <= since; time.Sleep(5 * time.Millisecond) {
			if time.Since(began) > testkit.Patience {
				t.Errorf("no grant for %v after %d; all goroutines:", testkit.Patience, since)
				pprof.Lookup("goroutine").WriteTo(t.Output(), 1)
				break
			}
		}
	}
	more(0)
	for round := range n {
		if t.Failed() {
			break
		}
		time.Sleep(ttl / 4 * time.Duration(round%4)) // at different moments of a lease's life
		fail(round)
		more(h.count())
	}
}

// surfaces are places that are written to under a claim, and what was
// acknowledged at each.
type surfaces struct {
	write map[string]func(ctx context.Context, claim guard.Claim) error

	mu         sync.Mutex
	highest    map[string]guard.Token // of acknowledged writes
	written    map[string]int
	refused    map[string]int
	violations map[string]int // a lower token was acknowledged after a higher one
}

// attempt writes everywhere.
func (s *surfaces) attempt(ctx context.Context, t *testing.T, claim guard.Claim) {
	for name, write := range s.write {
		s.mu.Lock()
		before := s.highest[name]
		s.mu.Unlock()
		err := write(ctx, claim)
		s.mu.Lock()
		switch {
		case err == nil:
			s.written[name]++
			s.highest[name] = max(s.highest[name], claim.Token)
			if claim.Token < before {
				s.violations[name]++
			}
		case errors.Is(err, guard.ErrStale):
			s.refused[name]++
		default:
			t.Errorf("%s: %v", name, err)
		}
		s.mu.Unlock()
	}
}

// TestSurfaces: workers take a lease in turns while nodes of its issuer are
// killed, and each writes once more under its old claim when the next one has
// written. A row, a fenced transaction and a store acknowledge none of these
// writes; a row without a fence does, which is the control.
func TestSurfaces(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) (issuers []driver.Issuer, ttl time.Duration, kill func()){
		"etcd": func(t *testing.T) ([]driver.Issuer, time.Duration, func()) {
			c := servers.StartEtcd(t, 3)
			n := 0
			return []driver.Issuer{etcdIssuer(t, c.Addrs()...), etcdIssuer(t, c.Addrs()...), etcdIssuer(t, c.Addrs()...)}, 3 * time.Second,
				func() { n++; c.Nodes[n%3].Kill(); c.Nodes[n%3].Start() }
		},
		"ZooKeeper": func(t *testing.T) ([]driver.Issuer, time.Duration, func()) {
			z := servers.StartZooKeeper(t, 3)
			return []driver.Issuer{zooKeeperIssuer(t, z.Addrs()...), zooKeeperIssuer(t, z.Addrs()...), zooKeeperIssuer(t, z.Addrs()...)}, 6 * servers.ZooKeeperTick,
				func() { n := z.Leader(t); z.Nodes[n].Kill(); z.Nodes[n].Start() }
		},
		"Redis": func(t *testing.T) ([]driver.Issuer, time.Duration, func()) {
			r := servers.StartRedisSentinel(t, 2)
			var issuers []driver.Issuer
			for range 3 {
				issuers = append(issuers, redisIssuer(t, redis.NewFailoverClient(&redis.FailoverOptions{MasterName: servers.SentinelName, SentinelAddrs: r.Addrs(),
					MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, ReadTimeout: time.Second, WriteTimeout: time.Second})))
			}
			return issuers, 2 * time.Second, func() {
				if n := masterOf(t.Context(), r); n >= 0 {
					r.Nodes[n].Kill()
					time.Sleep(3 * time.Second) // a replica takes over
					r.Nodes[n].Start()
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issuers, ttl, kill := start(t)
			s := newSurfaces(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			h := &history{}
			var wg sync.WaitGroup
			for k, i := range issuers {
				wg.Go(func() { s.work(ctx, t, i, k, ttl, h) })
			}
			for range longtest.ByLength(1, 10) {
				had := h.count()
				kill()
				for began := time.Now(); h.count() < had+4 && time.Since(began) < 5*time.Minute && !t.Failed(); {
					time.Sleep(5 * time.Millisecond)
				}
			}
			cancel()
			wg.Wait()
			t.Logf("%d grants; acknowledged %v, refused %v, violations %v", h.count(), s.written, s.refused, s.violations)
			for name := range s.write {
				if bare := name == "row without a fence"; bare != (s.violations[name] > 0) {
					t.Errorf("%s: %d stale writes were acknowledged", name, s.violations[name])
				}
			}
		})
	}
}

func newSurfaces(t *testing.T) *surfaces {
	t.Helper()
	pool := pgtest.Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE closes (tenant text PRIMARY KEY, by_token text NOT NULL DEFAULT '', last_fencing_token bigint NOT NULL DEFAULT 0);
		INSERT INTO closes VALUES ('t'); CREATE TABLE bare (token text); INSERT INTO bare VALUES (''); CREATE TABLE entries (token text)`); err != nil {
		t.Fatal(err)
	}
	db, err := sqlfence.Pgx(pool, nil)
	if err == nil {
		err = sqladmin.Pgx(pool).Migrate(t.Context())
	}
	testkit.Must(t, err)
	rows := sqlrow.Pgx(pool)
	closes, err := sqlrow.NewTable([]string{"closes"}, []string{"tenant"}, guard.Must(guard.NewTemplate("{tenant}:close")),
		&sqlrow.TableOptions{Rule: guard.SameOrNewer})
	testkit.Must(t, err)
	marks := guard.NewMemory()
	return &surfaces{highest: map[string]guard.Token{}, written: map[string]int{}, refused: map[string]int{}, violations: map[string]int{},
		write: map[string]func(context.Context, guard.Claim) error{
			"row": func(ctx context.Context, claim guard.Claim) error {
				return closes.Update(ctx, rows, claim, sqlrow.Key{"t"}, sqlrow.Set{"by_token": claim.Token.String()})
			},
			"transaction": func(ctx context.Context, claim guard.Claim) error {
				return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO entries VALUES ($1)", claim.Token.String())
					return err
				})
			},
			"store": func(ctx context.Context, claim guard.Claim) error {
				_, err := marks.Admit(ctx, claim)
				return err
			},
			"row without a fence": func(ctx context.Context, claim guard.Claim) error {
				_, err := pool.Exec(ctx, "UPDATE bare SET token = $1", claim.Token.String())
				return err
			},
		}}
}

// work takes the lease, writes, gives it up, and writes once more when another
// has written.
func (s *surfaces) work(ctx context.Context, t *testing.T, issuer driver.Issuer, n int, ttl time.Duration, h *history) {
	locks, err := lockclient.New(issuer, fmt.Sprint("worker-", n), &lockclient.Options{OpTimeout: 2 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Error(err)
		return
	}
	writing := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		lease, err := locks.Acquire(ctx, "t:close", &lockclient.AcquireOptions{TTL: ttl})
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		s.attempt(writing, t, lease.Claim())
		h.mu.Lock()
		h.grants = append(h.grants, &grant{token: lease.Token()})
		had := len(h.grants)
		h.mu.Unlock()
		release, cancel := context.WithTimeout(writing, 2*time.Second)
		lease.Release(release)
		cancel()
		for h.count() == had && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		s.attempt(writing, t, lease.Claim())
	}
	closing, cancel := context.WithTimeout(writing, 5*time.Second)
	defer cancel()
	locks.Close(closing)
}
