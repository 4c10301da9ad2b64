package pglease

import (
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/lockclient/driver"

	"github.com/jackc/pgx/v5/pgconn"
)

// Harmless marks the error of something that cannot have written: waiting for a
// connection, reading the schema's version, asking who holds the lease.
func Harmless(err error) error {
	if err == nil {
		return nil
	}
	return pgerr.NotSent(err)
}

// Failure turns a driver's error into guard's: ErrUnavailable or ErrSetup if it is
// certain that nothing was written, ErrOutcomeUnknown in every other case.
func Failure(op string, claim guard.Claim, err error) error {
	if err == nil {
		return nil
	}
	if !NothingWritten(err) {
		return guard.OutcomeUnknown(op, claim, err)
	}
	pg := Error(err)
	exhausted := pg != nil && pg.Code == "23514" && pg.ConstraintName == "leases_token_range"
	noEpoch := pg != nil && pg.Code == "22003" // fencepost.raise_epoch says so
	if exhausted {
		err = fmt.Errorf("the tokens of %q are used up, the last is %v: use another resource name: %w", claim.Resource, guard.MaxToken, err)
	}
	if pgerr.Undefined(err) && !errors.Is(err, guard.ErrSetup) { // else it was found out before which version there is
		err = fmt.Errorf("%w: schema fencepost is missing, old or damaged: run pgadmin.Migrate; where that has nothing to do, pgadmin.Repair (fencectl migrate --repair), which says what it cannot make", err)
	}
	setup := exhausted || noEpoch || pgerr.Reason(err, pgerr.Commit) == guard.ReasonSetup || pgerr.Undefined(err) || errors.Is(err, guard.ErrSetup)
	err = pgerr.Explain(err)
	if setup {
		return guard.Setup(op, claim, err)
	}
	if Contention(err) {
		err = fmt.Errorf("%w: %w", driver.ErrBusy, err)
	}
	return guard.Unavailable(op, claim, err)
}

// NothingWritten reports whether err proves that the statement has had no
// effect and will have none: it was never sent, or the server refused it.
func NothingWritten(err error) bool {
	return pgerr.Reason(err, pgerr.Commit) != guard.ReasonOutcomeUnknown
}

// Contention reports whether the server refused for a reason that passes by
// itself: the row was locked for too long, a deadlock, a serialization failure. A
// statement that was cancelled waited too: statement_timeout of a role or a database
// may be shorter than lock_timeout, and a statement cannot lift its own.
func Contention(err error) bool {
	pg := Error(err)
	return pg != nil && NothingWritten(pg) && (pgerr.Contention(pg) || pg.Code == pgerr.Canceled)
}

// Error returns the server's error in err; nil if there is none.
func Error(err error) *pgconn.PgError {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	return pg
}
