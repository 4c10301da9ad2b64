package lockhttp_test

import (
	"cmp"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// everybody trusts every caller.
func everybody(*http.Request) (*lockhttp.Identity, error) {
	return &lockhttp.Identity{Subject: "test", AllResources: true, Operator: true}, nil
}

// usual is the default of [lockhttp.Options.Timeout], for tests in a bubble.
const usual = 1500 * time.Millisecond

// open returns a lock server that logs to the test and, unless opts say otherwise, waits for
// its issuer for as long as a slow machine needs.
func open(t testing.TB, issuer driver.Issuer, who lockhttp.Authenticate, opts *lockhttp.Options) *lockhttp.Server {
	t.Helper()
	o := lockhttp.Options{Timeout: testkit.Patience, ReadyWithin: testkit.Patience, Logger: testkit.Logger(t)}
	if opts != nil {
		o = *opts
		o.Timeout = cmp.Or(o.Timeout, testkit.Patience)
		o.ReadyWithin = cmp.Or(o.ReadyWithin, testkit.Patience)
		o.Logger = cmp.Or(o.Logger, testkit.Logger(t))
	}
	o.ShowHolders = true // TestHoldersAreHidden has the default
	return guard.Must(lockhttp.New(issuer, who, &o))
}

// serve runs a lock server as from open for the test's duration.
func serve(t testing.TB, issuer driver.Issuer, who lockhttp.Authenticate, opts *lockhttp.Options) (*httptest.Server, *lockhttp.Server) {
	t.Helper()
	handler := open(t, issuer, who, opts)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		testkit.Check(t, handler.Close(ctx))
		server.Close()
	})
	return server, handler
}

// connect returns the Go client, with connections of its own.
func connect(t testing.TB, url string) driver.Issuer {
	t.Helper()
	i := guard.Must(lockhttp.NewIssuer(url, &http.Client{Transport: &http.Transport{}}))
	t.Cleanup(func() { i.Close() })
	return i
}

func harness(server *httptest.Server) drivertest.Harness {
	return drivertest.Harness{
		Issuer: func(t testing.TB) driver.Issuer { return connect(t, server.URL) },
		Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
			proxy := drivertest.NewProxy(t, "tcp", server.Listener.Addr().String())
			return connect(t, "http://"+proxy.Addr()), proxy
		},
	}
}

// TestConformanceOnMemory: the client and the server together are an issuer.
func TestConformanceOnMemory(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		memory := memory.NewServer()
		server, _ := serve(t, memory.Issuer(), everybody, nil)
		h := harness(server)
		h.Pass = memory.Move
		h.Purge = func(testing.TB) {} // it keeps every resource
		return h
	})
}

// TestConformanceOnPostgreSQL: likewise, with two servers on one database.
func TestConformanceOnPostgreSQL(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		pool := leasetest.Migrated(t)
		var servers []*httptest.Server
		for range 2 {
			issuer := leasetest.Patient(guard.Must(pglock.New(pool, nil)))
			t.Cleanup(func() { issuer.Close() })
			server, _ := serve(t, issuer, everybody, nil)
			servers = append(servers, server)
		}
		h := harness(servers[0])
		next := 0
		h.Issuer = func(t testing.TB) driver.Issuer {
			next++
			return connect(t, servers[next%2].URL)
		}
		h.TTL = time.Minute
		// The server's clock cannot be moved, so its leases are shortened.
		h.Pass = func(d time.Duration) {
			_, err := pool.Exec(t.Context(), `UPDATE fencepost.leases SET acquired_at = acquired_at - $1::bigint * interval '1 microsecond',
				expires_at = expires_at - $1::bigint * interval '1 microsecond' WHERE resource <> ''`, d.Microseconds())
			testkit.Check(t, err)
		}
		h.Purge = func(t testing.TB) {
			operator, err := pgadmin.New(pool, &pgadmin.Options{OpTimeout: testkit.Patience, Logger: testkit.Logger(t)})
			testkit.Must(t, err)
			time.Sleep(2 * time.Millisecond)
			if _, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond}); err != nil {
				t.Fatal(err)
			}
		}
		return h
	})
}
