// Package pgerr says what a PostgreSQL driver's error means for a write: one
// table, for every package that writes to a database.
//
// The question is always the same: was anything written? That depends on
// the error and on what had been sent when it came. If two readings are
// possible, the stricter one applies: an outcome is called unknown unless it is
// known that nothing was committed.
package pgerr

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// Sent says what had been sent when an error occurred.
type Sent int

// The zero value is the strictest.
const (
	// Commit: a COMMIT, or a statement that commits by itself.
	Commit Sent = iota
	// Work: statements of a transaction whose COMMIT was not sent, or nothing
	// that can write.
	Work
)

// SQLSTATEs of the functions of schema fencepost. The SQL standard leaves
// classes that begin with I to Z to implementations.
const (
	Stale          = "SF001"
	Conflict       = "SF002"
	Missing        = "SF003" // no claim was presented to a trigger
	MustRaise      = "SF004" // the claim is above the mark: raise first
	Isolation      = "SF005" // the transaction's isolation level is refused
	Subtransaction = "SF006" // called inside a savepoint
	NotTheMark     = "SF007" // a reset found a mark other than the one given
	MarkAhead      = "SF008" // a retirement would raise the floor above the issuer's last token
)

// SQLSTATEs of the server's own (PostgreSQL documentation, appendix A).
const (
	Serialization    = "40001"
	Deadlock         = "40P01"
	LockTimeout      = "55P03"
	Canceled         = "57014" // by statement_timeout or an operator
	Privilege        = "42501"
	NotSupported     = "0A000" // also a standby's response to BEGIN READ WRITE
	InvalidParameter = "22023"
	UniqueViolation  = "23505"
)

// ends has the SQLSTATEs, and the classes of two characters, after which the
// outcome of a COMMIT is unknown, whatever the severity: the session or the
// server ended, perhaps after the commit but before its response.
var ends = map[string]bool{
	"08":    true, // connection exception; poolers use it for a lost server
	"40003": true, // statement completion unknown
	"25P03": true, // idle in transaction for too long: before PostgreSQL 14, may be noticed after the commit
	"25P04": true, // transaction too long: may be noticed after the commit
	"57P":   true, // shut down, crashed, dropped, idle
	"58":    true, // system error, outside of PostgreSQL
	"XX":    true, // internal error, corrupted data
}

// setup has the SQLSTATEs, and the classes, of refusals that recur until somebody
// grants a right, creates a role or corrects a password.
var setup = map[string]bool{
	"28":    true, // may not log in
	"3D000": true, // no such database
	"42501": true, // missing rights
}

// passes has the SQLSTATEs, and the classes, of refusals that may not recur on
// another try or with a repaired server. Every other definite error is due to the
// statement or the data.
var passes = map[string]bool{
	"25006": true, // read-only: a standby
	"25P02": true, // the transaction was already aborted
	"26000": true, // the driver's prepared statement is gone, as after DEALLOCATE ALL
	"40":    true, // transaction rolled back: serialization, deadlock
	"53":    true, // resources
	"55P03": true, // lock timeout
	"57014": true, // cancelled
	"SF004": true,
	"SF005": true,
}

// says has the verdicts of schema fencepost, after which nothing was written.
var says = map[string]guard.Reason{Stale: guard.ReasonStale, Conflict: guard.ReasonConflict, Missing: guard.ReasonMissing}

// Reason returns what err means for a write of which sent had been sent:
//
//   - ReasonStale, ReasonConflict, ReasonMissing: a function of schema fencepost
//     refused it.
//   - ReasonUnavailable: nothing was written and another try may succeed.
//   - ReasonSetup: nothing was written, and the role may not do it, or the pool is closed.
//   - ReasonOther: nothing was written and the same statement would fail again.
//   - ReasonOutcomeUnknown: it may have been written.
//   - ReasonNone: err is nil.
func Reason(err error, sent Sent) guard.Reason {
	if err == nil {
		return guard.ReasonNone
	}
	if Unsent(err) {
		if errors.As(err, new(closed)) || in(setup, State(err)) {
			return guard.ReasonSetup
		}
		return guard.ReasonUnavailable
	}
	return reason(State(err), severity(err), replanned(err), sent)
}

// reason is the table. An empty state is an error that the server did not send;
// an empty severity is one that the driver does not report.
func reason(state, severity string, replanned bool, sent Sent) guard.Reason {
	ended := state == "" || severity != "" && severity != "ERROR" || in(ends, state)
	switch {
	case ended && sent == Commit:
		return guard.ReasonOutcomeUnknown
	case says[state] != guard.ReasonNone:
		return says[state]
	case in(setup, state):
		return guard.ReasonSetup
	case ended || replanned || in(passes, state):
		return guard.ReasonUnavailable
	}
	return guard.ReasonOther
}

func in(set map[string]bool, state string) bool {
	for n := 2; n <= len(state); n++ {
		if set[state[:n]] {
			return true
		}
	}
	return false
}

// State returns err's SQLSTATE, empty if the server did not send it. It works
// with every driver whose errors have a SQLState method: pgx, lib/pq.
func State(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// severity returns the severity that the server sent, untranslated if the
// server sent it so (since PostgreSQL 9.6), empty if the driver does not report
// it.
func severity(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		if pg.SeverityUnlocalized != "" {
			return pg.SeverityUnlocalized
		}
		return pg.Severity
	}
	var fields interface{ Get(field byte) string } // lib/pq
	if errors.As(err, &fields) {
		if v := fields.Get('V'); v != "" {
			return v
		}
		return fields.Get('S')
	}
	return ""
}

// NotSent marks err as an error from before anything was sent.
func NotSent(err error) error { return notSent{err} }

type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// Closed marks err as that of a pool that its owner has closed: nothing was sent, and no
// other try helps.
func Closed(err error) error { return notSent{closed{err}} }

type closed struct{ error }

func (e closed) Unwrap() error { return e.error }

// Unsent reports whether err is from before a statement was sent: no connection,
// none that would accept it, or a [NotSent]. "conn closed" is not such an error:
// pgx 5.12.0 also returns it, and says that a retry is safe, when the connection
// is lost while it waits for the response to a simple query, which a COMMIT is.
func Unsent(err error) bool {
	var connect *pgconn.ConnectError
	var unsent notSent
	return errors.As(err, &unsent) || errors.As(err, &connect) || queued(err) ||
		pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

// queued reports whether PgBouncer ended a client that waited for a connection to the
// server, to which it had passed on nothing of what the client sent last. The server's own
// errors of this class say where in its code they come from.
func queued(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "08P01" && pg.File == "" &&
		(strings.HasPrefix(pg.Message, "server login has been failing") || pg.Message == "query_wait_timeout")
}

// replanned reports whether a table changed under a statement that the driver
// had prepared, which was not run and will be prepared again the next time. It
// shares its SQLSTATE with many permanent errors, and its text is translated.
func replanned(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == NotSupported && pg.Routine == "RevalidateCachedQuery"
}

// Standby reports whether a standby refused a transaction that may write.
func Standby(err error) bool { return State(err) == NotSupported && !replanned(err) }

// Undefined reports whether a table, column, function, schema or type of the
// statement does not exist.
func Undefined(err error) bool { return undefined[State(err)] }

var undefined = map[string]bool{"42P01": true, "42703": true, "42883": true, "3F000": true, "42704": true}

// Explain adds the most common cause, or the way out, to the error of a prepared
// statement that is another session's or unknown, and to that of missing rights.
func Explain(err error) error {
	switch State(err) {
	case "26000", "42P05":
		return fmt.Errorf("%w: through a transaction pooler, set pgx's DefaultQueryExecMode to QueryExecModeExec", err)
	case Privilege:
		return fmt.Errorf("%w (rights on schema fencepost are given by RolesSQL of sqladmin and pgadmin)", err)
	}
	return err
}

// Contention reports whether the server rolled back because of what ran at the
// same time: a row locked for too long, a deadlock, a serialization failure.
func Contention(err error) bool {
	switch State(err) {
	case LockTimeout, Deadlock, Serialization:
		return true
	}
	return false
}
