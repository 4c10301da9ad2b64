package sqlfence

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

const (
	raiseSQL = "SELECT fencepost.raise($1::text, $2::bigint, $3::text, $4::int)"
	// A statement of its own: a timer that runs is not stopped by it.
	unhurriedSQL = "SELECT pg_catalog.set_config('statement_timeout', '0', true)"
	// evictSQL ends sessions with the caller's own rights; only which hold the
	// lock is looked up with the owner's.
	evictSQL = `SELECT count(*) FROM (
	SELECT pg_terminate_backend(a.pid) FROM fencepost.holders($1::text, $2::bigint, $3::text) AS h(pid)
	JOIN pg_stat_activity a ON a.pid = h.pid
	WHERE a.usesysid = (SELECT oid FROM pg_roles WHERE rolname = session_user)
		AND a.xact_start <= clock_timestamp() - $4::bigint * interval '1 millisecond'
) AS ended`
)

// firstLook is when a raise first looks for sessions that are due to be ended:
// they may have been for long, and the caller's context may not last for the
// whole grace period. It does not look more often than it must, because each
// time it leaves its place in the queue of the lock.
const firstLook = time.Second

// Raise makes the claim the resource's mark, unless it is already, and waits
// until every fenced transaction of an older holder has ended. A new holder
// that calls it before it reads loses none of the acknowledged updates of its
// predecessor and is overwritten by none (P2). It is idempotent, and survives
// a crash of the server once it returned.
//
// It raises the marks of schema fencepost, with which [DB.InTx] and
// [DB.Admit] compare; a [Table]'s rows have marks of their own.
//
// The errors: [*guard.RejectedError] with ErrStale or ErrConflict; ErrInvalid;
// ErrUnavailable: not raised (also when an older holder's transaction did not
// end within Options.RaiseTimeout); ErrOutcomeUnknown: call it again.
func (d *DB[Tx]) Raise(ctx context.Context, claim guard.Claim) error {
	start := time.Now()
	err := claim.Validate()
	if err == nil {
		err = ended(ctx, "raise", claim)
	}
	if err == nil {
		err = d.raise(ctx, claim, true)
	}
	d.observe(ctx, guard.Event{Op: guard.OpRaise, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return err
}

// raise raises the mark. Only for a caller to whom the raise is the work is
// the lost answer of its COMMIT an unknown outcome; work says so.
func (d *DB[Tx]) raise(ctx context.Context, claim guard.Claim, work bool) error {
	if own := d.callback(ctx); own != nil && belowOwn(own.claims, claim) {
		return guard.Invalid("claim.Token", claim.Token.String(), "is above the token of the InTx that it is called in, which a raise waits for")
	}
	start, grace := time.Now(), d.opts.TerminateAfter
	wait, evicts := d.opts.RaiseTimeout, grace > 0 && grace < d.opts.RaiseTimeout
	if evicts {
		wait = min(grace, firstLook)
	}
	for unhurried := false; ; {
		err := d.raiseOnce(ctx, claim, wait, work, unhurried)
		waited := time.Since(start)
		left := d.opts.RaiseTimeout - waited
		if pgerr.State(err) == pgerr.Canceled && !unhurried && left >= time.Millisecond {
			unhurried, wait = true, min(wait, left)
			continue
		}
		if pgerr.State(err) != pgerr.LockTimeout || !evicts || left < time.Millisecond {
			return err
		}
		evictErr := d.evict(ctx, claim)
		if errors.As(evictErr, new(*guard.RejectedError)) {
			return evictErr
		}
		if evictErr != nil { // the role may not; what is left is to wait
			if err := d.raiseOnce(ctx, claim, left, work, unhurried); err != nil {
				return errors.Join(err, evictErr)
			}
			return nil
		}
		wait = grace
		if waited < grace { // who has held the lock from the start is due then
			wait = max(grace-waited, time.Millisecond)
		}
		wait = min(wait, left)
	}
}

// belowOwn reports that a transaction's claims have one that the given claim
// supersedes.
func belowOwn(claims []guard.Claim, claim guard.Claim) bool {
	for _, c := range claims {
		if c.Resource == claim.Resource && c.Token < claim.Token {
			return true
		}
	}
	return false
}

// raiseOnce waits for the lock once. A session's statement_timeout may be
// shorter than the wait; unhurried lifts it for this transaction, which has
// lock_timeout in its place, and which the first try need not pay for.
func (d *DB[Tx]) raiseOnce(ctx context.Context, claim guard.Claim, wait time.Duration, work, unhurried bool) error {
	const op = "raise"
	statements := make([]statement, 0, 2)
	if unhurried {
		statements = append(statements, statement{sql: unhurriedSQL})
	}
	tx, err := d.backend.begin(ctx, ReadCommitted, "", append(statements, statement{sql: raiseSQL, args: []any{claim.Resource, int64(claim.Token), claim.LeaseID,
		int32(wait.Milliseconds())}})...)
	if err != nil {
		return schemaFailure(op, claim, err)
	}
	defer tx.rollback() // gives a connection back that did not commit; else does nothing
	return failure(op, claim, tx.commit(ctx, d.commits), work)
}

// evict has the server end the sessions that have kept the claim from being
// raised for longer than the grace period.
func (d *DB[Tx]) evict(ctx context.Context, claim guard.Claim) error {
	var n int64
	tx, err := d.backend.begin(ctx, ReadCommitted, "", statement{sql: evictSQL, dest: []any{&n},
		args: []any{claim.Resource, int64(claim.Token), claim.LeaseID, d.opts.TerminateAfter.Milliseconds()}})
	if err != nil {
		return schemaFailure("end sessions of older holders", claim, err)
	}
	tx.rollback() // there is nothing to commit
	return nil
}
