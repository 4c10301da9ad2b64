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
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tracked notices requests that arrive when it is closed.
type tracked struct {
	*memory.Issuer
	closed atomic.Bool
	late   atomic.Int64
}

func (c *tracked) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if c.closed.Load() {
		c.late.Add(1)
	}
	return c.Issuer.Acquire(ctx, r)
}

func (c *tracked) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	if c.closed.Load() {
		c.late.Add(1)
	}
	return c.Issuer.Release(ctx, claim)
}

// TestRequestsDuringClose: requests arrive before, while and after the server is
// closed, as they do while an http.Server shuts down. Each is answered, and when
// Close has returned the issuer, which is closed then, gets none of them.
func TestRequestsDuringClose(t *testing.T) {
	t.Parallel()
	for range 20 {
		issuer := &tracked{Issuer: memory.NewServer().Issuer()}
		h := open(t, issuer, everybody, nil)
		var wg sync.WaitGroup
		var stop atomic.Bool
		var carriedOut, refused atomic.Int64
		for n := range 8 {
			wg.Go(func() {
				for !stop.Load() {
					got := record(h, "POST", "/v1/locks/acquire", "", fmt.Sprintf(`{"resource":"r%d","ttlSeconds":600}`, n))
					switch got.status {
					case 200, 409:
						carriedOut.Add(1)
					case 503:
						refused.Add(1)
					default:
						t.Errorf("%d %s", got.status, got.text)
					}
				}
			})
		}
		testkit.Eventually(t, "a request that is carried out", func() bool { return carriedOut.Load() > 0 })
		testkit.Check(t, h.Close(t.Context()))
		issuer.closed.Store(true)
		before := refused.Load()
		testkit.Eventually(t, "requests after it was closed", func() bool { return refused.Load() >= before+8 })
		stop.Store(true)
		wg.Wait()
		if n := issuer.late.Load(); n > 0 {
			t.Fatalf("the issuer is closed and gets %d requests", n)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		for _, request := range []struct{ method, path, body string }{
			{"GET", "/readyz", ""}, {"GET", "/v1/resources/r", ""}, {"DELETE", "/v1/locks/L?resource=r", ""},
			{"GET", "/v1/watch?resource=r", ""}, {"POST", "/v1/locks/L/renew", `{"resource":"r","fencingToken":1,"ttlSeconds":600}`},
		} {
			record(h, request.method, request.path, "", request.body).want(t, http.StatusServiceUnavailable, "unavailable")
		}
	}
}

// between runs something after the first exchange of two.
type between struct {
	driver.Issuer
	lockadmin.Admin
	then func()
}

func (b between) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := b.Issuer.Acquire(ctx, r)
	b.then()
	return g, err
}

func (b between) ForceUnlock(_ context.Context, resource, _, _ string, opts *lockadmin.ForceUnlockOptions) (lockadmin.ForceUnlocked, error) {
	b.then()
	return lockadmin.ForceUnlocked{Invalidated: guard.Claim{Resource: resource, Token: 2, LeaseID: opts.RequestID}}, nil
}

// TestCloseBetweenTwo: Close waits for a request of two exchanges until both are
// done: an invalidated claim is raised, and the lease of a readiness probe released.
func TestCloseBetweenTwo(t *testing.T) {
	t.Parallel()
	for _, request := range []struct{ method, path, body, answer string }{
		{"POST", "/v1/resources/r/force-unlock", `{"actorId":"me","reason":"stuck"}`, `"raised":true`},
		{"GET", "/readyz", "", `"ok":true`},
	} {
		var raised atomic.Int64
		var h *lockhttp.Server
		closed := make(chan error, 1)
		issuer := memory.NewServer().Issuer()
		b := between{Issuer: issuer, then: func() {
			go func() { closed <- h.Close(context.Background()) }()
			testkit.Eventually(t, "the first refusal", func() bool {
				return record(h, "POST", "/v1/locks/acquire", "", `{"resource":"x","ttlSeconds":600}`).status == http.StatusServiceUnavailable
			})
			if request.method == "GET" { // it is what is asked
				return
			}
			record(h, "GET", "/readyz", "", "").want(t, http.StatusServiceUnavailable) // it refuses every acquire
		}}
		h = open(t, b, everybody, &lockhttp.Options{Admin: b, Raise: func(context.Context, guard.Claim) error { raised.Add(1); return nil }})
		if got := record(h, request.method, request.path, "", request.body); got.status != 200 || !strings.Contains(got.text, request.answer) {
			t.Errorf("%s: %d %s", request.path, got.status, got.text)
		}
		testkit.Check(t, <-closed)
		if request.method == "POST" && raised.Load() != 1 {
			t.Error("the invalidated claim was not raised")
		}
		if _, err := issuer.Acquire(t.Context(), driver.Request{Resource: "fencepost-readyz", LeaseID: "l", Owner: "o", TTL: time.Minute, Timeout: time.Minute}); err != nil {
			t.Errorf("the probe's lease: %v", err)
		}
	}
}

// TestCloseGivesUp: Close returns when its context ends, although the issuer still
// does not answer.
func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	forever := make(chan struct{})
	defer close(forever)
	h := open(t, stuck{memory.NewServer().Issuer(), forever}, everybody, &lockhttp.Options{Timeout: time.Millisecond})
	record(h, "DELETE", "/v1/locks/L?resource=r", "", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); guard.ReasonOf(err) != guard.ReasonUnavailable {
		t.Errorf("%v", err)
	}
}

// down answers nothing.
type down struct{ *memory.Issuer }

func (down) Acquire(_ context.Context, r driver.Request) (driver.Grant, error) {
	return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errors.New("down"))
}

func (down) Release(_ context.Context, claim guard.Claim) (bool, error) {
	return false, guard.Unavailable("release", claim, errors.New("down"))
}

// TestCloseWhileTheIssuerIsDown: what may have been granted to nobody is released
// until it has run out, which Close does not wait for.
func TestCloseWhileTheIssuerIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, down{memory.NewServer().Issuer()}, everybody, &lockhttp.Options{Timeout: usual})
		record(h, "POST", "/v1/locks/acquire", "", `{"resource":"r","ttlSeconds":3600}`).want(t, http.StatusInternalServerError)
		began := time.Now()
		if err := h.Close(t.Context()); err != nil || time.Since(began) > 20*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

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
