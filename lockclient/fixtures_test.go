package lockclient

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/process"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/inflight"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Shared with the tests of pgadmin.
type (
	recorder = leasetest.Recorder
	proxy    = leasetest.Proxy
)

var (
	mustExec     = leasetest.MustExec
	dial         = leasetest.Dial
	countRows    = leasetest.CountRows
	runOut       = leasetest.RunOut
	byLength     = longtest.ByLength[int]
	behindProxy  = leasetest.BehindProxy
	watchHistory = leasetest.WatchHistory
	history      = leasetest.History
	checkHistory = leasetest.CheckHistory
)

// migrated returns a pool on a fresh database that has the schema.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return leasetest.Migrated(t)
}

// newTestClient returns a client whose limits, unless opts set them, even a busy
// machine keeps: only the tests of limits are about them.
func newTestClient(t testing.TB, pool *pgxpool.Pool, opts *Options) *Client {
	t.Helper()
	return newTuned(t, pool, pglock.Options{}, opts)
}

// newTuned is newTestClient with options of its issuer.
func newTuned(t testing.TB, pool *pgxpool.Pool, tuned pglock.Options, opts *Options) *Client {
	t.Helper()
	var o Options
	if opts != nil {
		o = *opts
	}
	o.OpTimeout = cmp.Or(o.OpTimeout, testkit.Patience)
	if o.Logger == nil {
		o.Logger = testkit.Logger(t)
	}
	tuned.Logger = o.Logger
	c, err := New(leasetest.Patient(guard.Must(pglock.New(pool, &tuned))), "owner of "+t.Name()[:min(len(t.Name()), 80)], &o)
	testkit.Must(t, err)
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// movable gives c a clock that the test moves, instead of waiting for the
// system's. Leases whose deadline is skipped are lost when move returns.
func movable(c *Client) (move func(time.Duration)) {
	m := &moved{Issuer: c.issuer}
	c.issuer, c.clock = m, m.Now
	return func(d time.Duration) {
		m.ahead.Add(int64(d))
		c.keeper.mu.Lock()
		all := slices.Clone(c.keeper.leases)
		c.keeper.mu.Unlock()
		for _, l := range all {
			l.Err() // ends what is over, which the keeper does within a second
		}
	}
}

// moved is an issuer whose holders' clock is ahead.
type moved struct {
	driver.Issuer
	ahead atomic.Int64
}

func (m *moved) Now() time.Duration { return driver.Now() + time.Duration(m.ahead.Load()) }

func (m *moved) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	ahead := time.Duration(m.ahead.Load())
	g, err := m.Issuer.Acquire(ctx, r)
	g.From += ahead
	return g, err
}

func (m *moved) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	ahead := time.Duration(m.ahead.Load())
	m.Issuer.Renew(ctx, renewals, results)
	for n := range results {
		results[n].From += ahead
	}
}

// Why implements driver.Explainer.
func (m *moved) Why(ctx context.Context, claim guard.Claim) error {
	return m.Issuer.(driver.Explainer).Why(ctx, claim)
}

// simulate returns a client of a simulated issuer. It logs nothing unless opts say so.
func simulate(t testing.TB, i driver.Issuer, opts *Options) *Client {
	t.Helper()
	opts = new(pglease.Of(opts))
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	c, err := New(i, "o", opts)
	testkit.Must(t, err)
	return c
}

// simulation is what simulated issuers share.
type simulation struct{ clock func() time.Duration }

func (s simulation) Now() time.Duration  { return s.clock() }
func (simulation) Limits() driver.Limits { return driver.Limits{} }
func (simulation) Close() error          { return nil }
func (simulation) Watch(context.Context, driver.Watch, func()) (driver.Watching, error) {
	return driver.Watching{}, driver.ErrNoWatch
}
func (simulation) Acquire(context.Context, driver.Request) (driver.Grant, error) {
	return driver.Grant{}, errSimulated
}
func (simulation) Renew(context.Context, []driver.Renewal, []driver.Renewed) {}
func (simulation) Release(context.Context, guard.Claim) (bool, error)        { return false, errSimulated }

// alter changes a function of the schema, for a control.
func alter(t testing.TB, pool *pgxpool.Pool, function, from, to string) {
	t.Helper()
	body := leasetest.Value[string](t, pool, "SELECT pg_get_functiondef($1::regproc)", "fencepost."+function)
	altered := strings.Replace(body, from, to, 1)
	if altered == body {
		t.Fatalf("there is no %q to take out", from)
	}
	mustExec(t, pool, altered)
}

// grantSQL asks for one lease and returns its token, 0 if it is refused.
const grantSQL = `SELECT coalesce(max(o_token) FILTER (WHERE o_granted), 0)
	FROM fencepost.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL, 'fencepost.leases'::regclass::oid::bigint)`

// grantArgs returns the arguments of grantSQL.
func grantArgs(resource, id string, ttl time.Duration) []any {
	return []any{[]string{resource}, []string{id}, []string{"o"}, []string{""}, []int64{ttl.Microseconds()},
		[]time.Time{time.Now().Add(time.Hour)}, []bool{false}, "process", "60000"}
}

// patient makes c wait for every answer that is in flight when a context ends.
func patient(c *Client) {
	c.grace = testkit.Patience
	c.issuer.(*pglease.Issuer).Grace = testkit.Patience
}

// waits starts an Acquire and returns its outcome.
func waits(t testing.TB, c *Client, resource string, ttl time.Duration) <-chan *Lease {
	got := make(chan *Lease, 1)
	go func() {
		lease, err := c.Acquire(context.Background(), resource, &AcquireOptions{TTL: ttl})
		testkit.Check(t, err)
		got <- lease
	}()
	return got
}

// refused reports whether a waiter of c has been told who has the lease.
func refused(c *Client, resource string) bool { return c.waiters.Noted(resource) != nil }

// rests reports whether the wake mark is set, so the next release notifies.
func rests(t testing.TB, pool *pgxpool.Pool, resource string) bool {
	return leasetest.Value[bool](t, pool, "SELECT coalesce(wake_until > clock_timestamp(), false) FROM fencepost.leases WHERE resource = $1", resource)
}

func mustTry(t testing.TB, c *Client, resource string, ttl time.Duration) *Lease {
	t.Helper()
	lease, err := c.TryAcquire(t.Context(), resource, &AcquireOptions{TTL: ttl})
	testkit.Must(t, err)
	return lease
}

// row is a row of fencepost.leases.
type row struct {
	Resource, Owner       string
	Token                 int64
	LeaseID               *string
	AcquiredAt, ExpiresAt time.Time
	Live                  bool // by the server's clock
}

func rowOf(t testing.TB, pool *pgxpool.Pool, resource string) row {
	t.Helper()
	var r row
	err := pool.QueryRow(context.Background(), `SELECT resource, owner, token, lease_id, acquired_at, expires_at,
		lease_id IS NOT NULL AND expires_at > clock_timestamp() FROM fencepost.leases WHERE resource = $1`, resource).
		Scan(&r.Resource, &r.Owner, &r.Token, &r.LeaseID, &r.AcquiredAt, &r.ExpiresAt, &r.Live)
	testkit.Must(t, err)
	return r
}

// expectNoGoroutines fails the test if this package still runs something once
// the test and the cleanups registered after this call are over.
func expectNoGoroutines(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		testkit.Eventually(t, "goroutines of lockclient end", func() bool { return len(ownGoroutines()) == 0 })
		for _, stack := range ownGoroutines() {
			t.Log(stack)
		}
	})
}

// ownGoroutines returns the stacks of goroutines that run this package's code
// outside of a test function.
func ownGoroutines() (own []string) {
	buf := make([]byte, 4<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, stack := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(stack, "fencepost/lockclient.") && !strings.Contains(stack, "testing.tRunner") {
			own = append(own, stack)
		}
	}
	return own
}

// startChild starts a copy of the test binary that runs one of [children].
func startChild(t testing.TB, name string, env ...string) *process.Worker {
	t.Helper()
	return process.Work(t, process.Self(append(env, childVariable+"="+name)...))
}

func containsAny(s string, parts ...string) bool {
	for _, part := range parts {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

// leaseFrom returns the lease that Hold put into ctx.
func leaseFrom(ctx context.Context) *Lease {
	lease, _ := guard.LeaseFrom(ctx)
	return lease.(*Lease)
}

// scan reads a line of a child.
func scan(line, format string, args ...any) error {
	_, err := fmt.Sscanf(line, format, args...)
	return err
}

// settled waits until nothing is in progress that Close would wait for.
func settled(c *Client) {
	c.work.Drain(context.Background())
	c.reports.Drain(context.Background())
	if c.open.Err() == nil {
		c.work = inflight.Count{}
	}
}

// childVariable names what a copy of the test binary does instead of testing;
// see [startChild].
const childVariable = "FENCEPOST_LOCKCLIENT_CHILD"

// children are the programs of the copies, by name.
var children = map[string]func() error{}

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		flag.Parse()
		if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
			f.Value.Set("4") // they wait for servers most of the time
		}
		os.Exit(m.Run())
	}
	program := children[name]
	if program == nil {
		fmt.Fprintf(os.Stderr, "no child program %q\n", name)
		os.Exit(2)
	}
	if err := program(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
