package sqlfence

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

const resetSQL = "SELECT fencepost.reset($1::text, $2::bigint, $3::text, $4::bigint, $5::text, $6::bigint, $7::text, $8::text, $9::int)"

// maxReason is how long the reason of a reset may be, in bytes.
const maxReason = 1024

// Reset puts the mark to in the place of the mark from, which may be higher: it
// repairs a mark that is ahead of everything its issuer issued (ErrMarkAhead),
// after a restore of the issuer or a token that was made up. It is the only way
// in which a mark is lowered: claims between to and from, which were stale, are
// admitted again. Make sure first that no holder of one is still at work.
//
// It compares and sets: the mark must be exactly from, lease ID included, as
// [DB.Mark] returned it. It waits for the transactions that entered under the
// mark. The reset is recorded with actor and reason, in the same transaction,
// in fencepost.mark_resets, which is only ever added to ([DB.Resets]).
//
// issuersLast is the highest token that the resource's issuer ever issued; a
// mark above it would be ahead again.
//
// The errors: ErrInvalid for a to above issuersLast, for a from that is a
// floor, for an actor or a reason that is empty, of white space alone or longer
// than 128 and 1024 bytes, for a malformed resource, token or lease ID: nothing
// was sent. [*guard.RejectedError], which has from as its claim, if the mark is
// another one: ErrStale (higher), ErrConflict (lower, or of another lease),
// ErrNotFound (none). ErrUnavailable: nothing was changed. ErrOutcomeUnknown:
// read the mark.
func (d *DB[Tx]) Reset(ctx context.Context, resource string, from, to guard.Mark, issuersLast guard.Token, actor, reason string) error {
	const op = "reset"
	was := guard.Claim{Resource: resource, Token: from.Token, LeaseID: from.LeaseID}
	if err := checkReset(was, from, to, issuersLast, actor, reason); err != nil {
		return err
	}
	if d.callback(ctx) != nil {
		return guard.Invalid("Reset", resource, "is called inside InTx")
	}
	if err := ended(ctx, op, was); err != nil {
		return err
	}
	tx, err := d.backend.begin(ctx, ReadCommitted, "", statement{sql: resetSQL, args: []any{resource, int64(from.Token), from.LeaseID,
		int64(to.Token), to.LeaseID, int64(issuersLast), actor, reason, int32(d.opts.RaiseTimeout.Milliseconds())}})
	if err != nil {
		if pgerr.State(err) == pgerr.NotTheMark {
			return d.notTheMark(ctx, was, err)
		}
		return schemaFailure(op, was, err)
	}
	defer tx.rollback()
	return failure(op, was, tx.commit(ctx, d.commits), true)
}

func checkReset(was guard.Claim, from, to guard.Mark, issuersLast guard.Token, actor, reason string) error {
	if from.Floor {
		return guard.Invalid("from", from.Token.String(), "is the floor, not a mark of the resource")
	}
	if to.Floor {
		return guard.Invalid("to", to.Token.String(), "is a floor, not a mark of the resource")
	}
	if err := was.Validate(); err != nil {
		return err
	}
	if err := (guard.Claim{Resource: was.Resource, Token: to.Token, LeaseID: to.LeaseID}).Validate(); err != nil {
		return err
	}
	if err := issuersLast.Validate(); err != nil {
		return err
	}
	if to.Token > issuersLast {
		return guard.Invalid("to", to.Token.String(), "is above "+issuersLast.String()+", the last token of the issuer: the mark would be ahead")
	}
	if strings.TrimSpace(actor) == "" {
		return guard.Invalid("actor", actor, "must not be blank")
	}
	if err := guard.ValidateOwner(actor); err != nil {
		return guard.Invalid("actor", actor, "must be at most 128 bytes of UTF-8 without control characters")
	}
	if strings.TrimSpace(reason) == "" {
		return guard.Invalid("reason", reason, "must not be blank")
	}
	if len(reason) > maxReason || !utf8.ValidString(reason) || strings.ContainsRune(reason, 0) {
		return guard.Invalid("reason", reason, "must be at most "+itoa(maxReason)+" bytes of UTF-8 without NUL")
	}
	return nil
}

// notTheMark tells the ways apart in which a mark is not the one to be reset.
// Only pgx passes on the facts of a refusal; else the mark is read once more.
func (d *DB[Tx]) notTheMark(ctx context.Context, was guard.Claim, err error) error {
	f := factsOf(err)
	if f.Resource == "" {
		mark, markErr := d.mark(ctx, "reset", was)
		if markErr != nil {
			return markErr
		}
		if !mark.Floor {
			f.Mark = mark
		}
	}
	e := &guard.RejectedError{Reason: guard.ReasonConflict, Claim: was, Mark: f.Mark, Cause: err}
	switch {
	case f.Mark.Token == guard.NoToken:
		e.Reason = guard.ReasonNotFound
	case f.Mark.Token > was.Token:
		e.Reason = guard.ReasonStale
	}
	return e
}
