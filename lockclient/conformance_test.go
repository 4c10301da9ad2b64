package lockclient_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/driver/drivertest"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestConformance runs the suite of issuers on PostgreSQL, and its mutants.
func TestConformance(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		pool := pgtest.Pool(t)
		if err := lockclient.Migrate(t.Context(), pool); err != nil {
			t.Fatal(err)
		}
		config := pool.Config().ConnConfig
		issuer := func(t testing.TB, through net.Addr) driver.Issuer {
			c := pool.Config()
			o := &lockclient.Options{OpTimeout: time.Minute, LockTimeout: 30 * time.Second}
			if through != nil {
				// On a second connection an acquire could be held before it was
				// sent, while its statement is prepared; and what is held must
				// not be a listener that connects.
				o.Wake = lockclient.WakePoll
				c.ConnConfig.DialFunc, c.MaxConns = dialer(through), 1
				c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
			}
			own, err := pgxpool.NewWithConfig(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			i, err := lockclient.NewIssuer(own, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { i.Close(); own.Close() })
			return i
		}
		network, address := "tcp", net.JoinHostPort(config.Host, portOf(config.Port))
		if config.Host[0] == '/' {
			network, address = "unix", config.Host+"/.s.PGSQL."+portOf(config.Port)
		}
		return drivertest.Harness{
			Issuer: func(t testing.TB) driver.Issuer { return issuer(t, nil) },
			Network: func(t testing.TB) (driver.Issuer, drivertest.Network) {
				proxy := drivertest.NewProxy(t, network, address)
				addr, err := net.ResolveTCPAddr("tcp", proxy.Addr())
				if err != nil {
					t.Fatal(err)
				}
				return issuer(t, addr), proxy
			},
			// The server's clock cannot be moved, so its leases are shortened.
			Pass: func(d time.Duration) {
				_, err := pool.Exec(t.Context(), `UPDATE fencepost.leases SET acquired_at = acquired_at - $1::bigint * interval '1 microsecond',
					expires_at = expires_at - $1::bigint * interval '1 microsecond' WHERE resource <> ''`, d.Microseconds())
				if err != nil {
					t.Error(err)
				}
			},
			TTL: time.Minute,
			Purge: func(t testing.TB) {
				operator, err := lockadmin.New(pool, nil)
				if err != nil {
					t.Fatal(err)
				}
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
