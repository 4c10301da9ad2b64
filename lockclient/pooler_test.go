package lockclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// behindPgBouncer returns a pool behind PgBouncer in transaction mode, with five
// connections to the server, through a proxy unless that is nil.
func behindPgBouncer(t *testing.T, direct *pgxpool.Pool, through *faultproxy.Proxy) *pgxpool.Pool {
	t.Helper()
	to, lines := direct.Config().ConnConfig, []string{"pool_mode = transaction"}
	if through != nil { // whose tests wait for PgBouncer to give up
		lines = append(lines, "server_login_retry = 1", "query_wait_timeout = 1")
		addr := netip.MustParseAddrPort(through.Addr())
		to.Host, to.Port = addr.Addr().String(), addr.Port()
	}
	pooler := pgtest.PgBouncer(t, to, "five", map[string]int{"five": 5}, lines...)
	return dial(t, fmt.Sprintf("postgres://%s@127.0.0.1:%d/five?sslmode=disable", pooler.User, pooler.Port), func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		c.MaxConns = 10 // twice as many as PgBouncer has
	})
}

// lookAt counts, as another application behind the pooler would, how many of
// its five server processes listen and how many forward a notification that is
// not the application's. It has a transaction open on each of them at the same
// time, so that none is missed. A process sends its notifications at the end of its
// transaction.
func lookAt(t *testing.T, direct, pooled *pgxpool.Pool) (listening, foreign int) {
	t.Helper()
	var txs []pgx.Tx
	for range 5 {
		tx, err := pooled.Begin(t.Context())
		testkit.Must(t, err)
		defer tx.Rollback(context.Background())
		var n int
		testkit.Must(t, tx.QueryRow(t.Context(), "SELECT least(1, count(*)) FROM pg_listening_channels()").Scan(&n))
		listening += n
		txs = append(txs, tx)
	}
	payload := input.NewLeaseID() // a connection may have kept earlier ones
	mustExec(t, direct, `SELECT pg_notify('fencepost.leases', $1)`, payload)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tx := range txs {
		testkit.Must(t, tx.Commit(t.Context()))
		for { // those that came with COMMIT's answer, or before
			n, err := tx.Conn().WaitForNotification(done)
			if err != nil {
				break
			}
			if n.Payload == payload {
				foreign++
			}
		}
	}
	return listening, foreign
}

// TestPoolerNeverListens: behind PgBouncer in transaction mode no server process
// is left listening, so that other applications get no notifications; waiters
// poll and are granted. The control is a client that listens there.
func TestPoolerNeverListens(t *testing.T) {
	t.Parallel()
	for _, poll := range []bool{false, true} {
		t.Run(fmt.Sprint("poll=", poll), func(t *testing.T) {
			t.Parallel()
			direct := migrated(t)
			pooled := behindPgBouncer(t, direct, nil)
			rec := &recorder{}
			client := newTuned(t, pooled, pglock.Options{Poll: poll}, &Options{Logger: slog.New(slog.NewJSONHandler(rec, nil))})
			for range 5 {
				lease := mustTry(t, client, "r", time.Hour)
				got := waits(t, client, "r", time.Hour)
				testkit.Eventually(t, "the refusal", func() bool { return refused(client, "r") })
				testkit.Eventually(t, "the failure to listen", func() bool { return poll || rec.Count("lock_listen_failed") > 0 })
				testkit.Must(t, lease.Release(t.Context()))
				(<-got).Release(t.Context())
			}
			testkit.Must(t, client.Close(t.Context()))
			if listening, foreign := lookAt(t, direct, pooled); listening+foreign > 0 {
				t.Errorf("after Close %d processes listened and %d foreign notifications came", listening, foreign)
			}
			if _, err := pooled.Exec(t.Context(), `LISTEN "fencepost.leases"`); err != nil {
				t.Fatal(err)
			}
			if listening, foreign := lookAt(t, direct, pooled); listening != 1 || foreign != 1 {
				t.Errorf("the control: %d processes listened and %d foreign notifications came", listening, foreign)
			}
		})
	}
}

// hurried is an issuer whose renewals end after limit, unless that is 0.
type hurried struct {
	driver.Issuer
	limit atomic.Int64
}

func (h *hurried) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	if limit := time.Duration(h.limit.Load()); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	h.Issuer.Renew(ctx, renewals, results)
}

// Why implements driver.Explainer.
func (h *hurried) Why(ctx context.Context, claim guard.Claim) error {
	return h.Issuer.(driver.Explainer).Why(ctx, claim)
}

// TestPoolerPauses: PgBouncer stops for longer than renewals wait, as for a switch of
// its server. The attempts that are abandoned meanwhile do not pile up in its queue: what
// is sent after it goes on is carried out, and a lease with some time left is
// kept. The control is a lease that runs out during the pause.
func TestPoolerPauses(t *testing.T) {
	t.Parallel()
	pooled := behindPgBouncer(t, migrated(t), nil)
	config := pooled.Config().ConnConfig.Copy()
	config.Database, config.DefaultQueryExecMode = "pgbouncer", pgx.QueryExecModeSimpleProtocol
	admin, err := pgx.ConnectConfig(t.Context(), config)
	testkit.Must(t, err)
	defer admin.Close(context.Background())
	tell := func(command string) (rows int) {
		t.Helper()
		results, err := admin.PgConn().Exec(t.Context(), command).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		for _, r := range results {
			rows += len(r.Rows)
		}
		return rows
	}
	var events leasetest.Tally
	client := newTestClient(t, pooled, &Options{Observer: &events})
	issuer := &hurried{Issuer: client.issuer}
	client.issuer = issuer
	move := movable(client)
	kept, short := mustTry(t, client, "kept", time.Hour), mustTry(t, client, "short", time.Minute)
	for _, l := range []*Lease{kept, short} {
		testkit.Must(t, l.KeepAlive(20*time.Millisecond))
	}
	tell("PAUSE")
	issuer.limit.Store(int64(20 * time.Millisecond))
	failed := events.Failed(guard.OpRenew)
	testkit.Eventually(t, "renewals that are abandoned", func() bool { return events.Failed(guard.OpRenew) > failed+12 })
	move(10 * time.Minute)
	if short.Valid() || !kept.Valid() {
		t.Errorf("during the pause: the control is held: %t, the other one: %v", short.Valid(), kept.Err())
	}
	// Its own connections, for each of them a request to cancel, the pool's and this one's.
	if n, most := tell("SHOW CLIENTS"), 2*4*4+10+1; n > most {
		t.Errorf("PgBouncer has %d clients, at most %d are expected", n, most)
	}
	issuer.limit.Store(0)
	tell("RESUME")
	testkit.Eventually(t, "a renewal", func() bool { return kept.Remaining() > 55*time.Minute || !kept.Valid() })
	if !kept.Valid() {
		t.Errorf("lost after the pooler went on: %v", kept.Err())
	}
}

// TestPoolerWithoutServer: what PgBouncer answers while it cannot reach its server is
// known not to have been passed on. A response that was lost when the server went away is
// not: that is the control.
func TestPoolerWithoutServer(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	c := direct.Config().ConnConfig
	network, backend := pgconn.NetworkAddress(c.Host, c.Port)
	through, err := faultproxy.New(network, backend, nil)
	testkit.Must(t, err)
	t.Cleanup(through.Close)
	client := newTestClient(t, behindPgBouncer(t, direct, through), nil)
	issuer := client.issuer
	lease := mustTry(t, client, "kept", time.Hour)
	request := driver.Request{Resource: "r", Owner: "somebody", TTL: time.Minute, Timeout: testkit.Patience}
	through.Hold()
	lost := make(chan error, 1)
	go func() {
		r := request
		r.LeaseID = "lost"
		_, err := issuer.Acquire(context.Background(), r)
		lost <- err
	}()
	testkit.Eventually(t, "a request in flight", func() bool { return through.Held() > 0 })
	through.Down()
	through.Release()
	if err := testkit.Receive(t, "the end of that request", lost); !errors.Is(err, guard.ErrOutcomeUnknown) {
		t.Errorf("the control: %v", err)
	}
	sessions := 0
	testkit.Eventually(t, "PgBouncer says so in a session", func() bool {
		r := request
		r.LeaseID = input.NewLeaseID()
		_, err := issuer.Acquire(t.Context(), r)
		if !errors.Is(err, guard.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "08P01" && !errors.As(err, new(*pgconn.ConnectError)) {
			sessions++
		}
		return sessions > 2
	})
	testkit.Eventually(t, "the proxy has its port again", func() bool { return through.Up() == nil })
	testkit.Eventually(t, "a renewal", func() bool { return lease.Renew(t.Context()) == nil })
	var granted int
	if err := direct.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource = 'r'").Scan(&granted); err != nil || granted > 0 {
		t.Errorf("%d leases were granted, %v", granted, err)
	}
}
