package lockclient

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
)

// droppable is a connection that a network can drop silently, as a NAT does:
// nothing arrives any more, and nobody is told.
type droppable struct {
	net.Conn
	dropped *atomic.Bool
}

func (d droppable) Write(b []byte) (int, error) {
	if d.dropped.Load() {
		return len(b), nil
	}
	return d.Conn.Write(b)
}

// network dials, and drops what it has dialed.
type network struct{ current atomic.Pointer[atomic.Bool] }

func (n *network) drop() { n.current.Swap(new(atomic.Bool)).Store(true) }

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
			return droppable{conn, n.current.Load()}, err
		}
	})
}

// TestDroppedConnections: the network drops every connection silently, and the
// leases are renewed on new ones in time. pgx takes 15 seconds to give up each old
// one. (P7)
func TestDroppedConnections(t *testing.T) {
	t.Parallel()
	var n network
	client := newTestClient(t, n.pool(t, migrated(t)), &Options{RenewConns: 1})
	const ttl = 9 * time.Second
	lease := mustTry(t, client, "r", ttl)
	if err := lease.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.drop()
	if err := lease.KeepAlive(0); err != nil {
		t.Fatal(err)
	}
	for left := lease.Remaining(); lease.Remaining() <= left; time.Sleep(10 * time.Millisecond) {
		left = min(left, lease.Remaining())
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNoConnectionForRenewals: a lease is renewed and released on an idle connection
// of the caller's pool if the server allows no other. (P7)
func TestNoConnectionForRenewals(t *testing.T) {
	direct := migrated(t)
	role := "limited_" + strings.ReplaceAll(pglease.NewLeaseID(), "-", "")
	mustExec(t, direct, `CREATE ROLE `+role+` LOGIN CONNECTION LIMIT 1 PASSWORD 'x'; GRANT USAGE ON SCHEMA fencepost TO `+role+`;
		GRANT ALL ON ALL TABLES IN SCHEMA fencepost TO `+role+`; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO `+role)
	t.Cleanup(func() { mustExec(t, direct, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	pool := leasetest.Dial(t, direct.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.User, c.ConnConfig.Password = role, "x"
	})
	client := newTestClient(t, pool, nil)
	lease := mustTry(t, client, "r", time.Minute)
	if _, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig); pgerr.State(err) != "53300" {
		t.Fatalf("the control, another connection: %v", err)
	}
	for range 3 {
		if err := lease.Renew(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
