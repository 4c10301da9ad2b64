package lockclient_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
