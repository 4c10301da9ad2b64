package sqlfence

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

const (
	resetsSQL = `SELECT coalesce(json_agg(r ORDER BY r.id), '[]')::text FROM (
	SELECT id, reset_at, resource, from_token::text, from_lease, to_token::text, to_lease, issuers_last::text, actor, reason, db_role
	FROM fencepost.mark_resets WHERE id > $2::bigint ORDER BY id LIMIT $1::int
) AS r`
	marksSQL = `SELECT coalesce(json_agg(m ORDER BY m.resource), '[]')::text FROM (
	SELECT resource, token::text, lease_id, raised_at FROM fencepost.marks
	WHERE resource >= $2::text AND resource > $3::text AND ($4::text = '' OR resource < $4::text)
	ORDER BY resource LIMIT $1::int
) AS m`
)

// MaxPage is how many entries [DB.Marks] and [DB.Resets] return at most.
const MaxPage = 1000

// Reset is one entry of the record of resets.
type Reset struct {
	// ID grows with each reset; gaps are resets that were rolled back.
	ID int64 `json:"id"`
	// At is the server's clock.
	At       time.Time `json:"reset_at"`
	Resource string    `json:"resource"`
	// From and To are the marks before and after.
	FromToken guard.Token `json:"from_token"`
	FromLease string      `json:"from_lease"`
	ToToken   guard.Token `json:"to_token"`
	ToLease   string      `json:"to_lease"`
	// IssuersLast is the issuer's last token as the operator gave it.
	IssuersLast guard.Token `json:"issuers_last"`
	Actor       string      `json:"actor"`
	Reason      string      `json:"reason"`
	// Role is the database role that did it.
	Role string `json:"db_role"`
}

// Resets returns the resets with an ID above after, oldest first, at most limit
// of them (1 to [MaxPage]). Begin with 0 and go on with the last ID. A reset
// that is being committed may appear below one that was seen. The role needs
// SELECT on fencepost.mark_resets. The errors: ErrInvalid, ErrUnavailable.
func (d *DB[Tx]) Resets(ctx context.Context, after int64, limit int) ([]Reset, error) {
	if after < 0 {
		return nil, guard.Invalid("after", "negative", "must be 0 or an ID")
	}
	return page[Reset](ctx, d.backend, "read resets", resetsSQL, limit, after)
}

// ResourceMark is a resource with its mark.
type ResourceMark struct {
	Resource string      `json:"resource"`
	Token    guard.Token `json:"token"`
	LeaseID  string      `json:"lease_id"`
	// RaisedAt is when the mark was raised, by the server's clock.
	RaisedAt time.Time `json:"raised_at"`
}

// Marks returns the marks of the resources that begin with prefix and come
// after the given one, in the order of their bytes, at most limit of them (1
// to [MaxPage]). An empty prefix is every resource; begin with an empty after
// and go on with the last resource. It reads a range of the index. The errors:
// ErrInvalid, ErrUnavailable.
func (d *DB[Tx]) Marks(ctx context.Context, prefix, after string, limit int) ([]ResourceMark, error) {
	for field, value := range map[string]string{"prefix": prefix, "after": after} {
		if value == "" {
			continue
		}
		if err := guard.ValidateResource(value); err != nil {
			return nil, guard.Invalid(field, value, "must be empty or 1 to 512 bytes of UTF-8 without control characters")
		}
	}
	return page[ResourceMark](ctx, d.backend, "list marks", marksSQL, limit, prefix, after, beyond(prefix))
}

// beyond returns the first text that comes after all that begin with prefix,
// empty if none does. In the order of their bytes texts of UTF-8 are in the
// order of their code points.
func beyond(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch {
		case r == 0xD7FF: // the surrogates are no characters
			return prefix + "\uE000"
		case r < utf8.MaxRune:
			return prefix + string(r+1)
		}
	}
	return ""
}

// page runs a query that returns a page of entries as one JSON text, which
// every driver can read.
func page[Entry any](ctx context.Context, q querier, op, sql string, limit int, args ...any) ([]Entry, error) {
	if limit < 1 || limit > MaxPage {
		return nil, guard.Invalid("limit", itoa(limit), "must be 1 to "+itoa(MaxPage))
	}
	if err := ended(ctx, op, guard.Claim{}); err != nil {
		return nil, err
	}
	var text string
	if _, err := q.row(ctx, sql, append([]any{int32(limit)}, args...), &text); err != nil {
		return nil, schemaFailure(op, guard.Claim{}, err)
	}
	var entries []Entry
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, guard.Unavailable(op, guard.Claim{}, err)
	}
	return entries, nil
}
