package sqlfence

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// txKey marks the context of a callback; its value is a *callback. It has the
// DB in it, so that a nested call is found behind those of other DBs.
type txKey[Tx any] struct{ of *DB[Tx] }

// callback is what a callback runs in: the transaction and what it entered,
// nothing if it is not fenced.
type callback[Tx any] struct {
	context.Context
	db     *DB[Tx]
	tx     Tx
	claims []guard.Claim
	over   atomic.Bool // the context may outlive the transaction
}

// Value has the callback itself, for its DB, and says to other packages that a
// connection of the pool is in use.
func (c *callback[Tx]) Value(key any) any {
	switch key := key.(type) {
	case txKey[Tx]:
		if key.of == c.db {
			return c
		}
	case sqlkit.Inside:
		if key.Pool == c.db.backend.pool() && !c.over.Load() {
			return c
		}
	}
	return c.Context.Value(key)
}

// callback returns the callback of ctx, or nil if there is none or it is over.
func (d *DB[Tx]) callback(ctx context.Context) *callback[Tx] {
	if c, inside := ctx.Value(txKey[Tx]{d}).(*callback[Tx]); inside && !c.over.Load() {
		return c
	}
	return nil
}

// call runs fn in the transaction of c and, if it returns nil, commits. It releases c even if
// fn panics or calls runtime.Goexit. committing reports that err is of the COMMIT, or of a
// BEGIN before it; gone that it is fn's and that the session had ended by then.
func (d *DB[Tx]) call(ctx context.Context, op string, c conn[Tx], claims []guard.Claim, fn func(ctx context.Context, tx Tx) error) (committing, gone bool, err error) {
	own := &callback[Tx]{Context: ctx, db: d, tx: c.tx(), claims: claims}
	defer c.release()
	defer own.over.Store(true)
	if err := fn(own, own.tx); err != nil {
		return false, c.gone(), err
	}
	claim, _ := guard.ClaimFrom(ctx)
	if err := sqlkit.Ended(ctx, op, claim); err != nil && !c.begun() {
		return false, false, err
	} else if err != nil {
		return false, false, d.unlessEnded(ctx, own, c.gone(), c.committed(), op, err)
	}
	if err := c.start(ctx); err != nil {
		return true, false, pgerr.NotSent(err)
	}
	return true, false, c.commit(ctx, d.commits)
}

// unlessEnded returns err, which says that nothing was committed, unless the callback
// ended the fenced transaction itself.
func (d *DB[Tx]) unlessEnded(ctx context.Context, own *callback[Tx], gone, committed bool, op string, err error) error {
	if own.claims == nil || gone && !committed {
		return err // it has no marker, or nothing can be asked
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	var same bool
	_, asking := sqlkit.Row(ctx, d.backend.in(own.tx), markedSQL, []any{d.marker}, &same)
	if committed || asking == nil && !same || errors.Is(asking, pgx.ErrTxClosed) {
		return guard.OutcomeUnknown(op, own.claims[0], errEnded)
	}
	return err
}
