package sqladmin

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence/internal/sqlkit"
)

// RoleNames names the database roles that [RolesSQL] creates. The zero value has
// the default names.
type RoleNames struct {
	// Enforcer is for applications that write under a fence: it may raise
	// marks, see the mark of a resource, enter and present claims, and has no
	// access to tables of schema fencepost. Empty means "fencepost_enforcer".
	Enforcer string
	// Operator is for people: it may also retire and reset marks and read what
	// Reader reads. Empty means "fencepost_operator".
	Operator string
	// Reader may read the marks and the state of guarded tables. Empty means
	// "fencepost_reader".
	Reader string
}

// What each role may call and read in schema fencepost, if it exists.
var (
	enforcerFunctions = []string{"raise", "enter", "enter_snapshot", "enter_row", "holders", "session", "mark", "present", "join_resource"}
	operatorFunctions = []string{"retire", "reset"}
	readerFunctions   = []string{"mark", "guard_status", "guard_problems"}
	readerTables      = []string{"marks", "mark_resets", "guarded", "migrations"}
)

// RolesSQL returns the SQL that creates the roles and gives them their rights.
// The roles cannot log in; grant them to those that do. It needs the schema of
// [MigrationSQL], is idempotent, and must be run again after an upgrade. roles
// may be nil; the error is an [*guard.InvalidError].
//
// The application's own role must own neither the guarded tables nor schema
// fencepost and what is in it, nor have the privilege TRIGGER on those tables,
// which GRANT ALL includes. [Admin.Verify] checks this.
func RolesSQL(roles *RoleNames) (string, error) {
	if roles == nil {
		roles = &RoleNames{}
	}
	names := []string{cmp.Or(roles.Enforcer, "fencepost_enforcer"), cmp.Or(roles.Operator, "fencepost_operator"), cmp.Or(roles.Reader, "fencepost_reader")}
	for i, field := range []string{"RoleNames.Enforcer", "RoleNames.Operator", "RoleNames.Reader"} {
		name := names[i]
		if strings.HasPrefix(name, "pg_") || name == "public" || name == "none" {
			return "", guard.Invalid(field, name, "is a reserved name")
		}
		if _, err := sqlkit.QuoteIdentifier(field, name); err != nil {
			return "", err
		}
		if slices.Contains(names[:i], name) {
			return "", guard.Invalid("RoleNames", strings.Join(names, ", "), "must be three roles")
		}
	}
	tag := "$roles$" // one that no name contains, so that no name can end the body
	for i := 0; strings.Contains(strings.Join(names, " "), tag); i++ {
		tag = "$roles" + strconv.Itoa(i) + "$"
	}
	list := func(names []string) string { return "ARRAY['" + strings.Join(names, "', '") + "']" }
	return strings.NewReplacer("$roles$", tag,
		"$enforcer", quoteText(names[0]), "$operator", quoteText(names[1]), "$reader", quoteText(names[2]),
		"$mayEnforce", list(enforcerFunctions), "$mayOperate", list(operatorFunctions), "$mayRead", list(readerFunctions),
		"$tables", list(readerTables),
	).Replace(rolesSQL), nil
}

// rolesSQL finds the functions by name, whatever the version of the schema.
// Roles belong to the whole cluster, and two databases may be migrated at once;
// hence the exceptions.
const rolesSQL = `DO $roles$
DECLARE
  path pg_catalog.text := pg_catalog.current_setting('search_path');
  role pg_catalog.text;
  may  pg_catalog.record;
  f    pg_catalog.regprocedure;
BEGIN
  -- What follows resolves names only in pg_catalog: a schema on the path may
  -- have functions and operators of another role.
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  PERFORM pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('fencepost.roles', 0));
  FOREACH role IN ARRAY ARRAY[$enforcer, $operator, $reader] LOOP
    BEGIN
      IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
        EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;
    END;
    EXECUTE pg_catalog.format('GRANT USAGE ON SCHEMA fencepost TO %I', role);
  END LOOP;
  FOR may IN VALUES ($enforcer, $mayEnforce), ($operator, $mayEnforce || $mayOperate || $mayRead), ($reader, $mayRead) LOOP
    FOR f IN SELECT oid FROM pg_catalog.pg_proc WHERE pronamespace = 'fencepost'::regnamespace AND proname = ANY (may.column2) LOOP
      EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %I', f, may.column1);
    END LOOP;
  END LOOP;
  FOREACH role IN ARRAY ARRAY[$operator, $reader] LOOP
    EXECUTE (SELECT pg_catalog.string_agg(pg_catalog.format('GRANT SELECT ON fencepost.%I TO %I', relname, role), '; ') FROM pg_catalog.pg_class
      WHERE relnamespace = 'fencepost'::regnamespace AND relkind = 'r' AND relname = ANY ($tables));
  END LOOP;
  PERFORM pg_catalog.set_config('search_path', path, true);
END $roles$;
`

// MigrateRoles runs [RolesSQL], after [Admin.Migrate], as a role that may create
// roles and owns schema fencepost. The errors are those of Migrate.
func (a *Admin) MigrateRoles(ctx context.Context, roles *RoleNames) error {
	sql, err := RolesSQL(roles)
	if err != nil {
		return err
	}
	return a.administer(ctx, "create roles", sql)
}
