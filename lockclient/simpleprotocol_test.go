package lockclient

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

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
