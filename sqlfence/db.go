package sqlfence

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
)

// Options configures [Pgx] and [Std]. The zero value is the default.
type Options struct {
	// LockTimeout bounds how long a fenced transaction waits for any lock, a
	// raise of its resource's mark included; it is PostgreSQL's lock_timeout
	// for the transaction. 0 means 5 s; negative leaves the session's own.
	LockTimeout time.Duration
	// IdleTimeout is how long a fenced transaction may sit between two of its
	// statements before the server ends it; it is PostgreSQL's
	// idle_in_transaction_session_timeout for the transaction. It keeps a
	// stopped process from blocking its successor for ever, and bounds how
	// long a callback of InTx may compute without the database. 0 means 15 s;
	// negative leaves the session's own. Sessions that have both timeouts
	// anyway, from their role or connection string, save some 5 us of the
	// server in each transaction with negative values for both.
	IdleTimeout time.Duration
	// RaiseTimeout bounds how long a raise waits for the transactions that
	// entered under a lower token to end, also where the session has a shorter
	// statement_timeout. 0 means LockTimeout + IdleTimeout, so that a stopped
	// holder is waited out.
	RaiseTimeout time.Duration
	// TerminateAfter is how long a transaction that entered under a lower token
	// may go on working while a raise waits for it; then the raise has the
	// server end its session (pg_terminate_backend). It counts from when a raise
	// of this DB first found the transaction in its way, because the server does
	// not say when it entered. Only sessions of the same login role are ended,
	// and none that raises a mark itself, as [DB.Enter] may. 0 means 15 s;
	// negative never ends one, nor does a value of RaiseTimeout or above.
	// Transactions that may be left to finish although their lease is lost need
	// both above their length.
	TerminateAfter time.Duration
	// TerminateIdleAfter is the same for a transaction that waits for its
	// client: it is idle, or its client does not take the result, as a process
	// that was stopped does. It counts from when it became idle, if the server
	// says so. With the default a stopped holder delays its successor by at most
	// 2 s. 0 means 1 s; negative treats idle ones as working ones.
	TerminateIdleAfter time.Duration
	// Logger is told when a raise has waited for half a second, with the process
	// IDs and application names of those that it waits for, and when it ends a
	// session; nil means slog.Default().
	Logger *slog.Logger
	// PresentClaims makes [DB.InTx], [DB.InTxAll], [DB.Batch] and [DB.Enter]
	// present their claims to the triggers of guarded tables
	// ([Admin.InstallTrigger]), as [DB.Present] does. Without it a write of such a
	// table is refused with [guard.ErrMissing]. It costs some microseconds of
	// the server in each transaction, which is why false is the zero value: who
	// guards no table does not pay. Set it before the first table is guarded.
	PresentClaims bool
	// CommitTimeout bounds a COMMIT. A COMMIT that was sent is waited for even
	// if the caller's context ends meanwhile, because giving it up would only
	// make its outcome unknown. It may take an eighth longer. 0 means 5 s.
	CommitTimeout time.Duration
	// Observer is told of every fenced write, transaction, raise and
	// admission; nil means nobody.
	Observer guard.Observer
}

const (
	defaultLockTimeout   = 5 * time.Second
	defaultIdleTimeout   = 15 * time.Second
	defaultTerminate     = 15 * time.Second
	defaultTerminateIdle = time.Second
	defaultCommitTimeout = 5 * time.Second
	rollbackTimeout      = 5 * time.Second
	// maxTimeout keeps a timeout in the milliseconds of an integer setting.
	maxTimeout = 24 * time.Hour
)

// resolve fills in the defaults. A timeout below a millisecond would reach the
// server as 0, which means "none" there.
func (o Options) resolve() (Options, error) {
	for _, t := range []struct {
		field string
		value *time.Duration
		unset time.Duration
	}{
		{"Options.LockTimeout", &o.LockTimeout, defaultLockTimeout},
		{"Options.IdleTimeout", &o.IdleTimeout, defaultIdleTimeout},
		{"Options.TerminateAfter", &o.TerminateAfter, defaultTerminate},
		{"Options.TerminateIdleAfter", &o.TerminateIdleAfter, defaultTerminateIdle},
		{"Options.CommitTimeout", &o.CommitTimeout, defaultCommitTimeout},
	} {
		if *t.value == 0 {
			*t.value = t.unset
		}
		if *t.value < 0 && t.value != &o.CommitTimeout {
			*t.value = 0
			continue
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

// DB is a PostgreSQL database whose writes are fenced. Tx is its driver's
// transaction: make a DB[pgx.Tx] with [Pgx] and a DB[*sql.Tx] with [Std]; both
// run the same statements. The zero value is not usable. It is safe for
// concurrent use, and owns neither the pool nor its connections.
type DB[Tx any] struct {
	backend backend[Tx]
	opts    Options
	commits *commitBound
	marker  string
	holders holderTimes
	tables  sync.Map // IDs of the tables that were looked at
}

func newDB[Tx any](d backend[Tx], opts *Options) (*DB[Tx], error) {
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	return &DB[Tx]{backend: d, opts: o, commits: &commitBound{timeout: o.CommitTimeout}, marker: rand.Text()}, nil
}

// Querier is where a [Table] sends its statements: a [DB], or one of its
// transactions through [DB.In].
type Querier interface {
	querier
	observe(ctx context.Context, e guard.Event)
	// autocommit says that a statement commits by itself.
	autocommit() bool
	// atomically runs statements in a transaction of their own.
	atomically(ctx context.Context, op string, write func(q Querier) error) error
	// usable refuses the DB itself inside its own InTx, and tables that keep no
	// mark.
	usable(ctx context.Context, t *Table) error
}

// querier runs statements. Errors are the driver's own, or a notSent or an
// unsendable around it.
type querier interface {
	exec(ctx context.Context, sql string, args []any) (rows int64, err error)
	row(ctx context.Context, sql string, args []any, dest ...any) (found bool, err error)
	// query calls each for each row that a statement returns. Its own error
	// ends the reading and comes back as an unreadable.
	query(ctx context.Context, sql string, args []any, each eachRow) error
}

// eachRow is given a row's Scan.
type eachRow func(scan func(dest ...any) error) error

// unreadable marks an error of reading a row that the server has sent.
type unreadable struct{ error }

func (e unreadable) Unwrap() error { return e.error }

// readRows reads the rows of either driver.
func readRows(rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
}, each eachRow) error {
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return unreadable{err}
		}
	}
	return rows.Err()
}

// inspecting is the level of transactions that only read, also on a standby.
const inspecting = Serializable + 1

// systemNames makes the rest of a transaction resolve names in pg_catalog alone:
// a schema on the search_path may have functions, operators or types of another
// role, which would run with the caller's rights.
var systemNames = statement{sql: "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"}

// inspect runs queries of an operator's, which see the names of the system alone.
// What comes first sees the caller's.
func (d *DB[Tx]) inspect(ctx context.Context, op string, read func(q querier) error, first ...statement) error {
	tx, err := d.backend.begin(ctx, inspecting, "", append(first, systemNames)...)
	if err != nil {
		return schemaFailure(op, guard.Claim{}, err)
	}
	defer tx.rollback()
	return read(d.backend.in(tx.handle()))
}

// backend is what differs between pgx and database/sql.
type backend[Tx any] interface {
	querier
	migrate(ctx context.Context, c migrate.Component) error
	// begin opens a transaction with its first statements, in one round trip
	// where the driver can. It leaves nothing open on error, and nothing can
	// have been committed then.
	//
	// marker, if there is one, is what the first statements put into the
	// setting fencepost.transaction; then commit answers errEnded, and commits
	// nothing, if it is not there any more (see [DB.entering]).
	begin(ctx context.Context, level Isolation, marker string, first ...statement) (transaction[Tx], error)
	// batch runs a whole READ COMMITTED transaction, in one round trip where
	// the driver can, and returns how many rows each write changed. committing
	// says that a COMMIT may have been sent.
	batch(ctx context.Context, first statement, writes []Statement, commits *commitBound) (rows []int64, committing bool, err error)
	in(tx Tx) querier
	// same reports that two handles are of one transaction, if both are open.
	same(a, b Tx) bool
}

// statement is sent with a BEGIN; if dest is set, it returns one row for it.
type statement struct {
	sql  string
	args []any
	dest []any
}

// transaction is an open transaction on a connection that is its own until it
// is rolled back or committed here, so that a callback that ended it is
// noticed. commit gives up when the bound says so, whatever ctx says; rollback
// never blocks for long and may follow commit.
type transaction[Tx any] interface {
	handle() Tx
	commit(ctx context.Context, bound *commitBound) error
	rollback()
}

func (d *DB[Tx]) exec(ctx context.Context, sql string, args []any) (int64, error) {
	return d.backend.exec(ctx, sql, args)
}

func (d *DB[Tx]) row(ctx context.Context, sql string, args []any, dest ...any) (bool, error) {
	return d.backend.row(ctx, sql, args, dest...)
}

func (d *DB[Tx]) query(ctx context.Context, sql string, args []any, each eachRow) error {
	return d.backend.query(ctx, sql, args, each)
}

func (d *DB[Tx]) observe(ctx context.Context, e guard.Event) {
	if d.opts.Observer == nil {
		return
	}
	e.Surface = guard.SurfaceSQL
	e.Reason = guard.ReasonOf(e.Err)
	d.opts.Observer.Observe(ctx, e)
}

// In returns tx as a place for the statements of a [Table]: they compare with
// the row's mark as always, and apply when tx commits. tx may be one that [DB.InTx] opened or any other of the driver's.
func (d *DB[Tx]) In(tx Tx) Querier { return &txQuerier[Tx]{querier: d.backend.in(tx), db: d} }

type txQuerier[Tx any] struct {
	querier
	db *DB[Tx]
}

func (d *DB[Tx]) autocommit() bool { return true }

func (d *DB[Tx]) atomically(ctx context.Context, op string, write func(q Querier) error) error {
	tx, err := d.backend.begin(ctx, ReadCommitted, "")
	if err != nil {
		return failure(op, guard.Claim{}, err, false)
	}
	defer tx.rollback() // does nothing after a COMMIT
	if err := write(d.In(tx.handle())); err != nil {
		return err
	}
	if err := ended(ctx, op, guard.Claim{}); err != nil {
		return err
	}
	return failure(op, guard.Claim{}, tx.commit(ctx, d.commits), true)
}

func (q *txQuerier[Tx]) atomically(_ context.Context, op string, _ func(q Querier) error) error {
	return guard.Invalid("writes", op, "take more than "+itoa(maxParameters)+" parameters, which takes several statements in a transaction of their own; pass the DB, or fewer of them")
}

func (d *DB[Tx]) usable(ctx context.Context, t *Table) error {
	if d.callback(ctx) != nil {
		return guard.Invalid("Querier", "DB", "is used inside its own InTx, whose transaction would not have the statement; pass DB.In(tx) instead")
	}
	return d.guardable(ctx, d, t)
}

func (q *txQuerier[Tx]) usable(ctx context.Context, t *Table) error {
	return q.db.guardable(ctx, q, t)
}

// kindSQL says what a table is, whether it has rules, and whether one of its
// partitions or children is a foreign table. It names the schema of everything:
// it runs in transactions of the caller's, whose search_path stays as it is, and
// which may have functions and operators of another role.
const kindSQL = `WITH RECURSIVE tree AS (
	SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid AS oid
	UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) tree.oid
), kinds AS (
	SELECT c.relkind OPERATOR(pg_catalog.=) ANY (ARRAY['r', 'p']::"char"[]) AS keeps,
		EXISTS (SELECT FROM pg_catalog.pg_rewrite r WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid) AS ruled
	FROM tree JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) tree.oid
)
SELECT CASE WHEN pg_catalog.bool_and(keeps) IS FALSE THEN 'is or has a view or foreign table'
		WHEN pg_catalog.bool_or(ruled) THEN 'has rules' ELSE '' END,
	pg_catalog.count(*) OPERATOR(pg_catalog.>) 0,
	(SELECT coalesce(pg_catalog.string_agg(pg_catalog.concat(a.attname, ' is ', pg_catalog.format_type(a.atttypid, a.atttypmod)), ', '), '')
		FROM pg_catalog.jsonb_to_recordset(CASE WHEN $2::pg_catalog.text OPERATOR(pg_catalog.=) 'null' THEN '[]' ELSE $2::pg_catalog.text END::pg_catalog.jsonb) AS b ("column" pg_catalog.text, type pg_catalog.text)
		JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1::pg_catalog.text)
			AND a.attname OPERATOR(pg_catalog.=) b."column" AND NOT a.attisdropped
		JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
		LEFT JOIN pg_catalog.pg_collation l ON l.oid OPERATOR(pg_catalog.=) a.attcollation
		WHERE CASE WHEN t.typtype OPERATOR(pg_catalog.=) 'd' THEN t.typbasetype ELSE t.oid END OPERATOR(pg_catalog.<>) ALL (
			CASE WHEN b.type OPERATOR(pg_catalog.=) 'int' THEN ARRAY['pg_catalog.int2', 'pg_catalog.int4', 'pg_catalog.int8']
				WHEN b.type OPERATOR(pg_catalog.=) 'uuid' THEN ARRAY['pg_catalog.uuid'] ELSE ARRAY['pg_catalog.text', 'pg_catalog.varchar'] END::pg_catalog.regtype[]::pg_catalog.oid[])
			OR NOT coalesce(l.collisdeterministic, true))
FROM kinds`

// guardable refuses, when a table is first used, what does not keep a mark as a
// table does: an INSTEAD OF trigger or a rule may write another row, or another
// mark. And key columns of which several values are equal, or have other texts
// than the resource's name is built from. A table that is not there is left to
// the statement.
func (d *DB[Tx]) guardable(ctx context.Context, q querier, t *Table) error {
	if _, known := d.tables.Load(t.id); known {
		return nil
	}
	id, obstacle, unfit := t.id.(tableID), "", ""
	var there bool
	_, err := q.row(ctx, kindSQL, []any{id.name, id.bound}, &obstacle, &there, &unfit)
	switch {
	case err != nil:
		return tableFailure("look at "+t.label, guard.Claim{}, err, false)
	case obstacle != "":
		return guard.Invalid("table", t.label, obstacle+": only ordinary and partitioned tables keep marks")
	case unfit != "":
		return guard.Invalid("template "+t.resource.String(), unfit,
			"is not the column's type: {x:int} is for whole numbers, {x:uuid} for uuid, {x} for text and varchar with a deterministic collation")
	case there:
		d.tables.Store(t.id, true)
	}
	return nil
}

func (q *txQuerier[Tx]) autocommit() bool { return false }

func (q *txQuerier[Tx]) observe(ctx context.Context, e guard.Event) { q.db.observe(ctx, e) }
