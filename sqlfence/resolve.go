package sqlfence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	// transactionIDSQL assigns the transaction's ID and says on what server: after
	// a failover or a crash the same ID may be another transaction.
	transactionIDSQL = "SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text, " + serverSQL
	resolveSQL       = `SELECT pg_catalog.pg_is_in_recovery(),
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN '' ELSE ` + serverSQL + ` END,
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN '' ELSE coalesce(pg_catalog.pg_xact_status($1::pg_catalog.text::pg_catalog.xid8), 'forgotten') END,
	pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''
		AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) ALL (ARRAY['off', 'local'])`
	// serverSQL is the WAL's timeline, the first eight digits of a file's name
	// (PostgreSQL documentation, 30.5), and when the statistics were reset, in
	// microseconds: each recovery from a crash resets them (28.2), also that from
	// the crash of one process, and then gives the IDs again whose WAL was lost.
	serverSQL = "pg_catalog.concat_ws('/', pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8)," +
		" (SELECT (pg_catalog.date_part('epoch', stats_reset) OPERATOR(pg_catalog.*) 1000000::pg_catalog.float8)::bigint FROM pg_catalog.pg_stat_bgwriter))"
)

// resolveEvery is how often Resolve asks about a transaction in progress.
const resolveEvery = 50 * time.Millisecond

type transactionID struct{ xid, server string }

// lostCommit is the error of a COMMIT with what is needed to look up its
// outcome.
type lostCommit struct {
	id transactionID
	error
}

func (e *lostCommit) Unwrap() error { return e.error }

// Resolve asks the server what became of the transaction whose COMMIT was
// lost. err is the ErrOutcomeUnknown that [DB.InTxAll] returned with
// [TxOptions].Resolve, from this DB or another one on the same database; any
// other error is ErrInvalid. While the transaction is still in progress,
// Resolve waits, until ctx ends or Options.CommitTimeout is over.
//
// committed says what happened if the error is nil. The error is
// ErrOutcomeUnknown if that cannot be determined: the transaction is still in
// progress, it is so old that the server has forgotten it (PostgreSQL
// documentation, 9.26, pg_xact_status), or the server has recovered from a crash
// or was replaced by a standby since the transaction began: then the same ID may be
// another transaction. A reset of the server's statistics has the same effect. Where
// COMMITs wait for a synchronous standby, a committed transaction is
// ErrOutcomeUnknown, because the standby may not have it. ErrUnavailable means that no
// primary responded. A copy that was made of a
// server that was shut down is not detected: do not resolve across one.
func (d *DB[Tx]) Resolve(ctx context.Context, err error) (committed bool, _ error) {
	const op = "resolve a lost COMMIT"
	var lost *lostCommit
	if !errors.As(err, &lost) || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
		return false, guard.Invalid("err", fmt.Sprint(err), "is not the ErrOutcomeUnknown of a transaction with TxOptions.Resolve")
	}
	var claim guard.Claim
	var failed *guard.FailedError
	if errors.As(err, &failed) {
		claim = failed.Claim
	}
	for end := time.Now().Add(d.opts.CommitTimeout); ; {
		var standby, replicated bool
		var server, status string
		if _, err := d.row(ctx, resolveSQL, []any{lost.id.xid}, &standby, &server, &status, &replicated); err != nil {
			if pgerr.State(err) == pgerr.InvalidParameter { // an ID in the future
				return false, guard.OutcomeUnknown(op, claim, err)
			}
			return false, sqlkit.Failure(op, claim, err, false)
		}
		switch {
		case standby:
			return false, guard.Unavailable(op, claim, sqlkit.ErrStandby)
		case server != lost.id.server:
			return false, guard.OutcomeUnknown(op, claim, fmt.Errorf("the server crashed or was replaced since: it is %s (timeline, reset of its statistics), the transaction's was %s", server, lost.id.server))
		case status == "committed" && replicated: // a driver that gives up has the server stop waiting for the standby
			return false, guard.OutcomeUnknown(op, claim, pgerr.ErrUnreplicated)
		case status == "committed" || status == "aborted":
			return status == "committed", nil
		case status != "in progress" || time.Now().After(end):
			return false, guard.OutcomeUnknown(op, claim, errors.New("the transaction is "+status))
		}
		select {
		case <-ctx.Done():
			return false, guard.OutcomeUnknown(op, claim, context.Cause(ctx))
		case <-time.After(resolveEvery):
		}
	}
}

// resolved turns a lost COMMIT into what the server says became of it, and leaves
// it unchanged if the server does not say. It asks even if the caller's context
// has ended, just as the response to a COMMIT is awaited. If a raise ended the
// session, as a raise does to those it waits for, a transaction that is not
// committed becomes the refusal by the raised mark.
func (d *DB[Tx]) resolved(ctx context.Context, claim guard.Claim, claims []guard.Claim, unknown error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.CommitTimeout)
	defer cancel()
	committed, err := d.Resolve(ctx, unknown)
	switch {
	case err != nil:
		return unknown
	case committed:
		return nil
	}
	aborted := guard.Unavailable("commit of a fenced transaction", claim, fmt.Errorf("nothing was committed: %v", unknown))
	if sessionLost(unknown) {
		return d.refusedBy(ctx, claims, aborted)
	}
	return aborted
}

// superseded handles the error of a transaction that committed nothing because
// its session was ended; gone says that it was, which err may hide, unless the end
// of ctx explains it. If there is a newer holder's mark, its raise ended the
// session, and superseded returns the refusal by that mark.
func (d *DB[Tx]) superseded(ctx context.Context, claims []guard.Claim, err error, gone bool) error {
	if !sessionLost(err) && (!gone || ctx.Err() != nil) || errors.As(err, new(*guard.RejectedError)) {
		return err
	}
	return d.refusedBy(ctx, claims, err)
}

// refusedBy returns the refusal by a mark above one of the claims, if there is
// one, else err. A raise that ended the session may have yet to raise the mark: to
// enter again waits for it, and needs no other rights than the transaction did.
func (d *DB[Tx]) refusedBy(ctx context.Context, claims []guard.Claim, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	for _, claim := range claims {
		c, entering := d.begin(ctx, nil, readCommitted, d.enterStatement(enterSQL+markSetSQL, claim, "", ""))
		if entering == nil {
			c.release()
			continue
		}
		if pgerr.State(entering) != pgerr.Stale {
			continue
		}
		refusal := &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim, Mark: sqlkit.FactsOf(entering).Mark, Cause: err}
		if failed, is := err.(*guard.FailedError); is {
			refusal.Cause = failed.Cause // it is stale, and not unavailable
		}
		return refusal
	}
	return err
}
