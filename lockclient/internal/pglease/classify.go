package pglease

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"

	"github.com/jackc/pgx/v5/pgconn"
)

// harmlessError wraps the error of something that cannot have written: waiting
// for a connection, reading the schema's version, asking who holds the lease.
type harmlessError struct{ err error }

func (e *harmlessError) Error() string { return e.err.Error() }
func (e *harmlessError) Unwrap() error { return e.err }

// Harmless marks an error that proves that nothing was written.
func Harmless(err error) error {
	if err == nil {
		return nil
	}
	return &harmlessError{err}
}

// Failure turns a driver's error into guard's: ErrUnavailable where it is sure
// that nothing was written, ErrOutcomeUnknown in every other case.
func Failure(op string, claim guard.Claim, err error) error {
	if err == nil {
		return nil
	}
	if !NothingWritten(err) {
		return guard.OutcomeUnknown(op, claim, err)
	}
	if pg := Error(err); pg != nil && pg.Code == "23514" && pg.ConstraintName == "leases_token_range" {
		err = fmt.Errorf("the tokens of %q are used up, the last is %v: use another resource name: %w", claim.Resource, guard.MaxToken, err)
	}
	return guard.Unavailable(op, claim, err)
}

// NothingWritten reports whether err proves that the statement has had no
// effect and will have none: it never left, or the server said no.
func NothingWritten(err error) bool {
	var h *harmlessError
	if errors.As(err, &h) {
		return true
	}
	var connect *pgconn.ConnectError
	// pgx 5.12.0 also calls it "conn closed", and safe to retry, when the
	// connection is lost while it waits for the answer of a simple query.
	if errors.As(err, &connect) || pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed) {
		return true
	}
	pg := Error(err)
	return pg != nil && SaidNo(pg)
}

// SaidNo reports whether an error of the server means that the statement
// was rolled back. An ERROR ends the statement's transaction. After a FATAL the
// session is gone, and it may have ended after the commit and before the
// answer; poolers report a lost server as a connection exception, class 08.
func SaidNo(e *pgconn.PgError) bool {
	severity := e.SeverityUnlocalized
	if severity == "" {
		severity = e.Severity // before PostgreSQL 9.6, and some poolers
	}
	switch {
	case severity != "ERROR":
		return false
	case strings.HasPrefix(e.Code, "08"), // connection exception
		e.Code == "40003",                    // statement completion unknown
		e.Code == "57P01", e.Code == "57P02": // shutting down
		return false
	}
	return true
}

// Contention reports whether the server said no for a reason that passes by
// itself: the row was locked for too long, a deadlock, a serialization failure.
func Contention(err error) bool {
	pg := Error(err)
	if pg == nil || !errors.Is(err, guard.ErrUnavailable) {
		return false
	}
	return Passes(pg)
}

// Passes is [Contention] of a server's error.
func Passes(pg *pgconn.PgError) bool {
	return pg.Code == "55P03" || pg.Code == "40P01" || pg.Code == "40001"
}

// Error returns the server's error in err; nil if there is none.
func Error(err error) *pgconn.PgError {
	var pg *pgconn.PgError
	errors.As(err, &pg)
	return pg
}
