package sqladmin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// Trigger describes a table whose triggers refuse every writer, in any program,
// without a current claim for the resource of the rows that it writes.
type Trigger struct {
	// Table is its name in parts: {"billing", "closes"} or {"closes"}. For
	// partitions or inheritance children it is the root, which includes them.
	Table []string
	// Resource names the resource that a row belongs to:
	// "{tenant}:billing-close:{period}". The triggers build the same bytes as
	// [guard.Template.Name], and refuse rows for which it has no name. A template
	// without variables makes the table one resource.
	Resource *guard.Template
	// Columns has the column for each variable of Resource, named as in the
	// catalog. It must be NOT NULL and of type text, varchar, smallint, integer,
	// bigint, uuid or an enum of the table's owner: with other types, equal
	// values may have several texts, or the text depends on a setting that a
	// session may change. A variable of type int needs an integer column, one of
	// type uuid a uuid column.
	Columns map[string]string
	// InsecureReportOnly makes the triggers refuse nothing, for rollout. What they
	// would have refused is counted ([TriggerStatus].Refusals, fencectl doctor), and of
	// the first hundred for each reason, then of each thousandth, a WARNING with the
	// SQLSTATE of the refusal goes to the server's log and to the client. They read the
	// mark without a lock, so nobody waits for them.
	InsecureReportOnly bool
}

// triggerPart is a component of the resource's name as stored in the database.
type triggerPart struct {
	Text     string `json:"text,omitempty"`
	Variable string `json:"variable,omitempty"`
	Type     string `json:"type,omitempty"`
	Column   string `json:"column,omitempty"`
}

// check validates the description and returns the table's quoted name and the
// parts as the database functions take them.
func (t Trigger) check() (name, parts string, err error) {
	if name, err = triggerTable(t.Table); err != nil {
		return "", "", err
	}
	if t.Resource == nil {
		return "", "", guard.Invalid("Trigger.Resource", "nil", "must be a template")
	}
	if err := t.Resource.CheckVariables(slices.Sorted(maps.Keys(t.Columns))...); err != nil {
		return "", "", fmt.Errorf("Trigger.Columns: %w", err)
	}
	var all []triggerPart
	for _, p := range t.Resource.Parts() {
		part := triggerPart{Text: p.Literal, Variable: p.Variable, Type: p.Type, Column: t.Columns[p.Variable]}
		if p.Variable != "" {
			if _, err := sqlkit.QuoteIdentifier("Trigger.Columns["+p.Variable+"]", part.Column); err != nil {
				return "", "", err
			}
		}
		all = append(all, part)
	}
	return name, sqlkit.JSON(all), nil
}

// triggerOf returns the description of what is installed.
func triggerOf(schema, table string, parts []triggerPart, reportOnly bool) Trigger {
	t := Trigger{Table: []string{schema, table}, InsecureReportOnly: reportOnly}
	components := make([]string, len(parts))
	for i, p := range parts {
		switch {
		case p.Variable == "":
			components[i] = p.Text
			continue
		case p.Type == guard.TypeText:
			components[i] = "{" + p.Variable + "}"
		default:
			components[i] = "{" + p.Variable + ":" + p.Type + "}"
		}
		if t.Columns == nil {
			t.Columns = map[string]string{}
		}
		t.Columns[p.Variable] = p.Column
	}
	t.Resource, _ = guard.NewTemplate(strings.Join(components, ":")) // nil for a table without parts
	return t
}

// triggerTable quotes the name of a table in the current database.
func triggerTable(name []string) (string, error) {
	if len(name) > 2 {
		return "", guard.Invalid("Trigger.Table", strings.Join(name, "."), "must have 1 or 2 parts, table or schema and table")
	}
	return sqlkit.QuoteName("Trigger.Table", name)
}

const (
	installSQL = "SELECT fencepost.install_guard($1::pg_catalog.text::pg_catalog.regclass, $2::pg_catalog.text::pg_catalog.jsonb, $3::boolean, $4::int)"
	removeSQL  = "SELECT fencepost.remove_guard(pg_catalog.to_regclass($1::pg_catalog.text), $2::int)"
)

// InstallTrigger puts the table under triggers, its partitions and inheritance
// children too. A table that cannot be fully guarded is refused.
//
// It is idempotent and safe when several replicas start at once: it waits for nobody if
// everything is in place; else for other installations for up to 30 s, and then for
// writers of the table, where it replaces triggers for readers too, for up to 5 s.
//
// It runs in one transaction, as a role that owns the table and what [Admin.Migrate]
// created. The application's role should not own them, because a table's owner
// may disable its triggers, nor have the privilege TRIGGER on the table, which
// GRANT ALL includes, because it may replace them; grant it SELECT, INSERT,
// UPDATE and DELETE. Roll out writers that present their claims, as sqlfence's do, before triggers refuse.
//
// The triggers belong to the table whatever its name becomes; what gets the old
// name needs triggers of its own. They see what is written through a table
// under which this one is put later, and into a partition that is attached later but
// for its TRUNCATE; a partition that is detached has none. A child that inherits
// later has none either. Install them again to add what is missing: [Admin.Verify] and
// [Admin.Triggers] report it, a missing TRUNCATE trigger where a role other than the owner
// may truncate. A column that names the resource cannot be altered to another type until
// they are removed. After an upgrade of the schema, install
// again: older triggers go on working as they did, and are reported.
//
// They cost a comparison for each row, and a check for each resource that a transaction
// writes.
//
// The errors: ErrInvalid for a description or a table that cannot be guarded,
// with the reason; ErrSetup: the role lacks the rights, and the text says which;
// ErrUnavailable: nothing was changed; ErrOutcomeUnknown: call it again.
func (a *Admin) InstallTrigger(ctx context.Context, trigger Trigger) error {
	name, parts, err := trigger.check()
	if err != nil {
		return err
	}
	return a.administer(ctx, "install triggers on "+name, installSQL, name, parts, trigger.InsecureReportOnly, min(wait(ctx, lockTimeout), int32(lockTimeout.Milliseconds())))
}

// RemoveTrigger removes the triggers, which lets every writer through. A table
// that has none, or does not exist, is left unchanged. The errors are those of
// [Admin.InstallTrigger].
func (a *Admin) RemoveTrigger(ctx context.Context, name []string) error {
	quoted, err := triggerTable(name)
	if err != nil {
		return err
	}
	return a.administer(ctx, "remove triggers of "+quoted, removeSQL, quoted, min(wait(ctx, lockTimeout), int32(lockTimeout.Milliseconds())))
}

// TriggerSQL returns the statement that [Admin.InstallTrigger] runs, for users of
// goose, atlas or golang-migrate. It needs the schema of [MigrationSQL].
func TriggerSQL(trigger Trigger) (string, error) {
	name, parts, err := trigger.check()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("SELECT fencepost.install_guard(%s::pg_catalog.regclass, %s::pg_catalog.jsonb, %t, %d);\n",
		quoteText(name), quoteText(parts), trigger.InsecureReportOnly, lockTimeout.Milliseconds()), nil
}

// RemoveTriggerSQL returns the statement that [Admin.RemoveTrigger] runs, for the way
// back of [TriggerSQL].
func RemoveTriggerSQL(table []string) (string, error) {
	quoted, err := triggerTable(table)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("SELECT fencepost.remove_guard(pg_catalog.to_regclass(%s), %d);\n", quoteText(quoted), lockTimeout.Milliseconds()), nil
}

// quoteText quotes a string constant, whatever standard_conforming_strings is.
func quoteText(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return "E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}

// administer runs one statement on the schema in a transaction of its own.
func (a *Admin) administer(ctx context.Context, op, query string, args ...any) error {
	return a.transact(ctx, op, false, func(q sqlkit.Querier) error {
		_, err := q.Exec(ctx, query, args)
		return err
	}, func(err error) error { return administerFailure(op, err) })
}

// administers says who may do what [Admin.administer] does.
const administers = "it takes a member of the role that owns schema fencepost, who for triggers also owns the table, " +
	"and for roles that do not exist yet has CREATEROLE"

// administerFailure is sqlkit.SchemaFailure for statements that name a table of the
// caller's, which may be missing too.
func administerFailure(op string, err error) error {
	switch pgerr.State(err) {
	case pgerr.InvalidParameter, "42P01", "42602": // install_guard's refusals, no such table, a name no table can have
		return fmt.Errorf("sqlfence: %s: %w: %w", op, guard.ErrInvalid, err)
	case pgerr.Privilege:
		return guard.Setup(op, guard.Claim{}, fmt.Errorf("%w; %s", err, administers))
	}
	return sqlkit.SchemaFailure(op, guard.Claim{}, err)
}
