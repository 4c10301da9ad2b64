package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// TestRestarts: clients acquire and release over HTTP while PostgreSQL is stopped
// and restarted. No token is granted twice, and afterwards nothing is left: no
// goroutine of the server, no connection. The long form has 64 clients and 8 restarts.
func TestRestarts(t *testing.T) {
	clients, restarts := longtest.ByLength(8, 64), longtest.ByLength(1, 8)
	const resources = 16
	server, err := pgtest.Start(t.Context(), nil)
	testkit.Must(t, err)
	defer server.Stop()
	config, err := pgxpool.ParseConfig(server.URL())
	testkit.Must(t, err)
	config.MaxConns = 8
	config.ConnConfig.RuntimeParams["application_name"] = "lockserver"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testkit.Must(t, err)
	defer pool.Close()
	testkit.Must(t, pglock.Migrate(t.Context(), pool))
	issuer := leasetest.Patient(guard.Must(pglock.New(pool, nil)))
	web, handler := serve(t, issuer, everybody, nil)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	seen := map[guard.Claim]string{} // the lease ID, by resource and token
	var pairs, failures atomic.Int64
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			i, err := lockhttp.NewIssuer(web.URL, &http.Client{Transport: &http.Transport{}})
			if err != nil {
				t.Error(err)
				return
			}
			defer i.Close()
			failed := func(err error) {
				if _, held := errors.AsType[*driver.HeldError](err); err != nil && !held && ctx.Err() == nil {
					failures.Add(1)
				}
			}
			for round := 0; ctx.Err() == nil; round++ {
				r := driver.Request{
					Resource: fmt.Sprint("r", (n+round)%resources), LeaseID: fmt.Sprintf("%d-%d", n, round), Owner: "test",
					TTL: 30 * time.Second, Timeout: testkit.Patience, // what a delayed request is granted runs out
				}
				var g driver.Grant
				for { // after a lost answer the request is repeated under the same ID
					g, err = i.Acquire(ctx, r)
					failed(err)
					if _, held := errors.AsType[*driver.HeldError](err); err == nil || held || ctx.Err() != nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				if err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				claim := guard.Claim{Resource: r.Resource, Token: g.Token}
				mu.Lock()
				if other, twice := seen[claim]; twice && other != r.LeaseID {
					t.Errorf("%v was granted to %s and to %s", claim, other, r.LeaseID)
				}
				seen[claim] = r.LeaseID
				mu.Unlock()
				claim.LeaseID = r.LeaseID
				for { // a lease that stays would keep the others out
					_, err := i.Release(ctx, claim)
					if failed(err); err == nil || ctx.Err() != nil {
						break
					}
					time.Sleep(time.Millisecond)
				}
				pairs.Add(1)
			}
		})
	}
	for range restarts {
		before := pairs.Load()
		testkit.Eventually(t, "a hundred pairs", func() bool { return pairs.Load() >= before+100 })
		testkit.Check(t, server.StopImmediate())
		missed := failures.Load()
		testkit.Eventually(t, "a failure", func() bool { return failures.Load() > missed })
		testkit.Must(t, server.Restart(context.WithoutCancel(t.Context())))
	}
	before := pairs.Load()
	testkit.Eventually(t, "a hundred pairs", func() bool { return pairs.Load() >= before+100 })
	cancel()
	wg.Wait()
	t.Logf("%d pairs, %d failures", pairs.Load(), failures.Load())
	testkit.Check(t, handler.Close(t.Context()))
	issuer.Close()
	pool.Close()
	web.CloseClientConnections()
	conn, err := pgx.Connect(t.Context(), server.URL())
	testkit.Must(t, err)
	defer conn.Close(t.Context())
	testkit.Eventually(t, "the end of the connections", func() bool {
		var left int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockserver'`).Scan(&left)
		return err == nil && left == 0
	})
	testkit.Eventually(t, "the end of the server's goroutines", func() bool { return !strings.Contains(stacks(), "lockhttp.(*") })
}

func stacks() string {
	buf := make([]byte, 4<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// BenchmarkPairs compares an acquire and a release over HTTP on loopback with the
// same on the issuer itself.
func BenchmarkPairs(b *testing.B) {
	issuer, _, _ := postgres(b, 8)
	web, _ := serve(b, issuer, everybody, nil)
	for _, way := range []struct {
		name   string
		issuer driver.Issuer
	}{{"direct", issuer}, {"http", connect(b, web.URL)}} {
		for _, parallel := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", way.name, parallel), func(b *testing.B) {
				var next atomic.Int64
				var wg sync.WaitGroup
				for n := range parallel {
					wg.Go(func() {
						for round := next.Add(1); round <= int64(b.N); round = next.Add(1) {
							r := driver.Request{
								Resource: fmt.Sprintf("%s-%d-%d", way.name, parallel, n), LeaseID: fmt.Sprintf("%s-%d-%d", way.name, b.N, round),
								Owner: "bench", TTL: time.Minute, Timeout: time.Minute,
							}
							g, err := way.issuer.Acquire(b.Context(), r)
							if err == nil {
								_, err = way.issuer.Release(b.Context(), guard.Claim{Resource: r.Resource, Token: g.Token, LeaseID: r.LeaseID})
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			})
		}
	}
}
