package sqlfence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// The SQLSTATEs of the database functions.
const (
	stateStale     = "SF001"
	stateConflict  = "SF002"
	stateMissing   = "SF003" // no claim was presented to a trigger
	stateRaise     = "SF004" // the claim is above the mark: raise first
	stateIsolation = "SF005"

	stateSubtransaction = "SF006"
	stateNotTheMark     = "SF007" // a reset found another mark than it was told
)

// SQLSTATEs of the server's own (PostgreSQL documentation, appendix A).
const (
	stateSerialization    = "40001"
	stateDeadlock         = "40P01"
	stateLockTimeout      = "55P03"
	stateCanceled         = "57014" // by statement_timeout or an operator
	stateInvalidParameter = "22023"
)

// stateNoReadWrite (feature_not_supported) is a standby's answer to BEGIN READ WRITE.
const stateNoReadWrite = "0A000"

// errBusy refuses a connection in the middle of a transaction.
var errBusy = guard.Invalid("connection", "", "has a transaction open; it must be idle")

// notSent marks an error after which nothing can have been written: the
// statement did not reach the server, or was to be committed by a later one.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// unsendable marks an argument that the driver could not encode: the
// connection was not used and is as good as before.
type unsendable struct{ error }

func (e unsendable) Unwrap() error { return e.error }

// errEnded and errAborted are answers to a COMMIT that committed nothing. What
// the callback itself did before errEnded is not known.
var (
	errEnded   = errors.New("the callback ended the transaction itself")
	errAborted = errors.New("nothing was committed: the transaction was aborted by an earlier error, which the callback did not return")
)

// mustRaise reports whether enter answered that the mark must be raised.
func mustRaise(err error) bool { return sqlState(err) == stateRaise }

func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// failure turns a driver's error into one of guard's. wrote says whether the
// statement may have committed something: then what cannot be shown to have
// failed is an unknown outcome.
func failure(op string, claim guard.Claim, err error, wrote bool) error {
	if err == nil {
		return nil
	}
	state := sqlState(err)
	switch {
	case err == errBusy:
		return err
	case state == stateStale:
		return rejected(guard.ReasonStale, claim, err)
	case state == stateConflict:
		return rejected(guard.ReasonConflict, claim, err)
	case state == stateMissing:
		return unclaimed(op, err)
	case state == stateRaise:
		return guard.Unavailable(op, claim, fmt.Errorf("raise the mark first: %w", err))
	case connecting(err), replanned(err):
		return guard.Unavailable(op, claim, err)
	case errors.Is(err, errAborted):
		return fmt.Errorf("sqlfence: %s: %w", op, err)
	case wrote && (state == "" || endsSession(state)):
		// Nobody answered, or the session was ended: a COMMIT that it had begun
		// may be done.
		return guard.OutcomeUnknown(op, claim, err)
	case state == "" || endsSession(state) || transient(state):
		return guard.Unavailable(op, claim, err)
	}
	return fmt.Errorf("sqlfence: %s: %w", op, err)
}

// schemaFailure is failure for the statements on schema fencepost. None of
// them commits: a COMMIT follows.
func schemaFailure(op string, claim guard.Claim, err error) error {
	switch {
	case missing(err):
		return guard.Unavailable(op, claim, fmt.Errorf("%w: schema fencepost is missing or old, run Migrate", err))
	case sqlState(err) == stateNoReadWrite && !replanned(err):
		return guard.Unavailable(op, claim, fmt.Errorf("%w: %w", errStandby, err))
	}
	return failure(op, claim, err, false)
}

// tableFailure is failure for a statement on a table of the caller's.
func tableFailure(op string, claim guard.Claim, err error, wrote bool) error {
	var argument unsendable
	if missing(err) || misfit(err) || errors.As(err, &argument) {
		return fmt.Errorf("sqlfence: %s: %w: %w", op, guard.ErrInvalid, err)
	}
	return failure(op, claim, err, wrote)
}

// missing reports that a table, column, function, schema or type of the
// statement does not exist.
func missing(err error) bool {
	switch sqlState(err) {
	case "42P01", "42703", "42883", "3F000", "42704":
		return true
	}
	return false
}

// misfit reports that the statement does not fit the table: no unique index on
// the key, a column that cannot be written or has another type, a name that
// means two columns.
func misfit(err error) bool {
	switch sqlState(err) {
	case "42P10", "428C9", "42804", "42702":
		return true
	}
	return false
}

// connecting reports an error from before the statement was sent: no
// connection, or none that would take it. "conn closed" is no such error: pgx
// 5.12.0 also says it, and that a retry is safe, when the connection is lost
// while it waits for the answer of a simple query, which a COMMIT is.
func connecting(err error) bool {
	var connect *pgconn.ConnectError
	var unsent notSent
	return errors.As(err, &unsent) || errors.As(err, &connect) ||
		pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

// replanned reports that a table changed under a statement that the driver
// prepared before, which was not run and is prepared anew the next time. It
// shares its SQLSTATE with much that is for good, and its text is translated.
func replanned(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == stateNoReadWrite && pg.Routine == "RevalidateCachedQuery"
}

// endsSession reports SQLSTATEs with which a server ends a session or after
// which it may not be the server it was (PostgreSQL documentation, appendix A:
// classes 08, 57P, 58, XX, and 25P04, the end of a transaction that took too
// long, which may come when it is committed already).
func endsSession(state string) bool {
	switch state {
	case "57P03", "57P04", "57P05": // refused at connecting, or idle: nothing ran
		return false
	case "25P04":
		return true
	}
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") ||
		strings.HasPrefix(state, "58") || strings.HasPrefix(state, "XX")
}

// transient reports refusals of a server that did not carry the statement out
// and might another time, or for another role: conflicts, timeouts, resources,
// a standby, a cancelled statement, missing rights, an idle session ended.
func transient(state string) bool {
	switch state {
	case stateLockTimeout, stateCanceled, "57P03", "57P04", "57P05", "25006", "25P02", "25P03", "42501", stateIsolation:
		return true
	}
	return strings.HasPrefix(state, "40") || strings.HasPrefix(state, "53") || strings.HasPrefix(state, "28")
}

// rejected builds the refusal from the facts that the function put into the
// error's detail.
func rejected(reason guard.Reason, claim guard.Claim, err error) error {
	e := &guard.RejectedError{Reason: reason, Claim: claim, Cause: err}
	e.Mark = factsOf(err).Mark
	return e
}

// facts is what the database functions put into the detail of a refusal.
type facts struct {
	Resource string     `json:"resource"`
	Mark     guard.Mark `json:"mark"`
}

func factsOf(err error) (f facts) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && json.Unmarshal([]byte(pg.Detail), &f) != nil {
		return facts{}
	}
	return f
}

// refusedClaim returns the one of several claims that err is about, the first
// if it does not say.
func refusedClaim(claims []guard.Claim, err error) guard.Claim {
	if resource := factsOf(err).Resource; resource != "" {
		for _, claim := range claims {
			if claim.Resource == resource {
				return claim
			}
		}
	}
	return claims[0]
}

// ended reports that ctx is over before anything was sent.
func ended(ctx context.Context, op string, claim guard.Claim) error {
	if ctx.Err() == nil {
		return nil
	}
	return guard.Unavailable(op, claim, context.Cause(ctx))
}
