package sqlrow

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// failure is sqlkit.Failure for a statement on the table, which is the caller's.
func (t *Table) failure(op string, claim guard.Claim, err error, wrote bool) error {
	if sqlkit.Explained(err) {
		return err
	}
	if sqlkit.NotEncoded(err) {
		return sqlkit.ErrEncoding
	}
	var argument sqlkit.Unsendable
	if pgerr.Undefined(err) || misfit(err) || errors.As(err, &argument) {
		return fmt.Errorf("sqlfence: %s: %w: %w%s", op, guard.ErrInvalid, err, t.wayOut(err))
	}
	if pgerr.State(err) == pgerr.Privilege {
		return sqlkit.Denied(op, claim, err)
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
