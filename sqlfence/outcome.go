package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// outcome is what became of a transaction that was not simply committed. The server knows, by
// the transaction's ID, also if the callback ended the transaction itself.
type outcome int

const (
	undone          outcome = iota // nothing of it is committed
	undoneByLoss                   // likewise, and its session had ended
	endedByCallback                // what the callback did afterwards is not known
	committed
	notKnown
)

// failed rolls back a transaction whose callback failed with err, and returns err if that is
// what became of it.
func (d *DB[Tx]) failed(ctx context.Context, t *transaction[Tx], err error) error {
	what, why := d.end(ctx, t, false)
	switch {
	case what == notKnown:
		return t.unknown(fmt.Errorf("%w; and then: %v", err, why))
	case what == endedByCallback || what == committed:
		return t.unknown(fmt.Errorf("%w, and returned: %w", errEnded, err))
	case errors.Is(err, guard.ErrOutcomeUnknown): // of what the callback did elsewhere
		return err
	case strings.HasPrefix(pgerr.State(err), "SF"): // a trigger refused a statement of the callback's
		err = ErrorFrom(err)
	case what == undoneByLoss && sessionLost(err):
		err = guard.Unavailable("fenced transaction", t.claims[0], err)
	}
	return d.superseded(ctx, t, what, err)
}

// commitFailed says what became of a transaction whose COMMIT failed with err. Without a
// response it is committed if the server says so, and if the marker was seen before the COMMIT:
// else the callback may have committed it, and what it wrote afterwards is lost.
func (d *DB[Tx]) commitFailed(ctx context.Context, t *transaction[Tx], seen bool, err error) error {
	switch {
	case errors.Is(err, pgerr.ErrUnreplicated): // the primary has it, and only the primary
		return guard.OutcomeUnknown(commitOp, t.claims[0], err)
	case errors.Is(err, errEnded):
		return t.unknown(err)
	}
	what, _ := d.end(ctx, t, true)
	switch lost := unanswered(err); {
	case what == notKnown:
		return t.unknown(err)
	case what == committed && lost && seen:
		return nil
	case what == committed && lost:
		return t.unknown(fmt.Errorf("the transaction is committed, and what came after its last response is not known: %w", err))
	case what == committed:
		return t.unknown(fmt.Errorf("%w: %w", errEnded, err))
	case lost:
		err = fmt.Errorf("nothing of this transaction was committed: %w", err)
	case what == undone && pgerr.Unsent(err):
		err = invalidUse{errUnread, err}
	}
	return d.superseded(ctx, t, what, sqlkit.Failure(commitOp, offered(t.claims, err), err, false))
}

// pipelineFailed says what became of a transaction that was sent at once.
func (d *DB[Tx]) pipelineFailed(ctx context.Context, t *transaction[Tx], p pipelined) error {
	what, err := undone, p.err
	switch {
	case p.failed == unsendable:
		return err
	case p.failed != refused && unanswered(err) && t.id.xid == "": // nobody can be asked
		return guard.OutcomeUnknown(commitOp, t.claims[0], err)
	case p.failed == atCommit, p.failed == atWork && unanswered(err):
		result := d.commitFailed(ctx, t, p.failed == atCommit, err)
		if unstreamed(err) && guard.ReasonOf(result) == guard.ReasonUnavailable {
			return invalidCopy(err)
		}
		return result
	default:
		what = t.rollback(ctx)
	}
	var pg *pgconn.PgError
	switch {
	case what == undone && errors.As(err, &pg) && pg.Code == "08P01" && strings.Contains(pg.Message, "COPY"): // PostgreSQL 13 keeps the session
		return invalidCopy(err)
	case strings.HasPrefix(pgerr.State(err), "SF"):
		err = ErrorFrom(err)
	case what == undoneByLoss && sessionLost(err) && p.failed != refused: // the server ended the session before COMMIT
		err = guard.Unavailable("fenced statement", t.claims[0], err)
	}
	return d.superseded(ctx, t, what, err)
}

func invalidCopy(err error) error {
	return invalidUse{guard.Invalid("sql", "COPY", "needs a stream, as of pgx's CopyFrom in InTx; nothing was written"), err}
}

// unstreamed reports the error of a COPY in a pipeline: pgx's, which meets a message that it does
// not expect there, or the server's, which does.
func unstreamed(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "08P01" && pg.File != "" || strings.Contains(err.Error(), "pgproto3.Copy")
}

// unanswered reports that a COMMIT was sent and that the server did not respond to it. An
// error of a session that it ended is a response: it comes before a COMMIT is executed.
func unanswered(err error) bool {
	if errors.Is(err, errEnded) || errors.Is(err, sqlkit.ErrAborted) || sqlkit.Explained(err) { // it was not sent
		return false
	}
	return pgerr.Reason(err, pgerr.Commit) == guard.ReasonOutcomeUnknown && !strings.HasPrefix(pgerr.State(err), "57P")
}

func (t *transaction[Tx]) unknown(err error) error {
	return guard.OutcomeUnknown(commitOp, t.claims[0], &lostCommit{t.id, err})
}

// end ends the transaction and finds out what became of it; the error says why that is not known.
// Unless a COMMIT was sent, it looks first whether the callback has ended it, which cannot be seen
// in a session that a failed statement has aborted, or that is lost with a transaction open.
func (d *DB[Tx]) end(ctx context.Context, t *transaction[Tx], sent bool) (outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.CommitTimeout)
	defer cancel()
	open := false
	if !sent {
		switch t.status(ctx) {
		case txNone:
			return endedByCallback, nil
		case txSome:
			says, err := ask(ctx, t.in(), t.id)
			if open = err == nil && says.same; open && says.status != inProgress {
				return endedByCallback, nil
			}
		}
	}
	what := t.rollback(ctx)
	switch {
	case what == undone && open:
		return undone, nil
	case what == undone:
		says, err := ask(ctx, t.conn, t.id)
		switch {
		case err == nil && says.status == isCommitted:
			return committed, nil
		case err == nil:
			return undone, nil
		case pgerr.State(err) == "" || sessionLost(err):
			what = undoneByLoss
		}
	case what == notKnown: // it was cut, and had not ended
		what = undone
	}
	t.release() // it may be the pool's only connection
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, resolveEvery) {
		says, again, err := d.resolve(ctx, t.id, t.claims[0], sent)
		switch {
		case err == nil && says.status == isCommitted:
			return committed, nil
		case err == nil, !sent && says.status == inProgress && time.Since(start) > abandonedWait: // nothing ends it but the loss of its session
			return what, nil
		case !again:
			return notKnown, err
		}
		select {
		case <-ctx.Done():
			return notKnown, err
		case <-time.After(pause):
		}
	}
}

// superseded returns the refusal by a mark above one of the claims, if the session was ended
// and there is one, else err. A raise that ended the session may have yet to raise the mark:
// to enter again waits for it, and needs no other rights than the transaction did.
func (d *DB[Tx]) superseded(ctx context.Context, t *transaction[Tx], what outcome, err error) error {
	if what != undoneByLoss || ctx.Err() != nil || errors.As(err, new(*guard.RejectedError)) || errors.Is(err, guard.ErrOutcomeUnknown) { // the driver also ends sessions when ctx ends
		return err
	}
	t.release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.opts.CommitTimeout)
	defer cancel()
	for _, claim := range t.claims {
		c, entering := d.begin(ctx, sql.LevelReadCommitted, true, d.enterStatements([]guard.Claim{claim}, sql.LevelReadCommitted, new(transactionID))...)
		if entering == nil {
			c.release()
			continue
		}
		reason := guard.ReasonStale
		switch pgerr.State(entering) {
		case pgerr.Stale:
		case pgerr.Conflict:
			reason = guard.ReasonConflict
		default:
			continue
		}
		refusal := &guard.RejectedError{Reason: reason, Claim: claim, Mark: sqlkit.FactsOf(entering).Mark, Cause: err}
		if failed, is := err.(*guard.FailedError); is && failed.Reason == guard.ReasonUnavailable {
			refusal.Cause = failed.Cause // it is refused, and not unavailable
		}
		return refusal
	}
	return err
}

// errEnded is the error of a COMMIT that committed nothing, since the transaction was over.
var errEnded = errors.New("the callback ended the transaction itself, or took its marker away, as RESET ALL does")

// errUnread is the error of a COMMIT that cannot be sent.
var errUnread = guard.Invalid("fn", "", "left rows open, did not close a batch, or still uses the transaction; nothing of it was committed")

// errNotYours is what a callback gets that ends its transaction by the handle.
var errNotYours = guard.Invalid("fn", "", "must not end the transaction: return nil to commit it, and an error to roll it back; nothing of this transaction was committed")

// sessionLost reports the errors of a session that the server ended, or that was used
// again after it ended. They say so only of a session that has ended.
func sessionLost(err error) bool {
	state := pgerr.State(err)
	return strings.HasPrefix(state, "57P") || strings.HasPrefix(state, "08") || state == "25P03" || state == "25P04" ||
		errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError))
}

// offered returns the claim that err is about, the first if it does not say.
func offered(claims []guard.Claim, err error) guard.Claim {
	if claim := sqlkit.OfferedIn(err); claim.Validate() == nil {
		return claim
	}
	return claims[0]
}

// resolveSQL: each recovery from a crash resets the statistics (PostgreSQL documentation,
// 28.2), also that from the crash of one process, and then gives the IDs again whose WAL was
// lost. A clock that was set back also makes the server another one.
const resolveSQL = `SELECT pg_catalog.pg_is_in_recovery(),
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN false ELSE ` + timelineSQL + ` OPERATOR(pg_catalog.=) pg_catalog.split_part($2::pg_catalog.text, '/', 1)
		AND pg_catalog.split_part($2::pg_catalog.text, '/', 2)::bigint BETWEEN coalesce(` + microsOf + `pg_catalog.pg_stat_get_bgwriter_stat_reset_time()` + asMicros + `, 0)
			AND ` + microsOf + `pg_catalog.clock_timestamp()` + asMicros + ` END,
	CASE WHEN pg_catalog.pg_is_in_recovery() THEN '' ELSE coalesce(pg_catalog.pg_xact_status($1::pg_catalog.text::pg_catalog.xid8), 'forgotten') END,
	pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''
		AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) ALL (ARRAY['off', 'local'])`

const (
	// resolveEvery is how often a transaction in progress is asked about.
	resolveEvery = 50 * time.Millisecond
	// abandonedWait is how long the server has to notice the loss of a session.
	abandonedWait = time.Second
)

// lostCommit is an error with what is needed to ask for the outcome.
type lostCommit struct {
	id transactionID
	error
}

func (e *lostCommit) Unwrap() error { return e.error }

// Resolve asks the server what became of a transaction whose outcome was unknown.
//
// err is the ErrOutcomeUnknown that InTx or InTxAll returned, of this DB or another one on the
// same database. While the transaction is still in progress, Resolve waits, until ctx ends
// or Options.CommitTimeout is over. committed says what happened if the error is nil. A
// callback that ended the transaction itself may have written more after it.
//
// Errors:
//   - guard.ErrInvalid: any other err, also that of [DB.Exec] if no response came.
//   - guard.ErrUnavailable: no primary responded.
//   - guard.ErrOutcomeUnknown: the transaction is still in progress, or so old that the server
//     has forgotten it; or the server crashed, was replaced by a standby, or had its statistics
//     reset since it began, so that the same ID may be another transaction; or it is committed
//     where COMMITs wait for a synchronous standby, which may not have it.
//
// A copy that was made of a server that was shut down is not detected: do not resolve across
// one.
func (d *DB[Tx]) Resolve(ctx context.Context, err error) (committed bool, _ error) {
	var lost *lostCommit
	if !errors.As(err, &lost) || guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
		return false, guard.Invalid("err", fmt.Sprint(err), "is not the ErrOutcomeUnknown of an InTx")
	}
	var claim guard.Claim
	var failed *guard.FailedError
	if errors.As(err, &failed) {
		claim = failed.Claim
	}
	for end := time.Now().Add(d.opts.CommitTimeout); ; {
		says, again, err := d.resolve(ctx, lost.id, claim, true)
		if !again || guard.ReasonOf(err) == guard.ReasonUnavailable || time.Now().After(end) {
			return err == nil && says.status == isCommitted, err
		}
		select {
		case <-ctx.Done():
			return false, guard.OutcomeUnknown(resolveOp, claim, context.Cause(ctx))
		case <-time.After(resolveEvery):
		}
	}
}

const resolveOp = "resolve a lost COMMIT"

// says is what the server says about a transaction.
type says struct {
	standby, same, replicated bool // same: it is the server that gave the ID
	status                    string
}

const inProgress, isCommitted = "in progress", "committed"

func ask(ctx context.Context, q sqlkit.Querier, id transactionID) (s says, err error) {
	_, err = sqlkit.Row(ctx, q, resolveSQL, []any{id.xid, id.server}, &s.standby, &s.same, &s.status, &s.replicated)
	if pgerr.State(err) == pgerr.InvalidParameter {
		return says{status: "in the future"}, nil
	}
	return s, err
}

// resolve asks once on a connection of its own; again reports that the server may say more
// later. Unless a COMMIT was sent, what a successor of the server does not have was not
// committed.
func (d *DB[Tx]) resolve(ctx context.Context, id transactionID, claim guard.Claim, sent bool) (s says, again bool, err error) {
	c, err := d.with(ctx, func(c conn[Tx]) (err error) {
		s, err = ask(ctx, c, id)
		return err
	})
	if err != nil {
		err = sqlkit.Failure(resolveOp, claim, err, false)
		return s, guard.ReasonOf(err) == guard.ReasonUnavailable, err
	}
	c.release()
	switch {
	case s.standby:
		return s, true, guard.Unavailable(resolveOp, claim, sqlkit.ErrStandby)
	case !s.same && !sent && s.status != isCommitted && s.status != "forgotten":
		return s, false, nil
	case !s.same:
		return s, false, guard.OutcomeUnknown(resolveOp, claim, errors.New("the server crashed or was replaced since, or its statistics were reset"))
	case s.status == isCommitted && s.replicated: // a driver that gives up has the server stop waiting for the standby
		return s, false, guard.OutcomeUnknown(resolveOp, claim, pgerr.ErrUnreplicated)
	case s.status == isCommitted || s.status == "aborted":
		return s, false, nil
	}
	return s, s.status == inProgress, guard.OutcomeUnknown(resolveOp, claim, errors.New("the transaction is "+s.status))
}
