package pgadmin

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Shared with the tests of lockclient.
const patience = testkit.Patience

type (
	recorder = leasetest.Recorder
)

var (
	mustExec     = leasetest.MustExec
	eventually   = testkit.Eventually
	byLength     = longtest.ByLength[int]
	dial         = leasetest.Dial
	countRows    = leasetest.CountRows
	runOut       = leasetest.RunOut
	behindProxy  = leasetest.BehindProxy
	watchHistory = leasetest.WatchHistory
	history      = leasetest.History
	checkHistory = leasetest.CheckHistory
)

// Client is a process that holds leases and an operator.
type Client struct {
	*lockclient.Client
	*Operator
}

// newTestClient returns a client and an operator whose limits, unless opts set
// them, even a busy machine keeps.
func newTestClient(t testing.TB, pool *pgxpool.Pool, opts *lockclient.Options) *Client {
	t.Helper()
	var o lockclient.Options
	var lockTimeout time.Duration // the default
	if opts != nil {
		o = *opts
	}
	o.Logger = cmp.Or(o.Logger, testkit.Logger(t))
	if o.OpTimeout == 0 {
		o.OpTimeout, lockTimeout = patience, patience/2
	}
	return newTuned(t, pool, lockTimeout, o)
}

// newTuned is newTestClient with another bound on waiting for a row.
func newTuned(t testing.TB, pool *pgxpool.Pool, lockTimeout time.Duration, o lockclient.Options) *Client {
	t.Helper()
	issuer := leasetest.Patient(guard.Must(pglock.New(pool, &pglock.Options{Logger: o.Logger})))
	issuer.LockTimeout = lockTimeout
	c, err := lockclient.New(issuer, "owner of "+t.Name()[:min(len(t.Name()), 80)], &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	op, err := New(pool, &Options{
		Logger: o.Logger, Observer: o.Observer, OpTimeout: o.OpTimeout, LockTimeout: lockTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	op.reportFor = patience // tests read what is logged
	return &Client{c, op}
}

// migrated returns a pool on a fresh database that has the schema.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return leasetest.Migrated(t)
}

// nowhere is a pool for calls that send nothing.
func nowhere(t testing.TB) *pgxpool.Pool {
	return dial(t, "postgres://nobody@127.0.0.1:1/none")
}

func mustTry(t testing.TB, c *Client, resource string, ttl time.Duration) *lockclient.Lease {
	t.Helper()
	lease, err := c.TryAcquire(t.Context(), resource, &lockclient.AcquireOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
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
	err := pool.QueryRow(context.Background(), `SELECT resource, owner, token, lease_id, CASE WHEN isfinite(acquired_at) THEN acquired_at ELSE 'epoch' END, expires_at,
		lease_id IS NOT NULL AND expires_at > clock_timestamp() FROM fencepost.leases WHERE resource = $1`, resource).
		Scan(&r.Resource, &r.Owner, &r.Token, &r.LeaseID, &r.AcquiredAt, &r.ExpiresAt, &r.Live)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
