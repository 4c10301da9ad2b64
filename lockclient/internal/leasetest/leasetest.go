// Package leasetest has what the tests of lockclient and pgadmin share.
package leasetest

import (
	"context"
	"testing"

	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Dial returns a pool on url, changed by the given functions.
func Dial(t testing.TB, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Migrated returns a pool on a fresh database with lockclient's schema.
func Migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pgtest.Migrated(t, "lockclient", CreateSchema)
}

// MigratedDatabase returns the URL of a database as from Migrated.
func MigratedDatabase(t testing.TB) string {
	t.Helper()
	return pgtest.MigratedDatabase(t, "lockclient", CreateSchema)
}

// CreateSchema creates lockclient's schema in a template. The database that it
// names in fencepost.epoch is forgotten: every copy would take itself for a
// restored one, and raise its epoch.
func CreateSchema(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err := pglease.Schema().Up(ctx, migrate.Pgx(conn.Conn())); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "UPDATE fencepost.epoch SET system_identifier = NULL, database = NULL, leases = NULL")
	return err
}

// Patient gives an issuer of package pglock limits that even a busy machine keeps.
func Patient(issuer driver.Issuer) *pglease.Issuer {
	i := issuer.(*pglease.Issuer)
	i.OpTimeout, i.LockTimeout = testkit.Patience, testkit.Patience/2
	return i
}

// MustExec executes a statement.
func MustExec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// Value returns the one value of the one row of a query.
func Value[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	testkit.Must(t, pool.QueryRow(context.Background(), sql, args...).Scan(&v))
	return v
}

// Begun returns a transaction that has executed a statement, and holds its locks until it
// ends, or the test does.
func Begun(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	testkit.Must(t, err)
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), sql, args...)
	testkit.Must(t, err)
	return tx
}

// RunOut ends a lease by the server's clock, as its TTL would.
func RunOut(t testing.TB, pool *pgxpool.Pool, resource string) {
	t.Helper()
	MustExec(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = $1", resource)
}

// CountRows returns how many resources have a row.
func CountRows(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return Value[int](t, pool, `SELECT count(*) FROM fencepost.leases`)
}
