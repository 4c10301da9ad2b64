package lockclient

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// TestUpgradeBesideAnOpenTransaction: a transaction that stays open with a lock
// on the leases does not make renewals wait behind the migration, and the
// migration comes through when it ends. If it does not end, nothing is changed.
// The control takes the migration's lock without care.
func TestUpgradeBesideAnOpenTransaction(t *testing.T) {
	pool := pgtest.Pool(t)
	upTo(t, pool, 2)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token, lease_id, expires_at) SELECT r, 1, 'l', clock_timestamp() + interval '1 hour' FROM unnest(ARRAY['open', 'renewed']) r")
	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(context.Background())
	if _, err := open.Exec(t.Context(), "UPDATE fencepost.leases SET owner = 'forgotten' WHERE resource = 'open'"); err != nil {
		t.Fatal(err)
	}
	// renewals go on until stopped, and report the longest.
	renewals := func(stop <-chan struct{}) <-chan time.Duration {
		longest := make(chan time.Duration, 1)
		go func() {
			var most time.Duration
			for {
				select {
				case <-stop:
					longest <- most
					return
				case <-time.After(5 * time.Millisecond):
				}
				began := time.Now()
				var token int64
				if err := pool.QueryRow(context.Background(), renewV1, "renewed", "l", int64(1), int64(3600e6)).Scan(&token); err != nil {
					t.Error(err)
				}
				most = max(most, time.Since(began))
			}
		}()
		return longest
	}
	const long = 3 * time.Second
	during := func(f func()) time.Duration {
		stop := make(chan struct{})
		longest := renewals(stop)
		f()
		close(stop)
		return <-longest
	}

	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = schema().Up(t.Context(), migrate.Pgx(conn.Conn())) // one attempt
	conn.Release()
	if pg := pgError(err); pg == nil || pg.Code != "55P03" || !strings.Contains(pg.Message, "open transaction") {
		t.Errorf("beside a transaction that stays open: %v", err)
	}
	var version int
	if err := pool.QueryRow(t.Context(), "SELECT max(version) FROM fencepost.migrations").Scan(&version); err != nil || version != 2 {
		t.Errorf("version %d, %v", version, err)
	}

	waited := during(func() {
		migrated := make(chan error, 1)
		go func() { migrated <- Migrate(context.Background(), pool) }()
		time.Sleep(long / 4)
		if err := open.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-migrated; err != nil {
			t.Errorf("after the transaction has ended: %v", err)
		}
	})

	careless := during(func() {
		open, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open.Exec(t.Context(), "UPDATE fencepost.leases SET owner = 'forgotten' WHERE resource = 'open'"); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			tx, err := pool.Begin(context.Background())
			if err == nil {
				tx.Exec(context.Background(), "LOCK TABLE fencepost.leases IN SHARE ROW EXCLUSIVE MODE")
				tx.Rollback(context.Background())
			}
		}()
		time.Sleep(long)
		open.Rollback(context.Background())
		<-done
	})
	if waited > long*3/4 || careless < long*3/4 {
		t.Errorf("a renewal took %v beside the migration, and %v beside a careless lock for %v", waited, careless, long)
	}
}
