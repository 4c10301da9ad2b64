package sqladmin

import (
	"context"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

// Finding is one thing in the database that does not meet the needs of a
// promise.
type Finding struct {
	// Subject is what it is about: a table or partition, a role, a function.
	Subject string `json:"subject"`
	// Problem says what is wrong with it, and why that matters.
	Problem string `json:"problem"`
}

// String returns "subject: problem".
func (f Finding) String() string { return f.Subject + ": " + f.Problem }

// Verification says what [Admin.Verify] checks. The zero value checks only the
// functions and the tables of schema fencepost.
type Verification struct {
	// Tables are those that single statements write ([sqlrow.NewTable]): the columns
	// that the fence needs, and the key.
	Tables []*sqlrow.Table
	// Triggers are the tables that triggers must guard.
	Triggers []Trigger
	// Role is the role as which the application writes: it must not be able to
	// get around the fence. Empty means that no role is checked.
	Role string
	// WithoutSchema skips schema fencepost, for an application that uses single
	// statements only. Triggers must be empty then.
	WithoutSchema bool
}

// Verify compares the database with what the promises of sqlfence and sqlrow need
// and returns what is wrong, or nothing. It changes nothing. It is for start-up
// and for users' own tests, and needs the rights of RoleNames.Reader, or the
// owner's.
//
// It does not look at what a role may do through functions that run with the rights of
// others (SECURITY DEFINER), at event triggers, at extensions, or at the servers behind
// foreign tables.
//
// The errors: ErrInvalid for a malformed Verification; ErrUnavailable if the
// database could not be queried; ErrSetup if schema fencepost is missing, or if
// [Admin.Probe] refuses the server.
func (a *Admin) Verify(ctx context.Context, v Verification) ([]Finding, error) {
	const op = "verify"
	if v.WithoutSchema && len(v.Triggers) > 0 {
		return nil, guard.Invalid("Verification.WithoutSchema", "true", "does not go with Triggers")
	}
	if strings.ContainsRune(v.Role, 0) {
		return nil, guard.Invalid("Verification.Role", v.Role, "must not contain NUL")
	}
	names := make([]string, len(v.Tables)+len(v.Triggers)) // with their schemas, as resolved by the caller's search_path
	parts := make([]string, len(v.Triggers))
	tables := make([]sqlkit.RowTable, len(v.Tables))
	for i, t := range v.Tables {
		if t == nil {
			return nil, guard.Invalid("Verification.Tables", "nil", "must not have a nil element")
		}
		tables[i] = sqlkit.RowTableOf(t)
		names[i] = tables[i].Name
	}
	for i, g := range v.Triggers {
		name, text, err := g.check()
		if err != nil {
			return nil, err
		}
		names[len(tables)+i], parts[i] = name, text
	}
	if !v.WithoutSchema {
		if err := a.Probe(ctx); err != nil {
			return nil, err
		}
	}
	var found []Finding
	err := a.inspect(ctx, op, func(q sqlkit.Querier) error {
		for i := range names {
			if _, err := sqlkit.Row(ctx, q, qualifiedSQL, []any{names[i]}, &names[i]); err != nil {
				return err
			}
		}
		return nil
	}, func(q sqlkit.Querier) error {
		ask := func(sql string, args ...any) error {
			more, err := findings(ctx, q, op, sql, args...)
			found = append(found, more...)
			return err
		}
		for i, t := range tables {
			if err := ask(verifyTableSQL, names[i], t.Token, t.Lease, sqlkit.JSON(t.Key)); err != nil {
				return err
			}
			if err := ask(verifyFirstUseSQL, names[i], t.Bound, t.Token); err != nil {
				return err
			}
		}
		for i, g := range v.Triggers {
			if err := ask(verifyGuardSQL, names[len(tables)+i], parts[i], g.InsecureReportOnly); err != nil {
				return err
			}
		}
		if !v.WithoutSchema {
			if err := ask(verifySchemaSQL, schema().Version()); err != nil {
				return err
			}
			if err := ask(verifyObjectsSQL, schema().ObjectsJSON()); err != nil {
				return err
			}
		}
		if v.Role != "" {
			return ask(verifyRoleSQL, v.Role, sqlkit.JSON(names))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// TriggerStatus is a table under triggers and what is wrong with it.
type TriggerStatus struct {
	// Trigger describes the table as it was installed. Resource is nil for a
	// table that has triggers but is not listed.
	Trigger Trigger
	// Refusals counts, in report-only mode, what would have been refused since the
	// triggers were installed, by reason: each transaction once for each resource that it
	// wrote, also those that were rolled back. After a crash or a failover a
	// count above 0 may be up to 32 too high. Nil in the other mode.
	Refusals map[guard.Reason]int64
	// Findings is empty if every writer is guarded.
	Findings []Finding
}

// Triggers lists every table of the database that was put under triggers
// ([Admin.InstallTrigger]), with what is wrong with each: missing or disabled
// triggers, partitions added later, a renamed table. It needs the rights of
// RoleNames.Reader, or the owner's, and changes nothing. The errors are those of
// [Admin.Verify].
func (a *Admin) Triggers(ctx context.Context) ([]TriggerStatus, error) {
	const op = "list guarded tables"
	var rows []struct {
		Schema     string                 `json:"schema_name"`
		Table      string                 `json:"table_name"`
		Parts      []triggerPart          `json:"parts"`
		ReportOnly bool                   `json:"report_only"`
		Refusals   map[guard.Reason]int64 `json:"refusals"`
		Relation   string                 `json:"relation"`
		Problem    string                 `json:"problem"`
	}
	err := a.inspect(ctx, op, nothing, func(q sqlkit.Querier) error {
		return readJSON(ctx, q, op, &rows, `SELECT coalesce(json_agg(s ORDER BY schema_name, table_name, relation, problem), '[]')::text FROM fencepost.guard_status() s`)
	})
	if err != nil {
		return nil, err
	}
	var tables []TriggerStatus
	for _, r := range rows {
		if n := len(tables); n == 0 || tables[n-1].Trigger.Table[0] != r.Schema || tables[n-1].Trigger.Table[1] != r.Table {
			tables = append(tables, TriggerStatus{Trigger: triggerOf(r.Schema, r.Table, r.Parts, r.ReportOnly), Refusals: r.Refusals})
		}
		if r.Problem != "" {
			last := &tables[len(tables)-1]
			last.Findings = append(last.Findings, Finding{r.Relation, r.Problem})
		}
	}
	return tables, nil
}

// findings runs a query of subjects and problems.
func findings(ctx context.Context, q sqlkit.Querier, op, sql string, args ...any) (f []Finding, err error) {
	err = readJSON(ctx, q, op, &f, `SELECT coalesce(json_agg(json_build_object('subject', subject, 'problem', problem)), '[]')::text FROM (`+sql+`) AS found(subject, problem)`, args...)
	return f, err
}

// verifyObjectsSQL compares functions, tables and triggers with $1.
const verifyObjectsSQL = `SELECT kind || ' fencepost.' || name, problem FROM (` + migrate.ObjectsSQL + `) AS wrong`

// verifySchemaSQL compares the version of the schema with $1, and looks at what of its tables
// a promise needs besides.
const verifySchemaSQL = `
	SELECT 'schema fencepost', format('has sqlfence version %s, this build has %s', coalesce(max(version), 0), $1::int)
		FROM fencepost.migrations WHERE component = 'sqlfence' HAVING max(version) IS DISTINCT FROM $1::int
	UNION ALL
	SELECT 'table fencepost.' || relname, 'is unlogged: a crash empties it' FROM pg_class
		WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relname = 'migrations' AND relpersistence <> 'p'
	UNION ALL
	SELECT 'table fencepost.lock_salt', 'has no row, so that no lock has a key' WHERE NOT coalesce(
		(SELECT reltuples > 0 OR pg_relation_size(oid) > 0 FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relname = 'lock_salt'), false)
	UNION ALL
	SELECT 'table fencepost.' || relname, 'has row-level security, and so may hide a mark' FROM pg_class
		WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relkind = 'r' AND relrowsecurity
	UNION ALL
	SELECT 'table fencepost.' || relname, 'has inheritance children or a parent' FROM pg_class c
		WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relkind = 'r' AND EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhparent, inhrelid))
	UNION ALL
	SELECT 'table fencepost.' || t, 'has no primary key' FROM unnest(ARRAY['marks', 'lock_salt', 'guarded', 'mark_resets']) t WHERE NOT EXISTS (
		SELECT FROM pg_class c JOIN pg_index ON indrelid = c.oid WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relname = t AND indisprimary AND indisvalid)
	UNION ALL
	SELECT 'table fencepost.marks', 'has lost a check of its columns' WHERE (SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND convalidated
		AND conrelid = (SELECT oid FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost') AND relname = 'marks')) < 3`
