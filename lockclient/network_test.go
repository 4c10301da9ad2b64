package lockclient

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

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
	tx, err := direct.Begin(t.Context())
	testkit.Must(t, err)
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var renewals sync.WaitGroup
	for _, l := range leases {
		renewals.Go(func() { l.Renew(t.Context()) })
	}
	pgtest.Blocked(t, direct, "fencepost.renew(", conns)
	for range 20 { // more of them would come by then
		time.Sleep(10 * time.Millisecond)
		var n int
		if err := direct.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%fencepost.renew(%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
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
