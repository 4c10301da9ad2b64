package lockclient

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"

	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// schema is read when it is first needed, so that a program that imports this
// package and does not use it pays nothing.
var schema = sync.OnceValue(func() migrate.Component {
	dir, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err)
	}
	return migrate.Load("lockclient", dir)
})

// Migration is one step of this package's schema, for users who apply SQL with
// a tool of their own.
type Migration struct {
	// Version counts from 1 without gaps.
	Version int
	// Name says in one word what the step is about.
	Name string
	// SQL is the whole step with its record in fencepost.migrations, to be run
	// in one transaction.
	SQL string
}

// Migrate brings the database to the schema that this build needs: the tables
// fencepost.leases, fencepost.epoch and fencepost.audit, the functions that raise
// the epoch, purge and force-unlock, and the record in fencepost.migrations. It
// upgrades any earlier version in place, beside running holders, does nothing if
// the schema is there, and may be called by any number of replicas at once. It needs the right to create the
// schema fencepost, or to create in it and to change what it made.
//
// Errors: guard.ErrUnavailable (nothing was changed; also where the schema is
// newer than this build) and guard.ErrOutcomeUnknown (the connection broke;
// calling again is safe and tells).
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if pool == nil {
		return guard.Invalid("pool", "nil", "must not be nil")
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return guard.Unavailable("migrate", guard.Claim{}, err)
	}
	defer conn.Release()
	for attempt := 0; ; attempt++ {
		err = schema().Up(ctx, migrate.Pgx(conn.Conn()))
		// A lock was in the way: holders at work, or a transaction that stays open.
		if pg := pgError(err); pg == nil || !passes(pg) || attempt == migrateAttempts || !sleep(ctx, backoff(attempt), nil) {
			break
		}
	}
	switch newer := (*migrate.NewerError)(nil); {
	case err == nil:
		return nil
	case errors.As(err, &newer):
		return guard.Unavailable("migrate", guard.Claim{}, err)
	}
	return failure("migrate", guard.Claim{}, err)
}

// migrateAttempts make some five seconds.
const migrateAttempts = 20

// MigrationSQL returns the whole schema as one script for an empty database,
// for reading or for psql --single-transaction. [Migrations] returns it step
// by step.
func MigrationSQL() string { return schema().Script() }

// Migrations returns the steps of the schema in order. Each may be applied by
// goose, atlas, golang-migrate or by hand, as a transaction of its own; it
// records itself, so that [Migrate] and a [Client] accept the result.
func Migrations() []Migration {
	steps := make([]Migration, len(schema().Migrations))
	for i, m := range schema().Migrations {
		steps[i] = Migration{Version: m.Version, Name: m.Name, SQL: m.Script(schema().Name)}
	}
	return steps
}

// checkVersion says why a database whose schema has the given version cannot
// be used; nil if it can.
func checkVersion(have int64) error {
	want := int64(schema().Version())
	switch {
	case have > want:
		return &migrate.NewerError{Component: schema().Name, Have: have, Know: int(want)}
	case have < want:
		return fmt.Errorf("schema fencepost has lockclient version %d, this build needs %d: run lockclient.Migrate, or apply lockclient.Migrations", have, want)
	}
	return nil
}
