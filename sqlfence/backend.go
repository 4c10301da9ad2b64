package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// backend is what differs between pgx and database/sql.
type backend[Tx any] interface {
	// conn returns a connection without a transaction, to be released. Its
	// errors are known to have sent nothing.
	conn(ctx context.Context) (conn[Tx], error)
	// hold is conn for a transaction that begins with the callback's first statement: to
	// send it, the callback's handle calls begin. It returns nil if the driver cannot send
	// both at once.
	hold(ctx context.Context, begin func(ctx context.Context, on held[Tx], with *pgxFirst) error) (conn[Tx], error)
	in(tx Tx) sqlkit.Querier
	// pool identifies the pool.
	pool() any
	// single reports that there is one connection at most.
	single() bool
	// exhausted reports that all connections are in use.
	exhausted() bool
	// same reports whether two handles, if both are open, belong to one
	// transaction.
	same(a, b Tx) bool
}

// conn is one connection, on which one transaction may be begun. It is reserved
// until it is released, so that a callback that ended the transaction is noticed.
type conn[Tx any] interface {
	sqlkit.Querier
	// begin opens a transaction with its first statements, in one round trip
	// where the driver can. Nothing can have been committed if it fails.
	begin(ctx context.Context, how txMode, first ...statement) error
	// in runs statements in the transaction begun last.
	in() sqlkit.Querier
	// tx is the callback's handle.
	tx() Tx
	// begun reports that a BEGIN was sent.
	begun() bool
	// start begins the transaction of a callback that has sent nothing.
	start(ctx context.Context) error
	// committed reports that the callback may have sent a COMMIT.
	committed() bool
	// commit gives up when the bound says so, whatever ctx says. If it fails
	// the transaction may be open, and release rolls it back.
	commit(ctx context.Context, bound *commitBound) error
	// gone reports that the session is known to have ended.
	gone() bool
	// release never blocks for long. It is called once.
	release()
}

// txMode says how a transaction begins.
type txMode struct {
	level sql.IsolationLevel // named in every BEGIN, so that the server's default does not apply
	// marker, if there is one, is what the first statements put into the setting
	// fencepost.transaction; if commit looks for it and it is gone, it returns errEnded,
	// and commits nothing (see [DB.enterStatement]).
	marker string
	with   *pgxFirst // goes with BEGIN and the first statements; on pgx, else nil
}

var readCommitted = txMode{level: sql.LevelReadCommitted}

// held is the connection of a callback's handle. The raises that are needed before its
// transaction begins run on it too.
type held[Tx any] interface {
	conn[Tx]
	// ready replaces the connection if it has ended.
	ready(ctx context.Context) error
	// rollback ends the transaction, if one is open.
	rollback()
}

// borrowed is a held connection, which release does not give back.
type borrowed[Tx any] struct{ held[Tx] }

func (b borrowed[Tx]) release() { b.rollback() }

// statement is sent with a BEGIN; if dest is set, it returns one row for it.
type statement struct {
	sql  string
	args []any
	dest []any
}

// maxBadConns is how many dead connections are discarded before giving up, as
// in database/sql itself.
const maxBadConns = 3

// conn refuses to wait for a connection that only the caller can give back.
func (d *DB[Tx]) conn(ctx context.Context) (conn[Tx], error) {
	if d.callback(ctx) != nil && d.backend.single() {
		return nil, sqlkit.ErrOnly
	}
	return d.backend.conn(ctx)
}

// with runs f, which commits nothing, on a connection, and on another one if the
// first was dead. The caller releases what f leaves open. If there is a held
// connection, it is used.
func (d *DB[Tx]) with(ctx context.Context, on held[Tx], f func(c conn[Tx]) error) (conn[Tx], error) {
	if on != nil {
		err := on.ready(ctx)
		if err == nil {
			err = f(on)
		}
		if err != nil {
			on.rollback()
			return nil, err
		}
		return borrowed[Tx]{on}, nil
	}
	for try := 1; ; try++ {
		c, err := d.conn(ctx)
		if err != nil {
			return nil, err
		}
		if err = f(c); err == nil {
			return c, nil
		}
		c.release()
		if !errors.Is(err, driver.ErrBadConn) || try == maxBadConns {
			return nil, err
		}
	}
}

// begin opens a transaction, to be committed and released.
func (d *DB[Tx]) begin(ctx context.Context, on held[Tx], how txMode, first ...statement) (conn[Tx], error) {
	return d.with(ctx, on, func(c conn[Tx]) error { return c.begin(ctx, how, first...) })
}

// once runs statements on schema fencepost in a transaction of their own. A lost
// response to its COMMIT is an unknown outcome only if they are the caller's work.
func (d *DB[Tx]) once(ctx context.Context, on held[Tx], op string, claim guard.Claim, work bool, statements ...statement) error {
	c, err := d.begin(ctx, on, readCommitted, statements...)
	if err != nil {
		return sqlkit.SchemaFailure(op, claim, err)
	}
	defer c.release()
	return sqlkit.Failure(op, claim, c.commit(ctx, d.commits), work)
}

// row reads one row outside of any transaction.
func (d *DB[Tx]) row(ctx context.Context, sql string, args []any, dest ...any) (found bool, err error) {
	c, err := d.with(ctx, nil, func(c conn[Tx]) error {
		found, err = sqlkit.Row(ctx, c, sql, args, dest...)
		return err
	})
	if err == nil {
		c.release()
	}
	return found, err
}
