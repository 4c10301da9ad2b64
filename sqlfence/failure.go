package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// errBusy refuses a connection in the middle of a transaction.
var errBusy = guard.Invalid("connection", "", "has a transaction open; it must be idle")

// errOnly refuses to wait for ever.
var errOnly = guard.Invalid("connection", "", "is the pool's only one, and the enclosing InTx has it; call this before InTx, or give the pool more")

// errEncoding refuses a session whose client_encoding is another: the driver sends
// UTF-8, and the server would take a resource's bytes for other characters, and so
// compare with the mark of another resource.
var errEncoding = guard.Invalid("client_encoding", "", "must be UTF8: drivers send UTF-8, and under another setting a resource's name becomes another")

// encoded returns errEncoding for a session that converts what it is sent.
func encoded(c *pgx.Conn) error {
	if c == nil {
		return nil
	}
	switch c.PgConn().ParameterStatus("client_encoding") {
	case "UTF8", "SQL_ASCII", "": // the second converts nothing; the server always reports it
		return nil
	}
	return errEncoding
}

// unsendable marks an argument that the driver could not encode: the
// connection was not used and is as good as before.
type unsendable struct{ error }

func (e unsendable) Unwrap() error { return e.error }

// errEnded and errAborted are answers to a COMMIT that committed nothing. What
// the callback itself did before errEnded is unknown.
var (
	errEnded   = errors.New("the callback ended the transaction itself, or took its marker away, as RESET ALL does")
	errAborted = errors.New("nothing was committed: the transaction was aborted by an earlier error, which the callback did not return")
)

// failure turns a driver's error into one of guard's, by the table in package
// pgerr. wrote says whether the statement may have committed something.
func failure(op string, claim guard.Claim, err error, wrote bool) error {
	sent := pgerr.Work
	if wrote {
		sent = pgerr.Commit
	}
	switch reason := pgerr.Reason(err, sent); {
	case err == nil || err == errBusy || err == errOnly || errors.Is(err, errEncoding):
		return err
	case errors.Is(err, errAborted):
		return fmt.Errorf("sqlfence: %s: %w", op, err)
	case reason == guard.ReasonStale || reason == guard.ReasonConflict:
		return rejected(reason, claim, err)
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

// schemaFailure is failure for the statements on schema fencepost. None of
// them commits: a COMMIT follows.
func schemaFailure(op string, claim guard.Claim, err error) error {
	switch {
	case pgerr.Undefined(err):
		return guard.Setup(op, claim, fmt.Errorf("%w: schema fencepost is missing or old, run sqlfence's DB.Migrate, or lockadmin.Migrate for leases and marks", err))
	case pgerr.Standby(err):
		return guard.Unavailable(op, claim, fmt.Errorf("%w: %w", errStandby, err))
	}
	return failure(op, claim, err, false)
}

// failure is failure for a statement on the table, which is the caller's.
func (t *Table) failure(op string, claim guard.Claim, err error, wrote bool) error {
	var argument unsendable
	if pgerr.Undefined(err) || misfit(err) || errors.As(err, &argument) {
		return fmt.Errorf("sqlfence: %s: %w: %w%s", op, guard.ErrInvalid, err, t.wayOut(err))
	}
	if pgerr.State(err) == pgerr.Privilege {
		return denied(op, claim, err)
	}
	return failure(op, claim, err, wrote)
}

// denied is the error of a statement on the caller's own tables that the role may
// not run: nothing was written, and the store is not unavailable.
func denied(op string, claim guard.Claim, err error) error {
	return guard.Setup(op, claim, fmt.Errorf("%w; grant the role the right on its table, or see the table's policies", err))
}

// wayOut says how to fix the most likely cause of a missing object.
func (t *Table) wayOut(err error) string {
	token := strings.Trim(t.token, `"`)
	switch state := pgerr.State(err); {
	case state == "42P01" && strings.Contains(t.row, "."):
		return "; each part of the name is an element: []string{" + strings.ReplaceAll(t.row, ".", `", "`) + "}"
	case state == "42703" && strings.Contains(err.Error(), token), state == "42883" && strings.Contains(err.Error(), "bigint"):
		return "; the column " + token + " must be bigint NOT NULL DEFAULT 0"
	}
	return ""
}

// misfit reports that the statement does not fit the table: no unique index on
// the key, a column that cannot be written or has another type, an ambiguous
// column name.
func misfit(err error) bool {
	switch pgerr.State(err) {
	case "42P10", "428C9", "42601", "42804", "42702": // 42601: a generated column, before PostgreSQL 14
		return true
	}
	return false
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

// sessionLost reports errors of a session that the server ended, or of using a
// session again after it ended.
func sessionLost(err error) bool {
	switch pgerr.State(err) {
	case "57P01", "25P03":
		return true
	case "":
		return errors.Is(err, pgconn.ErrConnClosed) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
			errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, new(*net.OpError))
	}
	return false
}

// ended returns an error if ctx is over before anything was sent.
func ended(ctx context.Context, op string, claim guard.Claim) error {
	if ctx.Err() == nil {
		return nil
	}
	if lost := guard.Lost(ctx); lost != nil {
		return fmt.Errorf("sqlfence: %s: nothing was sent: %w", op, lost)
	}
	return guard.Unavailable(op, claim, context.Cause(ctx))
}

// interrupted adds to the error of an operation during which ctx ended why it
// ended, because a driver says no more than "context canceled". So a lease that
// was lost meanwhile is reported as that if nothing was written. If that is not
// known, the cause is in the text alone, because ErrLeaseLost would promise it.
func interrupted(ctx context.Context, err error) error {
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
