package lockclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
