package pgadmin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RoleNames are the names of the roles that [RolesSQL] makes; logins become
// members of them. An empty name means the default.
type RoleNames struct {
	// Issuer is for applications: it acquires, waits, renews and releases, on any
	// resource. It can raise tokens but cannot lower one, delete a row, cut a
	// lease with a record or read the audit. Default fencepost_issuer.
	Issuer string
	// Operator is for people on call: it reads everything and calls what an
	// [Operator] calls. It writes no table directly, so there is no force
	// unlock without a record. Default fencepost_operator.
	Operator string
	// Reader is for dashboards: it reads leases, epoch and audit. Default
	// fencepost_reader.
	Reader string
}

// RolesSQL returns the SQL that creates those of the three roles that are
// missing, without the right to log in, and gives each exactly its rights on
// lockclient's tables and functions. It is one statement, may be run again, and
// revokes any other rights that these roles were given there. The owner of the
// schema must run it; creating a missing role needs the right to create roles.
// names may be nil.
//
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the
// field: names have 1 to 63 bytes, no control characters, are not "public" or
// "none", do not begin with "pg_", and differ.
func RolesSQL(names *RoleNames) (string, error) {
	n, err := names.withDefaults()
	if err != nil {
		return "", err
	}
	var body strings.Builder
	body.WriteString(lockSQL)
	for _, role := range []string{n.Issuer, n.Operator, n.Reader} {
		fmt.Fprintf(&body, roleSQL, literal(role), identifier(role))
	}
	all := identifier(n.Issuer) + ", " + identifier(n.Operator) + ", " + identifier(n.Reader)
	body.WriteString(strings.NewReplacer("ISSUER", identifier(n.Issuer), "OPERATOR", identifier(n.Operator),
		"READER", identifier(n.Reader), "EVERYBODY", all).Replace(rightsSQL))
	// A tag that no name contains, so that no name can end the body.
	tag := "$fencepost$"
	for i := 0; strings.Contains(body.String(), tag); i++ {
		tag = "$fencepost" + strconv.Itoa(i) + "$"
	}
	return "DO " + tag + "\nBEGIN\n" + body.String() + "END " + tag + ";\n", nil
}

// lockSQL lets only one session at a time change the rights: two at once fail in
// the server's catalogue. The number spells "fencrole".
const lockSQL = "  PERFORM pg_catalog.pg_advisory_xact_lock(7378424937917148261);\n"

// roleSQL creates a role, perhaps while another session does.
const roleSQL = `  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname OPERATOR(pg_catalog.=) %[1]s) THEN
    BEGIN
      CREATE ROLE %[2]s NOLOGIN;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
  END IF;
`

// rightsSQL starts from no rights, so that those granted by an earlier version
// are revoked. The issuer's rights are per column: without UPDATE of resource
// no row can be renamed, which would restart the tokens of its name.
const rightsSQL = `  REVOKE ALL ON fencepost.leases, fencepost.spent, fencepost.epoch, fencepost.audit, fencepost.migrations FROM EVERYBODY;
  REVOKE ALL ON FUNCTION fencepost.lock_leases, fencepost.raise_floor, fencepost.purge_leases, fencepost.raise_epoch, fencepost.adopt_epoch,
    fencepost.force_unlock, fencepost.force_unlocked, fencepost.advance_lease FROM EVERYBODY;
  GRANT USAGE ON SCHEMA fencepost TO EVERYBODY;
  GRANT SELECT ON fencepost.migrations, fencepost.leases, fencepost.epoch TO EVERYBODY;
  GRANT SELECT ON fencepost.audit TO OPERATOR, READER;

  GRANT INSERT (resource, token, lease_id, owner, metadata, acquired_at, expires_at, not_after, spent_until) ON fencepost.leases TO ISSUER;
  GRANT UPDATE (token, lease_id, owner, metadata, acquired_at, expires_at, not_after, wake_until, waiters, kept_for, spent_until, reclaimed) ON fencepost.leases TO ISSUER;
  GRANT SELECT, INSERT (resource, lease_id), DELETE ON fencepost.spent TO ISSUER;
  GRANT EXECUTE ON FUNCTION fencepost.adopt_epoch, fencepost.force_unlocked TO ISSUER;

  GRANT EXECUTE ON FUNCTION fencepost.force_unlock, fencepost.advance_lease, fencepost.raise_epoch, fencepost.purge_leases,
    fencepost.force_unlocked TO OPERATOR;
`

// maxIdentifier is how many bytes of a name PostgreSQL keeps.
const maxIdentifier = 63

func (r *RoleNames) withDefaults() (RoleNames, error) {
	n := pglease.Of(r)
	fields := []struct {
		name, fallback string
		value          *string
	}{
		{"RoleNames.Issuer", "fencepost_issuer", &n.Issuer},
		{"RoleNames.Operator", "fencepost_operator", &n.Operator},
		{"RoleNames.Reader", "fencepost_reader", &n.Reader},
	}
	seen := map[string]string{}
	for _, f := range fields {
		*f.value = cmp.Or(*f.value, f.fallback)
		name := *f.value
		if err := input.Plain(f.name, name, maxIdentifier); err != nil {
			return n, err
		}
		switch {
		case name == "public" || name == "none" || strings.HasPrefix(name, "pg_"):
			return n, guard.Invalid(f.name, name, "is reserved by PostgreSQL")
		case seen[name] != "":
			return n, guard.Invalid(f.name, name, "is also "+seen[name])
		}
		seen[name] = f.name
	}
	return n, nil
}

func identifier(name string) string { return pgx.Identifier{name}.Sanitize() }

// literal quotes s for either setting of standard_conforming_strings.
func literal(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}

// Migrate creates the whole schema fencepost or brings it to this build's
// version: the leases of package lockclient and the marks of package sqlfence.
// [pglock.Migrate] does only the first, sqladmin's only the
// second. It is safe while replicas start concurrently and while holders run.
//
// Errors: those of [pglock.Migrate].
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := sqladmin.Pgx(pool).Probe(ctx); err != nil { // before half of it is there
		return err
	}
	if err := pglock.Migrate(ctx, pool); err != nil {
		return err
	}
	return sqladmin.Pgx(pool).Migrate(ctx)
}
