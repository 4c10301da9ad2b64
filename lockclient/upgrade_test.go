package lockclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgtest"

	"github.com/jackc/pgx/v5/pgxpool"
)

// The statements of the build that made version 1 of the schema.
const (
	acquireV1 = `INSERT INTO fencepost.leases AS l (resource, token, lease_id, owner, acquired_at, expires_at)
SELECT $1::text, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1,
       $2::text, $3::text, clock_timestamp(), clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE NOT EXISTS (SELECT FROM fencepost.leases h
                  WHERE h.resource = $1::text AND h.lease_id <> $2::text AND h.expires_at > clock_timestamp())
ON CONFLICT (resource) DO UPDATE SET
  token = CASE WHEN l.lease_id = excluded.lease_id AND l.expires_at > excluded.acquired_at
               THEN l.token ELSE greatest(l.token + 1, excluded.token) END,
  acquired_at = excluded.acquired_at, expires_at = excluded.expires_at,
  lease_id = excluded.lease_id, owner = excluded.owner
WHERE l.lease_id IS NULL OR l.lease_id = excluded.lease_id OR l.expires_at <= clock_timestamp()
RETURNING l.token`
	renewV1 = `UPDATE fencepost.leases l SET expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond'
WHERE l.resource = $1::text AND l.lease_id = $2::text AND l.token = $3::bigint AND l.expires_at > clock_timestamp() RETURNING l.token`
	releaseV1 = `UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp())
WHERE l.resource = $1::text AND l.lease_id = $2::text AND l.token = $3::bigint RETURNING l.token`
)

func upTo(t *testing.T, pool *pgxpool.Pool, version int) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := schema().UpTo(t.Context(), migrate.Pgx(conn.Conn()), version); err != nil {
		t.Fatal(err)
	}
}

// TestUpgrade: from every earlier version, with leases in use. Until it is
// migrated the client refuses the schema and says what to do. Holders of the old
// build renew and grant all the while; no lease is lost, and tokens go on.
func TestUpgrade(t *testing.T) {
	for from := 1; from < schema().Version(); from++ {
		t.Run(fmt.Sprint("from ", from), func(t *testing.T) {
			pool := dial(t, pgtest.Database(t), func(c *pgxpool.Config) { c.MaxConns = 16 })
			upTo(t, pool, from)
			const hour = int64(time.Hour / time.Microsecond)
			var token int64
			for i := range 8 {
				for n := range 3 { // two released leases, and one that runs
					resource, id := fmt.Sprint("held ", i), fmt.Sprint("lease ", i, n)
					if err := pool.QueryRow(t.Context(), acquireV1, resource, id, "old build", hour).Scan(&token); err != nil || token != int64(n+1) {
						t.Fatal(token, err)
					}
					if n < 2 {
						mustExec(t, pool, releaseV1, resource, id, token)
					}
				}
			}
			client := newTestClient(t, pool, nil)
			if _, err := client.TryAcquire(t.Context(), "held 0", &AcquireOptions{TTL: time.Minute}); !errors.Is(err, guard.ErrUnavailable) ||
				!strings.Contains(err.Error(), fmt.Sprintf("has lockclient version %d, this build needs %d: run lockclient.Migrate", from, schema().Version())) {
				t.Errorf("before the migration: %v", err)
			}

			stop := make(chan struct{})
			var holders, begun sync.WaitGroup
			begun.Add(16)
			for i := range 8 {
				running := func(f func() error) {
					begin := sync.OnceFunc(begun.Done)
					defer begin()
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := f(); err != nil {
							t.Errorf("beside the migration: %v", err)
							return
						}
						begin()
					}
				}
				holders.Go(func() {
					running(func() error {
						var kept int64
						err := pool.QueryRow(context.Background(), renewV1, fmt.Sprint("held ", i), fmt.Sprint("lease ", i, 2), int64(3), hour).Scan(&kept)
						return err
					})
				})
				last := int64(0)
				holders.Go(func() {
					running(func() error {
						id := newLeaseID()
						before := last
						if err := pool.QueryRow(context.Background(), acquireV1, fmt.Sprint("busy ", i), id, "old build", hour).Scan(&last); err != nil {
							return err
						}
						if last != before+1 {
							return fmt.Errorf("token %d after %d", last, before)
						}
						_, err := pool.Exec(context.Background(), releaseV1, fmt.Sprint("busy ", i), id, last)
						return err
					})
				})
			}
			begun.Wait()
			if err := Migrate(t.Context(), pool); err != nil {
				t.Error(err)
			}
			time.Sleep(50 * time.Millisecond)
			close(stop)
			holders.Wait()

			for i := range 8 {
				var held *HeldError
				resource := fmt.Sprint("held ", i)
				if _, err := client.TryAcquire(t.Context(), resource, &AcquireOptions{TTL: time.Minute}); !errors.As(err, &held) || held.Token != 3 {
					t.Errorf("%s: %v", resource, err)
				}
				lease, err := client.TryAcquire(t.Context(), resource, &AcquireOptions{TTL: time.Minute, LeaseID: fmt.Sprint("lease ", i, 2)})
				if err != nil || lease.Token() != 3 {
					t.Fatalf("%s, its holder: %v", resource, err)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if next := grant(t, client, resource, 1); next != 4 {
					t.Errorf("%s: token %v after 3", resource, next)
				}
			}
		})
	}
}

// TestUpgradeKeepsRights: a role that could grant leases before the upgrade can
// do so after it, without another GRANT.
func TestUpgradeKeepsRights(t *testing.T) {
	pool := pgtest.Pool(t)
	upTo(t, pool, 1)
	granting, reading := asRole(t, pool, "SELECT, INSERT, UPDATE"), asRole(t, pool, "SELECT")
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	client := newTestClient(t, granting, nil)
	if last := grant(t, client, "r", 2); last != 2 {
		t.Errorf("token %v", last)
	}
	if _, err := client.RaiseEpoch(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := client.Advance(t.Context(), "r", 5<<epochShift); err != nil {
		t.Error(err)
	}
	if _, err := newTestClient(t, reading, nil).RaiseEpoch(t.Context()); !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a role that may not grant: %v", err)
	}
}

// TestUpgradeOfCopy: what was recorded at the upgrade tells a dump of it from
// the original before anybody has acquired a lease under the new version.
func TestUpgradeOfCopy(t *testing.T) {
	pool := pgtest.Pool(t)
	upTo(t, pool, 1)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token) VALUES ('r', 41)")
	if err := Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	var recorded int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM fencepost.epoch WHERE base = 0 AND leases = 'fencepost.leases'::regclass
		AND system_identifier = (SELECT system_identifier::text FROM pg_control_system())`).Scan(&recorded); err != nil || recorded != 1 {
		t.Errorf("recorded %d, %v", recorded, err)
	}
	mustExec(t, pool, "UPDATE fencepost.epoch SET leases = leases::bigint + 1") // as in a copy
	if next := grant(t, newTestClient(t, pool, nil), "r", 1); next != 1<<epochShift+1 {
		t.Errorf("token %v", next)
	}
}
