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
	stateRaise     = "SF004" // the claim is above the mark: raise first
	stateIsolation = "SF005"
)

// notSent marks a driver's error after which nothing can have reached the
// server.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// errEnded and errAborted are answers to a COMMIT that committed nothing.
var (
	errEnded   = errors.New("the callback ended the transaction itself")
	errAborted = errors.New("the transaction was aborted by an earlier error, which the callback did not return")
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
// statement may have written something: then what cannot be shown to have
// failed is an unknown outcome.
func failure(op string, claim guard.Claim, err error, wrote bool) error {
	if err == nil {
		return nil
	}
	state := sqlState(err)
	switch {
	case state == stateStale:
		return rejected(guard.ReasonStale, claim, err)
	case state == stateConflict:
		return rejected(guard.ReasonConflict, claim, err)
	case connecting(err):
		return guard.Unavailable(op, claim, err)
	case state == "":
		return unanswered(op, claim, err, wrote)
	case state == "42P01" || state == "42703" || state == "42883" || state == "3F000":
		return missingSchema(op, claim, err)
	case endsSession(state) && wrote:
		// The session was ended; a COMMIT that it had begun may be done.
		return guard.OutcomeUnknown(op, claim, err)
	case endsSession(state) || transient(state):
		return guard.Unavailable(op, claim, err)
	}
	return fmt.Errorf("sqlfence: %s: %w", op, err)
}

// connecting reports an error from before the statement was sent: no
// connection, or none that would take it.
func connecting(err error) bool {
	var connect *pgconn.ConnectError
	var unsent notSent
	return errors.As(err, &unsent) || errors.As(err, &connect) || pgconn.SafeToRetry(err)
}

// unanswered is for errors that are not the server's.
func unanswered(op string, claim guard.Claim, err error, wrote bool) error {
	if errors.Is(err, errEnded) || errors.Is(err, errAborted) {
		return fmt.Errorf("sqlfence: %s: %w", op, err)
	}
	if wrote {
		return guard.OutcomeUnknown(op, claim, err)
	}
	return guard.Unavailable(op, claim, err)
}

// endsSession reports SQLSTATEs with which a server ends a session or after
// which it may not be the server it was (PostgreSQL documentation, appendix A:
// classes 08, 57P, 58, XX).
func endsSession(state string) bool {
	switch state {
	case "57P03", "57P04": // refused at connecting, nothing ran
		return false
	}
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") ||
		strings.HasPrefix(state, "58") || strings.HasPrefix(state, "XX")
}

// transient reports refusals of a server that did not carry the statement out
// and might another time, or for another role: conflicts, timeouts, resources,
// a standby, a cancelled statement, missing rights, an idle transaction ended.
func transient(state string) bool {
	switch state {
	case "55P03", "57014", "57P03", "57P04", "25006", "25P02", "25P03", "25P04", "42501", stateIsolation:
		return true
	}
	return strings.HasPrefix(state, "40") || strings.HasPrefix(state, "53") || strings.HasPrefix(state, "28")
}

// missingSchema tells a schema that was not migrated from a table that is not
// as it was described.
func missingSchema(op string, claim guard.Claim, err error) error {
	if strings.Contains(err.Error(), "fencepost") {
		return guard.Unavailable(op, claim, fmt.Errorf("%w: schema fencepost is missing or old, run Migrate", err))
	}
	return fmt.Errorf("sqlfence: %s: %w: %w", op, guard.ErrInvalid, err)
}

// rejected builds the refusal from the facts that the function put into the
// error's detail.
func rejected(reason guard.Reason, claim guard.Claim, err error) error {
	e := &guard.RejectedError{Reason: reason, Claim: claim, Cause: err}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		var facts struct {
			Mark guard.Mark `json:"mark"`
		}
		if json.Unmarshal([]byte(pg.Detail), &facts) == nil {
			e.Mark = facts.Mark
		}
	}
	return e
}

// ended reports that ctx is over before anything was sent.
func ended(ctx context.Context, op string, claim guard.Claim) error {
	if ctx.Err() == nil {
		return nil
	}
	return guard.Unavailable(op, claim, context.Cause(ctx))
}
