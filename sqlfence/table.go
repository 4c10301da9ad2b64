package sqlfence

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// DefaultTokenColumn is the column that holds a row's mark unless told
// otherwise.
const DefaultTokenColumn = "last_fencing_token"

// TableOptions configures [NewTable]. The zero value is the default.
type TableOptions struct {
	// TokenColumn holds the row's mark; it must be bigint NOT NULL DEFAULT 0
	// and should not be indexed: an index on it makes every write of the row
	// an index write. Empty means [DefaultTokenColumn].
	TokenColumn string
	// LeaseColumn holds the lease ID of the mark; it must be text NOT NULL
	// DEFAULT ''. Empty means that the table has none: then one token under
	// two leases is not told apart (no promise P4 on this table).
	LeaseColumn string
	// DeletedColumn says when the row was deleted by [Table.Delete]; it must be
	// timestamptz, NULL for a row that is not deleted. Empty means that the
	// table has none, and no Delete.
	DeletedColumn string
	// Rule says what a second write under one token may do. Zero means
	// [guard.OncePerToken]: token > last_fencing_token. [Table.Takeover] needs
	// [guard.SameOrNewer].
	Rule guard.Rule
	// Resource names the resource that a row is, from its key's values. If it
	// is set, a claim for another resource is refused with ErrInvalid before
	// anything is sent; nil leaves that to the caller.
	Resource func(key ...any) (string, error)
}

// Table is a guarded table: each row is a resource, and one of its columns is
// the row's mark. It is immutable and safe for concurrent use. The zero value
// is not usable; call [NewTable].
type Table struct {
	name       string // quoted
	row        string // quoted: the last part of the name, by which a statement knows the row
	label      string // for errors
	keys       []string
	keyColumns []string // quoted
	where      string   // ("k1" = $1 AND "k2" = $2)
	token      string   // quoted
	lease      string   // quoted; empty = none
	deleted    string   // quoted; empty = none
	reserved   map[string]string
	rule       guard.Rule
	resource   func(key ...any) (string, error)
	predicates []Expr

	statements *statements
}

// NewTable describes a guarded table. The name comes in parts, {"billing",
// "closes"} or {"closes"}, key is the columns of its primary key or of another
// unique key. Names are quoted, so they are written as the catalog has them. A
// key that is not unique would be written in all its rows. opts may be nil.
//
// It sends nothing; the errors are [*guard.InvalidError] (ErrInvalid).
func NewTable(name []string, key []string, opts *TableOptions) (*Table, error) {
	o := TableOptions{}
	if opts != nil {
		o = *opts
	}
	if o.TokenColumn == "" {
		o.TokenColumn = DefaultTokenColumn
	}
	if o.Rule == 0 {
		o.Rule = guard.OncePerToken
	}
	if o.Rule != guard.OncePerToken && o.Rule != guard.SameOrNewer {
		return nil, guard.Invalid("TableOptions.Rule", o.Rule.String(), "must be guard.OncePerToken or guard.SameOrNewer")
	}
	t := &Table{label: strings.Join(name, "."), keys: slices.Clone(key), rule: o.Rule, resource: o.Resource,
		reserved: map[string]string{}, statements: &statements{}}
	var err error
	if t.name, err = quoteName("table name", name); err != nil {
		return nil, err
	}
	if t.row, err = quoteIdentifier("table name", name[len(name)-1]); err != nil {
		return nil, err
	}
	if t.token, err = t.reserve("token column", o.TokenColumn); err != nil {
		return nil, err
	}
	if o.LeaseColumn != "" {
		if t.lease, err = t.reserve("lease column", o.LeaseColumn); err != nil {
			return nil, err
		}
	}
	if o.DeletedColumn != "" {
		if t.deleted, err = t.reserve("deleted column", o.DeletedColumn); err != nil {
			return nil, err
		}
	}
	if len(key) == 0 {
		return nil, guard.Invalid("key", "", "must name at least one column")
	}
	where := make([]string, len(key))
	for i, column := range key {
		quoted, err := t.reserve("key column", column)
		if err != nil {
			return nil, err
		}
		t.keyColumns = append(t.keyColumns, quoted)
		where[i] = quoted + " = " + placeholder(i+1)
	}
	t.where = "(" + strings.Join(where, " AND ") + ")"
	return t, nil
}

// ErrPredicate: the row is there and its mark admits the claim, but it does not
// satisfy the predicate of [Table.Where]. It comes inside a
// [*guard.RejectedError] that is guard.ErrNotFound, too: there is no such row.
var ErrPredicate = errors.New("the row does not satisfy the predicate")

// Where returns a table whose statements apply only to rows that satisfy
// predicate as well, besides those of t: closes.Where(sqlfence.Raw("status = $1",
// "open")).Update(...). t stays as it is. The predicate stands in parentheses,
// and is compared in the same step as the claim; a row that the claim may
// write and the predicate excludes is refused with [ErrPredicate]. NULL is not
// satisfied. A row that [Table.Upsert] inserts is not compared, and there the
// predicate must name columns with their table, "closes.status", because the
// row to be inserted has the same ones.
//
// A malformed predicate is refused by the statement, before anything is sent.
func (t *Table) Where(predicate Expr) *Table {
	narrowed := *t
	narrowed.predicates = append(slices.Clip(t.predicates), predicate)
	return &narrowed
}

// reserve quotes a column that a Set may not name.
func (t *Table) reserve(what, column string) (string, error) {
	quoted, err := quoteIdentifier(what, column)
	if err != nil {
		return "", err
	}
	if other, taken := t.reserved[column]; taken {
		return "", guard.Invalid(what, column, "is the "+other+" already")
	}
	t.reserved[column] = what
	return quoted, nil
}

// isNull reports values that the drivers send as NULL, with which no key is
// equal. Only unusual types pay for looking closer.
func isNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string, int, int64, int32, bool, time.Time:
		return false
	case driver.Valuer:
		if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && r.IsNil() {
			return true
		}
		value, err := v.Value()
		return err == nil && value == nil
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return r.IsNil()
	}
	return false
}

// check validates what a write is given before anything is sent.
func (t *Table) check(ctx context.Context, claim guard.Claim, key []any) error {
	if err := claim.Validate(); err != nil {
		return err
	}
	if len(key) != len(t.keys) {
		return guard.Invalid("key", t.label, "has "+itoa(len(t.keys))+" columns, "+itoa(len(key))+" values were given")
	}
	for i, v := range key {
		if isNull(v) {
			return guard.Invalid("key column "+t.keys[i], "NULL", "must not be NULL")
		}
	}
	if t.resource != nil {
		want, err := t.resource(key...)
		if err != nil {
			return err
		}
		if want != claim.Resource {
			return guard.Invalid("claim.Resource", claim.Resource, "is not the resource of this row")
		}
	}
	if ctx.Err() != nil {
		return ended(ctx, "write "+t.label, claim)
	}
	return nil
}
