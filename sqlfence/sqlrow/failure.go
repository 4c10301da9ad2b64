package sqlrow

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// failure is guard's error for a driver's error of a statement on the table, which is the
// caller's. wrote says whether the statement may have committed something.
func (t *Table) failure(op string, claim guard.Claim, err error, wrote bool) error {
	var unread sqlkit.Unreadable
	switch misread := errors.As(err, &unread); {
	case misread && wrote: // whatever the dest's error says, the row may be written
		return guard.OutcomeUnknown(op, claim, err)
	case misread && sqlkit.Explained(unread): // its promises are not this statement's
		return fmt.Errorf("sqlfence: %s: a dest did not take its value: %v", op, unread)
	case misread:
		return fmt.Errorf("sqlfence: %s: a dest did not take its value: %w", op, unread)
	case sqlkit.Explained(err):
		return err
	case sqlkit.NotEncoded(err):
		return sqlkit.ErrEncoding
	case pgerr.Undefined(err) || misfit(err) || errors.As(err, new(sqlkit.Unsendable)):
		return fmt.Errorf("sqlfence: %s: %w: %w%s", op, guard.ErrInvalid, err, t.wayOut(err))
	case pgerr.State(err) == pgerr.Privilege:
		return guard.Setup(op, claim, fmt.Errorf("%w; grant the role the right on its table, or see the table's policies", err))
	}
	return sqlkit.Failure(op, claim, err, wrote)
}

// wayOut says how to fix the most likely cause of a missing object.
func (t *Table) wayOut(err error) string {
	token := strings.Trim(t.token, `"`)
	switch state := pgerr.State(err); {
	case state == "42P01" && strings.Contains(t.row, "."):
		return "; each part of the name is an element: []string{" + strings.ReplaceAll(t.row, ".", `", "`) + "}"
	case state == "42703" && strings.Contains(err.Error(), token):
		return "; the column " + token + " must be bigint NOT NULL DEFAULT 0"
	case state == "42883" && strings.ContainsAny(err.Error(), "=<>"): // an operator, in any language
		return "; a column has another type than its value: one of the key, or " + token + ", which must be bigint NOT NULL DEFAULT 0"
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
