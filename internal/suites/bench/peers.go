package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// peer is a lock library on the service that it needs.
type peer struct {
	name string
	// on is the service; see services.
	on string
	// waits says how a waiter learns that the lock is free.
	waits string
	// dial connects like one process, with conns connections if it pools them.
	// A lock that is not renewed lasts for ttl.
	dial func(ctx context.Context, address, owner string, ttl time.Duration, conns int) (locker, error)
	// crowd is how many may wait at once; 0 means any number.
	crowd int
	// another makes a separate locker for one more waiter of the same process;
	// nil if all may share one.
	another func(ctx context.Context, l locker, ttl time.Duration) (locker, error)
	// floor says that it is no lock.
	floor bool
	// ours names our entry to compare with it on the same service; why explains
	// where it is faster.
	ours, why string
}

// locker is one process that takes locks.
type locker interface {
	// lock waits for the lock on key until ctx ends.
	lock(ctx context.Context, key string) (held, error)
	close()
}

// held is a lock that was granted.
type held struct {
	unlock func(ctx context.Context) error
	// renew extends it; nil if the library does that itself, or if it needs no
	// renewal.
	renew func(ctx context.Context) error
}

// services start what a peer needs; durable is as in about.
var services = map[string]func(ctx context.Context, e *env, durable bool) (*service, error){
	"postgres":  startPostgres,
	"etcd":      startEtcd,
	"redis":     startRedis,
	"zookeeper": startZooKeeper,
	"http":      startLockServer,
}

// service is a running server. Its processes are used to count CPU time.
type service struct {
	address   string
	processes func() []int
}

// all lists the libraries; the first is the floor.
var all = []peer{
	{name: "two UPDATEs (no lock)", on: "postgres", dial: dialUpdates, floor: true},
	{name: "PostgreSQL advisory lock", ours: "Fencepost on PostgreSQL", why: "nothing is written, in neither setting. It is in the server's memory and lasts as long as its connection, has no token and no TTL, and a connection is bound by each holder and each waiter", on: "postgres", waits: "a queue in the server", dial: dialAdvisory, crowd: 200},
	{name: "Fencepost on PostgreSQL", on: "postgres", waits: "told, the longest waiting first", dial: dialPostgres},
	{name: "pglock's statements", ours: "Fencepost on PostgreSQL", why: "it keeps no line of waiters and tells nobody, has no token that a fence could compare, no lease ID that is spent, and deletes the row at the release", on: "postgres", waits: "asks once a lease", dial: dialPglock},
	{name: "ShedLock's statements", ours: "Fencepost on PostgreSQL", why: "it updates one row twice and keeps neither token nor line nor lease ID; a release that comes late can free a successor's lock of the same host", on: "postgres", waits: "it does not; here asks every 100 ms", dial: dialShedLock},
	{name: "etcd's Mutex", ours: "Fencepost on etcd", why: "all its locks share the session's etcd lease, so that a lock is one request and gone with the process; ours has an etcd lease for each lock, which is a request more each way, and checks the spent lease IDs, the floor and the base of the tokens", on: "etcd", waits: "told, in order", dial: dialEtcdMutex, another: anotherSession},
	{name: "Fencepost on etcd", on: "etcd", waits: "told, in order", dial: dialEtcd},
	{name: "bsm/redislock", ours: "Fencepost on Redis", why: "a value at random is written and deleted; ours counts a token, keeps the last one, a line of waiters and the spent lease IDs", on: "redis", waits: "asks every 100 ms", dial: dialRedislock},
	{name: "go-redsync", ours: "Fencepost on Redis", why: "a value at random is written and deleted; ours counts a token, keeps the last one, a line of waiters and the spent lease IDs", on: "redis", waits: "asks every 50 to 250 ms", dial: dialRedsync},
	{name: "Fencepost on Redis", on: "redis", waits: "told, the longest waiting first", dial: dialRedis},
	{name: "ZooKeeper's recipe", ours: "Fencepost on ZooKeeper", why: "the session is there before and is all that a lock lasts by; ours makes nodes for the lease ID and the floor, too, in one transaction", on: "zookeeper", waits: "told, in order", dial: dialZooKeeperLock, another: anotherConnection},
	{name: "Fencepost on ZooKeeper", on: "zookeeper", waits: "told, in order", dial: dialZooKeeper},
	{name: "Fencepost over HTTP, on PostgreSQL", on: "http", waits: "told", dial: dialHTTP},
}

const durability = "Durable means that every commit waits for the disk: PostgreSQL and etcd with fsync, Redis with appendfsync always, ZooKeeper with forceSync. Not durable: PostgreSQL with fsync off, etcd with --unsafe-no-fsync, Redis with appendfsync everysec, ZooKeeper with forceSync=no. An advisory lock is in memory in both. Each server is one process on the same machine; etcd and ZooKeeper are one node. "

// peers compares our leases with today's lock libraries.
var peers = []experiment{
	{name: "pairs", title: "Acquire and release, a key for each client", columns: perCall, run: peerPairs, plot: plotRates,
		about: durability + "All clients are goroutines of one process that share its connections, 16 at most. The ratio is to two prepared UPDATEs of one row, each its own commit. pglock and ShedLock are their statements by hand through pgx, prepared, without heartbeat; etcd's Mutex has a session that is there before and is not counted."},
	{name: "contended", title: "Acquire and release, one key for all", columns: []string{"hand-overs a second", "p50 ms", "p99 ms"}, run: peerContended, plot: plotHandOver,
		about: durability + "Each client is a process of its own as far as the service can see. A hand-over is from the call that gives the lock back until another client has it; nobody takes it twice in a row, and the first two seconds, in which the line forms, do not count. Each has one turn of two seconds. TTL 5 s."},
	{name: "recovery", title: "Recovery from kill -9 of the holder", columns: []string{"median s", "worst s"}, run: peerRecovery,
		about: "A process holds the lock with a TTL of 3 s, renews it as its library does, and is killed at a random moment while another waits; the time is from the kill to the grant. Servers are not durable."},
	{name: "waiters", title: "CPU of 1,000 waiters", columns: []string{"waiters", "client % of a core", "server % of a core"}, run: peerWaiters,
		about: "So many wait in one process for a key that somebody else has; CPU time over three seconds in which nothing happens. Servers are not durable."},
}

// started is a peer whose service runs.
type started struct {
	peer
	*service
}

// startAll starts the available services; a peer whose service is missing
// becomes a row that says so.
func startAll(ctx context.Context, e *env, s *Section, durable bool) ([]started, error) {
	running := map[string]*service{}
	failed := map[string]error{}
	var out []started
	for _, p := range all {
		if running[p.on] == nil && failed[p.on] == nil {
			running[p.on], failed[p.on] = services[p.on](ctx, e, durable)
		}
		if err := failed[p.on]; err != nil {
			if p.floor {
				return nil, err
			}
			s.value("", p.name, nil, "not measured: "+err.Error())
			continue
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
	e.later(l.close)
	return l, nil
}

// missing records a peer that cannot be reached, and continues without it, but
// not without the floor.
func (p started) missing(s *Section, err error) bool {
	if err == nil || p.floor {
		return false
	}
	s.value("", p.name, nil, "not measured: "+err.Error())
	return true
}

func commits(durable bool) string {
	if durable {
		return "durable"
	}
	return "not durable"
}

func peerPairs(ctx context.Context, e *env, s *Section) error {
	for _, durable := range []bool{true, false} {
		if err := e.part(func() error { return pairsOf(ctx, e, s, durable) }); err != nil {
			return err
		}
	}
	s.Reading = faster(s.Rows, "a second", false)
	return nil
}

func pairsOf(ctx context.Context, e *env, s *Section, durable bool) error {
	running, err := startAll(ctx, e, s, durable)
	if err != nil {
		return err
	}
	var ways []Way
	for _, p := range running {
		l, err := p.reach(ctx, e, "bench", time.Minute, 16)
		if p.missing(s, err) {
			continue
		} else if err != nil {
			return err
		}
		ways = append(ways, Way{Name: p.name, Do: timed(func(ctx context.Context, client, _ int) error {
			h, err := l.lock(ctx, fmt.Sprint("key ", client))
			if err != nil {
				return err
			}
			return h.unlock(ctx)
		})})
	}
	for _, clients := range []int{1, 16, 64} {
		figures, err := Compare(ctx, Plan{Clients: clients, Block: 110 * time.Millisecond, Rounds: e.rounds(6)}, ways...)
		if err != nil {
			return err
		}
		s.add(cases(durable, clients), figures, nil)
	}
	return nil
}

// faster says where a peer is faster than ours on the same service, and why, by
// a value that is better if high or, with low, if low.
func faster(rows []Row, value string, low bool) (out []string) {
	for _, p := range all {
		var by []float64
		in := 0
		for _, r := range rows {
			if r.Way != p.name || r.Values[value] == 0 {
				continue
			}
			for _, mine := range rows {
				if mine.Case != r.Case || mine.Way != p.ours || mine.Values[value] == 0 {
					continue
				}
				in++
				factor := r.Values[value] / mine.Values[value]
				if low {
					factor = 1 / factor
				}
				if factor > 1 {
					by = append(by, factor)
				}
			}
		}
		if len(by) > 0 {
			s := spreadOf(by)
			out = append(out, fmt.Sprintf("%s is faster than %s in %d of %d cases, by a factor of up to %s (median of those %s): %s.",
				p.name, p.ours, len(by), in, number(round(maxOf(by), 2)), number(round(s.Median, 2)), p.why))
		}
	}
	return out
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
	for _, c := range []struct {
		durable bool
		clients int
	}{{true, 16}, {true, 64}} {
		if err := e.part(func() error { return contendedBy(ctx, e, s, c.durable, c.clients) }); err != nil {
			return err
		}
	}
	s.Reading = faster(s.Rows, "p50 ms", true)
	return nil
}

func contendedBy(ctx context.Context, e *env, s *Section, durable bool, clients int) error {
	running, err := startAll(ctx, e, s, durable)
	if err != nil {
		return err
	}
	var ways []Way
	notes, asked := map[string]string{}, map[string][]locker{}
	for _, p := range running {
		if p.floor {
			continue
		}
		notes[p.name] = p.waits
		lockers := make([]locker, clients)
		for i := range lockers {
			if lockers[i], err = p.reach(ctx, e, fmt.Sprint("bench-", i), 5*time.Second, 1); err != nil {
				return err
			}
		}
		asked[p.name] = lockers
		r := &relay{}
		ways = append(ways, Way{Name: p.name, Do: func(ctx context.Context, client, _ int) (time.Duration, error) {
			key, err := r.allow(ctx, client)
			if err != nil {
				return 0, err
			}
			h, err := lockers[client].lock(ctx, key)
			if err != nil {
				return 0, err
			}
			took := r.granted(client)
			r.free()
			return took, h.unlock(context.WithoutCancel(ctx))
		}})
	}
	figures, err := Compare(ctx, Plan{Clients: clients, Lead: 2 * time.Second, Block: 2 * time.Second, Rounds: 1, Cut: true}, ways...)
	if err != nil {
		return err
	}
	for name, lockers := range asked {
		repeated := int64(0)
		for _, l := range lockers {
			if ours, ok := l.(*fencepost); ok {
				repeated += ours.again.Load()
			}
		}
		if repeated > 0 {
			notes[name] += fmt.Sprintf("; %d acquires failed as unavailable and were repeated", repeated)
		}
	}
	for _, f := range figures {
		if f.Err != nil {
			s.value(cases(durable, clients), f.Way, nil, "failed: "+f.Err.Error())
			continue
		}
		values := map[string]float64{"hand-overs a second": f.Rate}
		if f.P50 > 0 {
			values["p50 ms"], values["p99 ms"] = millis(f.P50), millis(f.P99)
		}
		s.value(cases(durable, clients), f.Way, values, notes[f.Way])
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

// peerRecovery kills the holders of all libraries at about the same time,
// because it measures waiting.
func peerRecovery(ctx context.Context, e *env, s *Section) error {
	running, err := startAll(ctx, e, s, false)
	if err != nil {
		return err
	}
	const ttl = 3 * time.Second
	took := make([][]float64, len(running))
	errs := make([]error, len(running))
	for range e.rounds(3) {
		var wg sync.WaitGroup
		for k, p := range running {
			if p.floor || errs[k] != nil {
				continue
			}
			wg.Go(func() {
				d, err := recovery(ctx, p, ttl)
				took[k] = append(took[k], d.Seconds())
				errs[k] = err
			})
		}
		wg.Wait()
	}
	for k, p := range running {
		switch {
		case p.floor:
		case errs[k] != nil:
			s.value("", p.name, nil, "failed: "+errs[k].Error())
		default:
			worst := spreadOf(took[k])
			s.value("TTL 3 s", p.name, map[string]float64{"median s": worst.Median, "worst s": maxOf(took[k])}, p.waits)
		}
	}
	return nil
}

func maxOf(values []float64) (m float64) {
	for _, v := range values {
		m = max(m, v)
	}
	return m
}

// recovery returns how long it takes from a holder's death until a waiter has
// its lock.
func recovery(ctx context.Context, p started, ttl time.Duration) (time.Duration, error) {
	key := fmt.Sprint("recovery ", rand.Int64())
	holder, err := startChild("hold", p.name, p.address, key, ttl.String())
	if err != nil {
		return 0, err
	}
	defer holder.kill()
	l, err := p.dial(ctx, p.address, "successor", ttl, 2)
	if err != nil {
		return 0, err
	}
	defer l.close()
	var killed time.Time
	timer := time.AfterFunc(ttl/3+rand.N(ttl), func() { killed = time.Now(); holder.kill() })
	defer timer.Stop()
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	h, err := l.lock(ctx, key)
	if err != nil {
		return 0, err
	}
	d := time.Since(killed)
	if timer.Stop() {
		return 0, errors.New("two clients held the lock at once")
	}
	return d, h.unlock(ctx)
}

// hold runs the child that is killed.
func hold(ctx context.Context, name, address, key string, ttl time.Duration) error {
	for _, p := range all {
		if p.name != name {
			continue
		}
		l, err := p.dial(ctx, address, "holder", ttl, 2)
		if err != nil {
			return err
		}
		h, err := l.lock(ctx, key)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		for range time.Tick(ttl / 3) {
			if h.renew != nil {
				if err := h.renew(ctx); err != nil {
					fmt.Fprintln(os.Stderr, "bench: renew:", err)
				}
			}
		}
	}
	return fmt.Errorf("no peer %q", name)
}

func peerWaiters(ctx context.Context, e *env, s *Section) error {
	running, err := startAll(ctx, e, s, false)
	if err != nil {
		return err
	}
	for _, p := range running {
		if p.floor {
			continue
		}
		values, err := waiters(ctx, e, p, 1000)
		if err != nil {
			s.value("", p.name, nil, "failed: "+err.Error())
			continue
		}
		note := p.waits
		if p.crowd > 0 {
			note += "; a connection for each waiter"
		}
		s.value("", p.name, values, note)
	}
	return nil
}

func waiters(ctx context.Context, e *env, p started, n int) (map[string]float64, error) {
	if p.crowd > 0 {
		n = min(n, p.crowd)
	}
	holder, err := p.dial(ctx, p.address, "holder", 10*time.Minute, 1)
	if err != nil {
		return nil, err
	}
	defer holder.close()
	h, err := holder.lock(ctx, "crowd")
	if err != nil {
		return nil, err
	}
	conns := 16
	if p.crowd > 0 {
		conns = n
	}
	first, err := p.dial(ctx, p.address, "waiters", 10*time.Minute, conns)
	if err != nil {
		return nil, err
	}
	defer first.close()
	crowd := []locker{first}
	for p.another != nil && len(crowd) < n {
		l, err := p.another(ctx, first, 10*time.Minute)
		if err != nil {
			return nil, err
		}
		crowd = append(crowd, l)
		defer l.close()
	}
	var failed atomic.Pointer[error]
	wait, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var early atomic.Int64
	for i := range n {
		wg.Go(func() {
			if got, err := crowd[i%len(crowd)].lock(wait, "crowd"); err == nil {
				early.Add(1)
				got.unlock(ctx)
			} else if wait.Err() == nil {
				failed.Store(&err)
			}
		})
	}
	time.Sleep(2 * time.Second) // until all are queued
	client, server := ownCPU(), cpuOf(p.processes())
	began := time.Now()
	time.Sleep(e.length(3 * time.Second))
	elapsed := time.Since(began)
	values := map[string]float64{
		"waiters":            float64(n),
		"client % of a core": 100 * float64(ownCPU()-client) / float64(elapsed),
		"server % of a core": 100 * float64(cpuOf(p.processes())-server) / float64(elapsed),
	}
	stop()
	wg.Wait()
	if n := early.Load(); n > 0 {
		return nil, fmt.Errorf("%d waiters got a lock that was already held", n)
	}
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return values, h.unlock(ctx)
}
