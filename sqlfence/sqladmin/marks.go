package sqladmin

import (
	"context"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const (
	resetsSQL = `SELECT coalesce(json_agg(r ORDER BY r.id), '[]')::text FROM (
	SELECT id, reset_at AS "createdAt", resource, from_token::text AS "fromToken", from_lease AS "fromLeaseId", to_token::text AS "toToken",
		to_lease AS "toLeaseId", issuers_last::text AS "issuersLast", actor AS "actorId", reason, db_role AS "databaseUser"
	FROM fencepost.mark_resets WHERE id > $2::bigint ORDER BY id LIMIT $1::int
) AS r`
	marksSQL = `SELECT coalesce(json_agg(m ORDER BY m.resource), '[]')::text FROM (
	SELECT resource, token::text, lease_id, raised_at FROM fencepost.marks
	WHERE resource >= $2::pg_catalog.text AND resource > $3::pg_catalog.text AND ($4::pg_catalog.text = '' OR resource < $4::pg_catalog.text)
	ORDER BY resource LIMIT $1::int
) AS m`
)

// pageSize is how many entries are read at once.
const pageSize = 500

// Reset is one entry of the record of resets.
type Reset struct {
	// ID grows with each reset; gaps are resets that were rolled back.
	ID int64 `json:"id"`
	// At is the server's clock.
	At       time.Time `json:"createdAt"`
	Resource string    `json:"resource"`
	// From and To are the marks before and after.
	FromToken guard.Token `json:"fromToken"`
	FromLease string      `json:"fromLeaseId"`
	ToToken   guard.Token `json:"toToken"`
	ToLease   string      `json:"toLeaseId"`
	// IssuersLast is the issuer's last token as given by the operator.
	IssuersLast guard.Token `json:"issuersLast"`
	Actor       string      `json:"actorId"`
	Reason      string      `json:"reason"`
	// Role is the database role that did the reset.
	Role string `json:"databaseUser"`
}

// Resets returns the record of resets with an ID above after, oldest first; 0
// means all. It reads page by page as the iteration proceeds: a reset that is
// being committed may appear below one that was seen. The role needs SELECT on
// fencepost.mark_resets. The last element has an error if one occurred:
// ErrInvalid, ErrUnavailable.
func (a *Admin) Resets(ctx context.Context, after int64) iter.Seq2[Reset, error] {
	if after < 0 {
		return failing[Reset](guard.Invalid("after", strconv.Itoa(int(after)), "must be 0 or an ID"))
	}
	return pages(ctx, a, "read resets", resetsSQL, func(last Reset) []any { return []any{max(after, last.ID)} })
}

// ResourceMark is a resource with its mark.
type ResourceMark struct {
	Resource string      `json:"resource"`
	Token    guard.Token `json:"token"`
	LeaseID  string      `json:"lease_id"`
	// RaisedAt is when the mark was raised, by the server's clock.
	RaisedAt time.Time `json:"raised_at"`
}

// Marks returns the marks of the resources that begin with prefix, in byte
// order; an empty prefix means every resource. It reads ranges of the index,
// page by page as the iteration proceeds. The last element has an error if one
// occurred: ErrInvalid, ErrUnavailable.
func (a *Admin) Marks(ctx context.Context, prefix string) iter.Seq2[ResourceMark, error] {
	if prefix != "" && guard.ValidateResource(prefix) != nil {
		return failing[ResourceMark](guard.Invalid("prefix", prefix, "must be empty or 1 to 512 bytes of UTF-8 without control characters"))
	}
	return pages(ctx, a, "list marks", marksSQL, func(last ResourceMark) []any { return []any{prefix, last.Resource, beyond(prefix)} })
}

// beyond returns the first text that sorts after all texts that begin with
// prefix, empty if there is none. UTF-8 texts in byte order are in code point
// order.
func beyond(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch {
		case r == 0xD7FF: // surrogates are not characters
			return prefix + "\uE000"
		case r < utf8.MaxRune:
			return prefix + string(r+1)
		}
	}
	return ""
}

func failing[Entry any](err error) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) { yield(*new(Entry), err) }
}

// pages runs a query for page after page of entries. A page is one JSON text,
// which every driver can read; next returns the arguments of the page after an
// entry, the zero Entry for the first page.
func pages[Entry any](ctx context.Context, a *Admin, op, sql string, next func(last Entry) []any) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		var last Entry
		for {
			entries, err := page[Entry](ctx, a, op, sql, next(last))
			if err != nil {
				yield(*new(Entry), err)
				return
			}
			for _, last = range entries {
				if !yield(last, nil) {
					return
				}
			}
			if len(entries) < pageSize {
				return
			}
		}
	}
}

func page[Entry any](ctx context.Context, a *Admin, op, sql string, args []any) (entries []Entry, err error) {
	err = a.inspect(ctx, op, nothing, func(q sqlkit.Querier) error {
		return readJSON(ctx, q, op, &entries, sql, append([]any{int32(pageSize)}, args...)...)
	})
	return entries, err
}

const (
	resetSQL  = "SELECT fencepost.reset($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::bigint, $5::pg_catalog.text, $6::bigint, $7::pg_catalog.text, $8::pg_catalog.text, $9::int)"
	retireSQL = "SELECT retired, floor FROM fencepost.retire($1::pg_catalog.timestamptz, $2::int, $3::bigint)"
)

// maxReason is how long the reason of a reset may be, in bytes.
const maxReason = 1024

// MarkReset says which mark [Admin.Reset] replaces with which. All fields are required.
type MarkReset struct {
	Resource string
	// From is the mark as it is, lease ID included, as sqlfence's DB.Mark returned it.
	From guard.Mark
	// To is the mark as it is to be; its lease ID may be empty.
	To guard.Mark
	// IssuersLast is the highest token that the resource's issuer ever issued; a mark
	// above it would again be ahead.
	IssuersLast guard.Token
	// Actor is who does it, in up to 128 bytes, and Reason why, in up to 1024.
	Actor, Reason string
}

// Reset replaces a mark with another one, which may be lower.
//
// It repairs a mark that is ahead of everything its issuer issued (ErrMarkAhead), after a
// restore of the issuer or a made-up token. It is the only way to lower a mark: claims
// between To and From, which were stale, are admitted again. Make sure first that no
// holder of such a claim is still at work.
//
// It compares and sets, and waits for the transactions that entered under the mark. It is
// recorded in the same transaction in fencepost.mark_resets, which is append-only
// ([Admin.Resets]).
//
// Errors:
//   - guard.ErrInvalid: a field is missing or malformed, To is above IssuersLast, From is
//     a floor; nothing was sent.
//   - guard.ErrStale, guard.ErrConflict, guard.ErrNotFound: the mark is higher, is lower or
//     of another lease, or is not there; the [*guard.RejectedError] has From as its claim.
//   - guard.ErrUnavailable: nothing was changed.
//   - guard.ErrOutcomeUnknown: read the mark.
func (a *Admin) Reset(ctx context.Context, r MarkReset) error {
	if err := r.check(); err != nil {
		return err
	}
	return a.reset(ctx, "reset", r)
}

func (a *Admin) reset(ctx context.Context, op string, r MarkReset) error {
	if sqlkit.InTx(ctx, a.pool) {
		return guard.Invalid("Reset", r.Resource, "is called inside InTx")
	}
	was := guard.Claim{Resource: r.Resource, Token: r.From.Token, LeaseID: r.From.LeaseID}
	err := a.change(ctx, op, was, resetSQL, []any{r.Resource, int64(r.From.Token), r.From.LeaseID, int64(r.To.Token), r.To.LeaseID, int64(r.IssuersLast), r.Actor, r.Reason, wait(ctx, holdersTimeout)})
	if pgerr.State(err) == pgerr.NotTheMark {
		return notTheMark(was, err)
	}
	return err
}

// FloorReset says which floor [Admin.ResetFloor] replaces with which. The fields are those
// of [MarkReset]; From is the floor as sqlfence's DB.Mark returns it for a resource without
// a mark.
type FloorReset struct {
	From, To, IssuersLast guard.Token
	Actor, Reason         string
}

// ResetFloor is [Admin.Reset] for the floor, and recorded with an empty resource.
//
// It repairs a floor that a retirement raised above everything the issuer issued, so that
// resources without a mark refuse every holder. The same care applies: claims between To
// and From, on any resource whose mark was retired, are admitted again. The errors are
// those of Reset.
func (a *Admin) ResetFloor(ctx context.Context, f FloorReset) error {
	r := MarkReset{"floor", guard.Mark{Token: f.From}, guard.Mark{Token: f.To}, f.IssuersLast, f.Actor, f.Reason} // a claim has a name
	if err := r.check(); err != nil {
		return err
	}
	r.Resource = ""
	return a.reset(ctx, "reset the floor", r)
}

// Retire removes the marks that were last raised before a time, by the server's
// clock, and lifts the floor to the highest of them, as sqlfence's DB.Retire does;
// but it knows the issuer, and refuses, and changes nothing, if the floor would come
// to be above issuersLast, the highest token that the issuer ever issued. The error
// is then a [*guard.RejectedError] with ErrMarkAhead and the mark that is ahead, which
// [Admin.Reset] repairs. It needs the rights of RoleNames.Operator.
func (a *Admin) Retire(ctx context.Context, before time.Time, issuersLast guard.Token) (guard.Retired, error) {
	if err := issuersLast.Validate(); err != nil {
		return guard.Retired{}, err
	}
	var count, floor int64
	err := a.change(ctx, "retire", guard.Claim{}, retireSQL, []any{before, wait(ctx, holdersTimeout), int64(issuersLast)}, &count, &floor)
	switch {
	case pgerr.State(err) == pgerr.MarkAhead:
		return guard.Retired{}, sqlkit.Rejected(guard.ReasonMarkAhead, sqlkit.OfferedIn(err), err)
	case err != nil:
		return guard.Retired{}, err
	}
	return guard.Retired{Count: count, Floor: guard.Token(floor)}, nil
}

func (r MarkReset) check() error {
	from, to, issuersLast, actor, reason := r.From, r.To, r.IssuersLast, r.Actor, r.Reason
	for _, mark := range []struct {
		field string
		guard.Mark
	}{{"from", from}, {"to", to}} {
		if mark.Floor {
			return guard.Invalid(mark.field, mark.Token.String(), "is a floor, not a mark of the resource")
		}
		if err := (guard.Claim{Resource: r.Resource, Token: mark.Token, LeaseID: mark.LeaseID}).Validate(); err != nil {
			return err
		}
	}
	if err := issuersLast.Validate(); err != nil {
		return err
	}
	if to.Token > issuersLast {
		return guard.Invalid("to", to.Token.String(), "is above "+issuersLast.String()+", the last token of the issuer: the mark would be ahead")
	}
	if strings.TrimSpace(actor) == "" || guard.ValidateOwner(actor) != nil {
		return guard.Invalid("actor", actor, "must be 1 to 128 bytes of UTF-8 without control characters, and not blank")
	}
	if strings.TrimSpace(reason) == "" || len(reason) > maxReason || !utf8.ValidString(reason) || strings.ContainsRune(reason, 0) {
		return guard.Invalid("reason", reason, "must be 1 to "+strconv.Itoa(maxReason)+" bytes of UTF-8 without NUL, and not blank")
	}
	return nil
}

// notTheMark distinguishes the ways in which a mark is not the one to be reset.
func notTheMark(was guard.Claim, err error) error {
	f := sqlkit.FactsOf(err)
	e := &guard.RejectedError{Reason: guard.ReasonConflict, Claim: was, Mark: f.Mark, Cause: err}
	switch {
	case f.Mark.Token == guard.NoToken:
		e.Reason = guard.ReasonNotFound
	case f.Mark.Token > was.Token:
		e.Reason = guard.ReasonStale
	}
	return e
}
