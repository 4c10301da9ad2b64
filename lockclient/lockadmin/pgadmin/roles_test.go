package pgadmin

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// migrateRoles migrates, then makes roles.
func migrateRoles(ctx context.Context, pool *pgxpool.Pool, names *RoleNames) error {
	sql, err := RolesSQL(names)
	if err != nil {
		return err
	}
	if err := pglock.Migrate(ctx, pool); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, sql)
	return err
}

// testRoles migrates with uniquely named roles, because roles belong to the
// whole server, and returns a pool of connections for each.
func testRoles(t *testing.T, suffix string) (owner *pgxpool.Pool, names RoleNames, as func(role string) *pgxpool.Pool) {
	t.Helper()
	owner = migrated(t)
	url := owner.Config().ConnString()
	unique := strings.ToLower(rand.Text()[:10]) + suffix
	names = RoleNames{Issuer: "issuer_" + unique, Operator: "operator_" + unique, Reader: "reader_" + unique}
	if err := migrateRoles(t.Context(), owner, &names); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, role := range []string{names.Issuer, names.Operator, names.Reader} {
			if _, err := owner.Exec(context.Background(), "DROP OWNED BY "+identifier(role)+"; DROP ROLE "+identifier(role), pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Error(err)
			}
		}
	})
	pools := map[string]*pgxpool.Pool{}
	as = func(role string) *pgxpool.Pool {
		if pools[role] == nil {
			pools[role] = dialAs(t, url, role)
		}
		return pools[role]
	}
	return owner, names, as
}

// dialAs returns a pool of connections with only a role's rights.
func dialAs(t testing.TB, url, role string) *pgxpool.Pool {
	return dial(t, url, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "SET SESSION AUTHORIZATION "+identifier(role))
			return err
		}
	})
}

// TestRolesSuffice: each role can do what it is meant for.
func TestRolesSuffice(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "")
	issuer, reader := newTestClient(t, as(names.Issuer), nil), newRoleOperator(t, as(names.Reader))
	operator := newRoleOperator(t, as(names.Operator))

	// On a server that nobody has entered yet, the operator comes first.
	mustExec(t, owner, "DELETE FROM fencepost.epoch")
	if _, err := operator.Advance(t.Context(), "advanced", 7); err != nil {
		t.Error(err)
	}
	mustExec(t, owner, "DELETE FROM fencepost.epoch")
	lease := mustTry(t, issuer, "r", time.Hour)
	if err := lease.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	other := newTestClient(t, as(names.Issuer), nil)
	waited := make(chan error, 1)
	go func() {
		l, err := other.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if err == nil {
			err = l.Release(t.Context())
		}
		waited <- err
	}()
	awaited(t, reader, "r")
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("a waiting issuer: %v", err)
	}
	lease = mustTry(t, issuer, "r", time.Hour)
	done, err := operator.ForceUnlock(t.Context(), "r", "Ada", "stuck", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Renew(t.Context()); !errors.Is(err, lockclient.ErrForceUnlocked) {
		t.Errorf("the issuer cannot learn who cut it: %v", err)
	}
	for name, o := range map[string]*Operator{"operator": operator, "reader": reader} {
		records, err := all(o.Audit(t.Context(), "", nil))
		if err != nil || len(records) != 1 || records[0].DatabaseUser != names.Operator || records[0].Token != done.Invalidated.Token {
			t.Errorf("%s: %+v, %v", name, records, err)
		}
		if list, err := all(o.List(t.Context(), "", nil)); err != nil || len(list) != 2 {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
		if found, err := o.Inspect(t.Context()); err != nil || of(t, found, lockadmin.SettingSchema).Severity != lockadmin.SeverityOK || of(t, found, "timeline").Severity != lockadmin.SeverityOK {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	if _, err := operator.RaiseEpoch(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := operator.AdvanceFloor(t.Context(), 5<<pglease.EpochShift); err != nil {
		t.Error(err)
	}
	time.Sleep(2 * time.Millisecond)
	mustExec(t, owner, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 hour' WHERE resource = 'r'")
	if purged, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond}); err != nil || purged.Count != 1 {
		t.Errorf("%+v, %v; r is still awaited", purged, err)
	}
	if token := grant(t, issuer, "advanced", 1); token != 5<<pglease.EpochShift+1 {
		t.Errorf("after the purge: %v", token)
	}
}

func newRoleOperator(t testing.TB, pool *pgxpool.Pool) *Operator {
	t.Helper()
	o, err := New(pool, &Options{OpTimeout: patience, LockTimeout: patience / 2, Logger: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// awaited returns when somebody waits for the resource.
func awaited(t testing.TB, o *Operator, resource string) {
	t.Helper()
	eventually(t, "somebody waits for "+resource, func() bool {
		info, err := o.Get(context.Background(), resource)
		return err == nil && info.Awaited
	})
}

// TestRolesForbid: each forbidden action gets SQLSTATE 42501 and changes
// nothing. The control is the owner, who may do everything except what nobody
// may.
func TestRolesForbid(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "")
	mustTry(t, newTestClient(t, owner, nil), "r", time.Hour)
	if _, err := newRoleOperator(t, owner).ForceUnlock(t.Context(), "r", "Ada", "a record", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := newRoleOperator(t, owner).AdvanceFloor(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	everybody := []string{names.Issuer, names.Operator, names.Reader}
	others := []string{names.Operator, names.Reader}
	for _, test := range []struct {
		sql    string
		nobody bool // not even the owner
		roles  []string
	}{
		{"UPDATE fencepost.audit SET reason = 'other'", true, everybody},
		{"DELETE FROM fencepost.audit", true, everybody},
		{"TRUNCATE fencepost.audit", true, everybody},
		{"INSERT INTO fencepost.audit (id, action, resource, actor, reason, request_id, token, cut_state, cut_token, cut_owner, cut_acquired_at, cut_expires_at) VALUES (99, 'a', 'r', 'b', 'c', 'd', 1, 'free', 1, '', now(), now())", false, everybody},
		{"UPDATE fencepost.leases SET token = token - 1 WHERE token > 1", true, everybody},
		{"UPDATE fencepost.leases SET resource = 'renamed' WHERE resource = 'r'", true, everybody},
		{"UPDATE fencepost.epoch SET base = base - 1", true, nil},
		{"SELECT * FROM fencepost.audit", false, []string{names.Issuer}},
		{"DELETE FROM fencepost.leases", false, everybody},
		{"TRUNCATE fencepost.leases", false, everybody},
		{"DO $$ BEGIN LOCK TABLE fencepost.leases IN SHARE ROW EXCLUSIVE MODE; END $$", false, everybody},
		{"UPDATE fencepost.leases SET token = token + 1", false, others},
		{"UPDATE fencepost.leases SET lease_id = NULL", false, others},
		{"INSERT INTO fencepost.leases (resource, token) VALUES ('new', 1)", false, others},
		{"UPDATE fencepost.epoch SET base = base + 1", false, others},
		{"DELETE FROM fencepost.epoch", false, everybody},
		{"UPDATE fencepost.migrations SET version = version", false, everybody},
		{"CREATE TABLE fencepost.mine (x int)", false, everybody},
		{"CREATE OR REPLACE FUNCTION fencepost.refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'", false, everybody},
		{"ALTER TABLE fencepost.audit DISABLE TRIGGER ALL", false, everybody},
		{"SELECT fencepost.purge_leases(ARRAY['r'], 1, 100)", false, []string{names.Issuer, names.Reader}},
		{"SELECT fencepost.raise_epoch(0, 1, 0, true, 100)", false, []string{names.Issuer, names.Reader}},
		{"SELECT fencepost.adopt_epoch(100)", false, others},
		{"SELECT fencepost.raise_floor(99)", false, everybody},
		{"SELECT fencepost.lock_leases(100)", false, everybody},
		{"UPDATE fencepost.leases SET token = 9223372036854775806 WHERE resource = ''", false, everybody},
		{"INSERT INTO fencepost.leases (resource, token) VALUES ('', 99) ON CONFLICT (resource) DO UPDATE SET token = 1 + fencepost.leases.token", false, everybody},
		{"UPDATE fencepost.leases SET token = token + 9 WHERE resource = 'r'", false, everybody},
		{"UPDATE fencepost.leases SET token = 9223372036854775806 WHERE resource = 'r'", false, everybody},
		{"INSERT INTO fencepost.leases (resource, token) VALUES ('skips', 2 + (SELECT token FROM fencepost.leases WHERE resource = ''))", false, everybody},
		{"UPDATE fencepost.leases SET expires_at = clock_timestamp() + interval '100 years'", true, everybody},
		{"UPDATE fencepost.leases SET expires_at = clock_timestamp() + interval '26 hours'", true, everybody},
		{"INSERT INTO fencepost.leases (resource, token, expires_at) VALUES ('ages', 1, clock_timestamp() + interval '100 years')", true, everybody},
		{"UPDATE fencepost.leases SET expires_at = 'infinity'", true, everybody},
		{"INSERT INTO fencepost.leases (resource, token, expires_at) VALUES ('ever', 1, 'infinity')", true, everybody},
		{"INSERT INTO fencepost.leases (resource, token, expires_at) VALUES ('r', 1, clock_timestamp()) ON CONFLICT (resource) DO UPDATE SET expires_at = 'infinity'", true, everybody},
		{"UPDATE fencepost.leases SET resource = 'renamed' WHERE resource = 'r'", true, everybody},
		{"UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '100 years'", false, everybody},
		{"UPDATE fencepost.leases SET spent_until = clock_timestamp() + interval '100 years'", false, everybody},
		{"SELECT fencepost.advance_lease('r', 99, 100)", false, []string{names.Issuer, names.Reader}},
		{"SELECT fencepost.force_unlock('r', 'a', 'b', '', 'c', NULL, 100, NULL, 'fencepost.leases'::regclass)", false, []string{names.Issuer, names.Reader}},
	} {
		before := fingerprint(t, owner)
		for _, role := range test.roles {
			_, err := as(role).Exec(t.Context(), test.sql)
			if pg := pglease.Error(err); pg == nil || pg.Code != "42501" {
				t.Errorf("%s, as %s: %v", test.sql, role, err)
			}
		}
		if after := fingerprint(t, owner); !slices.Equal(before, after) {
			t.Errorf("%s has changed something", test.sql)
		}
		tx, err := owner.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// No control of the table's lock beside this transaction's own.
		if _, err = tx.Exec(t.Context(), "UPDATE fencepost.epoch SET base = base + 1"); err == nil {
			_, err = tx.Exec(t.Context(), test.sql)
		}
		tx.Rollback(t.Context())
		if pg := pglease.Error(err); test.nobody && (pg == nil || pg.Code != "42501") || !test.nobody && err != nil {
			t.Errorf("control: %s, as the owner: %v", test.sql, err)
		}
		if test.nobody { // nor a superuser that disables ordinary triggers
			err := pgx.BeginFunc(t.Context(), owner, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica; UPDATE fencepost.epoch SET base = base + 1; "+test.sql, pgx.QueryExecModeSimpleProtocol)
				return err
			})
			if pg := pglease.Error(err); pg == nil || pg.Code != "42501" {
				t.Errorf("%s, where session_replication_role is replica: %v", test.sql, err)
			}
		}
		if test.nobody { // control: it is the triggers that refuse it to the owner
			tx, err := owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), `ALTER TABLE fencepost.audit DISABLE TRIGGER USER; ALTER TABLE fencepost.leases DISABLE TRIGGER USER;
				ALTER TABLE fencepost.epoch DISABLE TRIGGER USER; UPDATE fencepost.epoch SET base = base + 1; `+test.sql, pgx.QueryExecModeSimpleProtocol)
			tx.Rollback(t.Context())
			if err != nil {
				t.Errorf("control: %s, without the triggers: %v", test.sql, err)
			}
		}
	}
	// Through the Go calls: unavailable, with the server's code as the cause.
	issuer, reader := newTestClient(t, as(names.Issuer), nil), newRoleOperator(t, as(names.Reader))
	_, cut := issuer.Operator.ForceUnlock(t.Context(), "r", "a", "b", nil)
	_, raised := issuer.RaiseEpoch(t.Context())
	_, purged := issuer.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond})
	_, read := all(issuer.Operator.Audit(t.Context(), "", nil))
	_, advanced := reader.Advance(t.Context(), "r", 99)
	for what, err := range map[string]error{"cut": cut, "raise": raised, "purge": purged, "audit": read, "advance": advanced} {
		if pg := pglease.Error(err); pg == nil || pg.Code != "42501" || !errors.Is(err, guard.ErrSetup) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestIssuerCannotStopGrants: case by case, what one issuer tries in order to
// stop all others is refused, and everybody is granted afterwards. The control,
// without the triggers, is an issuer that stops every grant.
func TestIssuerCannotStopGrants(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "")
	operator := newRoleOperator(t, as(names.Operator))
	for name, sql := range map[string]string{
		"the floor":           "INSERT INTO fencepost.leases (resource, token) VALUES ('', 9223372036854775806) ON CONFLICT (resource) DO UPDATE SET token = excluded.token",
		"a token, then purge": "UPDATE fencepost.leases SET token = 9223372036854775806, lease_id = NULL WHERE resource = 'mine'",
		"a lease for ages":    "UPDATE fencepost.leases SET lease_id = 'x', expires_at = clock_timestamp() + interval '100 years' WHERE resource = 'yours'",
	} {
		for _, triggers := range []string{"ENABLE", "DISABLE"} {
			guarded := triggers == "ENABLE"
			mustExec(t, owner, "ALTER TABLE fencepost.leases ENABLE TRIGGER USER")
			mustExec(t, owner, "TRUNCATE fencepost.leases")
			issuer := newTestClient(t, as(names.Issuer), nil)
			grant(t, issuer, "mine", 1)
			grant(t, issuer, "yours", 1)
			mustExec(t, owner, "ALTER TABLE fencepost.leases "+triggers+" TRIGGER USER")
			if name == "the floor" { // the right to it, which no epoch asks for, apart from the triggers
				mustExec(t, owner, "DELETE FROM fencepost.leases WHERE resource = ''")
			}
			_, err := as(names.Issuer).Exec(t.Context(), sql)
			if pg := pglease.Error(err); guarded && (pg == nil || pg.Code != "42501") || !guarded && err != nil {
				t.Errorf("%s, guarded %t: %v", name, guarded, err)
			}
			time.Sleep(2 * time.Millisecond)
			if _, err := operator.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond}); err != nil && guarded {
				t.Errorf("%s: %v", name, err)
			}
			_, err = issuer.TryAcquire(t.Context(), "yours", &lockclient.AcquireOptions{TTL: time.Hour})
			if (err == nil) != guarded {
				t.Errorf("%s, guarded %t: the next grant: %v", name, guarded, err)
			}
		}
	}
}

// TestForceUnlockedNeedsItsLease: an issuer can read why its own lease ended, but
// not the record of a lease whose ID, token or resource it guesses.
func TestForceUnlockedNeedsItsLease(t *testing.T) {
	t.Parallel()
	_, names, as := testRoles(t, "")
	issuer, operator := newTestClient(t, as(names.Issuer), nil), newRoleOperator(t, as(names.Operator))
	lease := mustTry(t, issuer, "r", time.Hour)
	mustTry(t, issuer, "other", time.Hour)
	done, err := operator.ForceUnlock(t.Context(), "r", "Ada", "secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := operator.ForceUnlock(t.Context(), "r", "Ada", "of nobody", nil)
	if err != nil {
		t.Fatal(err)
	}
	read := func(resource, id string, token guard.Token) (reasons []string) {
		rows, err := as(names.Issuer).Query(t.Context(), "SELECT o_reason FROM fencepost.force_unlocked($1, $2, $3) WHERE o_reason IS NOT NULL", resource, id, int64(token))
		if err != nil {
			t.Fatal(err)
		}
		if reasons, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return reasons
	}
	if got := read("r", lease.ID(), lease.Token()); !slices.Equal(got, []string{"secret"}) {
		t.Errorf("its own: %q", got)
	}
	for what, got := range map[string][]string{
		"another resource": read("other", lease.ID(), lease.Token()),
		"a guessed ID":     read("r", "guessed", lease.Token()),
		"no ID":            read("r", "", done.Invalidated.Token),
		"a prefix":         read("r", lease.ID()[:8]+"%", lease.Token()),
		"a request's ID":   read("r", done.Invalidated.LeaseID, done.Invalidated.Token),
		"a guessed token":  read("r", lease.ID(), lease.Token()+1),
		"of nobody":        read("r", again.Invalidated.LeaseID, again.Cut.Token),
	} {
		if len(got) != 0 {
			t.Errorf("%s: %q", what, got)
		}
	}
}

// TestRolesByUnprivilegedOwner: the schema's owner needs no right to create
// roles if they exist. The control asks for one that does not.
func TestRolesByUnprivilegedOwner(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	super := dial(t, url)
	unique := strings.ToLower(rand.Text()[:10])
	poor := "poor_" + unique
	names := RoleNames{Issuer: "issuer_" + unique, Operator: "operator_" + unique, Reader: "reader_" + unique}
	roles := []string{poor, names.Issuer, names.Operator, names.Reader}
	for _, role := range roles {
		mustExec(t, super, "CREATE ROLE "+role)
	}
	t.Cleanup(func() {
		for _, role := range roles {
			mustExec(t, super, "DROP OWNED BY "+role+" CASCADE")
			mustExec(t, super, "DROP ROLE "+role)
		}
	})
	var name string
	if err := super.QueryRow(t.Context(), "SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	mustExec(t, super, "GRANT CREATE ON DATABASE "+identifier(name)+" TO "+poor)
	owner := dialAs(t, url, poor)
	for range 2 {
		if err := migrateRoles(t.Context(), owner, &names); err != nil {
			t.Fatal(err)
		}
	}
	issuer, operator := newTestClient(t, dialAs(t, url, names.Issuer), nil), newRoleOperator(t, dialAs(t, url, names.Operator))
	lease := mustTry(t, issuer, "r", time.Hour)
	if _, err := operator.ForceUnlock(t.Context(), "r", "Ada", "works", nil); err != nil || lease.Renew(t.Context()) == nil {
		t.Errorf("the roles do not work: %v", err)
	}
	names.Reader = "missing_" + unique
	if err := migrateRoles(t.Context(), owner, &names); pglease.Error(err) == nil || pglease.Error(err).Code != "42501" {
		t.Errorf("control: a role that is missing: %v", err)
	}
}

// fingerprint returns everything in the tables.
func fingerprint(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT l::text FROM fencepost.leases l UNION ALL SELECT a::text FROM fencepost.audit a
		UNION ALL SELECT e::text FROM fencepost.epoch e ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestRolesSQL: it may be run again, revokes additional grants, and no name
// breaks out of it.
func TestRolesSQL(t *testing.T) {
	t.Parallel()
	owner, names, as := testRoles(t, "$fencepost$;'\"\\ $fencepost0$ é")
	mustExec(t, owner, "GRANT DELETE ON fencepost.leases TO "+identifier(names.Issuer))
	mustExec(t, owner, "GRANT DELETE ON fencepost.spent TO "+identifier(names.Operator))
	mustExec(t, owner, "GRANT UPDATE (reason) ON fencepost.audit TO "+identifier(names.Reader))
	if err := migrateRoles(t.Context(), owner, &names); err != nil {
		t.Fatal(err)
	}
	for role, sql := range map[string]string{names.Issuer: "DELETE FROM fencepost.leases", names.Operator: "DELETE FROM fencepost.spent",
		names.Reader: "UPDATE fencepost.audit SET reason = 'x' WHERE false"} {
		if _, err := as(role).Exec(t.Context(), sql); pglease.Error(err) == nil || pglease.Error(err).Code != "42501" {
			t.Errorf("%s, as %s: %v", sql, role, err)
		}
	}
	grant(t, newTestClient(t, as(names.Issuer), nil), "r", 1)
	for field, bad := range map[string]*RoleNames{
		"RoleNames.Issuer":   {Issuer: strings.Repeat("x", 64)},
		"RoleNames.Operator": {Operator: "a", Issuer: "a"},
		"RoleNames.Reader":   {Reader: "fencepost_issuer"},
	} {
		for _, n := range []*RoleNames{bad, {Issuer: "public"}, {Issuer: "pg_x"}, {Issuer: "a\n"}, {Issuer: "\xff"}} {
			var invalid *guard.InvalidError
			if _, err := RolesSQL(n); !errors.As(err, &invalid) || n == bad && invalid.Field != field {
				t.Errorf("%q: %v", n, err)
			}
		}
	}
	if sql, err := RolesSQL(nil); err != nil || !strings.Contains(sql, `"fencepost_issuer"`) || !strings.Contains(sql, `"fencepost_operator"`) || !strings.Contains(sql, `"fencepost_reader"`) {
		t.Errorf("%s, %v", sql, err)
	}
	// A role that may not create roles gets an error that says so.
	if err := migrateRoles(t.Context(), as(names.Operator), &RoleNames{Issuer: "nobody_" + names.Issuer[:20]}); pglease.Error(err) == nil || pglease.Error(err).Code != "42501" {
		t.Errorf("by the operator: %v", err)
	}
}

// TestMigrate: one call makes both schemas, from several processes at once.
func TestMigrate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := Migrate(t.Context(), pool); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	grant(t, newTestClient(t, pool, nil), "r", 1)
	marks, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := marks.Raise(t.Context(), guard.Claim{Resource: "r", Token: 1}); err != nil {
		t.Error(err)
	}
}
