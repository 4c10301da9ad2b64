package pgadmin

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// objectsSQL says in one text what is wrong with the objects in $1.
const objectsSQL = `SELECT coalesce(string_agg(format('%s fencepost.%s %s', kind, name, problem), '; '), '') FROM (` + migrate.ObjectsSQL + `) AS wrong`

// wrongObjects says what is wrong with the objects of the leases; "" if nothing is.
func wrongObjects(ctx context.Context, conn *pgx.Conn) (wrong string, err error) {
	err = look(ctx, conn, func() error { return conn.QueryRow(ctx, objectsSQL, pglease.Schema().ObjectsJSON()).Scan(&wrong) })
	return wrong, err
}

// Repair makes the functions, triggers and indexes of schema fencepost again that are missing or
// differ from this build's, of leases and of marks, each in one transaction, and returns
// their names; nothing where nothing is wrong. It does not make tables, whose rows only a
// backup has. The rights on a function that was missing have to be granted again: run
// what [RolesSQL] and sqladmin's return.
//
// Errors: those of [Migrate]; guard.ErrSetup also if the schema does not have this build's
// version, or still has something wrong that a repair cannot make: a table, a column, a function
// that is not of this build. Names that come with an error were repaired.
func Repair(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	marks := sqladmin.Pgx(pool)
	if err := marks.Probe(ctx); err != nil {
		return nil, err
	}
	leases, damaged := repairLeases(ctx, pool)
	if left := new(migrate.DamagedError); damaged != nil && !errors.As(damaged, &left) {
		return nil, damaged
	}
	more, err := marks.Repair(ctx)
	return append(leases, more...), errors.Join(damaged, err)
}

func repairLeases(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	const op = "repair"
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, pglease.Failure(op, guard.Claim{}, pglease.Harmless(err))
	}
	defer conn.Release()
	repaired, err := pglease.Schema().Repair(ctx, conn.Conn())
	if _, other := errors.AsType[*migrate.VersionError](err); other {
		return nil, guard.Setup(op, guard.Claim{}, err)
	}
	if pgerr.State(err) == pgerr.Privilege {
		return nil, guard.Setup(op, guard.Claim{}, fmt.Errorf("%w; %s", err, migrate.Needs))
	}
	if _, damaged := errors.AsType[*migrate.DamagedError](err); damaged {
		return repaired, guard.Setup(op, guard.Claim{}, err)
	}
	return repaired, pglease.Failure(op, guard.Claim{}, err)
}
