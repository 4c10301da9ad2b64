// Package sqltest gives a test a PostgreSQL database of its own that has the
// schema of sqlfence, so that SQL under a fence can be tested as it runs.
//
// # What it guarantees
//
// The database is fresh: nothing of another test or another run is in it. It is on
// a real server, with the migrations of this version. When the test ends it is
// dropped, with the connections to it. Tests may run in parallel.
//
// # What it does not
//
// It skips nothing: without a server the test fails and says what is missing. A
// process that is killed leaves its databases, whose names begin with
// fencepost_scratch, on a server that outlives it; the next run drops those that
// were templates. Roles belong to the server, not to the database: a test that
// creates them has to drop them.
//
// # Use
//
//	func TestStaleCloseIsRefused(t *testing.T) {
//		pool := sqltest.Pool(t, &sqltest.Options{Setup: billing.Migrate})
//		db, err := sqlfence.Pgx(pool, nil)
//		name := "acme:billing-close:2026-04"
//		err = db.Raise(t.Context(), guard.Claim{Resource: name, Token: 2, LeaseID: "successor"})
//		err = billing.Close(t.Context(), db, guard.Claim{Resource: name, Token: 1, LeaseID: "paused"})
//		if !errors.Is(err, guard.ErrStale) {
//			t.Error(err)
//		}
//	}
//
// Claims are made up as above; for code that takes a *lockclient.Client, call
// pglock.Migrate in Setup, or use package locktest.
//
// # Without a server
//
// Code that takes a *sqlfence.DB[*sql.Tx] can be tested with go-sqlmock. InTx sends
// two statements of its own: the one after BEGIN has fencepost.enter in it, the one
// before COMMIT fencepost.transaction, in every version. The example has both, and a
// refusal. A mock cannot show that the fence holds.
//
// # The server
//
// [Options].Server names it, or the environment variable FENCEPOST_DATABASE_URL:
// PostgreSQL 13 or newer, and a role that may create databases. If both are empty,
// a private server is started from installed binaries, those in the directory
// FENCEPOST_PG_BIN or where packages put them (Debian: postgresql), once for the
// test binary; it ends with it, however that ends, and a superuser owns it. Systems
// without Unix processes need a server.
package sqltest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// Options configure a test's database. The zero value, and nil, are a database
// with sqlfence's schema on the server that the environment names.
type Options struct {
	// Server is the connection string of the server on which the database is
	// created, as a URL or in keyword/value form. If it is empty, see the package's
	// documentation.
	Server string
	// Setup is called with the new database, after sqlfence's migrations, within a
	// minute: for the service's own migrations. If it is nil, nothing is called. An
	// error fails the test.
	Setup func(ctx context.Context, pool *pgxpool.Pool) error
}

// Pool returns a pool of connections to the test's database. It is closed when
// the test ends; connections that were not released by then fail the test.
func Pool(t testing.TB, opts *Options) *pgxpool.Pool {
	t.Helper()
	return pgtest.Connect(t, URL(t, opts))
}

// URL returns the connection string of the test's database, for database/sql and
// other processes, in the form that the server's has.
func URL(t testing.TB, opts *Options) string {
	t.Helper()
	if opts == nil {
		opts = &Options{}
	}
	url := pgtest.MigratedOn(t, opts.Server, "sqltest", migrate)
	if opts.Setup == nil {
		return url
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatalf("sqltest: %v", err)
	}
	defer pool.Close()
	if err := opts.Setup(ctx, pool); err != nil {
		t.Fatalf("sqltest: Options.Setup: %v", err)
	}
	return url
}

func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return sqladmin.Pgx(pool).Migrate(ctx)
}
