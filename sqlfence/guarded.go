package sqlfence

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgerr"
)

// ResourcePart is one component of the name of a row's resource: the value of
// a column, or a text that is the same for all rows. Exactly one field is set.
type ResourcePart struct {
	// Column is a column of the table, as the catalog has its name. It must be
	// NOT NULL and of type text, varchar, smallint, integer, bigint, uuid
	// boolean or an enum: of other types, equal values may have several texts,
	// or the text depends on a setting that a session may change.
	Column string `json:"column,omitempty"`
	// Text is the component itself.
	Text string `json:"text,omitempty"`
}

// GuardedTable describes a table whose triggers refuse every writer without a
// current claim for the resource of the rows that it writes, whatever program
// it is.
type GuardedTable struct {
	// Name is the table's, in parts: {"billing", "closes"} or {"closes"}. With
	// partitions or inheritance children it is the root, which brings them along.
	Name []string
	// Resource says which resource a row belongs to: its parts are joined as
	// [guard.JoinResource] does. {{Column: "tenant_id"}, {Text: "billing-close"}}
	// makes the rows of a tenant one resource, "tenant_123:billing-close". Parts
	// that are all texts make the table one resource.
	Resource []ResourcePart
	// InsecureReportOnly makes the triggers refuse nothing and raise a WARNING
	// with the SQLSTATE of the refusal instead, for rollout: the server's log
	// counts them with %e in log_line_prefix, pgx shows them to OnNotice. They
	// read the mark without a lock, so that nobody waits for them.
	InsecureReportOnly bool
}

// check validates the description and returns the table's quoted name and the
// parts as the database functions take them.
func (g GuardedTable) check() (name, parts string, err error) {
	if name, err = guardedName(g.Name); err != nil {
		return "", "", err
	}
	if len(g.Resource) == 0 {
		return "", "", guard.Invalid("GuardedTable.Resource", "", "must have at least one part")
	}
	var texts []string
	for i, p := range g.Resource {
		field := fmt.Sprintf("GuardedTable.Resource[%d]", i)
		switch {
		case (p.Column == "") == (p.Text == ""):
			return "", "", guard.Invalid(field, p.Column+p.Text, "must have either Column or Text")
		case p.Column != "":
			if _, err = quoteIdentifier(field+".Column", p.Column); err != nil {
				return "", "", err
			}
		default:
			texts = append(texts, p.Text)
		}
	}
	if len(texts) > 0 {
		if _, err := guard.JoinResource(texts...); err != nil {
			return "", "", fmt.Errorf("GuardedTable.Resource: %w", err)
		}
	}
	encoded, err := json.Marshal(g.Resource)
	return name, string(encoded), err
}

// guardedName quotes the name of a table of the database at hand.
func guardedName(name []string) (string, error) {
	if len(name) > 2 {
		return "", guard.Invalid("GuardedTable.Name", strings.Join(name, "."), "must have 1 or 2 parts, table or schema and table")
	}
	return quoteName("GuardedTable.Name", name)
}

const (
	installSQL = "SELECT fencepost.install_guard($1::text::regclass, $2::text::jsonb, $3::boolean, $4::int)"
	removeSQL  = "SELECT fencepost.remove_guard(to_regclass($1::text), $2::int)"
)

// InstallTrigger puts the table under triggers, its partitions and inheritance
// children too. It is idempotent, safe when several replicas start at once, and
// takes no lock on the table if all is in place; else it waits for writers, at
// most Options.LockTimeout. A table that cannot be guarded in full is refused.
//
// It runs in one transaction, as a role that owns the table and what [DB.Migrate]
// made. The application's role should be neither: who owns a table may disable
// its triggers. A partition that is attached later is covered as far as it is
// written through its root; install again to cover direct writes. [DB.Verify]
// and [DB.GuardedTables] find it.
//
// Writers must present their claims before the triggers are there: set
// [Options].PresentClaims in the DBs that write the table, and roll that out
// first.
//
// The errors: ErrInvalid for a description or a table that cannot be guarded,
// with the reason; ErrUnavailable: nothing was changed (also if the role may
// not); ErrOutcomeUnknown: call it again.
func (d *DB[Tx]) InstallTrigger(ctx context.Context, table GuardedTable) error {
	name, parts, err := table.check()
	if err != nil {
		return err
	}
	return d.administer(ctx, "install triggers on "+name, installSQL, name, parts, table.InsecureReportOnly, d.lockTimeoutMS())
}

// RemoveTrigger takes the triggers away again, which lets every writer through.
// A table that has none, or does not exist, is left as it is. The errors are
// those of [DB.InstallTrigger].
func (d *DB[Tx]) RemoveTrigger(ctx context.Context, name []string) error {
	quoted, err := guardedName(name)
	if err != nil {
		return err
	}
	return d.administer(ctx, "remove triggers of "+quoted, removeSQL, quoted, d.lockTimeoutMS())
}

// TriggerSQL returns the statement that [DB.InstallTrigger] runs, for users of
// goose, atlas or golang-migrate. It needs the schema of [MigrationSQL].
func TriggerSQL(table GuardedTable) (string, error) {
	name, parts, err := table.check()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("SELECT fencepost.install_guard(%s::regclass, %s::jsonb, %t, %d);\n",
		quoteText(name), quoteText(parts), table.InsecureReportOnly, defaultLockTimeout.Milliseconds()), nil
}

// quoteText quotes a string constant, whatever standard_conforming_strings is.
func quoteText(s string) string {
	s = strings.ReplaceAll(s, "'", "''")
	if strings.Contains(s, `\`) {
		return "E'" + strings.ReplaceAll(s, `\`, `\\`) + "'"
	}
	return "'" + s + "'"
}

func (d *DB[Tx]) lockTimeoutMS() int32 { return int32(d.opts.LockTimeout / time.Millisecond) }

// administer runs one statement on the schema in a transaction of its own.
func (d *DB[Tx]) administer(ctx context.Context, op, sql string, args ...any) error {
	if err := ended(ctx, op, guard.Claim{}); err != nil {
		return err
	}
	tx, err := d.backend.begin(ctx, ReadCommitted, "", statement{sql: sql, args: args})
	if err != nil {
		return administerFailure(op, err)
	}
	defer tx.rollback() // gives a connection back that did not commit; else does nothing
	return failure(op, guard.Claim{}, tx.commit(ctx, d.commits), true)
}

// administerFailure is schemaFailure for statements that name a table of the
// caller's, which may be missing too.
func administerFailure(op string, err error) error {
	switch pgerr.State(err) {
	case "22023", "42P01", "42602": // install_guard's refusals, no such table, a name no table can have
		return fmt.Errorf("sqlfence: %s: %w: %w", op, guard.ErrInvalid, err)
	}
	return schemaFailure(op, guard.Claim{}, err)
}
