package lockclient

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgtest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestUpgradeBesideAnOpenTransaction: a transaction that stays open with a lock
// on the leases does not make renewals wait behind the migration, and the
// migration comes through when it ends. If it does not end, nothing is changed.
// That no renewal waits for a lock is judged by the server's lock_timeout, since
// everything else may take long on a busy machine. The control takes the
// migration's lock without care.
func TestUpgradeBesideAnOpenTransaction(t *testing.T) {
	pool := pgtest.Pool(t)
	upTo(t, pool, 2)
	mustExec(t, pool, "INSERT INTO fencepost.leases (resource, token, lease_id, expires_at) SELECT r, 1, 'l', clock_timestamp() + interval '1 hour' FROM unnest(ARRAY['open', 'renewed']) r")
	transaction := func() pgx.Tx {
		open, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { open.Rollback(context.Background()) })
		if _, err := open.Exec(t.Context(), "UPDATE fencepost.leases SET owner = 'forgotten' WHERE resource = 'open'"); err != nil {
			t.Fatal(err)
		}
		return open
	}
	open := transaction()
	impatient := dial(t, pool.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "500ms" })
	renew := func(pool *pgxpool.Pool) error {
		var token int64
		return pool.QueryRow(context.Background(), renewV1, "renewed", "l", int64(1), int64(3600e6)).Scan(&token)
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

	migrated := make(chan error, 1)
	go func() { migrated <- Migrate(context.Background(), pool) }()
	for began, n := time.Now(), 0; n < 20 || time.Since(began) < 500*time.Millisecond; n++ {
		if err := renew(impatient); err != nil {
			t.Errorf("a renewal beside the migration: %v", err)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if len(migrated) > 0 {
		t.Error("the migration came through beside the transaction")
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("after the transaction has ended: %v", err)
	}

	open = transaction()
	careless := make(chan error, 1)
	go func() {
		careless <- pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), "LOCK TABLE fencepost.leases IN SHARE ROW EXCLUSIVE MODE")
			return err
		})
	}()
	waiting(t, pool, 1)
	if pg := pgError(renew(impatient)); pg == nil || pg.Code != "55P03" {
		t.Errorf("control: a renewal beside a careless lock: %v", pg)
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-careless; err != nil {
		t.Error(err)
	}
}
