package lockclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// warm prepares every statement on the connections in use, so that the next
// chunk from the server is the answer to a statement.
func warm(t *testing.T, c *Client) {
	t.Helper()
	for range 3 {
		lease := mustTry(t, c, "warm", time.Hour)
		testkit.Must(t, lease.Renew(t.Context()))
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// unhurried is an issuer whose exchanges end by themselves.
type unhurried struct{ *pglease.Issuer }

func (u unhurried) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.Timeout = testkit.Patience
	return u.Issuer.Acquire(context.WithoutCancel(ctx), r)
}

func (u unhurried) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	u.Issuer.Renew(context.WithoutCancel(ctx), renewals, results)
}

func (u unhurried) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	return u.Issuer.Release(context.WithoutCancel(ctx), claim)
}

// TestOutcomeUnknown: if every answer is lost, nothing is called success or
// refusal, the error names the lease, and what was granted is released once the
// network lets that through.
func TestOutcomeUnknown(t *testing.T) {
	expectNoGoroutines(t)
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	lease := mustTry(t, client, "mine", time.Hour)
	client.issuer = unhurried{client.issuer.(*pglease.Issuer)}
	client.set.OpTimeout = time.Nanosecond // one attempt, which takes as long as it takes
	proxy.Cut.Store(1 << 40)
	if err := lease.Renew(t.Context()); !errors.Is(err, guard.ErrOutcomeUnknown) || !lease.Valid() {
		t.Errorf("renew: %v, valid %t", err, lease.Valid())
	}
	proxy.Cut.Store(0) // the renewal has used up the connections
	client.set.OpTimeout = testkit.Patience
	warm(t, client)
	client.set.OpTimeout = time.Nanosecond
	proxy.Cut.Store(1 << 40)
	_, err := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
	var failed *guard.FailedError
	if !errors.Is(err, guard.ErrOutcomeUnknown) || !errors.As(err, &failed) || failed.Claim.Resource != "r" || failed.Claim.LeaseID == "" {
		t.Fatalf("acquire: %v", err)
	}
	testkit.Eventually(t, "the server grants (the control)", func() bool {
		var n int
		err := direct.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource = 'r' AND lease_id = $1", failed.Claim.LeaseID).Scan(&n)
		return err == nil && n == 1
	})
	proxy.Cut.Store(0)
	testkit.Eventually(t, "the grant that nobody got is released", func() bool { return !rowOf(t, direct, "r").Live })
	settled(client)
	client.set.OpTimeout = testkit.Patience
	if err := lease.Renew(t.Context()); err != nil {
		t.Errorf("renew after the fault: %v", err)
	}

	proxy.Cut.Store(1 << 40)
	client.set.OpTimeout = time.Nanosecond
	if err := lease.Release(t.Context()); !errors.Is(err, guard.ErrOutcomeUnknown) || lease.Valid() || lease.Err() != ErrReleased {
		t.Errorf("release: %v, valid %t, Err %v", err, lease.Valid(), lease.Err())
	}
	proxy.Cut.Store(0)
	client.set.OpTimeout = testkit.Patience
	if err := lease.Release(t.Context()); err != nil || rowOf(t, direct, "mine").Live {
		t.Errorf("released again: %v, row %+v", err, rowOf(t, direct, "mine"))
	}
}

// TestCancelledInFlight: the client waits a moment for an attempt in flight
// when its context ends, so that its outcome is known: a grant is released, a
// refusal names the holder, and the connection survives.
func TestCancelledInFlight(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	client := newTestClient(t, pool, nil)
	warm(t, client)
	holder := mustTry(t, client, "held", time.Hour)
	conns := pool.Stat().NewConnsCount()
	patient(client) // a busy machine takes longer than a moment
	// The context ends when the answer has reached the proxy.
	try := func(resource string) (*Lease, error) {
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(t.Context())
		end := func() { cancel(mine) }
		proxy.Answered.Store(&end)
		defer proxy.Answered.Store(nil)
		lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: time.Hour})
		if ctx.Err() == nil || resource == "r" && !errors.Is(err, mine) {
			t.Errorf("the context did not end: %v", err)
		}
		return lease, err
	}
	for range 3 {
		lease, err := try("r")
		if lease != nil || !errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("got %v, %v", lease, err)
		}
		if r := rowOf(t, direct, "r"); r.Live || r.Token == 0 {
			t.Errorf("the row is %+v", r)
		}
		_, err = try("held")
		var held *HeldError
		if !errors.As(err, &held) || held.Token != holder.Token() {
			t.Errorf("got %v", err)
		}
	}
	if n := pool.Stat().NewConnsCount() - conns; n != 0 {
		t.Errorf("%d connections were lost", n)
	}
}

// droppable is a connection that a network can drop silently, as a NAT does:
// nothing arrives any more, and nobody is told.
type droppable struct {
	net.Conn
	network *network
	dropped *atomic.Bool
}

func (d droppable) Write(b []byte) (int, error) {
	if d.dropped.Load() {
		if b[0] == 'X' { // the driver takes leave
			return len(b), nil
		}
		d.network.swallowed.Add(1)
		if f := d.network.swallows.Load(); f != nil {
			(*f)()
		}
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// network dials, and drops what it has dialed.
type network struct {
	current   atomic.Pointer[atomic.Bool]
	swallowed atomic.Int64           // requests that went into a dropped connection
	swallows  atomic.Pointer[func()] // is called then
}

func (n *network) drop() { n.current.Swap(new(atomic.Bool)).Store(true) }

// impatient is an issuer whose renewals end when their request was swallowed, and not
// before, however slow the machine is.
type impatient struct {
	driver.Issuer
	network *network
}

func (i impatient) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	i.network.swallows.Store(new(func() { cancel() }))
	i.Issuer.Renew(ctx, renewals, results)
}

// pool connects through the network.
func (n *network) pool(t *testing.T, direct *pgxpool.Pool) *pgxpool.Pool {
	n.current.Store(new(atomic.Bool))
	return leasetest.Dial(t, direct.Config().ConnString(), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil {
				context.AfterFunc(t.Context(), func() { conn.Close() }) // pgx waits for its end
			}
			return droppable{conn, n, n.current.Load()}, err
		}
	})
}

// open makes a client use as many connections for renewals as it may: it renews
// leases whose rows are locked. It returns how many renewals wait at once.
func open(t *testing.T, direct *pgxpool.Pool, client *Client, conns int) (most int) {
	t.Helper()
	var leases []*Lease
	for n := range conns + 3 {
		leases = append(leases, mustTry(t, client, fmt.Sprint("opens ", n), time.Hour))
	}
	tx := leasetest.Begun(t, direct, "SELECT FROM fencepost.leases FOR UPDATE")
	var renewals sync.WaitGroup
	for _, l := range leases {
		renewals.Go(func() { l.Renew(t.Context()) })
	}
	pgtest.Blocked(t, direct, "fencepost.renew(", conns)
	for range 20 { // more of them would come by then
		time.Sleep(10 * time.Millisecond)
		most = max(most, leasetest.Value[int](t, direct, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%fencepost.renew(%'`))
	}
	tx.Rollback(context.Background())
	renewals.Wait()
	return most
}

// TestDroppedConnections: the network drops every connection silently, and one attempt
// without a response is enough: the next one does not try another dropped connection,
// whether one or several had been opened. pgx takes 15 seconds to give up each
// of them. (P7)
func TestDroppedConnections(t *testing.T) {
	t.Parallel()
	for _, conns := range []int{1, 8} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			t.Parallel()
			var n network
			direct := migrated(t)
			client := newTuned(t, n.pool(t, direct), pglock.Options{RenewConns: conns}, nil)
			if most := open(t, direct, client, conns); most != conns {
				t.Errorf("%d renewals at once, RenewConns is %d", most, conns)
			}
			lease := mustTry(t, client, "r", time.Hour)
			client.issuer = impatient{client.issuer, &n}
			n.drop()
			before := lease.Remaining()
			testkit.Must(t, lease.KeepAlive(20*time.Millisecond))
			testkit.Eventually(t, "a renewal", func() bool { return lease.Remaining() > before })
			if swallowed := n.swallowed.Load(); swallowed != 1 {
				t.Errorf("%d renewals went into dropped connections, want 1", swallowed)
			}
		})
	}
}

// P5, P4: over the simple protocol pgx 5.12.0 reports a lost answer as "conn
// closed" and safe to retry. It is neither: the grant may exist, and the
// acquire must find it rather than say that nothing was written.
func TestLostAnswerOverSimpleProtocol(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	behind, proxy := behindProxy(t, direct.Config().ConnString())
	config := behind.Config()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	c := newTestClient(t, pool, nil)
	warm(t, c)
	proxy.Cut.Store(4) // the grant's, and those of the connections that are tried next
	lease, err := c.TryAcquire(t.Context(), "simple", &AcquireOptions{TTL: time.Hour})
	if err != nil {
		t.Fatalf("the grant whose answer was lost was not found: %v", err)
	}
	if proxy.Cut.Load() != 0 {
		t.Fatal("no answer was lost: the test shows nothing")
	}
	if lease.Token() != 1 {
		t.Errorf("token %v, want the 1 of the lost answer", lease.Token())
	}
}

// TestPoolExhausted: a pool without a free connection is distinguished from a
// server that does not answer: nothing was sent.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	pool := dial(t, base.Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 1 })
	conn, err := pool.Acquire(t.Context())
	testkit.Must(t, err)
	defer conn.Release()
	client := newTestClient(t, pool, &Options{OpTimeout: 50 * time.Millisecond})
	_, err = client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
	if !errors.Is(err, guard.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if n := countRows(t, base); n != 0 {
		t.Errorf("%d rows were made", n)
	}
}

// TestIdleConnectionsBroken: connections that broke while idle cause no error:
// an acquire, a renewal and a release each try another one.
func TestIdleConnectionsBroken(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	pool := dial(t, base.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "breaks"
	})
	client := newTestClient(t, pool, nil)
	warm(t, client)
	breakAll := func() {
		t.Helper()
		mustExec(t, base, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'breaks' AND datname = current_database()")
	}
	breakAll()
	lease := mustTry(t, client, "r", time.Hour)
	breakAll()
	if err := lease.Renew(t.Context()); err != nil {
		t.Errorf("renew: %v", err)
	}
	breakAll()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if n := rowOf(t, base, "r"); n.Live || n.Token != 1 {
		t.Errorf("the row is %+v", n)
	}
}
