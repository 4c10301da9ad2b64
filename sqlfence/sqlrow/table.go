package sqlrow

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

const defaultTokenColumn = "last_fencing_token"

// TableOptions configures [NewTable]. The zero value is the default.
type TableOptions struct {
	// TokenColumn holds the row's mark; it must be bigint NOT NULL DEFAULT 0
	// and should not be indexed: an index on it makes every write of the row
	// an index write. Empty means
	// "last_fencing_token".
	TokenColumn string
	// LeaseColumn holds the lease ID of the mark; it must be text NOT NULL
	// DEFAULT ''. Empty means that the table has none: then one token under two
	// leases is not detected (no promise P4 on this table).
	LeaseColumn string
	// DeletedColumn says when the row was deleted by [Table.Delete]; it must be
	// timestamptz, NULL for a row that is not deleted. Empty means that the
	// table has none, and does not support Delete.
	DeletedColumn string
	// Rule says what a second write under one token may do. Zero means
	// [guard.OncePerToken]: token > last_fencing_token. [Table.Raise] needs
	// [guard.SameOrNewer].
	Rule guard.Rule
	// Columns binds each variable of the table's template to a key column, by
	// the variable's name. nil binds every key column to the variable of the
	// same name.
	Columns map[string]string
	// InsecureAnyResource is for a table without a template: a claim for any
	// resource can write any row, so a mistaken claim with a high token makes
	// the row's true holder stale.
	InsecureAnyResource bool
}

// Table is a guarded table: each row is a resource, and one of its columns is
// the row's mark. It is immutable and safe for concurrent use. The zero value
// is not usable; call [NewTable].
type Table struct {
	name       string // quoted
	row        string // quoted: the last part of the name, by which a statement refers to the row
	label      string // for errors
	keys       []string
	keyColumns []string // quoted
	where      string   // ("k1" = $1 AND "k2" = $2)
	token      string   // quoted
	lease      string   // quoted; empty = none
	deleted    string   // quoted; empty = none
	reserved   map[string]string
	rule       guard.Rule
	resource   *guard.Template
	bound      []bound
	id         any // its tableID, boxed once
	predicates []Expr

	// The claim as a statement offers it, after the key's parameters, and the
	// comparison with the row's mark.
	offeredToken, offeredLease string // $2::bigint, $3::pg_catalog.text
	offered                    string // "token" = $2::bigint, "lease" = ...
	admitted                   string
}

// NewTable describes a guarded table. name is given in parts, {"billing",
// "closes"} or {"closes"}; key has the columns of its primary key or of another
// unique key. Names are quoted, so write them as in the catalog. A write to a
// key that is not unique would change all its rows. opts may be nil.
//
// resource names a row's resource from its key: a claim for another resource is
// refused with a [*guard.MisdirectedError], before anything is sent. Each of its
// variables is a key column, and the type of the variable must match that of the
// column, so that a value has one text: {x:int} for smallint, integer and
// bigint, {x:uuid} for uuid, {x} for text and varchar with a deterministic
// collation. Other columns are refused at the first use. nil is refused unless
// [TableOptions].InsecureAnyResource is set.
//
// It sends nothing; the errors are [*guard.InvalidError] (ErrInvalid).
func NewTable(name []string, key []string, resource *guard.Template, opts *TableOptions) (*Table, error) {
	o := TableOptions{}
	if opts != nil {
		o = *opts
	}
	if o.TokenColumn == "" {
		o.TokenColumn = defaultTokenColumn
	}
	if o.Rule == 0 {
		o.Rule = guard.OncePerToken
	}
	if o.Rule != guard.OncePerToken && o.Rule != guard.SameOrNewer {
		return nil, guard.Invalid("TableOptions.Rule", o.Rule.String(), "must be guard.OncePerToken or guard.SameOrNewer")
	}
	t := &Table{label: strings.Join(name, "."), keys: slices.Clone(key), rule: o.Rule, resource: resource,
		reserved: map[string]string{}}
	var err error
	if t.name, err = sqlkit.QuoteName("table name", name); err != nil {
		return nil, err
	}
	t.row, _ = sqlkit.QuoteIdentifier("table name", name[len(name)-1]) // it was already quoted above
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
	for _, column := range key {
		quoted, err := t.reserve("key column", column)
		if err != nil {
			return nil, err
		}
		t.keyColumns = append(t.keyColumns, quoted)
	}
	if err := t.bind(o); err != nil {
		return nil, err
	}
	t.where = "(" + t.keysEqual("", func(i int) string { return placeholder(i + 1) }) + ")"
	t.offeredToken = placeholder(len(key)+1) + "::bigint"
	t.offered = t.token + " = " + t.offeredToken
	if t.lease != "" {
		t.offeredLease = placeholder(len(key)+2) + "::pg_catalog.text"
		t.offered += ", " + t.lease + " = " + t.offeredLease
	}
	t.admitted = t.admits("", t.offeredToken, t.offeredLease)
	t.id = tableID{t.name, o.TokenColumn, sqlkit.JSON(t.bound)}
	return t, nil
}

// tableID identifies what a DB checks when a table is first used.
type tableID struct{ name, token, bound string }

// Layout is what the fence needs of a table, with names as in the catalog.
type Layout struct {
	Name string // quoted, as in SQL
	Key  []string
	// Token, Lease and Deleted are columns; the last two are empty if there is none.
	Token, Lease, Deleted string
	// Bound has the columns and types of the template's variables, as JSON.
	Bound string
}

// Layout describes the table, for package sqladmin to verify.
func (t *Table) Layout() Layout {
	l := Layout{Name: t.name, Key: slices.Clone(t.keys), Bound: t.id.(tableID).bound}
	for column, is := range t.reserved {
		switch is {
		case "token column":
			l.Token = column
		case "lease column":
			l.Lease = column
		case "deleted column":
			l.Deleted = column
		}
	}
	return l
}

// bind finds the key column of each variable of the table's template.
func (t *Table) bind(o TableOptions) error {
	if t.resource == nil {
		if !o.InsecureAnyResource {
			return guard.Invalid("resource", "nil", "must be the template that names the rows of "+t.label+"; TableOptions.InsecureAnyResource does without")
		}
		return nil
	}
	if o.InsecureAnyResource {
		return guard.Invalid("TableOptions.InsecureAnyResource", "true", "must not be set with a template")
	}
	columns := o.Columns
	if columns == nil {
		columns = map[string]string{}
		for _, column := range t.keys {
			columns[column] = column
		}
	}
	if err := t.resource.CheckVariables(slices.Sorted(maps.Keys(columns))...); err != nil {
		return err
	}
	for _, part := range t.resource.Parts() {
		if part.Variable == "" {
			continue
		}
		column := columns[part.Variable]
		b := bound{Column: column, Type: part.Type, key: slices.Index(t.keys, column)}
		if b.key < 0 {
			return guard.Invalid("template variable "+part.Variable, column, "is bound to a column that is not in the key")
		}
		if slices.Contains(t.bound, b) {
			return guard.Invalid("template variable "+part.Variable, column, "is bound to a key column that another variable is bound to")
		}
		t.bound = append(t.bound, b)
	}
	return nil
}

// equals is the system's own operator, whatever the search_path: another role may
// have made one that matches the columns' types better and is true for every row.
const equals = " OPERATOR(pg_catalog.=) "

// keysEqual compares the key columns, with the given prefix, with values. A column
// that is not in the claim's resource may have a type of an extension, whose
// operator is on the caller's search_path.
func (t *Table) keysEqual(prefix string, value func(i int) string) string {
	all := make([]string, len(t.keys))
	for i, column := range t.keyColumns {
		is := " = "
		if slices.ContainsFunc(t.bound, func(b bound) bool { return b.key == i }) {
			is = equals
		}
		all[i] = prefix + column + is + value(i)
	}
	return strings.Join(all, " AND ")
}

// bound is the key column that a variable of a template is bound to, in the
// order of the variables.
type bound struct {
	Column string `json:"column"`
	Type   string `json:"type"` // the variable's
	key    int    // which of the key's
}

// resourceOf names the resource of the row with the given key, and returns the
// key as it is to be sent: the driver may get another value from a caller's type
// than the one that the name was built from.
func (t *Table) resourceOf(key Key) (string, Key, error) {
	var few [4]string
	values, sent := few[:0], key
	for _, b := range t.bound {
		v := key[b.key]
		switch v.(type) {
		case string, int, int64, [16]byte:
		default:
			plain, err := plainKeyValue(v)
			if err != nil {
				return "", nil, guard.Invalid("key column "+b.Column, fmt.Sprintf("%T", v), err.Error())
			}
			if &sent[0] == &key[0] {
				sent = slices.Clone(key)
			}
			v, sent[b.key] = plain, plain
		}
		text, err := keyValueText(v, b.Type)
		if err != nil {
			return "", nil, guard.Invalid("key column "+b.Column, fmt.Sprintf("%T", key[b.key]), err.Error())
		}
		values = append(values, text)
	}
	name, err := t.resource.Name(values...)
	return name, sent, err
}

// plainKeyValue converts a value of another type to a string or int64.
func plainKeyValue(v any) (any, error) {
	if valuer, ok := v.(driver.Valuer); ok {
		value, err := valuer.Value()
		if err != nil {
			return nil, err
		}
		switch value.(type) {
		case string, int64:
			return value, nil
		}
		return nil, errKeyType
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return r.Int(), nil
	case r.CanUint() && r.Uint() <= math.MaxInt64:
		return int64(r.Uint()), nil
	case r.Kind() == reflect.String:
		return r.String(), nil
	}
	return nil, errKeyType
}

// keyValueText returns the text that the database returns for a value of a key
// column: the value's spelling must be the only one.
func keyValueText(v any, kind string) (string, error) {
	switch v := v.(type) {
	case string:
		return spelled(v, kind)
	case int:
		return number(int64(v), kind)
	case int64:
		return number(v, kind)
	case [16]byte:
		if kind == guard.TypeUUID {
			return fmt.Sprintf("%x-%x-%x-%x-%x", v[:4], v[4:6], v[6:8], v[8:10], v[10:]), nil
		}
	}
	return "", errKeyType
}

func number(n int64, kind string) (string, error) {
	if kind != guard.TypeInt {
		return "", errKeyType
	}
	return strconv.FormatInt(n, 10), nil
}

func spelled(s, kind string) (string, error) {
	if kind == guard.TypeText && strings.HasSuffix(s, " ") {
		return "", errors.New("must not end with a space, which varchar(n) may cut off")
	}
	return s, nil // the template checks the spelling of its types
}

var errKeyType = errors.New("is not a type whose text the resource's name can be built from: use whole numbers for {x:int}, a string or [16]byte for {x:uuid}, a string for {x}")

// ErrPredicate: the row exists and its mark admits the claim, but it does not
// satisfy the predicate of [Table.Where]. It comes inside a
// [*guard.RejectedError] that also is guard.ErrNotFound: there is no such row.
var ErrPredicate = errors.New("the row does not satisfy the predicate")

// Where returns a table whose statements apply only to rows that satisfy
// predicate in addition to the predicates of t: closes.Where(sqlrow.Raw("status
// = $1", "open")).Update(...). t is not changed. The predicate is put in
// parentheses, and is evaluated in the same step as the claim; a row that the
// claim may write but the predicate excludes is refused with [ErrPredicate]. NULL
// does not satisfy it. A row that [Table.Upsert] inserts is not checked, and
// there the predicate must qualify columns with their table, "closes.status",
// because the row to be inserted has the same ones.
//
// A malformed predicate is refused by the statement, before anything is sent.
func (t *Table) Where(predicate Expr) *Table {
	narrowed := *t
	narrowed.predicates = append(slices.Clip(t.predicates), predicate)
	return &narrowed
}

// reserve quotes a column that a Set may not name.
func (t *Table) reserve(what, column string) (string, error) {
	quoted, err := sqlkit.QuoteIdentifier(what, column)
	if err != nil {
		return "", err
	}
	if other, taken := t.reserved[column]; taken {
		return "", guard.Invalid(what, column, "is the "+other+" already")
	}
	t.reserved[column] = what
	return quoted, nil
}

// isNull reports whether the drivers send v as NULL, which equals no key. Only
// unusual types pay for a closer look.
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

// check validates the input of a write before anything is sent, and returns the
// key to send.
func (t *Table) check(ctx context.Context, claim guard.Claim, key Key) (Key, error) {
	if err := claim.Validate(); err != nil {
		return nil, err
	}
	if len(key) != len(t.keys) {
		return nil, guard.Invalid("key", t.label, "has "+strconv.Itoa(len(t.keys))+" columns, "+strconv.Itoa(len(key))+" values were given")
	}
	for i, v := range key {
		if isNull(v) {
			return nil, guard.Invalid("key column "+t.keys[i], "NULL", "must not be NULL")
		}
	}
	if t.resource != nil {
		guarded, sent, err := t.resourceOf(key)
		if err != nil {
			return nil, err
		}
		if guarded != claim.Resource {
			return nil, &guard.MisdirectedError{Claimed: claim.Resource, Guarded: guarded}
		}
		key = sent
	}
	if ctx.Err() != nil {
		return nil, sqlkit.Ended(ctx, "write "+t.label, claim)
	}
	return key, nil
}
