package lockhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// TestRestarts: clients acquire and release over HTTP while PostgreSQL is stopped
// and restarted. No token is granted twice, and afterwards nothing is left: no
// goroutine of the server, no connection. The long form has 64 clients, 20 restarts
// and checks that no failure took longer than two seconds, which a busy machine could not
// keep.
func TestRestarts(t *testing.T) {
	clients, restarts := longtest.ByLength(8, 64), longtest.ByLength(1, 20)
	const resources = 16
	server, err := pgtest.Start(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 8
	config.ConnConfig.RuntimeParams["application_name"] = "lockserver"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pglock.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	issuer, err := pglock.New(pool, &pglock.Options{OpTimeout: 1200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	web, handler := serve(t, issuer, everybody, nil)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	seen := map[guard.Claim]string{} // the lease ID, by resource and token
	var pairs, failures, slowest atomic.Int64
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			i, err := lockhttp.NewIssuer(web.URL, &http.Client{Transport: &http.Transport{}})
			if err != nil {
				t.Error(err)
				return
			}
			defer i.Close()
			failed := func(began time.Time, err error) {
				var held *driver.HeldError
				if err == nil || errors.As(err, &held) || ctx.Err() != nil {
					return
				}
				failures.Add(1)
				for took := int64(time.Since(began)); ; {
					if old := slowest.Load(); took <= old || slowest.CompareAndSwap(old, took) {
						break
					}
				}
			}
			for round := 0; ctx.Err() == nil; round++ {
				r := driver.Request{
					Resource: fmt.Sprint("r", (n+round)%resources), LeaseID: fmt.Sprintf("%d-%d", n, round), Owner: "test",
					TTL: 5 * time.Second, Timeout: 5 * time.Second,
				}
				var g driver.Grant
				for { // after a lost answer the request is repeated under the same ID
					began := time.Now()
					g, err = i.Acquire(ctx, r)
					if failed(began, err); !errors.Is(err, guard.ErrOutcomeUnknown) || ctx.Err() != nil {
						break
					}
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
				began := time.Now()
				_, err := i.Release(ctx, claim)
				failed(began, err)
				pairs.Add(1)
			}
		})
	}
	for range restarts {
		before := pairs.Load()
		until(t, func() bool { return pairs.Load() >= before+100 })
		if err := server.StopImmediate(); err != nil {
			t.Error(err)
		}
		missed := failures.Load()
		until(t, func() bool { return failures.Load() > missed })
		if err := server.Restart(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	before := pairs.Load()
	until(t, func() bool { return pairs.Load() >= before+100 })
	cancel()
	wg.Wait()
	t.Logf("%d pairs, %d failures, the slowest answered in %v", pairs.Load(), failures.Load(), time.Duration(slowest.Load()))
	if longtest.Long && time.Duration(slowest.Load()) > 2*time.Second {
		t.Errorf("a failure took %v", time.Duration(slowest.Load()))
	}
	if err := handler.Close(t.Context()); err != nil {
		t.Error(err)
	}
	issuer.Close()
	pool.Close()
	web.CloseClientConnections()
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	until(t, func() bool {
		var left int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockserver'`).Scan(&left)
		return err == nil && left == 0
	})
	until(t, func() bool { return !strings.Contains(stacks(), "lockhttp.(*") })
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
