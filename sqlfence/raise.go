package sqlfence

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	// A client that stops before the COMMIT must not block its successors.
	raiseSQL = "SELECT fencepost.raise($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::int)," +
		" pg_catalog.set_config('idle_in_transaction_session_timeout', '2s', true)"
	// A statement of its own: it does not stop a timer that is already running.
	// transaction_timeout is PostgreSQL 17's, and this does stop its timer.
	unhurriedSQL = "SELECT pg_catalog.set_config('statement_timeout', '0', true), CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL" +
		" THEN pg_catalog.set_config('transaction_timeout', '0', true) END"
)

// Raise makes the claim the resource's mark, unless it is already, and waits
// until every fenced transaction of an older holder has ended. A new holder
// that calls it before it reads loses none of the acknowledged updates of its
// predecessor and is overwritten by none (P2). It is idempotent, and survives a
// crash of the server once it has returned.
//
// It raises the marks of schema fencepost, with which [DB.InTx] and
// [DB.Admit] compare; the rows of package sqlrow have marks of their own.
//
// The errors: [*guard.RejectedError] with ErrStale or ErrConflict; ErrInvalid;
// ErrUnavailable: not raised (also when an older holder's transaction did not
// end within Options.RaiseTimeout); ErrOutcomeUnknown: call it again, which shows what
// the primary has (see [WatchWarnings]).
func (d *DB[Tx]) Raise(ctx context.Context, claim guard.Claim) error {
	start := time.Now()
	err := claim.Validate()
	if err == nil {
		err = sqlkit.Ended(ctx, "raise", claim)
	}
	if err == nil {
		err = sqlkit.Interrupted(ctx, d.raise(ctx, nil, claim, true))
	}
	d.observe(ctx, guard.Event{Op: guard.OpRaise, Claim: claim, Mark: markOf(claim, err), Duration: time.Since(start), Err: err})
	return err
}

// raise raises the mark. work reports whether the raise is the caller's work:
// only then is a lost response to its COMMIT an unknown outcome. It uses the held
// connection if there is one.
func (d *DB[Tx]) raise(ctx context.Context, on held[Tx], claim guard.Claim, work bool) error {
	if own := d.callback(ctx); own != nil && belowOwn(own.claims, claim) {
		return guard.Invalid("claim.Token", claim.Token.String(), "is above the token of the enclosing InTx, which the raise would wait for")
	}
	w := &waitingRaise[Tx]{db: d, on: on, claim: claim, work: work, start: time.Now()}
	if !d.backend.single() {
		if gaveUp, err := w.onTwo(ctx); !gaveUp {
			return err
		}
	}
	return w.onOne(ctx)
}

// belowOwn reports whether the given claim supersedes one of a transaction's
// claims.
func belowOwn(claims []guard.Claim, claim guard.Claim) bool {
	for _, c := range claims {
		if c.Resource == claim.Resource && c.Token < claim.Token {
			return true
		}
	}
	return false
}
