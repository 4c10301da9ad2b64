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
	Serialization = "40001"
	Deadlock      = "40P01"
	LockTimeout   = "55P03"
	Canceled      = "57014" // by statement_timeout or an operator
	// TransactionTimeout ends the session (PostgreSQL 17 and later).
	TransactionTimeout = "25P04"
	Privilege          = "42501"
	NotSupported       = "0A000" // also a standby's response to BEGIN READ WRITE
	InvalidParameter   = "22023"
	UniqueViolation    = "23505"
)

// row says what an ERROR means before COMMIT, and at COMMIT or for a statement that commits
// by itself.
type row struct{ before, commit guard.Reason }

var (
	stale    = row{guard.ReasonStale, guard.ReasonStale}
	conflict = row{guard.ReasonConflict, guard.ReasonConflict}
	missing  = row{guard.ReasonMissing, guard.ReasonMissing}
	// refused: the same statement would fail again.
	refused = row{guard.ReasonOther, guard.ReasonOther}
	// person: until somebody grants a right, creates a role, or changes a setting.
	person = row{guard.ReasonSetup, guard.ReasonSetup}
	// retry: may not recur on another try or with a repaired server.
	retry = row{guard.ReasonUnavailable, guard.ReasonUnavailable}
	// ended: the session or the server ended, perhaps after the commit but before its response.
	ended = row{guard.ReasonUnavailable, guard.ReasonOutcomeUnknown}
)

// table has what PostgreSQL and poolers say, by SQLSTATE, or by class (its first two
// characters, or three). A longer entry goes before a shorter one. What is not in it is
// refused. [judge] has what goes before the table.
var table = map[string]row{
	"08":    ended,  // connection exception; poolers use it for a lost server
	"25006": retry,  // read-only: a standby
	"25P02": retry,  // the transaction was already aborted
	"25P03": ended,  // idle in transaction for too long: before PostgreSQL 14, may be noticed after the commit
	"25P04": ended,  // transaction_timeout: may be noticed after the commit
	"26000": retry,  // the driver's prepared statement is gone, as after DEALLOCATE ALL
	"28":    person, // may not log in
	"3D000": person, // no such database
	"40":    retry,  // transaction rolled back: serialization, deadlock
	"40003": ended,  // statement completion unknown
	"42501": person, // missing rights
	"53":    retry,  // resources
	"55P03": retry,  // lock timeout
	"57014": retry,  // cancelled
	"57P":   ended,  // shut down, crashed, dropped, idle
	"58":    ended,  // system error, outside of PostgreSQL
	"XX":    ended,  // internal error, corrupted data
	"SF001": stale,  // schema fencepost's own: nothing was written
	"SF002": conflict,
	"SF003": missing,
	"SF004": retry,
	"SF005": retry,
}

// pooler has what PgBouncer says, in English, by the beginning of its text; its SQLSTATE is
// mostly 08P01. The server's own errors say where in its code they come from, these do
// not.
var pooler = map[string]row{
	"server login has been failing":                            retry, // these clients waited for a connection: nothing was passed on
	"query_wait_timeout":                                       retry,
	"transaction blocks not allowed in statement pooling mode": person,
	"no such database":                                         person,
	"no such user":                                             person,
	"unsupported startup parameter":                            person,
	"unsupported options startup":                              person,
}

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
	return judge(err).at(sent)
}

func (r row) at(sent Sent) guard.Reason {
	if sent == Commit {
		return r.commit
	}
	return r.before
}

func judge(err error) row {
	said, known := pooled(err)
	switch {
	case known:
		return said
	case errors.As(err, new(closed)):
		return person
	case Unsent(err):
		if lookup(State(err)) == person {
			return person
		}
		return retry
	case Replanned(err): // it was not run
		return retry
	case State(err) == "08P01" && severity(err) == "ERROR" && origin(err).File != "":
		return refused // the server's own: a caller's message, such as one with too few arguments
	}
	return judged(State(err), severity(err))
}

// judged goes by the table. What is not an ERROR of the server (FATAL, PANIC, nothing that
// the server sent) is of a session that ended, whatever it says. An empty severity is one
// that the driver does not report.
func judged(state, severity string) row {
	said := lookup(state)
	if state != "" && (severity == "" || severity == "ERROR") {
		return said
	}
	if said == refused {
		said = retry
	}
	return row{said.before, guard.ReasonOutcomeUnknown}
}

// lookup returns the longest entry of the table.
func lookup(state string) row {
	for n := len(state); n >= 2; n-- {
		if said, listed := table[state[:n]]; listed {
			return said
		}
	}
	return refused
}

// pooled returns what PgBouncer said.
func pooled(err error) (said row, known bool) {
	pg := origin(err)
	if pg.Code == "" || pg.File != "" {
		return row{}, false
	}
	for text, said := range pooler {
		if strings.HasPrefix(pg.Message, text) {
			return said, true
		}
	}
	return row{}, false
}

// origin returns the error that the server or a pooler sent, if the driver passes it on.
func origin(err error) pgconn.PgError {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return *pg
	}
	return pgconn.PgError{}
}

// State returns err's SQLSTATE, empty if the server did not send it. It works
// with every driver whose errors have a SQLState method, as pgx's have.
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
	var fields interface{ Get(field byte) string } // some drivers of database/sql
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
	if said, known := pooled(err); known && said == retry {
		return true
	}
	return errors.As(err, &unsent) || errors.As(err, &connect) ||
		pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

// Replanned reports whether a table changed under a statement that the driver
// had prepared, which was not run and will be prepared again the next time. It
// shares its SQLSTATE with many permanent errors, and its text is translated.
func Replanned(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == NotSupported && pg.Routine == "RevalidateCachedQuery"
}

// Standby reports whether a standby refused a transaction that may write.
func Standby(err error) bool { return State(err) == NotSupported && !Replanned(err) }

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
		return fmt.Errorf("%w (the roles fencepost_issuer, _enforcer, _operator and _reader, which fencectl roles or RolesSQL of sqladmin and pgadmin makes, have the rights on schema fencepost: grant this role the one that it needs)", err)
	case TransactionTimeout:
		return fmt.Errorf("%w: transaction_timeout of the role, the database or the session is shorter than the wait for a lock", err)
	case NotSupported:
		if Replanned(err) {
			return fmt.Errorf("%w: a column changed its type; through a pooler that keeps prepared statements (PgBouncer's max_prepared_statements) this lasts until its RECONNECT, or set pgx's DefaultQueryExecMode to QueryExecModeExec", err)
		}
	case "08P01":
		if said, _ := pooled(err); said == person && strings.HasPrefix(origin(err).Message, "transaction blocks") {
			return fmt.Errorf("%w: fences need transactions: set PgBouncer's pool_mode to transaction or session", err)
		}
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
