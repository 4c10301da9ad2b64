package lockclient

import (
	"errors"
	"fmt"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"

	"github.com/jackc/pgx/v5/pgconn"
)

// harmless marks the error of something that cannot have written: waiting for a
// connection, reading the schema's version, asking who holds the lease.
func harmless(err error) error {
	if err == nil {
		return nil
	}
	return pgerr.NotSent(err)
}

// failure turns a driver's error into guard's: ErrUnavailable where it is sure
// that nothing was written, ErrOutcomeUnknown in every other case.
func failure(op string, claim guard.Claim, err error) error {
	if err == nil {
		return nil
	}
	if !nothingWritten(err) {
		return guard.OutcomeUnknown(op, claim, err)
	}
	if pg := pgError(err); pg != nil && pg.Code == "23514" && pg.ConstraintName == "leases_token_range" {
		err = fmt.Errorf("the tokens of %q are used up, the last is %v: use another resource name: %w", claim.Resource, guard.MaxToken, err)
	}
	return guard.Unavailable(op, claim, err)
}

// nothingWritten reports whether err proves that the statement has had no
// effect and will have none: it never left, or the server said no.
func nothingWritten(err error) bool {
	return pgerr.Reason(err, pgerr.Commit) != guard.ReasonOutcomeUnknown
}

// serverSaidNo reports whether an error of the server means that the statement
// was rolled back.
func serverSaidNo(e *pgconn.PgError) bool { return nothingWritten(e) }

// contention reports whether the server said no for a reason that passes by
// itself: the row was locked for too long, a deadlock, a serialization failure.
func contention(err error) bool {
	pg := pgError(err)
	if pg == nil || !errors.Is(err, guard.ErrUnavailable) {
		return false
	}
	return passes(pg)
}

func passes(pg *pgconn.PgError) bool { return pgerr.Contention(pg) }

func pgError(err error) *pgconn.PgError {
	var pg *pgconn.PgError
	errors.As(err, &pg)
	return pg
}
