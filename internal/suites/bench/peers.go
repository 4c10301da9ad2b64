package main

import (
	"context"
	"fmt"
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
	{"etcd's Mutex", "etcd", "notified, in order", dialEtcdMutex},
	{"go-redsync", "redis", "asks every 50 to 250 ms", dialRedsync},
}

const durability = "Durable means that every commit waits for the disk: PostgreSQL and etcd with fsync, Redis with appendfsync always. Not durable: PostgreSQL with fsync off, etcd with --unsafe-no-fsync, Redis with appendfsync everysec. An advisory lock is in memory in both. Each server is one process on the same machine; etcd is one node. "

// peers compares our leases with today's lock libraries.
var peers = []experiment{
	{name: "pairs", title: "Acquire and release, a key for each client", columns: perCall, run: peerPairs,
		about: durability + "All clients are goroutines of one process that share its connections, 16 at most. The ratio is to two prepared UPDATEs of one row, each its own commit. etcd's Mutex has a session that is there before and is not counted."},
	{name: "contended", title: "One lock for all, from the first second on", columns: curveColumns, run: peerContended,
		about: durability + "Each client is a process of its own as far as the service can see, and all begin to wait together. A hand-over is from the call that gives the lock back until another client has it; nobody takes it twice in a row. One run of twenty seconds each; the waits and the turns are those from the third second on. TTL 5 s."},
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

func cases(durable bool, clients int) string {
	return fmt.Sprintf("%s, %s", commits(durable), count(clients, "client"))
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return number(float64(n)) + " " + what
}
