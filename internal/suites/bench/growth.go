package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// growth is how figures change with the size of things.
var growth = []experiment{
	{name: "marks", title: "Marks", columns: []string{"table MiB", "index MiB", "Mark p50 µs", "InTx p50 µs", "Raise p50 µs", "Retire s", "bytes each", "Admit ns"}, run: growMarks, plot: plotMarks,
		about: "So many resources have a mark: in PostgreSQL (not durable, names of 21 bytes), each call for one of them at random, and in `guard.Memory`. Retire deletes all of them in one call."},
	{name: "leasetable", title: "Rows of fencepost.leases", columns: []string{"table MiB", "index MiB", "pair p50 µs", "pair p99 µs"}, run: growLeaseTable,
		about: "Acquire and release of a random one of so many resources that were leased before (not durable, one client)."},
	{name: "waiters", title: "Waiters on one key", columns: []string{"hand-overs a second", "p50 ms", "p99 ms", "client CPU µs", "server CPU µs"}, run: growWaiters, plot: plotWaiters,
		about: "So many wait for one lease on PostgreSQL (durable), in at most 50 clients, each with a listening connection of its own. The CPU time is for one hand-over."},
	{name: "leases", title: "Leases of one process", columns: []string{"acquired in s", "client % of a core", "server % of a core", "renewal p50 ms", "renewal p99 ms", "lost"}, run: growLeases,
		about: "One client keeps so many leases with a TTL of 30 s, each renewed every 10 s at the latest (durable). Measured over one round of renewals."},
	{name: "clients", title: "Clients of one PostgreSQL", columns: []string{"pairs a second", "p50 µs", "p99 µs", "client CPU µs", "server CPU µs", "WAL bytes"}, run: growClients, plot: plotClients,
		about: "Acquire and release, a key for each caller (durable). The callers are goroutines of one client, whose requests travel together, or have a client each, as processes would. CPU time and WAL are for one pair."},
	{name: "shards", title: "Several PostgreSQL servers behind one client", columns: []string{"a second", "p50 µs", "p99 µs", "client CPU µs", "server CPU µs"}, run: growShards, plot: plotRatios,
		about: "64 callers, each with a key of its own; the resource's hash picks one of so many servers (durable). The servers share the machine's cores and its disk with each other and with the client, so the CPU time of a pair says more than the rate."},
}

func (e *env) sizes() []int {
	sizes := []int{10_000, 100_000, 1_000_000}
	if e.huge {
		sizes = append(sizes, 10_000_000)
	}
	return sizes
}

// p50 calls f over and over for a while and returns the median and p99; the
// first tenth does not count.
func p50(ctx context.Context, length time.Duration, f func(i int) error) (half, worst time.Duration, err error) {
	var took []time.Duration
	for began, i := time.Now(), 0; time.Since(began) < length; i++ {
		start := time.Now()
		if err := f(i); err != nil {
			return 0, 0, err
		}
		if took = append(took, time.Since(start)); ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
	}
	return quantile(took[len(took)/10:], 0.5), quantile(took[len(took)/10:], 0.99), nil
}

func relationSizes(ctx context.Context, pool *pgxpool.Pool, table string) (mib, index float64, err error) {
	err = pool.QueryRow(ctx, "SELECT pg_table_size($1::regclass) / 1048576.0, pg_indexes_size($1::regclass) / 1048576.0", table).Scan(&mib, &index)
	return mib, index, err
}

func growMarks(ctx context.Context, e *env, s *Section) error {
	name := func(i int) string { return fmt.Sprintf("tenant_%08d:jobs", i) }
	for _, n := range e.sizes() {
		if err := e.part(func() error { return marksOf(ctx, e, s, n, name) }); err != nil {
			return err
		}
		if err := memoryMarks(ctx, e, s, n, name); err != nil {
			return err
		}
	}
	return nil
}

// marksOf measures a database with n marks.
func marksOf(ctx context.Context, e *env, s *Section, n int, name func(int) string) error {
	x, err := e.scene(ctx, false, 0, guard.SameOrNewer)
	if err != nil {
		return err
	}
	err = execute(ctx, x.pool, fmt.Sprintf("INSERT INTO fencepost.marks (resource, token) SELECT 'tenant_' || lpad(g::text, 8, '0') || ':jobs', 5 FROM generate_series(0, %d) g", n-1),
		"VACUUM ANALYZE fencepost.marks")
	if err != nil {
		return err
	}
	values := map[string]float64{}
	if values["table MiB"], values["index MiB"], err = relationSizes(ctx, x.pool, "fencepost.marks"); err != nil {
		return err
	}
	length := e.length(700 * time.Millisecond)
	for column, call := range map[string]func(i int) error{
		"Mark p50 µs": func(int) error { _, err := x.db.Mark(ctx, name(rand.IntN(n))); return err },
		"InTx p50 µs": func(i int) error {
			return x.db.InTx(ctx, guard.Claim{Resource: name(rand.IntN(n / 2)), Token: 5}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, update, 0, i)
				return err
			})
		},
		"Raise p50 µs": func(i int) error {
			return x.db.Raise(ctx, guard.Claim{Resource: name(n/2 + rand.IntN(n/2)), Token: guard.Token(6 + i)})
		},
	} {
		half, _, err := p50(ctx, length, call)
		if err != nil {
			return err
		}
		values[column] = micros(half)
	}
	began := time.Now()
	if _, err := x.db.Retire(ctx, time.Now().Add(time.Hour)); err != nil {
		return err
	}
	values["Retire s"] = time.Since(began).Seconds()
	s.value(number(float64(n)), "PostgreSQL", values, "")
	return nil
}

// memoryMarks measures guard.Memory.
func memoryMarks(ctx context.Context, e *env, s *Section, n int, name func(int) string) error {
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	names := make([]string, n)
	for i := range names {
		names[i] = name(i)
	}
	before := heap()
	store := guard.NewMemory(&guard.MemoryOptions{MaxResources: n})
	for i := range names {
		// A fresh name, as in a request; and a shared lease ID.
		if _, err := store.Admit(ctx, guard.Claim{Resource: string([]byte(names[i])), Token: 5, LeaseID: "c5b6a1a0-7c1e-4f0e-9d55-6d6b8a9f0e11"}); err != nil {
			return err
		}
	}
	each := (heap() - before) / float64(n)
	const times = 2000
	half, _, err := p50(ctx, e.length(300*time.Millisecond), func(int) error {
		for range times {
			if _, err := store.Admit(ctx, guard.Claim{Resource: names[rand.IntN(n)], Token: 5, LeaseID: "c5b6a1a0-7c1e-4f0e-9d55-6d6b8a9f0e11"}); err != nil {
				return err
			}
		}
		return nil
	})
	s.value(number(float64(n)), "memory", map[string]float64{"bytes each": each, "Admit ns": float64(half.Nanoseconds()) / times}, "")
	runtime.KeepAlive(store)
	return err
}

// issuing returns a lease service on PostgreSQL and a pool.
func (e *env) issuing(ctx context.Context, durable bool) (*service, *pgxpool.Pool, error) {
	svc, err := startPostgres(ctx, e, durable)
	if err != nil {
		return nil, nil, err
	}
	pool, err := e.pool(ctx, svc.address, 16, 0)
	return svc, pool, err
}

func (e *env) client(pool *pgxpool.Pool, owner string, conns int) (*lockclient.Client, error) {
	c, err := lockclient.New(pool, owner, &lockclient.Options{RenewConns: conns})
	if err == nil {
		e.later(func() { c.Close(context.Background()) })
	}
	return c, err
}

func pair(ctx context.Context, c *lockclient.Client, key string) error {
	lease, err := c.TryAcquire(ctx, key, &lockclient.AcquireOptions{TTL: time.Minute})
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

func growLeaseTable(ctx context.Context, e *env, s *Section) error {
	for _, n := range e.sizes() {
		if err := e.part(func() error { return leaseTableOf(ctx, e, s, n) }); err != nil {
			return err
		}
	}
	return nil
}

func leaseTableOf(ctx context.Context, e *env, s *Section, n int) error {
	_, pool, err := e.issuing(ctx, false)
	if err != nil {
		return err
	}
	c, err := e.client(pool, "bench", 4)
	if err != nil {
		return err
	}
	if err := pair(ctx, c, "first"); err != nil { // checks the epoch
		return err
	}
	err = execute(ctx, pool, fmt.Sprintf("INSERT INTO fencepost.leases (resource, token) SELECT 'tenant_' || lpad(g::text, 8, '0') || ':jobs', 1 FROM generate_series(0, %d) g", n-1),
		"VACUUM ANALYZE fencepost.leases")
	if err != nil {
		return err
	}
	mib, index, err := relationSizes(ctx, pool, "fencepost.leases")
	if err != nil {
		return err
	}
	half, worst, err := p50(ctx, e.length(1500*time.Millisecond), func(int) error {
		return pair(ctx, c, fmt.Sprintf("tenant_%08d:jobs", rand.IntN(n)))
	})
	if err != nil {
		return err
	}
	s.value(number(float64(n)), "PostgreSQL", map[string]float64{"table MiB": mib, "index MiB": index, "pair p50 µs": micros(half), "pair p99 µs": micros(worst)}, "")
	return nil
}

func growWaiters(ctx context.Context, e *env, s *Section) error {
	for _, n := range []int{1, 10, 100, 1000} {
		if err := e.part(func() error { return waitersOf(ctx, e, s, n) }); err != nil {
			return err
		}
	}
	return nil
}

func waitersOf(ctx context.Context, e *env, s *Section, n int) error {
	svc, pool, err := e.issuing(ctx, true)
	if err != nil {
		return err
	}
	clients := make([]*lockclient.Client, min(n+1, 50))
	for i := range clients {
		if clients[i], err = e.client(pool, fmt.Sprint("waiter-", i), 1); err != nil {
			return err
		}
	}
	run, stop := context.WithCancel(ctx)
	r := &relay{}
	var mu sync.Mutex
	var took []time.Duration
	measuring := false
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range n + 1 {
		wg.Go(func() {
			for {
				key, err := r.allow(run, i)
				if err != nil {
					return
				}
				lease, err := clients[i%len(clients)].Acquire(run, key, &lockclient.AcquireOptions{TTL: time.Minute})
				if err != nil {
					if run.Err() == nil {
						failed.Store(&err)
					}
					return
				}
				d := r.granted(i)
				mu.Lock()
				if measuring && d > 0 {
					took = append(took, d)
				}
				mu.Unlock()
				r.free()
				if err := lease.Release(context.WithoutCancel(run)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	time.Sleep(time.Second + time.Duration(n)*time.Millisecond)
	client, server := ownCPU(), cpuOf(svc.processes())
	mu.Lock()
	measuring = true
	mu.Unlock()
	began := time.Now()
	time.Sleep(e.length(4 * time.Second))
	mu.Lock()
	measuring = false
	elapsed := time.Since(began)
	mu.Unlock()
	client, server = ownCPU()-client, cpuOf(svc.processes())-server
	stop()
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	each := float64(max(1, len(took)))
	s.value(number(float64(n)), fmt.Sprint(len(clients), " clients"), map[string]float64{
		"hand-overs a second": each / elapsed.Seconds(), "p50 ms": millis(quantile(took, 0.5)), "p99 ms": millis(quantile(took, 0.99)),
		"client CPU µs": float64(client.Microseconds()) / each, "server CPU µs": float64(server.Microseconds()) / each,
	}, "")
	return nil
}

func growLeases(ctx context.Context, e *env, s *Section) error {
	sizes := []int{100, 1_000, 10_000}
	if e.huge {
		sizes = append(sizes, 50_000)
	}
	for _, n := range sizes {
		if err := e.part(func() error { return leasesOf(ctx, e, s, n) }); err != nil {
			return err
		}
	}
	return nil
}

func leasesOf(ctx context.Context, e *env, s *Section, n int) error {
	svc, pool, err := e.issuing(ctx, true)
	if err != nil {
		return err
	}
	c, err := e.client(pool, "bench", 4)
	if err != nil {
		return err
	}
	leases := make([]*lockclient.Lease, n)
	var failed atomic.Pointer[error]
	each := func(f func(i int) error) {
		var wg sync.WaitGroup
		var next atomic.Int64
		for range 64 {
			wg.Go(func() {
				for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
					if err := f(int(i)); err != nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	began := time.Now()
	each(func(i int) (err error) {
		leases[i], err = c.TryAcquire(ctx, fmt.Sprint("lease ", i), &lockclient.AcquireOptions{TTL: 30 * time.Second})
		if err != nil {
			return err
		}
		return leases[i].KeepAlive(0)
	})
	acquired := time.Since(began)
	if err := failed.Load(); err != nil {
		return *err
	}
	time.Sleep(time.Second)
	client, server := ownCPU(), cpuOf(svc.processes())
	began = time.Now()
	time.Sleep(10 * time.Second) // every lease is renewed once
	elapsed := time.Since(began)
	client, server = ownCPU()-client, cpuOf(svc.processes())-server
	lost := 0
	for _, l := range leases {
		if !l.Valid() {
			lost++
		}
	}
	latency := c.RenewalLatency()
	each(func(i int) error { return leases[i].Release(ctx) })
	s.value(number(float64(n)), "one client", map[string]float64{
		"acquired in s": acquired.Seconds(), "client % of a core": 100 * float64(client) / float64(elapsed), "server % of a core": 100 * float64(server) / float64(elapsed),
		"renewal p50 ms": millis(latency.P50), "renewal p99 ms": millis(latency.P99), "lost": float64(lost),
	}, "")
	return nil
}

func growClients(ctx context.Context, e *env, s *Section) error {
	svc, pool, err := e.issuing(ctx, true)
	if err != nil {
		return err
	}
	for _, shape := range []string{"one client", "a client each"} {
		clients := make([]*lockclient.Client, 1)
		if shape != "one client" {
			clients = make([]*lockclient.Client, 64)
		}
		for i := range clients {
			if clients[i], err = e.client(pool, fmt.Sprint("bench-", i), 1+3*btoi(len(clients) == 1)); err != nil {
				return err
			}
		}
		for _, n := range []int{1, 4, 16, 64} {
			values, err := load64(ctx, e, svc, pool, n, func(ctx context.Context, caller int) error {
				return pair(ctx, clients[caller%len(clients)], fmt.Sprint("caller ", caller))
			})
			if err != nil {
				return err
			}
			s.value(number(float64(n)), shape, values, "")
		}
	}
	s.Reading = model(s.Rows)
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// load64 makes n callers call f for a while and returns the cost of a call.
func load64(ctx context.Context, e *env, svc *service, pool *pgxpool.Pool, n int, f func(ctx context.Context, caller int) error) (map[string]float64, error) {
	wal := func() (bytes float64) {
		if pool == nil || pool.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&bytes) != nil {
			return 0
		}
		return bytes
	}
	var failed atomic.Pointer[error]
	var mu sync.Mutex
	var all []time.Duration
	round := func(length time.Duration) (calls int, elapsed time.Duration) {
		var wg sync.WaitGroup
		began := time.Now()
		for caller := range n {
			wg.Go(func() {
				var took []time.Duration
				for time.Since(began) < length {
					start := time.Now()
					if err := f(ctx, caller); err != nil {
						failed.Store(&err)
						return
					}
					took = append(took, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				calls += len(took)
				all = append(all, took...)
			})
		}
		wg.Wait()
		return calls, time.Since(began)
	}
	round(200 * time.Millisecond)
	all = nil
	client, server, bytes := ownCPU(), cpuOf(svc.processes()), wal()
	calls, elapsed := round(e.length(2500 * time.Millisecond))
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	each := float64(max(1, calls))
	return map[string]float64{
		"pairs a second": each / elapsed.Seconds(), "p50 µs": micros(quantile(all, 0.5)), "p99 µs": micros(quantile(all, 0.99)),
		"client CPU µs": float64((ownCPU() - client).Microseconds()) / each, "server CPU µs": float64((cpuOf(svc.processes()) - server).Microseconds()) / each,
		"WAL bytes": (wal() - bytes) / each,
	}, nil
}

// model computes the limits of one PostgreSQL from the cost of a pair at 64
// callers.
func model(rows []Row) []string {
	find := func(cas, way string) map[string]float64 {
		for _, r := range rows {
			if r.Case == cas && r.Way == way {
				return r.Values
			}
		}
		return nil
	}
	together, apart, one := find("64", "one client"), find("64", "a client each"), find("1", "one client")
	if together == nil || apart == nil || one == nil {
		return nil
	}
	const busy = 0.6 // of the server's cores, so that p99 stays near p50
	most := func(values map[string]float64, cores float64) float64 {
		return cores * busy * 1e6 / values["server CPU µs"]
	}
	servers := func(values map[string]float64) float64 { return math.Ceil(1e5 / most(values, 8)) }
	return []string{
		fmt.Sprintf("A pair costs the server %s µs of CPU time where 64 callers share a client, and %s µs where each has its own; that, not the disk, is the limit, since commits of several sessions share one wait for the disk.",
			number(round(together["server CPU µs"], 3)), number(round(apart["server CPU µs"], 3))),
		fmt.Sprintf("Model: at %.0f %% of its cores one PostgreSQL carries cores x %.1f / (CPU time of a pair) pairs a second. That is %s (few large clients) or %s (many small ones) on 8 cores like these, and %s or %s on 32.",
			busy*100, busy, number(round(most(together, 8), 2)), number(round(most(apart, 8), 2)), number(round(most(together, 32), 2)), number(round(most(apart, 32), 2))),
		fmt.Sprintf("100,000 acquisitions a second take %s or %s servers of 8 such cores, each for a part of the resources (see the section on several servers), and %s MB/s of WAL in all. p99 below 10 ms needs a disk whose commit takes less than about 3 ms: a pair is two commits, each waits for at most one other, and here with an idle server a pair takes %s µs.",
			number(servers(together)), number(servers(apart)), number(round(apart["WAL bytes"]*0.1, 2)), number(one["p50 µs"])),
		"What does not spread: one resource is on one server, and its hand-overs are one after the other; see the section on waiters.",
	}
}

func growShards(ctx context.Context, e *env, s *Section) error {
	const callers = 64
	var ways []Way
	cpu := map[string]func() (client, server float64){}
	for _, n := range []int{1, 2, 4} {
		var issuers sharded
		var processes []func() []int
		for range n {
			server, err := pgtest.Start(ctx, &pgtest.Options{Durable: true, Settings: settings})
			if err != nil {
				return err
			}
			e.later(func() { server.Stop() })
			pool, err := e.pool(ctx, server.URL(), max(4, 16/n), 0)
			if err != nil {
				return err
			}
			if err := lockclient.Migrate(ctx, pool); err != nil {
				return err
			}
			issuer, err := lockclient.NewIssuer(pool, &lockclient.Options{RenewConns: 4})
			if err != nil {
				return err
			}
			issuers = append(issuers, issuer)
			processes = append(processes, func() []int { return family(server.PID()) })
		}
		var issuer driver.Issuer = issuers
		if n == 1 {
			issuer = issuers[0]
		}
		c, err := lockclient.NewWith(issuer, "bench", nil)
		if err != nil {
			return err
		}
		e.later(func() { c.Close(context.Background()) })
		name := count(n, "server")
		f := func(ctx context.Context, caller int) error { return pair(ctx, c, fmt.Sprint("caller ", caller)) }
		ways = append(ways, Way{Name: name, Do: timed(func(ctx context.Context, caller, _ int) error { return f(ctx, caller) })})
		cpu[name] = func() (float64, float64) {
			svc := &service{processes: func() []int {
				var all []int
				for _, p := range processes {
					all = append(all, p()...)
				}
				return all
			}}
			values, err := load64(ctx, e, svc, nil, callers, f)
			if err != nil {
				return 0, 0
			}
			return values["client CPU µs"], values["server CPU µs"]
		}
	}
	figures, err := Compare(ctx, Plan{Clients: callers, Block: 300 * time.Millisecond, Rounds: e.rounds(8)}, ways...)
	if err != nil {
		return err
	}
	s.add("64 callers", figures, func(f Figure) map[string]float64 {
		measure, ok := cpu[f.Way]
		if !ok {
			return nil
		}
		client, server := measure()
		return map[string]float64{"client CPU µs": client, "server CPU µs": server}
	})
	return nil
}
