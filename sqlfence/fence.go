package sqlfence

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// DB is a PostgreSQL database whose writes are fenced. Tx is its driver's transaction:
// make a DB[pgx.Tx] with [Pgx] and a DB[*sql.Tx] with [Std]. The zero value is not usable.
// It is safe for concurrent use, and owns neither the pool nor its connections.
type DB[Tx any] struct {
	backend backend[Tx]
	opts    Options
	holders holderTimes
}

func newDB[Tx any](b backend[Tx], opts *Options) (*DB[Tx], error) {
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &DB[Tx]{backend: b, opts: o}, nil
}

// Options configures [Pgx] and [Std]. The zero value is the default. A timeout
// is 1 ms to 24 h, RaiseTimeout up to 48 h.
type Options struct {
	// LockTimeout is PostgreSQL's lock_timeout for each fenced transaction. 0 means 5 s.
	LockTimeout time.Duration
	// IdleTimeout is PostgreSQL's idle_in_transaction_session_timeout for each fenced
	// transaction: how long a callback of InTx may compute without using the database.
	// A raise that waits does not wait that long: see TerminateAfter. 0 means 15 s.
	IdleTimeout time.Duration
	// RaiseTimeout bounds how long a raise waits for the transactions that
	// entered under a lower token to end, even if the session has a shorter
	// statement_timeout. 0 means LockTimeout, at least 5 s, plus IdleTimeout, at
	// least 15 s, so that a raise outwaits a stopped holder, even one with the
	// default timeouts.
	RaiseTimeout time.Duration
	// TerminateAfter is how long a transaction that entered under a lower token
	// may go on working while a raise waits for it; then the raise has the
	// server end its session (pg_terminate_backend). It counts from when a raise
	// of this DB first found the transaction in its way, because the server does
	// not say when it entered. A transaction that waits for its client, as a
	// stopped process's does, has a fifteenth of that time, counted from when it
	// became idle if the server says so. 0 means 15 s, so that a stopped holder
	// delays its successor by at most 2 s.
	//
	// A login may end its own sessions, also after SET ROLE, and those of other logins
	// with pg_read_all_stats and pg_signal_backend, which sqladmin's Verify asks for.
	// A session that raises a mark, as [DB.Enter] may, is never ended.
	TerminateAfter time.Duration
	// CommitTimeout bounds a COMMIT, and then the search for its outcome if no response
	// came. The response is awaited even if the caller's context has ended, because
	// giving up would only make the outcome unknown. 0 means 5 s.
	CommitTimeout time.Duration
	// Logger logs when a raise has waited for half a second or ends a session, with
	// the process IDs and application names of the sessions it waits for; nil means slog.Default().
	Logger *slog.Logger
	// Observer receives an event for every InTx, InTxAll, Exec, Enter and Raise, and OpContend
	// for each raise that has waited for half a second or ends a session, perhaps after the
	// raise has returned, as for the logger; nil means none.
	Observer guard.Observer
}

const (
	defaultLockTimeout   = 5 * time.Second
	defaultIdleTimeout   = 15 * time.Second
	defaultTerminate     = 15 * time.Second
	defaultCommitTimeout = 5 * time.Second
	// idleShare is how much sooner a session that waits for its client is ended.
	idleShare = 15
	// maxTimeout keeps a timeout within the range of an integer setting in
	// milliseconds.
	maxTimeout = 24 * time.Hour
)

// withDefaults fills in the defaults. A timeout below a millisecond would reach the
// server as 0, which disables it.
func (o Options) withDefaults() (Options, error) {
	for _, t := range []struct {
		field string
		value *time.Duration
		unset time.Duration
	}{
		{"Options.LockTimeout", &o.LockTimeout, defaultLockTimeout},
		{"Options.IdleTimeout", &o.IdleTimeout, defaultIdleTimeout},
		{"Options.TerminateAfter", &o.TerminateAfter, defaultTerminate},
		{"Options.CommitTimeout", &o.CommitTimeout, defaultCommitTimeout},
	} {
		if *t.value == 0 {
			*t.value = t.unset
		}
		if *t.value < time.Millisecond || *t.value > maxTimeout {
			return o, guard.Invalid(t.field, t.value.String(), "must be 1ms to "+maxTimeout.String())
		}
	}
	if o.RaiseTimeout == 0 {
		o.RaiseTimeout = max(o.LockTimeout, defaultLockTimeout) + max(o.IdleTimeout, defaultIdleTimeout)
	}
	if o.RaiseTimeout < time.Millisecond || o.RaiseTimeout > 2*maxTimeout {
		return o, guard.Invalid("Options.RaiseTimeout", o.RaiseTimeout.String(), "must be 1ms to "+(2*maxTimeout).String())
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

// InTx runs fn in a transaction that only the current holder of the resource can commit.
//
// Before fn is called, the database compares the claim with the resource's mark. If the
// claim is stale, InTx returns [guard.ErrStale] and does not call fn. If it is newer, InTx
// raises the mark first, in a transaction of its own. Nobody can raise the mark past the
// claim until the transaction ends. It is READ COMMITTED; [DB.InTxAll] has other levels.
//
// To take over from another holder, read what it left through tx.
//
// If fn returns an error or panics, the transaction is rolled back and the error or panic
// is passed on. fn must not end the transaction itself, must use tx and not the DB, and must
// return the error of a statement that failed. Its context carries the claim
// ([guard.ClaimFrom]).
//
// Errors, besides fn's own:
//   - guard.ErrStale, guard.ErrConflict: the claim was refused, as a [*guard.RejectedError];
//     fn did not run, or a newer holder's raise has ended its session and nothing was committed.
//   - guard.ErrInvalid: a malformed claim, a nested InTx, or fn left rows open; nothing was committed.
//   - guard.ErrUnavailable: nothing was committed; it is safe to try again.
//   - guard.ErrOutcomeUnknown: COMMIT was sent and no response came, which [DB.Resolve] can
//     find out, unless the server said that nothing was committed; or fn ended the transaction
//     itself.
//   - any other error of COMMIT, such as a deferred constraint's: nothing was committed.
func (d *DB[Tx]) InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx Tx) error) error {
	return d.InTxAll(ctx, []guard.Claim{claim}, nil, fn)
}

// InTxAll is [DB.InTx] on several resources and with options, which may be nil.
//
// The transaction is fenced by all of the claims, or does not begin. They are entered in the
// order of their resources' bytes, so that transactions do not deadlock on them. A mark that
// is raised stays raised even if another claim is then refused. fn's context carries the
// first claim given.
//
// Errors are those of InTx. guard.ErrInvalid is also returned for no claims, more than 64, or
// two for one resource. A [*guard.RejectedError] names the claim that was refused.
func (d *DB[Tx]) InTxAll(ctx context.Context, claims []guard.Claim, opts *TxOptions, fn func(ctx context.Context, tx Tx) error) error {
	start := time.Now()
	level, err := opts.level()
	if err == nil {
		err = sqlkit.Interrupted(ctx, d.inTx(ctx, claims, level, fn))
	}
	d.observeAll(ctx, claims, start, err)
	return err
}

// TxOptions configures [DB.InTxAll]. The zero value is the default.
type TxOptions struct {
	// Isolation is the transaction's level, which every BEGIN names, so that the
	// server's default does not apply. Under [sql.LevelReadCommitted], which is
	// also the meaning of zero, transactions of one holder run concurrently and
	// never fail because of the fence. Under [sql.LevelRepeatableRead] and
	// [sql.LevelSerializable] the snapshot is taken on entering; if the mark has been
	// raised by then they begin again by themselves, and apart from that the
	// level's own conflicts are 40001: [ErrorFrom] makes ErrUnavailable of them, and
	// the caller may call again.
	Isolation sql.IsolationLevel
}

func (o *TxOptions) level() (sql.IsolationLevel, error) {
	if o == nil {
		return sql.LevelReadCommitted, nil
	}
	switch o.Isolation {
	case sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable:
		return o.Isolation, nil
	case sql.LevelDefault:
		return sql.LevelReadCommitted, nil
	}
	return 0, guard.Invalid("TxOptions.Isolation", o.Isolation.String(), "must be sql.LevelReadCommitted, LevelRepeatableRead or LevelSerializable")
}

// Exec runs one statement as a fenced transaction of its own, and returns how many rows it
// affected. On pgx that is one round trip; on database/sql, and in pgx's modes
// QueryExecModeSimpleProtocol and QueryExecModeDescribeExec, it is [DB.InTx] around the
// statement.
//
// If the claim is refused, or the statement fails, nothing is written. If the claim is newer
// than the mark, Exec raises the mark and sends the statement again, which was not executed.
//
// The statement must not begin or end a transaction. On pgx a statement that is new to a
// connection is prepared there first, before the claim is compared, with one round trip more.
//
// Errors, besides the statement's own, which are passed on unchanged:
//   - guard.ErrStale, guard.ErrConflict: the claim was refused, as by InTx.
//   - guard.ErrInvalid: a malformed claim; in one round trip also a statement that begins or
//     ends a transaction, or a COPY; nothing was written. In InTx, ending it is
//     ErrOutcomeUnknown, and BEGIN does nothing.
//   - guard.ErrUnavailable: nothing was written; it is safe to try again.
//   - guard.ErrOutcomeUnknown: the statement and COMMIT were sent, and no response came. The
//     end of ctx has the same effect.
func (d *DB[Tx]) Exec(ctx context.Context, claim guard.Claim, sql string, args ...any) (rows int64, err error) {
	start := time.Now()
	rows, err = d.exec(ctx, claim, sql, args)
	err = sqlkit.Interrupted(ctx, err)
	d.observeAll(ctx, []guard.Claim{claim}, start, err)
	return rows, err
}

// Transactor runs functions in transactions of its [DB] that they find in their
// context. It implements the Transactor of package httpfence, without either package
// importing the other. Get one from [DB.Transactor]; it is safe for concurrent use.
type Transactor[Tx any] struct{ db *DB[Tx] }

// Transactor returns d in a form without driver types: the transaction travels
// in the context, where [DB.TxFrom] finds it.
func (d *DB[Tx]) Transactor() Transactor[Tx] { return Transactor[Tx]{d} }

// openTx is the key of a transaction in a context. It contains the DB, so that
// the transaction of another database is never mistaken for this one's.
type openTx[Tx any] struct{ of *DB[Tx] }

// Marks returns the DB, whose marks are those that its transactions compare with. It is how
// httpfence's NewTx cannot be given the marks of another database.
func (t Transactor[Tx]) Marks() guard.Store { return t.db }

// InTx is [DB.InTx] for a function that takes its transaction from the context. It reports
// nothing to Options.Observer: its caller reports, as with [DB.Admit].
func (t Transactor[Tx]) InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context) error) error {
	return sqlkit.Interrupted(ctx, t.db.inTx(ctx, []guard.Claim{claim}, sql.LevelReadCommitted, func(ctx context.Context, tx Tx) error {
		return fn(context.WithValue(ctx, openTx[Tx]{t.db}, tx))
	}))
}

// TxFrom returns the transaction in which a function of d's [Transactor] runs,
// and whether ctx belongs to such a function. A callback of [DB.InTx] receives
// its transaction as an argument and does not find it here.
func (d *DB[Tx]) TxFrom(ctx context.Context) (tx Tx, ok bool) {
	tx, ok = ctx.Value(openTx[Tx]{d}).(Tx)
	return tx, ok
}
