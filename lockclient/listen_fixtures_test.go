package lockclient

import (
	"context"
	"encoding/binary"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// mute is a connection that loses the server's notifications and nothing else,
// which is what a pooler in transaction mode does.
type mute struct {
	net.Conn
	lost *atomic.Int64
	rest []byte // of the frame before
}

func (m *mute) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		var head [5]byte
		if _, err := io.ReadFull(m.Conn, head[:]); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(m.Conn, body); err != nil {
			return 0, err
		}
		if head[0] == 'A' {
			m.lost.Add(1)
			continue
		}
		m.rest = append(head[:], body...)
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// behindPooler returns a pool whose connections get no notifications.
func behindPooler(t testing.TB, url string) (*pgxpool.Pool, *atomic.Int64) {
	lost := new(atomic.Int64)
	return dial(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.TLSConfig = nil // frames can be told apart
		c.ConnConfig.Fallbacks = nil
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &mute{Conn: conn, lost: lost}, err
		}
	}), lost
}

// waits starts an Acquire and returns its outcome.
func waits(t testing.TB, c *Client, resource string, ttl time.Duration) <-chan *Lease {
	got := make(chan *Lease, 1)
	go func() {
		lease, err := c.Acquire(context.Background(), resource, &AcquireOptions{TTL: ttl})
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	return got
}

func inLine(c *Client, resource string) int {
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	if l := c.waiters.by[resource]; l != nil {
		return len(l.places)
	}
	return 0
}

// refused reports that a waiter of c has been told who has the lease.
func refused(c *Client, resource string) bool {
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	l := c.waiters.by[resource]
	return l != nil && l.held != nil
}

// ear is a connection that listens for releases.
type ear struct{ *pgxpool.Conn }

func listen(t testing.TB, pool *pgxpool.Pool) ear {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	if _, err := conn.Exec(t.Context(), `LISTEN "`+pglease.Channel+`"`); err != nil {
		t.Fatal(err)
	}
	return ear{conn}
}

// heard returns what the releases have sent up to now, without the tests that
// listeners send to themselves. Notifications arrive in the order of their
// commits, so nothing is missing once a later one has arrived.
func (e ear) heard(t testing.TB, pool *pgxpool.Pool) (payloads []string) {
	t.Helper()
	const last = "test, and the last one"
	mustExec(t, pool, "SELECT pg_notify($1, $2)", pglease.Channel, last)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		n, err := e.Conn.Conn().WaitForNotification(ctx)
		switch {
		case err != nil:
			t.Fatal(err)
		case n.Payload == last:
			return payloads
		case !strings.HasPrefix(n.Payload, "test "):
			payloads = append(payloads, n.Payload)
		}
	}
}

func listens(c *Client) bool { return c.issuer.(*postgres).listening() != nil }

// rests reports that the wake mark is set, so that the next release notifies.
func rests(t testing.TB, pool *pgxpool.Pool, resource string) bool {
	var marked bool
	err := pool.QueryRow(context.Background(), `SELECT coalesce(wake_until > clock_timestamp(), false)
		FROM fencepost.leases WHERE resource = $1`, resource).Scan(&marked)
	if err != nil {
		t.Fatal(err)
	}
	return marked
}

// listeners counts the listening connections to the database.
func listeners(t testing.TB, pool *pgxpool.Pool) (n int) {
	err := pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'LISTEN %'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// counted counts acquires that reach the server.
type counted struct {
	*postgres
	acquires atomic.Int64
}

func (c *counted) acquire(ctx context.Context, r request) (answer, error) {
	c.acquires.Add(1)
	return c.postgres.acquire(ctx, r)
}
