package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// peer is a lock library on the service that it needs.
type peer struct {
	name string
	// on starts the service; peers that name the same share it.
	on string
	// waits says how a waiter learns that the lock is free.
	waits string
	// dial connects like one process, with conns connections if it pools them.
	// A lock that is not renewed lasts for ttl.
	dial func(ctx context.Context, address, owner string, ttl time.Duration, conns int) (locker, error)
}

// locker is one process that takes locks.
type locker interface {
	// lock waits for the lock on key until ctx ends.
	lock(ctx context.Context, key string) (unlock func(ctx context.Context) error, err error)
	close()
}

// services start what a peer needs and return its address; durable is as in
// durability.
var services = map[string]func(ctx context.Context, e *env, durable bool) (string, error){
	"postgres": startPostgres, "etcd": startEtcd, "redis": startRedis,
}

// all lists the libraries; the first is the floor, and no lock.
var all = []peer{
	{"two UPDATEs (no lock)", "postgres", "", dialUpdates},
	{"PostgreSQL advisory lock", "postgres", "a queue in the server", dialAdvisory},
	{"Fencepost on PostgreSQL", "postgres", "notified, in order of waiting", dialPostgres},
	{"pglock's statements", "postgres", "asks once a lease", dialPglock},
	{"etcd's Mutex", "etcd", "notified, in order", dialEtcdMutex},
	{"Fencepost on etcd", "etcd", "notified, in order", dialEtcd},
	{"bsm/redislock", "redis", "asks every 100 ms", dialRedislock},
	{"go-redsync", "redis", "asks every 50 to 250 ms", dialRedsync},
	{"Fencepost on Redis", "redis", "notified, in order of waiting", dialRedis},
}

const durability = "Durable means that every commit waits for the disk: PostgreSQL and etcd with fsync, Redis with appendfsync always. Not durable: PostgreSQL with fsync off, etcd with --unsafe-no-fsync, Redis with appendfsync everysec. An advisory lock is in memory in both. Each server is one process on the same machine; etcd is one node. "

// peers compares our leases with today's lock libraries.
var peers = []experiment{
	{name: "pairs", title: "Acquire and release, a key for each client", columns: perCall, run: peerPairs, plot: plotRates,
		about: durability + "All clients are goroutines of one process that share its connections, 16 at most. The ratio is to two prepared UPDATEs of one row, each its own commit. pglock is its statements by hand through pgx, prepared, without heartbeat; etcd's Mutex has a session that is there before and is not counted."},
	{name: "contended", title: "Acquire and release, one key for all", columns: []string{"hand-overs a second", "p50 ms", "p99 ms"}, run: peerContended, plot: plotHandOver,
		about: durability + "Each client is a process of its own as far as the service can see. A hand-over is from the call that gives the lock back until another client has it; nobody takes it twice in a row, and the first two seconds, in which the queue forms, do not count. Each has one turn of two seconds. TTL 5 s."},
}

// started is a peer whose service runs.
type started struct {
	peer
	address string
}

func startAll(ctx context.Context, e *env, durable bool) ([]started, error) {
	running := map[string]string{}
	var out []started
	for _, p := range all {
		if running[p.on] == "" {
			address, err := services[p.on](ctx, e, durable)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.on, err)
			}
			running[p.on] = address
		}
		out = append(out, started{p, running[p.on]})
	}
	return out, nil
}

// reach dials, and closes when the experiment ends.
func (p started) reach(ctx context.Context, e *env, owner string, ttl time.Duration, conns int) (locker, error) {
	l, err := p.dial(ctx, p.address, owner, ttl, conns)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	e.Cleanup(l.close)
	return l, nil
}

func commits(durable bool) string {
	if durable {
		return "durable"
	}
	return "not durable"
}

func peerPairs(ctx context.Context, e *env, s *Section) error {
	for _, durable := range []bool{true, false} {
		if e.short && durable {
			continue
		}
		if err := e.part(func(e *env) error { return pairsOf(ctx, e, s, durable) }); err != nil {
			return err
		}
	}
	return nil
}

func pairsOf(ctx context.Context, e *env, s *Section, durable bool) error {
	running, err := startAll(ctx, e, durable)
	if err != nil {
		return err
	}
	var ways []Way
	for _, p := range running {
		l, err := p.reach(ctx, e, "bench", time.Minute, 16)
		if err != nil {
			return err
		}
		ways = append(ways, Way{Name: p.name, Do: timed(func(ctx context.Context, client, _ int) error {
			unlock, err := l.lock(ctx, fmt.Sprint("key ", client))
			if err != nil {
				return err
			}
			return unlock(ctx)
		})})
	}
	for _, clients := range e.clients(1, 16, 64) {
		figures, err := Compare(ctx, Plan{Clients: clients, Block: 110 * time.Millisecond, Rounds: e.rounds(6)}, ways...)
		if err != nil {
			return err
		}
		s.add(cases(durable, clients), figures)
	}
	return nil
}

// relay ensures that no client has the lock twice in a row, so that hand-overs
// are measured.
type relay struct {
	mu      sync.Mutex
	block   context.Context // of the current block
	key     string          // of the block, so that cut calls of an earlier one do not interfere
	last    int
	freed   time.Time
	changed chan struct{}
}

// allow waits until another client has had the lock, and returns its name.
func (r *relay) allow(ctx context.Context, client int) (key string, err error) {
	for {
		r.mu.Lock()
		if r.block != ctx {
			r.block, r.last, r.changed = ctx, -1, make(chan struct{})
			r.key = fmt.Sprint("one ", rand.Int64())
		}
		key, last, changed := r.key, r.last, r.changed
		r.mu.Unlock()
		if last != client {
			return key, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// granted returns the time since the last release, negative if there was none.
func (r *relay) granted(client int) time.Duration {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	took := time.Duration(-1)
	if r.last >= 0 {
		took = max(1, now.Sub(r.freed))
	}
	r.last = client
	close(r.changed)
	r.changed = make(chan struct{})
	return took
}

func (r *relay) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed = time.Now()
}

func peerContended(ctx context.Context, e *env, s *Section) error {
	for _, clients := range e.clients(16, 64) {
		if err := e.part(func(e *env) error { return contendedBy(ctx, e, s, clients) }); err != nil {
			return err
		}
	}
	return nil
}

func contendedBy(ctx context.Context, e *env, s *Section, clients int) error {
	running, err := startAll(ctx, e, !e.short)
	if err != nil {
		return err
	}
	var ways []Way
	for _, p := range running[1:] {
		lockers := make([]locker, clients)
		for i := range lockers {
			if lockers[i], err = p.reach(ctx, e, fmt.Sprint("bench-", i), 5*time.Second, 1); err != nil {
				return err
			}
		}
		r := &relay{}
		ways = append(ways, Way{Name: p.name, Do: func(ctx context.Context, client, _ int) (time.Duration, error) {
			key, err := r.allow(ctx, client)
			if err != nil {
				return 0, err
			}
			unlock, err := lockers[client].lock(ctx, key)
			if err != nil {
				return 0, err
			}
			took := r.granted(client)
			r.free()
			return took, unlock(context.WithoutCancel(ctx))
		}})
	}
	length := 2 * time.Second
	if e.short {
		length /= 8
	}
	figures, err := Compare(ctx, Plan{Clients: clients, Lead: length, Block: length, Rounds: 1, Cut: true}, ways...)
	if err != nil {
		return err
	}
	for i, f := range figures {
		row := Row{Case: cases(!e.short, clients), Way: f.Way, Note: running[i+1].waits, Values: map[string]float64{"hand-overs a second": round(f.Rate, 4)}}
		if f.P50 > 0 {
			row.Values["p50 ms"], row.Values["p99 ms"] = round(f.P50.Seconds()*1e3, 3), round(f.P99.Seconds()*1e3, 3)
		}
		if f.Err != nil {
			row.Values, row.Note = nil, "failed: "+f.Err.Error()
		}
		s.Rows = append(s.Rows, row)
	}
	return nil
}

func cases(durable bool, clients int) string {
	return fmt.Sprintf("%s, %s", commits(durable), count(clients, "client"))
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return number(float64(n)) + " " + what
}
