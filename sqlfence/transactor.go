package sqlfence

import (
	"context"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Transactor runs functions in transactions of its [DB] that they find in their
// context. It implements the Transactor of package httpfence, without either package importing the other. Get one from
// [DB.Transactor]; it is safe for concurrent use.
type Transactor[Tx any] struct{ db *DB[Tx] }

// Transactor returns d in a form without driver types: the transaction travels
// in the context, where [DB.TxFrom] finds it.
func (d *DB[Tx]) Transactor() Transactor[Tx] { return Transactor[Tx]{d} }

// openTx is the key of a transaction in a context. It contains the DB, so that
// the transaction of another database is never mistaken for this one's.
type openTx[Tx any] struct{ of *DB[Tx] }

// Marks returns the DB: its transactions compare with, and raise, the marks
// that it has as a [guard.Store].
func (t Transactor[Tx]) Marks() guard.Store { return t.db }

// InTx is [DB.InTx] for a function that takes its transaction from the context.
// The transaction begins before fn is called, which so does nothing for a stale holder. It
// reports nothing to Options.Observer: its caller reports, as with [DB.Admit].
func (t Transactor[Tx]) InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context) error) error {
	opts, _ := (*TxOptions)(nil).resolve() // the default is valid
	return sqlkit.Interrupted(ctx, t.db.inTx(ctx, []guard.Claim{claim}, opts, true, func(ctx context.Context, tx Tx) error {
		return fn(context.WithValue(ctx, openTx[Tx]{t.db}, tx))
	}))
}

// InsecureTx runs fn in a transaction that nothing fences: it looks at no
// claim, and a newer holder's raise does not wait for it. It is for rolling out
// fences, when a request that would be refused is counted but still carried
// out. Otherwise it is like InTx, including its errors.
func (t Transactor[Tx]) InsecureTx(ctx context.Context, fn func(ctx context.Context) error) error {
	const op = "unfenced transaction"
	if t.db.callback(ctx) != nil {
		return guard.Invalid("InsecureTx", "", "is called inside another transaction; pass that one on instead")
	}
	if err := sqlkit.Ended(ctx, op, guard.Claim{}); err != nil {
		return err
	}
	c, err := t.db.begin(ctx, nil, readCommitted)
	if err != nil {
		return sqlkit.SchemaFailure(op, guard.Claim{}, err)
	}
	committing, _, err := t.db.call(ctx, op, c, nil, func(ctx context.Context, tx Tx) error { return fn(context.WithValue(ctx, openTx[Tx]{t.db}, tx)) })
	if committing {
		err = sqlkit.Failure("commit of an "+op, guard.Claim{}, err, true)
	}
	return sqlkit.Interrupted(ctx, err)
}

// TxFrom returns the transaction in which a function of d's [Transactor] runs,
// and whether ctx belongs to such a function. A callback of [DB.InTx] receives
// its transaction as an argument and does not find it here.
func (d *DB[Tx]) TxFrom(ctx context.Context) (tx Tx, ok bool) {
	tx, ok = ctx.Value(openTx[Tx]{d}).(Tx)
	return tx, ok
}
