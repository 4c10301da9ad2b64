package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	enterCall         = "fencepost.enter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)"
	enterSnapshotCall = "fencepost.enter_snapshot($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)"
	// enteredSQL presents all claims to the triggers of guarded tables (as fencepost.claims
	// reads them), and makes the
	// transaction's ID its marker: a setting that ends with the transaction, however that
	// ends, by COMMIT AND CHAIN too. It returns the ID, which pg_xact_status knows, and when
	// on what server: after a crash or a failover the same ID may be another transaction.
	enteredSQL = ", pg_catalog.set_config('fencepost.claims', pg_catalog.concat(pg_catalog.pg_current_xact_id(), ' ', $6::pg_catalog.text), true)" +
		", pg_catalog.set_config('fencepost.transaction', pg_catalog.pg_current_xact_id()::pg_catalog.text, true)" +
		", pg_catalog.concat_ws('/', " + timelineSQL + ", " + microsOf + "pg_catalog.now()" + asMicros + ")"
	// markedSQL reports whether the open transaction is the one that was entered.
	markedSQL   = "SELECT " + isMarkedSQL
	isMarkedSQL = "coalesce(pg_catalog.current_setting('fencepost.transaction', true) OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text, false)"
	// timelineSQL is the WAL's timeline, the first eight digits of a file's name (PostgreSQL
	// documentation, 30.5).
	timelineSQL = "pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8)"
	microsOf    = "(pg_catalog.date_part('epoch', "
	asMicros    = ") OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::bigint"
)

const (
	enterOp  = "enter"
	commitOp = "commit of a fenced transaction"
)

// maxEnter bounds how often a transaction raises and enters again: once is the
// rule, a second time only if the mark was retired in between. maxEarly bounds
// how often it takes its snapshot again, because a raise was committed after it.
const (
	maxEnter = 3
	maxEarly = 10
)

// maxClaims bounds the resources of one transaction: each holds a lock in the
// server's shared memory.
const maxClaims = 64

// maxBadConns is how many dead connections are discarded before giving up, as
// in database/sql itself.
const maxBadConns = 3

// backend is a driver's pool.
type backend[Tx any] interface {
	// conn returns a connection without a transaction, to be released. Its
	// errors are known to have sent nothing.
	conn(ctx context.Context) (conn[Tx], error)
	// in sends statements in a transaction of the driver's.
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

// conn is one connection, on which one transaction may be begun. It is reserved until it is
// released, so that a callback that ended the transaction is noticed.
type conn[Tx any] interface {
	sqlkit.Querier
	// begin opens a transaction with its first statements, in one round trip where the
	// driver can. If it is marked, commit looks for the marker.
	begin(ctx context.Context, level sql.IsolationLevel, marked bool, first ...statement) error
	// in sends statements in the transaction.
	in() sqlkit.Querier
	// tx is the callback's handle.
	tx() Tx
	// commit returns errEnded, and commits nothing, if the marker is missing; seen reports that
	// it was there, and that the COMMIT was sent after that.
	commit(ctx context.Context) (seen bool, err error)
	// status is what the connection shows.
	status(ctx context.Context) txStatus
	// rollback ends what is open: the session then is idle (undone), had ended (undoneByLoss), or
	// was cut (notKnown).
	rollback(ctx context.Context) outcome
	// pipeline sends a whole transaction at once, if the driver can.
	pipeline(ctx context.Context, enter statement, query string, args []any) pipelined
	// release rolls back what is open and gives the connection back. It never blocks for
	// long, and does nothing when it is called again.
	release()
}

type txStatus int

const (
	txUnseen txStatus = iota // it cannot be asked
	txNone                   // no transaction was open at the last response, and the callback could go on
	txSome                   // one may be, perhaps another one than was begun
)

// statement is sent with a BEGIN; if dest is set, it returns one row for it.
type statement struct {
	sql  string
	args []any
	dest []any
}

// transaction is a fenced transaction.
type transaction[Tx any] struct {
	conn[Tx]
	id     transactionID
	claims []guard.Claim // in the order in which they were entered
}

type transactionID struct{ xid, server string }

// inTx enters, calls fn and commits. What became of a transaction that it did not commit is
// in outcome.go.
func (d *DB[Tx]) inTx(ctx context.Context, claims []guard.Claim, level sql.IsolationLevel, fn func(ctx context.Context, tx Tx) error) error {
	sorted, err := sortClaims(claims)
	if err != nil {
		return err
	}
	if fn == nil {
		return guard.Invalid("fn", "nil", "must not be nil")
	}
	if err := d.mayBegin(ctx, "InTx", claims[0]); err != nil {
		return err
	}
	t := &transaction[Tx]{claims: sorted}
	err = d.raising(ctx, sorted, level, func() (err error) {
		t.conn, err = d.begin(ctx, level, true, d.enterStatements(sorted, level, &t.id)...)
		return err
	})
	if err != nil {
		return err
	}
	defer t.release() // rolls back if fn panics
	err = d.call(guard.WithClaim(ctx, claims[0]), t, fn)
	if err == nil {
		err = sqlkit.Ended(ctx, "fenced transaction", claims[0])
	}
	if err != nil {
		return d.failed(ctx, t, err)
	}
	if seen, err := d.commit(ctx, t.conn); err != nil {
		return d.commitFailed(ctx, t, seen, err)
	}
	return nil
}

// mayBegin refuses a transaction inside another one, and one whose context is over.
func (d *DB[Tx]) mayBegin(ctx context.Context, call string, claim guard.Claim) error {
	if d.callback(ctx) != nil {
		return guard.Invalid(call, claim.Resource, "is called inside another InTx; pass its transaction on instead")
	}
	return sqlkit.Ended(ctx, "fenced transaction", claim)
}

// raising calls enter, and again after raising the marks that claims are above, or, where a
// snapshot was taken too early. An unknown outcome of a raise is not one of the caller's work, of
// which nothing was sent.
func (d *DB[Tx]) raising(ctx context.Context, claims []guard.Claim, level sql.IsolationLevel, enter func() error) error {
	for entered, early := 0, 0; ; {
		err := enter()
		switch state := pgerr.State(err); {
		case err == nil:
			return nil
		case state == pgerr.Serialization && level != sql.LevelReadCommitted && early < maxEarly:
			early++
			continue
		case state == pgerr.LockTimeout:
			return d.blocked(ctx, claims, sqlkit.SchemaFailure(enterOp, offered(claims, err), err))
		case state != pgerr.MustRaise:
			return sqlkit.SchemaFailure(enterOp, offered(claims, err), err)
		}
		if entered++; entered == maxEnter { // no enter would follow another raise
			return guard.Unavailable(enterOp, claims[0], err)
		}
		for _, claim := range claims {
			if err := d.raise(ctx, claim, false); err != nil {
				return err
			}
		}
	}
}

// enterStatements returns the statements that enter under claims. The first refuses an
// unfit session; the last marks the transaction and reads its ID.
func (d *DB[Tx]) enterStatements(claims []guard.Claim, level sql.IsolationLevel, id *transactionID) []statement {
	call, ignored := enterCall, new(any)
	if level != sql.LevelReadCommitted {
		call = enterSnapshotCall
	}
	statements := make([]statement, len(claims))
	for i, claim := range claims {
		s := statement{sql: "SELECT " + call, args: append(make([]any, 0, 6), claim.Resource, int64(claim.Token), claim.LeaseID,
			int32(d.opts.LockTimeout.Milliseconds()), int32(d.opts.IdleTimeout.Milliseconds()))}
		if i == 0 {
			s.sql = "SELECT " + sqlkit.FitSQL + ", " + call
		}
		if i == len(claims)-1 {
			s.sql += enteredSQL
			s.args = append(s.args, sqlkit.JSON(claims))
			s.dest = []any{ignored, ignored, &id.xid, &id.server}
			if i == 0 {
				s.dest = append([]any{ignored}, s.dest...)
			}
		}
		statements[i] = s
	}
	return statements
}

// begin opens a transaction, to be committed and released.
func (d *DB[Tx]) begin(ctx context.Context, level sql.IsolationLevel, marked bool, first ...statement) (conn[Tx], error) {
	return d.with(ctx, func(c conn[Tx]) error { return c.begin(ctx, level, marked, first...) })
}

// with runs f, which commits nothing if it fails, on a connection, and on another one if the
// first was dead. The caller releases what f leaves open. A connection that only the caller
// can give back is not waited for.
func (d *DB[Tx]) with(ctx context.Context, f func(c conn[Tx]) error) (c conn[Tx], err error) {
	if sqlkit.InTx(ctx, d.backend.pool()) && d.backend.single() { // to ask a pool takes its lock
		return nil, sqlkit.ErrOnly
	}
	kept := false
	for try := 1; ; try++ {
		if c, err = d.backend.conn(ctx); err != nil {
			return nil, err
		}
		func() {
			defer func() { // also if an argument's Valuer panics
				if !kept {
					c.release()
				}
			}()
			err = f(c)
			kept = err == nil
		}()
		if kept {
			return c, nil
		}
		if !errors.Is(err, driver.ErrBadConn) || try == maxBadConns {
			return nil, err
		}
	}
}

// commit awaits the response even if ctx has ended.
func (d *DB[Tx]) commit(ctx context.Context, c conn[Tx]) (seen bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.CommitTimeout)
	defer cancel()
	return c.commit(ctx)
}

// once runs statements on schema fencepost in a transaction of their own. A lost
// response to its COMMIT is an unknown outcome only if they are the caller's work.
func (d *DB[Tx]) once(ctx context.Context, op string, claim guard.Claim, work bool, statements ...statement) error {
	c, err := d.begin(ctx, sql.LevelReadCommitted, false, statements...)
	if err != nil {
		return sqlkit.SchemaFailure(op, claim, err)
	}
	defer c.release()
	_, err = d.commit(ctx, c)
	return sqlkit.Failure(op, claim, err, work)
}

// row reads one row outside of any transaction.
func (d *DB[Tx]) row(ctx context.Context, sql string, args []any, dest ...any) (found bool, err error) {
	c, err := d.with(ctx, func(c conn[Tx]) error {
		found, err = sqlkit.Row(ctx, c, sql, args, dest...)
		return err
	})
	if err == nil {
		c.release()
	}
	return found, err
}

// callback is the context of a callback, with the transaction that it runs in.
type callback[Tx any] struct {
	context.Context
	db     *DB[Tx]
	tx     Tx
	claims []guard.Claim
	over   atomic.Bool // the context may outlive the transaction
}

// txKey finds a DB's callback, also behind those of other DBs.
type txKey[Tx any] struct{ of *DB[Tx] }

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

func (d *DB[Tx]) call(ctx context.Context, t *transaction[Tx], fn func(ctx context.Context, tx Tx) error) error {
	c := &callback[Tx]{Context: ctx, db: d, tx: t.tx(), claims: t.claims}
	defer c.over.Store(true)
	return fn(c, c.tx)
}

// stage is a part of a pipelined transaction.
type stage int

const (
	sentNothing stage = iota // the driver has no pipeline, or not for this
	unsendable               // the statement is not one, or its arguments do not fit
	atEnter
	atWork  // no response to the statement came, or the session ended
	refused // the statement failed, and nothing is committed
	atCommit
	done
)

// pipelined is what came back of a transaction that was sent at once.
type pipelined struct {
	failed stage // where err comes from
	err    error
	rows   int64
	tag    string // what the server calls the statement
}

func (d *DB[Tx]) exec(ctx context.Context, claim guard.Claim, query string, args []any) (int64, error) {
	claims := []guard.Claim{claim}
	if err := claim.Validate(); err != nil {
		return 0, err
	}
	if strings.TrimSpace(query) == "" { // pgx panics
		return 0, guard.Invalid("sql", query, "must be a statement")
	}
	if err := d.mayBegin(ctx, "Exec", claim); err != nil {
		return 0, err
	}
	var t *transaction[Tx]
	var p pipelined
	err := d.raising(ctx, claims, sql.LevelReadCommitted, func() (err error) {
		t = &transaction[Tx]{claims: claims}
		t.conn, err = d.with(ctx, func(c conn[Tx]) error {
			p = c.pipeline(ctx, d.enterStatements(claims, sql.LevelReadCommitted, &t.id)[0], query, args)
			if p.failed == atEnter && pgerr.Reason(p.err, pgerr.Commit) != guard.ReasonOutcomeUnknown {
				return p.err
			}
			return nil
		})
		return err
	})
	if err != nil {
		return 0, err
	}
	defer t.release()
	switch p.tag {
	case "PREPARE TRANSACTION":
		return 0, guard.Invalid("sql", p.tag, "prepares the transaction, which stays open, and delays raises, until ROLLBACK PREPARED")
	case "COMMIT", "ROLLBACK", "BEGIN", "START TRANSACTION":
		return 0, guard.Invalid("sql", p.tag, "begins or ends a transaction; nothing was written")
	}
	switch p.failed {
	case sentNothing:
		t.release()
		return d.execInTx(ctx, claim, query, args)
	case done:
		return p.rows, nil
	}
	if err := d.pipelineFailed(ctx, t, p); err != nil {
		return 0, err
	}
	return p.rows, nil
}

func (d *DB[Tx]) execInTx(ctx context.Context, claim guard.Claim, query string, args []any) (rows int64, err error) {
	err = d.inTx(ctx, []guard.Claim{claim}, sql.LevelReadCommitted, func(ctx context.Context, tx Tx) (err error) {
		rows, err = d.backend.in(tx).Exec(ctx, query, args)
		if unsendable := (sqlkit.Unsendable{}); errors.As(err, &unsendable) {
			err = unsendable.Cause
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return rows, nil
}

// sortClaims checks the claims of one transaction and returns them in the order in which
// every transaction takes their locks.
func sortClaims(claims []guard.Claim) ([]guard.Claim, error) {
	if len(claims) == 0 {
		return nil, guard.Invalid("claims", "", "must have at least one claim")
	}
	if len(claims) > maxClaims {
		return nil, guard.Invalid("claims", strconv.Itoa(len(claims)), "must be at most "+strconv.Itoa(maxClaims))
	}
	for _, claim := range claims {
		if err := claim.Validate(); err != nil {
			return nil, err
		}
	}
	if len(claims) == 1 {
		return claims, nil
	}
	sorted := slices.SortedFunc(slices.Values(claims), func(a, b guard.Claim) int { return strings.Compare(a.Resource, b.Resource) })
	for i := range sorted[1:] {
		if sorted[i].Resource == sorted[i+1].Resource {
			return nil, guard.Invalid("claims", sorted[i].Resource, "is claimed twice")
		}
	}
	return sorted, nil
}

func (d *DB[Tx]) observe(ctx context.Context, e guard.Event) {
	if d.opts.Observer == nil {
		return
	}
	e.Surface = guard.SurfaceSQL
	e.Reason = guard.ReasonOf(e.Err)
	d.opts.Observer.Observe(ctx, e)
}

// observeAll reports a transaction once for each of its claims, or only for the
// one that was refused.
func (d *DB[Tx]) observeAll(ctx context.Context, claims []guard.Claim, start time.Time, err error) {
	if d.opts.Observer == nil {
		return
	}
	var rejected *guard.RejectedError
	if errors.As(err, &rejected) && slices.Contains(claims, rejected.Claim) {
		claims = []guard.Claim{rejected.Claim}
	}
	for _, claim := range claims {
		d.observe(ctx, guard.Event{Op: guard.OpTransaction, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	}
}

// markOf returns the mark after a claim was raised, or the one that refused it.
func markOf(claim guard.Claim, err error) guard.Mark {
	if err == nil {
		return guard.Mark{Token: claim.Token, LeaseID: claim.LeaseID}
	}
	var rejected *guard.RejectedError
	if errors.As(err, &rejected) {
		return rejected.Mark
	}
	return guard.Mark{}
}
