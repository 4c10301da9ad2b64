package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5/pgxpool"
)

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
	// UsableFrom is the lowest version that a build must know to go on after this
	// step; builds that know less are refused with guard.ErrSetup. Version means
	// that the new build has to be everywhere before the step.
	UsableFrom int
}

// Migrate brings the database to the schema that this build needs: the tables
// fencepost.leases, fencepost.epoch and fencepost.audit, the functions that
// issue leases, raise the epoch, purge and force-unlock, and the record in
// fencepost.migrations. It upgrades any earlier version in place while holders
// run, does nothing if the schema is current, and may be called by any number
// of replicas at once. It needs the right to create the schema fencepost, or to
// create objects in it and to alter those it created.
//
// Errors: guard.ErrSetup (nothing was changed: the schema is newer and does not allow
// this build, the role may not do it, or half of a script was applied), guard.ErrUnavailable
// (nothing was changed) and guard.ErrOutcomeUnknown (the connection broke; calling
// again is safe and settles it).
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if pool == nil {
		return guard.Invalid("pool", "nil", "must not be nil")
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return pglease.Failure("migrate", guard.Claim{}, pglease.Harmless(err))
	}
	defer conn.Release()
	for attempt := 0; ; attempt++ {
		err = pglease.Schema().Up(ctx, migrate.Pgx(conn.Conn()))
		// A lock was in the way: active holders, or a transaction that stays open.
		if !pglease.Contention(err) || attempt == migrateAttempts || !pause.For(ctx, pause.Backoff(attempt, pause.Last), nil) {
			break
		}
	}
	if _, newer := errors.AsType[*migrate.NewerError](err); newer || migrate.Unrecorded(err) {
		return guard.Setup("migrate", guard.Claim{}, err)
	}
	if pgerr.State(err) == pgerr.Privilege {
		return guard.Setup("migrate", guard.Claim{}, fmt.Errorf("%w; %s", err, migrate.Needs))
	}
	return pglease.Failure("migrate", guard.Claim{}, err)
}

// migrateAttempts take some five seconds.
const migrateAttempts = 20

// MigrationSQL returns the whole schema as one script for an empty database,
// for reading or for psql --single-transaction. [Migrations] returns it step
// by step.
func MigrationSQL() string { return pglease.Schema().Script() }

// DownSQL returns the text that removes what [Migrate] created. Run it in one
// transaction; it fails, and removes nothing, while a lease runs. The tokens begin
// again at 1 after it, which fences that keep their marks elsewhere refuse: advance
// the issuer above the highest mark (pgadmin) before leases are granted again.
func DownSQL() string { return pglease.Schema().Down() }

// Migrations returns the steps of the schema in order. Each may be applied by
// goose, atlas, golang-migrate or by hand, as a transaction of its own; it
// records itself, so that [Migrate] and every issuer accept the result.
func Migrations() []Migration {
	steps := make([]Migration, len(pglease.Schema().Migrations))
	for i, m := range pglease.Schema().Migrations {
		steps[i] = Migration{Version: m.Version, Name: m.Name, SQL: m.Script(pglease.Schema().Name), UsableFrom: cmp.Or(m.UsableFrom, m.Version)}
	}
	return steps
}
