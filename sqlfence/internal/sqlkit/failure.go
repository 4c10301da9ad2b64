package sqlkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// ErrAborted is the error of a COMMIT of a transaction that a statement had
// aborted.
var ErrAborted = errors.New("nothing of this transaction was committed: it was aborted by an earlier error, which the callback did not return")

// Failure turns a driver's error into one of guard's, by the table in package
// pgerr. wrote says whether the statement may have committed something.
func Failure(op string, claim guard.Claim, err error, wrote bool) error {
	sent := pgerr.Work
	if wrote {
		sent = pgerr.Commit
	}
	switch reason := pgerr.Reason(err, sent); {
	case err == nil || Explained(err):
		return err
	case errors.Is(err, ErrAborted):
		return fmt.Errorf("sqlfence: %s: %w", op, err)
	case reason == guard.ReasonStale || reason == guard.ReasonConflict:
		return Rejected(reason, claim, err)
	case reason == guard.ReasonMissing:
		return unclaimed(op, err)
	case reason == guard.ReasonOutcomeUnknown:
		return guard.OutcomeUnknown(op, claim, err)
	case reason == guard.ReasonSetup:
		return guard.Setup(op, claim, pgerr.Explain(err))
	case reason == guard.ReasonUnavailable && pgerr.State(err) == pgerr.MustRaise:
		return guard.Unavailable(op, claim, fmt.Errorf("raise the mark first: %w", err))
	case reason == guard.ReasonUnavailable:
		return guard.Unavailable(op, claim, pgerr.Explain(err))
	}
	return fmt.Errorf("sqlfence: %s: %w", op, pgerr.Explain(err))
}

// Explained reports an error that is one of guard's already, of a statement that was refused
// before it was sent.
func Explained(err error) bool {
	return errors.As(err, new(*guard.InvalidError)) || errors.As(err, new(*guard.RejectedError)) || errors.As(err, new(*guard.FailedError))
}

// ErrStandby refuses to read marks from a standby.
var ErrStandby = errors.New("this server is a standby: its marks lag behind the primary's")

// SchemaFailure is [Failure] for the statements on schema fencepost. None of
// them commits: a COMMIT follows.
func SchemaFailure(op string, claim guard.Claim, err error) error {
	switch unfit := unfit(err); {
	case Explained(err):
		return err
	case unfit != nil:
		return fmt.Errorf("%w: %w", unfit, err)
	case pgerr.Undefined(err):
		return guard.Setup(op, claim, fmt.Errorf("%w: schema fencepost is missing, old or damaged: run sqladmin's Migrate, or pgadmin.Migrate for leases and marks; where that has nothing to do, sqladmin's Repair (fencectl migrate --repair), which says what it cannot make", err))
	case pgerr.Standby(err):
		return guard.Unavailable(op, claim, fmt.Errorf("%w: %w", ErrStandby, err))
	}
	return Failure(op, claim, err, false)
}

// Rejected builds the refusal from the facts that the function put into the
// error's detail.
func Rejected(reason guard.Reason, claim guard.Claim, err error) error {
	e := &guard.RejectedError{Reason: reason, Claim: claim, Cause: err}
	e.Mark = FactsOf(err).Mark
	return e
}

// Facts is what the database functions put into the detail of a refusal.
type Facts struct {
	Resource string     `json:"resource"`
	Mark     guard.Mark `json:"mark"`
}

// FactsOf returns what the server said of a refusal; only pgx passes it on.
func FactsOf(err error) (f Facts) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && json.Unmarshal([]byte(pg.Detail), &f) != nil {
		return Facts{}
	}
	return f
}

// Ended returns an error if ctx is over before anything was sent.
func Ended(ctx context.Context, op string, claim guard.Claim) error {
	if ctx.Err() == nil {
		return nil
	}
	if lost := guard.Lost(ctx); lost != nil {
		return fmt.Errorf("sqlfence: %s: nothing was sent: %w", op, lost)
	}
	return guard.Unavailable(op, claim, context.Cause(ctx))
}

// Interrupted adds to the error of an operation during which ctx ended why it
// ended, because a driver says no more than "context canceled". So a lease that
// was lost is reported as lost if nothing was written. If that is not
// known, only the text has the cause, because ErrLeaseLost would promise it.
func Interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return fmt.Errorf("%w: %v", err, cause)
	case !errors.Is(err, guard.ErrUnavailable) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err // it failed for another reason
	}
	if !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if lost := guard.Lost(ctx); lost != nil && !errors.Is(err, guard.ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", err, lost)
	}
	return err
}

// OfferedIn returns the claim that the database says was offered.
func OfferedIn(err error) (c guard.Claim) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if json.Unmarshal([]byte(pg.Detail), &c) != nil {
			return guard.Claim{}
		}
	}
	return c
}

// unclaimed is the error of a write without a claim.
func unclaimed(op string, err error) error {
	field := "claim"
	if r := OfferedIn(err).Resource; r != "" {
		field += " for " + strconv.QuoteToASCII(r)
	}
	return fmt.Errorf("sqlfence: %s: %w (InTx and Enter present theirs): %w", op, guard.Missing(field), err)
}
