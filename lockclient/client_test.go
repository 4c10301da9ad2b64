package lockclient_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/driver/memory"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/locktest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestCloseEndsHolds: Close ends the work, waits for it and releases.
func TestCloseEndsHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, nil)
		opts := &lockclient.AcquireOptions{TTL: time.Minute}
		inside, over := make(chan struct{}), make(chan error, 1)
		go func() {
			over <- client.Hold(t.Context(), "r", opts, func(ctx context.Context) error {
				close(inside)
				<-ctx.Done()
				time.Sleep(5 * time.Minute) // renewed meanwhile
				lease, _ := guard.LeaseFrom(ctx)
				return errors.Join(context.Cause(ctx), lease.(*lockclient.Lease).Err())
			})
		}()
		<-inside
		began := time.Now()
		waiting := make(chan error, 1)
		go func() { waiting <- client.Close(context.Background()) }()
		if err := <-over; !errors.Is(err, lockclient.ErrClosed) || errors.Is(err, lockclient.ErrLeaseLost) {
			t.Errorf("Hold says %v", err)
		}
		if err := <-waiting; err != nil || time.Since(began) < 5*time.Minute {
			t.Errorf("Close says %v after %v", err, time.Since(began))
		}
		if _, _, held := server.Holder("r"); held {
			t.Error("the lease was not released")
		}
		if err := client.Hold(t.Context(), "r", opts, func(context.Context) error { return nil }); !errors.Is(err, guard.ErrSetup) || !errors.Is(err, lockclient.ErrClosed) {
			t.Errorf("Hold after Close: %v", err)
		}
	})
}

// TestTryHold: it does not wait.
func TestTryHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, nil)
		opts := &lockclient.AcquireOptions{TTL: time.Minute, Metadata: "closing the books"}
		err := client.TryHold(t.Context(), "r", opts, func(context.Context) error {
			err := server.Client(t, "other", nil).TryHold(t.Context(), "r", opts, func(context.Context) error {
				t.Error("two holders")
				return nil
			})
			var held *lockclient.HeldError
			if !errors.As(err, &held) || held.Metadata != "closing the books" || held.Owner != "locktest" {
				t.Errorf("refused with %+v", err)
			}
			return nil
		})
		testkit.Check(t, err)
	})
}

// TestKeepAlive: the lease lasts without a callback until it is released, and
// Done reports a loss.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, nil)
		acquire := func() *lockclient.Lease {
			lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
			testkit.Must(t, err)
			return lease
		}
		lease := acquire()
		if err := lease.KeepAlive(30 * time.Second); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("half of the TTL: %v", err)
		}
		testkit.Must(t, lease.KeepAlive(0))
		time.Sleep(time.Hour)
		testkit.Check(t, errors.Join(lease.Err(), lease.Release(t.Context())))
		lease = acquire()
		testkit.Must(t, lease.KeepAlive(10*time.Second))
		server.Steal("r", "thief", time.Hour)
		began := time.Now()
		<-lease.Done()
		if !errors.Is(lease.Err(), lockclient.ErrLeaseLost) || time.Since(began) > 11*time.Second {
			t.Errorf("%v after %v", lease.Err(), time.Since(began))
		}
	})
}

// TestNamespace: a client with a namespace leases names within it, joined as by guard.JoinResource, and no others.
func TestNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := locktest.New(t, &lockclient.Options{Namespace: "acme:eu"})
		lease, err := client.TryAcquire(t.Context(), "jobs:close", &lockclient.AcquireOptions{TTL: time.Minute})
		testkit.Must(t, err)
		const full = "acme%3Aeu:jobs:close"
		if claim, _, held := server.Holder(full); !held || claim != lease.Claim() || claim.Resource != full {
			t.Errorf("held %v, %+v; the claim is %+v", held, claim, lease.Claim())
		}
	})
}

// TestRenewalWithoutAnAnswer: the error says how long the client waited, unless
// the caller's context ended first.
func TestRenewalWithoutAnAnswer(t *testing.T) {
	for _, ends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client, err := lockclient.New(hangs{memory.NewServer().Issuer()}, "owner", &lockclient.Options{OpTimeout: time.Second})
			testkit.Must(t, err)
			defer client.Close(t.Context())
			lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute})
			testkit.Must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if ends {
				go func() { time.Sleep(time.Millisecond); cancel() }()
			}
			if err := lease.Renew(ctx); !errors.Is(err, guard.ErrOutcomeUnknown) || strings.Contains(err.Error(), "no response within") == ends {
				t.Errorf("the context ends %v: %v", ends, err)
			}
		})
	}
}

type hangs struct{ *memory.Issuer }

func (hangs) Renew(ctx context.Context, renewals []driver.Renewal, results []driver.Renewed) {
	<-ctx.Done()
	for n := range results {
		results[n] = driver.Renewed{State: driver.Unknown, Err: guard.OutcomeUnknown("renew", renewals[n].Claim, ctx.Err())}
	}
}

// terms runs lead with an issuer whose every token is stale at the resource, in
// terms of a length, and returns how many there were and how long it all took.
func terms(t *testing.T, length, limit time.Duration) (n int, took time.Duration, err error) {
	client, err := lockclient.New(memory.NewServer().Issuer(), "worker", nil)
	testkit.Must(t, err)
	defer client.Close(context.Background())
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	start := time.Now()
	err = lead(ctx, client, "leader", func(ctx context.Context) error {
		n++
		if n > 1000 {
			return errors.New("lead spins")
		}
		time.Sleep(length)
		return guard.ErrStale
	})
	return n, time.Since(start), err
}

// If the mark is ahead of the issuer, each new token is stale, too: lead must
// neither spin nor hide it.
func TestMarkAhead(t *testing.T) {
	testkit.CaptureDefault(t)
	synctest.Test(t, func(t *testing.T) {
		n, took, err := terms(t, 0, time.Hour)
		if n != 5 || took < 10*time.Second || !errors.Is(err, guard.ErrStale) {
			t.Errorf("%d terms in %s, then %v", n, took, err)
		}
	})
}

// A leader that is overtaken from time to time goes on.
func TestOvertakenNowAndThen(t *testing.T) {
	testkit.CaptureDefault(t)
	synctest.Test(t, func(t *testing.T) {
		n, took, err := terms(t, 10*time.Minute, 24*time.Hour)
		if n < 100 || took < 24*time.Hour || err != nil {
			t.Errorf("%d terms in %s, then %v", n, took, err)
		}
	})
}

// TestConformance runs the suite of issuers on PostgreSQL, and its mutants.
func TestConformance(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		pool := leasetest.Migrated(t)
		config := pool.Config().ConnConfig
		issuer := func(t testing.TB, through net.Addr) driver.Issuer {
			t.Helper()
			c := pool.Config()
			o := &pglock.Options{}
			if through != nil {
				// On a second connection an acquire could be held before it was
				// sent, while its statement is prepared; and what is held must
				// not be a listener that connects.
				o.Poll = true
				c.ConnConfig.DialFunc, c.MaxConns = dialer(through), 1
				c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
			}
			own, err := pgxpool.NewWithConfig(t.Context(), c)
			testkit.Must(t, err)
			i := leasetest.Patient(guard.Must(pglock.New(own, o)))
			t.Cleanup(func() { i.Close(); own.Close() })
			return i
		}
		network, address := "tcp", net.JoinHostPort(config.Host, portOf(config.Port))
		if config.Host[0] == '/' {
			network, address = "unix", config.Host+"/.s.PGSQL."+portOf(config.Port)
		}
		// The cases need two issuers each, and the same two will do: to connect
		// takes longer than most cases.
		two := []driver.Issuer{issuer(t, nil), issuer(t, nil)}
		next := 0
		return drivertest.Harness{
			Issuer: func(testing.TB) driver.Issuer { next++; return two[next%2] },
			Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
				proxy := drivertest.NewProxy(t, network, address)
				addr, err := net.ResolveTCPAddr("tcp", proxy.Addr())
				testkit.Must(t, err)
				return issuer(t, addr), proxy
			},
			// The server's clock cannot be moved, so its leases are shortened.
			Pass: func(d time.Duration) {
				_, err := pool.Exec(t.Context(), `UPDATE fencepost.leases SET acquired_at = acquired_at - $1::bigint * interval '1 microsecond',
					expires_at = expires_at - $1::bigint * interval '1 microsecond' WHERE resource <> ''`, d.Microseconds())
				testkit.Check(t, err)
			},
			TTL: time.Minute,
			Purge: func(t testing.TB) {
				operator, err := pgadmin.New(pool, nil)
				testkit.Must(t, err)
				time.Sleep(2 * time.Millisecond)
				if _, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond}); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// dialer connects to addr, whatever address is requested.
func dialer(addr net.Addr) func(ctx context.Context, network, asked string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, addr.Network(), addr.String())
	}
}

func portOf(port uint16) string { return strconv.Itoa(int(port)) }
