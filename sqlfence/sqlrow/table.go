package sqlrow

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

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
	// Observer receives an event for every write and raise; nil means none.
	Observer guard.Observer
}

// Table is a guarded table: each row is a resource, and one of its columns is
// the row's mark. It is immutable and safe for concurrent use. It is of one database,
// where it is looked at once, when it is first used. The zero value is not usable; call
// [NewTable].
type Table struct {
	name       string // quoted
	row        string // quoted: the last part of the name, by which a statement refers to the row
	label      string // for errors
	keys       []string
	keyColumns []string // quoted
	where      string   // ("k1" = $1 AND "k2" = $2)
	token      string   // quoted
	lease      string   // quoted; empty = none
	reserved   map[string]string
	rule       guard.Rule
	resource   *guard.Template
	bound      []bound
	layout     sqlkit.RowTable
	predicates []Expr
	observer   guard.Observer
	looked     *atomic.Bool // at the table, by it or one that Where made of it

	// The claim as a statement offers it, after the key's parameters.
	offeredToken, offeredLease string // $2::bigint, $3::pg_catalog.text
	offered                    string // "token" = $2::bigint, "lease" = ...
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
		reserved: map[string]string{}, observer: o.Observer, looked: new(atomic.Bool)}
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
	t.layout = sqlkit.RowTable{Name: t.name, Key: t.keys, Token: o.TokenColumn, Lease: o.LeaseColumn, Bound: sqlkit.JSON(t.bound)}
	return t, nil
}

func init() { sqlkit.RowTableOf = func(table any) sqlkit.RowTable { return table.(*Table).layout } }

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

// look refuses, when a table is first used, a relation that does not keep a
// mark as a table does: an INSTEAD OF trigger or a rule may write another row, or
// another mark; next to a row of an inheritance child an upsert would insert one
// without a mark. It also refuses key columns in which different values are
// equal, or have texts other than those the resource's name is built from. A
// table that does not exist is left to the statement.
func (t *Table) look(ctx context.Context, on Executor) error {
	if t.looked.Load() {
		return nil
	}
	var obstacle, unfit, inexact string
	var there bool
	err := on.query(ctx, sqlkit.LookSQL, []any{t.layout.Name, t.layout.Bound, t.layout.Token}, func(scan func(dest ...any) error) error {
		return scan(&obstacle, &there, &unfit, &inexact)
	})
	switch {
	case err != nil:
		return t.failure("look at "+t.label, guard.Claim{}, err, false)
	case obstacle != "":
		return guard.Invalid("table", t.label, obstacle+": only ordinary and partitioned tables keep marks")
	case inexact != "":
		return guard.Invalid("type of token column "+t.layout.Token, inexact, "must be bigint NOT NULL DEFAULT 0: ALTER COLUMN ... TYPE bigint")
	case unfit != "":
		return guard.Invalid("template "+t.resource.String(), unfit,
			"is not the column's type: {x:int} is for whole numbers, {x:uuid} for uuid, {x} for text and varchar with a deterministic collation")
	}
	t.looked.Store(there)
	return nil
}
