package sqlfence

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// ErrorFrom returns guard's error for the error of a statement that a trigger or
// function of schema fencepost refused, and err itself if it is anything else,
// nil included. It is for statements that the application, an ORM or generated
// code sends itself:
//
//	SF001  ErrStale, a *guard.RejectedError with claim and mark
//	SF002  ErrConflict, likewise
//	SF003  ErrMissing: no claim was presented for the resource of a row written
//	SF004  ErrUnavailable: the claim is above the mark; raise it, then run the
//	       transaction again
//	40001  ErrUnavailable, under REPEATABLE READ and SERIALIZABLE: run the
//	       transaction again
//	40P01  ErrUnavailable, of a deadlock, whatever waited: likewise
//	22...  ErrInvalid, from within a function of schema fencepost: the setting
//	       fencepost.claims is malformed, or the row names no resource
//
// The driver's error stays reachable with errors.As. Facts other than the
// reason, and ErrInvalid, need pgx or its stdlib.
func ErrorFrom(err error) error {
	if guard.ReasonOf(err) != guard.ReasonOther {
		return err
	}
	switch pgerr.State(err) {
	case pgerr.Stale, pgerr.Conflict, pgerr.Missing, pgerr.MustRaise, pgerr.Serialization, pgerr.Deadlock:
		return sqlkit.Failure(guardedWrite, sqlkit.OfferedIn(err), err, false)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "22") && inSchema.MatchString(pg.Where) {
		return fmt.Errorf("sqlfence: %s: %w: %w", guardedWrite, guard.ErrInvalid, err)
	}
	return err
}

const guardedWrite = "guarded write"

// inSchema finds a function of the schema in the context of an error. Its words are in the
// server's language; a function's name with the types of its arguments is not, and differs
// from a call in the text of a statement, which has arguments.
var inSchema = regexp.MustCompile(`\bfencepost\.\w+\([a-z ,\[\]]*\)`)

// invalidUse is an InvalidError with the server's error that detected the
// misuse.
type invalidUse struct {
	error
	cause error
}

func (e invalidUse) Unwrap() []error { return []error{e.error, e.cause} }
