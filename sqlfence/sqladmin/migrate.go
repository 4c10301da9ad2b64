package sqladmin

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed down.sql
var removalSQL string

func schema() migrate.Component {
	dir, _ := fs.Sub(migrationFiles, "migrations") // fails only for a malformed name
	c := migrate.Load("sqlfence", dir)
	c.Removal = removalSQL
	return c
}

// Migrate creates or upgrades the part of schema fencepost that fenced transactions and
// the mark store need, in one transaction.
//
// It is idempotent, and safe when several replicas start at once. Where nothing is to be
// done it waits for nobody; else for another migration for up to 30 s. Leases have a part
// of their own: pglock.Migrate makes that, pgadmin.Migrate both. Package sqlrow needs
// none of it.
//
// Only the role that migrates owns the schema and may use it: [RolesSQL] gives the rights
// that each use needs to roles, which are then granted to login roles. Calling Migrate when
// there is nothing to do needs RoleNames.Reader. The server is probed first, see
// [Admin.Probe].
//
// Errors:
//   - guard.ErrSetup: the schema is newer and does not allow this build; the role may not
//     do it; the server was refused. Nothing was changed.
//   - guard.ErrUnavailable: nothing was changed. If another migration is in the way, the
//     error names its session.
//   - guard.ErrOutcomeUnknown: the response to COMMIT was lost; call it again.
func (a *Admin) Migrate(ctx context.Context) error {
	const op = "migrate"
	if err := a.Probe(ctx); err != nil {
		return err
	}
	return a.migrate(ctx, op, func(c *pgx.Conn) error { return schema().Up(ctx, migrate.Pgx(c)) })
}

// Repair makes the functions and triggers of schema fencepost again that [Admin.Verify] finds
// missing or different, in one transaction, and returns their names; nothing where nothing is
// wrong. It does not make tables, whose rows only a backup has. The rights on a function
// that was missing have to be granted again: run what [RolesSQL] returns.
//
// The errors are those of [Admin.Migrate]; guard.ErrSetup also if the schema does not have this
// build's version, or still has something that a repair cannot make: the names that come with
// this error were repaired.
func (a *Admin) Repair(ctx context.Context) (repaired []string, err error) {
	const op = "repair"
	if err := a.Probe(ctx); err != nil {
		return nil, err
	}
	err = a.migrate(ctx, op, func(c *pgx.Conn) error {
		repaired, err = schema().Repair(ctx, c)
		return err
	})
	if left := new(migrate.DamagedError); err != nil && !errors.As(err, &left) {
		return nil, err
	}
	return repaired, err
}

// migrate runs what changes the schema.
func (a *Admin) migrate(ctx context.Context, op string, run func(*pgx.Conn) error) error {
	c, err := a.conn(ctx, op)
	if err == nil {
		defer c.Release()
		err = run(c.Conn())
	}
	var newer *migrate.NewerError
	var other *migrate.VersionError
	var damaged *migrate.DamagedError
	if errors.As(err, &newer) || errors.As(err, &other) || errors.As(err, &damaged) || migrate.Unrecorded(err) {
		return guard.Setup(op, guard.Claim{}, err)
	}
	if pgerr.State(err) == pgerr.Privilege {
		return guard.Setup(op, guard.Claim{}, fmt.Errorf("%w; %s", err, migrate.Needs))
	}
	if pgerr.State(err) == pgerr.NotSupported {
		return guard.Unavailable(op, guard.Claim{}, err)
	}
	return sqlkit.Failure(op, guard.Claim{}, err, true)
}

// MigrationSQL returns the text that [Admin.Migrate] runs on an empty database,
// for users of goose, atlas or golang-migrate: run it in one transaction. It
// records itself in fencepost.migrations, so that Migrate finds it applied.
func MigrationSQL() string { return schema().Script() }

// DownSQL returns the text that removes what [Admin.Migrate] created, and with it all
// marks. Run it in one transaction when no writer is at work; it fails, and removes
// nothing, while a table has triggers.
func DownSQL() string { return schema().Down() }
