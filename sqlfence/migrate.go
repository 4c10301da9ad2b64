package sqlfence

import (
	"context"
	"embed"
	"errors"
	"io/fs"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

func schema() migrate.Component {
	dir, _ := fs.Sub(migrationFiles, "migrations") // fails only for a malformed name
	return migrate.Load("sqlfence", dir)
}

// Migrate creates or upgrades the part of schema fencepost that fenced
// transactions and the mark store need: table marks and its functions. It is
// idempotent and safe when several replicas start at once, and runs in one
// transaction. Single statements on a table of your own ([Table])
// need none of it.
//
// Only the role that migrates owns the schema and may use it: [RolesSQL] gives
// the rights that each use needs to roles, which are then granted to login
// roles. Calling Migrate when there is nothing to do needs RoleNames.Reader.
//
// A database whose schema is newer than this build is refused with
// guard.ErrSetup and left alone, and so is a role that may not do it.
func (d *DB[Tx]) Migrate(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return guard.Unavailable("migrate", guard.Claim{}, err)
	}
	c, err := d.with(ctx, func(c conn[Tx]) error { return schema().Up(ctx, c.migrations()) })
	if err == nil {
		c.release()
	}
	var newer *migrate.NewerError
	if errors.As(err, &newer) || migrate.Unrecorded(err) {
		return guard.Setup("migrate", guard.Claim{}, err)
	}
	if pgerr.State(err) == pgerr.NotSupported {
		return guard.Unavailable("migrate", guard.Claim{}, err)
	}
	return failure("migrate", guard.Claim{}, err, true)
}

// MigrationSQL returns the text that [DB.Migrate] runs on an empty database,
// for users of goose, atlas or golang-migrate: run it in one transaction. It
// records itself in fencepost.migrations, so that Migrate finds it applied.
func MigrationSQL() string { return schema().Script() }
