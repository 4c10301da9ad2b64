package lockclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"

	"github.com/jackc/pgx/v5/pgxpool"
)

// stalling returns a pool on a network that can hold requests back.
func stalling(t *testing.T, url string) (*pgxpool.Pool, *drivertest.Proxy) {
	t.Helper()
	network, address := backend(t, url)
	proxy := drivertest.NewProxy(t, network, address)
	return dial(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = through(proxy.Addr())
		c.MaxConns = 1
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	}), proxy
}

// TestLateDuplicateResurrectsNothing: an attempt stalls in the network, the
// client repeats it under the same lease ID, works and releases. The first
// attempt arrives after that, in time, and is refused. (P8)
func TestLateDuplicateResurrectsNothing(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	stalled, network := stalling(t, direct.Config().ConnString())
	slow, fast := newTestClient(t, stalled, nil), newTestClient(t, direct, nil)
	mustTry(t, slow, "warm", time.Minute).Release(t.Context())
	opts := &AcquireOptions{TTL: time.Hour, LeaseID: "mine"}
	network.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := slow.TryAcquire(ctx, "r", opts)
		gaveUp <- err
	}()
	eventually(t, "the attempt is in the network", network.Holding)
	cancel()
	if err := <-gaveUp; err == nil {
		t.Fatal("the attempt that was held was answered")
	}
	lease, err := fast.TryAcquire(t.Context(), "r", opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	network.Deliver()
	if r := rowOf(t, direct, "r"); r.Live || r.Token != int64(lease.Token()) {
		t.Errorf("the late duplicate was granted: %+v", r)
	}
	if _, err := fast.TryAcquire(t.Context(), "r", opts); !errors.Is(err, ErrLeaseIDSpent) {
		t.Errorf("the lease ID again: %v", err)
	}
	mustTry(t, fast, "r", time.Minute)
}

// stray is an issuer whose first acquire is lost on the way and may arrive later.
type stray struct {
	driver.Issuer
	first *driver.Request
}

func (s *stray) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if s.first == nil {
		s.first = &r
		return driver.Grant{}, guard.OutcomeUnknown("acquire", r.Claim(), errors.New("the connection broke"))
	}
	return s.Issuer.Acquire(ctx, r)
}

// TestStrayAttemptResurrectsNothing: the same for a lease ID of the client's own: the
// connection breaks, the client repeats the attempt by itself, works and releases, and
// then the first attempt arrives. The control is a client whose answer was not lost:
// its release spends nothing. (P8)
func TestStrayAttemptResurrectsNothing(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for _, lost := range []bool{true, false} {
		client := newTestClient(t, pool, nil)
		s := &stray{Issuer: client.issuer}
		if !lost {
			s.first = &driver.Request{Resource: "free", LeaseID: "control", Owner: "o", TTL: time.Hour, Timeout: time.Minute}
		}
		client.issuer = s
		lease := mustTry(t, client, fmt.Sprint(lost), time.Hour)
		if !lost {
			s.first.Resource, s.first.LeaseID, s.first.Owner = lease.Resource(), lease.ID(), lease.Owner()
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Issuer.Acquire(t.Context(), *s.first); errors.Is(err, ErrLeaseIDSpent) != lost || s.first.LeaseID != lease.ID() {
			t.Errorf("lost %t: the first attempt arrives: %v", lost, err)
		}
	}
}

// TestCancelledAcquireLeaksNothing: the release in the background overtakes the
// acquire that stalls in the network; the acquire is not granted when it
// arrives. (P8)
func TestCancelledAcquireLeaksNothing(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	stalled, network := stalling(t, direct.Config().ConnString())
	client := newTestClient(t, stalled, nil)
	mustTry(t, client, "warm", time.Minute).Release(t.Context())
	// Releases have a path of their own, so that they overtake.
	fast := newTestClient(t, direct, nil)
	client.issuer = overtaking{client.issuer, fast.issuer}
	network.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := client.TryAcquire(ctx, "r", &AcquireOptions{TTL: time.Hour})
		gaveUp <- err
	}()
	eventually(t, "the attempt is in the network", network.Holding)
	cancel()
	if err := <-gaveUp; err == nil {
		t.Fatal("the attempt that was held was answered")
	}
	settled(client) // the release has overtaken it
	network.Deliver()
	var holders int
	err := direct.QueryRow(t.Context(), "SELECT count(*) FROM fencepost.leases WHERE resource = 'r' AND lease_id IS NOT NULL").Scan(&holders)
	if err != nil || holders != 0 {
		t.Errorf("the cancelled acquire was granted: %d, %v", holders, err)
	}
	mustTry(t, fast, "r", time.Minute)
}

// overtaking sends releases by another path.
type overtaking struct {
	driver.Issuer
	other driver.Issuer
}

func (o overtaking) Release(ctx context.Context, claim guard.Claim) (bool, error) {
	return o.other.Release(ctx, claim)
}

// backend is what a URL of the database connects to.
func backend(t testing.TB, url string) (network, address string) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c, port := config.ConnConfig, strconv.Itoa(int(config.ConnConfig.Port))
	if strings.HasPrefix(c.Host, "/") {
		return "unix", c.Host + "/.s.PGSQL." + port
	}
	return "tcp", net.JoinHostPort(c.Host, port)
}

// through dials addr, whatever address is requested.
func through(addr string) func(ctx context.Context, network, asked string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
}
