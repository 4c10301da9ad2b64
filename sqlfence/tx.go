package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	enterSQL         = "SELECT fencepost.enter($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)"
	enterSnapshotSQL = "SELECT fencepost.enter_snapshot($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int, $5::int)"
	// The marker is local to the transaction: however the transaction ends, by
	// COMMIT AND CHAIN too, it ends with it. The setting may have another DB's marker,
	// which stays.
	markSetSQL = ", pg_catalog.set_config('fencepost.transaction', pg_catalog.concat(pg_catalog.replace(" +
		"pg_catalog.current_setting('fencepost.transaction', true), $6::pg_catalog.text, ''), $6::pg_catalog.text), true)"
	markedSQL = "SELECT " + isMarkedSQL
	// isMarkedSQL: strpos is NULL if nothing was set.
	isMarkedSQL = "coalesce(pg_catalog.strpos(pg_catalog.current_setting('fencepost.transaction', true), $1::pg_catalog.text) OPERATOR(pg_catalog.>) 0, false)"
	// With Options.PresentClaims, what is entered is presented to the triggers
	// of guarded tables as well: to others in a transaction that was begun elsewhere.
	presentsSQL = ", pg_catalog.set_config('fencepost.claims', $7::pg_catalog.text, true)"
)

// maxEnter bounds how often a transaction raises and enters again: once is the
// rule, a second time only if the mark was retired in between. maxEarly bounds
// how often it takes its snapshot again, because a raise was committed after it.
const (
	maxEnter = 3
	maxEarly = 10
)

const enterOp = "enter"

// maxClaims bounds the resources of one transaction: each holds a lock in the
// server's shared memory.
const maxClaims = 64

// InTx runs fn in a fenced transaction: until it ends, no claim above this one
// can be raised on the resource, and it does not begin unless this claim is the
// resource's mark. So nothing that fn writes, whether rows, sets of rows,
// inserts or several tables, can take effect after a newer holder has taken
// over (P1), and a newer holder's raise waits for it (P2). The transaction is
// READ COMMITTED; [DB.InTxAll] has the other levels, and several resources.
//
// If the claim is above the mark, the mark is first raised in a transaction of
// its own; it stays raised whatever the result of fn. To take over, read by
// tx what the predecessor left, not before and not elsewhere.
//
// On pgx the transaction begins with the first statement that fn sends by tx, if it can in
// the same round trip, and what fn does before is not fenced. There a stale holder learns
// that it is stale, and the server executes nothing of the statement; and there a new
// holder waits for the transactions of older ones, until Options.RaiseTimeout or its context ends. If
// the server refuses the claim, or the mark cannot be raised, statements by tx return
// that error, and so does InTx, whatever fn makes of it. If fn sends nothing, the claim is
// compared before COMMIT. On database/sql, and by a [Transactor], the transaction begins
// before fn is called.
//
// fn is called at most once; its context carries the claim ([guard.ClaimFrom]).
// If it returns an error or panics, the transaction is rolled back and the error
// or panic is passed on unchanged, except that an error is wrapped if ctx has ended,
// that a trigger's refusal becomes guard's error as by [ErrorFrom], and that it is the
// cause of the ErrStale if a newer holder's raise ended the session (errors.Is finds it in
// all of them). fn must not end the transaction, and must
// return the error of a statement that failed. A nested InTx of the same DB is
// refused, because it would be a separate transaction.
//
// The errors, besides fn's: [*guard.RejectedError] with ErrStale or
// ErrConflict; ErrInvalid for a malformed claim, nothing sent; ErrUnavailable:
// nothing was committed and a retry is safe (it wraps the driver's error, for
// example of a lock timeout); ErrOutcomeUnknown: the COMMIT was sent and no
// response came, or fn ended the transaction itself. An error of COMMIT itself, such
// as a deferred constraint, is passed on with the driver's error inside; nothing
// was committed.
func (d *DB[Tx]) InTx(ctx context.Context, claim guard.Claim, fn func(ctx context.Context, tx Tx) error) error {
	return d.InTxAll(ctx, []guard.Claim{claim}, nil, fn)
}

// InTxAll is [DB.InTx] on several resources and with options, which may be nil:
// the transaction is fenced by all of the claims, or does not begin. They are
// entered in the order of their resources' bytes, so that transactions do not
// deadlock on them. A mark that is raised stays raised even if another claim is
// then refused. fn's context carries the first claim given.
//
// ErrInvalid is also returned for no claims, more than 64, or two for one
// resource. A [*guard.RejectedError] names the claim that was refused.
func (d *DB[Tx]) InTxAll(ctx context.Context, claims []guard.Claim, opts *TxOptions, fn func(ctx context.Context, tx Tx) error) error {
	start := time.Now()
	o, err := opts.resolve()
	if err == nil {
		err = sqlkit.Interrupted(ctx, d.inTx(ctx, claims, o, false, fn))
	}
	d.observeAll(ctx, claims, start, err)
	return err
}

// inTx sorts the claims, calls fn, commits, and says what its error means. On pgx fn's first
// statement begins the transaction: pgxHandle.start calls the function that beginLater gave to
// the connection, that calls beginFenced, and that pgxConn.begin, with the statement.
func (d *DB[Tx]) inTx(ctx context.Context, claims []guard.Claim, opts TxOptions, atOnce bool, fn func(ctx context.Context, tx Tx) error) error {
	sorted, err := sortClaims(claims)
	if err != nil {
		return err
	}
	first := claims[0]
	if fn == nil {
		return guard.Invalid("fn", "nil", "must not be nil")
	}
	if d.callback(ctx) != nil {
		return guard.Invalid("InTx", first.Resource, "is called inside another InTx; pass its transaction on instead")
	}
	if err := sqlkit.Ended(ctx, "fenced transaction", first); err != nil {
		return err
	}
	var id transactionID
	var refused error // why the transaction did not begin, which the callback may hide
	c, err := d.beginLater(ctx, first, atOnce, func(ctx context.Context, on held[Tx], with *pgxFirst) (c conn[Tx], err error) {
		c, err = d.beginFenced(ctx, on, sorted, opts, with, &id)
		if with == nil || !with.cut {
			refused = err
		}
		return c, err
	})
	if err != nil {
		return err
	}
	committing, gone, err := d.call(guard.WithClaim(ctx, first), "fenced transaction", c, sorted, fn)
	switch {
	case refused != nil && !errors.Is(err, refused):
		return refused
	case refused != nil || err == nil:
		return err
	case !committing && strings.HasPrefix(pgerr.State(err), "SF"): // a statement of fn's own, refused by a trigger
		return d.superseded(ctx, sorted, ErrorFrom(err), gone)
	case !committing:
		return d.superseded(ctx, sorted, err, gone)
	case id.xid != "" && err != errEnded && !errors.Is(err, pgerr.ErrUnreplicated):
		err = &lostCommit{id: id, error: err}
	}
	err = sqlkit.Failure("commit of a fenced transaction", first, err, true)
	switch reason := guard.ReasonOf(err); {
	case reason == guard.ReasonUnavailable:
		return d.superseded(ctx, sorted, err, false)
	case reason == guard.ReasonOutcomeUnknown && errors.As(err, new(*lostCommit)):
		return d.resolved(ctx, first, sorted, err)
	}
	return err
}

// beginLater returns the connection for a callback. If the driver can send BEGIN with
// the callback's first statement, that begins the transaction, and a refusal is the
// statement's error; else, and if atOnce says so, it is begun now.
func (d *DB[Tx]) beginLater(ctx context.Context, first guard.Claim, atOnce bool, begin func(ctx context.Context, on held[Tx], with *pgxFirst) (conn[Tx], error)) (conn[Tx], error) {
	if !atOnce {
		c, err := d.backend.hold(ctx, func(ctx context.Context, on held[Tx], with *pgxFirst) error {
			_, err := begin(ctx, on, with)
			return err
		})
		if c != nil || err != nil {
			return c, sqlkit.SchemaFailure(enterOp, first, err)
		}
	}
	return begin(ctx, nil, nil)
}

// beginFenced begins the transaction, after raising the marks that claims are
// above. An unknown outcome of that raise is not an unknown outcome of the
// caller's work, of which nothing was sent; for the same reason a snapshot that
// was taken too early is simply taken again.
func (d *DB[Tx]) beginFenced(ctx context.Context, on held[Tx], claims []guard.Claim, opts TxOptions, with *pgxFirst, id *transactionID) (conn[Tx], error) {
	text, presented := enterSQL+markSetSQL, d.presented(claims)
	if opts.Isolation != sql.LevelReadCommitted {
		text = enterSnapshotSQL + markSetSQL
	}
	first := make([]statement, 0, len(claims)+1)
	for _, claim := range claims {
		first = append(first, d.enterStatement(text, claim, presented, presentsSQL))
	}
	if opts.Resolve {
		first = append(first, statement{sql: transactionIDSQL, dest: []any{&id.xid, &id.server}})
	}
	var err error
	for tries, early := 0, 0; tries < maxEnter; {
		var c conn[Tx]
		if c, err = d.begin(ctx, on, txMode{level: opts.Isolation, marker: d.marker, with: with}, first...); err == nil {
			return c, nil
		}
		if opts.Isolation != sql.LevelReadCommitted && pgerr.State(err) == pgerr.Serialization && early < maxEarly {
			early++
			continue
		}
		if with != nil && with.cut {
			return nil, err
		}
		if pgerr.State(err) != pgerr.MustRaise {
			return nil, sqlkit.SchemaFailure(enterOp, refusedClaim(claims, err), err)
		}
		if tries++; tries == maxEnter { // no enter would follow another raise
			break
		}
		for _, claim := range claims {
			if err := d.raise(ctx, on, claim, false); err != nil {
				return nil, err
			}
		}
	}
	return nil, guard.Unavailable(enterOp, claims[0], err)
}

// enterStatement returns a statement that enters under claim, marks the transaction,
// and presents the setting that [DB.presented] made of claims. COMMIT checks for
// the marker: a callback that ended the transaction in SQL wrote the rest without a
// fence, and only the server knows.
func (d *DB[Tx]) enterStatement(text string, claim guard.Claim, presented, presents string) statement {
	args := append(make([]any, 0, 7), claim.Resource, int64(claim.Token), claim.LeaseID,
		int32(d.opts.LockTimeout.Milliseconds()), int32(d.opts.IdleTimeout.Milliseconds()), d.marker)
	if presented == "" {
		return statement{sql: text, args: args}
	}
	return statement{sql: text + presents, args: append(args, presented)}
}

// presented returns the setting that presents claims to triggers; empty for
// none.
func (d *DB[Tx]) presented(claims []guard.Claim) string {
	if !d.opts.PresentClaims {
		return ""
	}
	return claimsSetting(claims...)
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
