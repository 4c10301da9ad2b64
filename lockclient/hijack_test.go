package lockclient

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// offeredSQL is what a role can create in a schema of other roles' search_path:
// the names that the functions of an issuer use, for paths that name pg_catalog
// last, and overloads that match better than the system's own. Each leaves a
// trace that no rollback removes.
const offeredSQL = `CREATE SEQUENCE shared.ran;
	DO $do$ DECLARE o record; n integer := 0; BEGIN
		FOR o IN SELECT oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result FROM pg_operator
			WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprleft = ANY ('{text,oid,bigint,integer,boolean,timestamptz,interval,double precision,numeric}'::regtype[])
			AND oprright = ANY ('{text,oid,bigint,integer,boolean,timestamptz,interval,double precision,numeric}'::regtype[])
			UNION ALL SELECT '*', 'bigint', 'interval', 'interval' UNION ALL SELECT '*', 'numeric', 'integer', 'numeric' LOOP
			n := n + 1;
			EXECUTE format('CREATE FUNCTION shared.op%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM nextval(''shared.ran''); RETURN NULL; END $f$', n, o.l, o.r, o.result);
			EXECUTE format('CREATE OPERATOR shared.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = shared.op%s)', o.oprname, o.l, o.r, n);
		END LOOP;
		FOR o IN SELECT proname, pg_get_function_identity_arguments(oid) AS args, prorettype::regtype AS result FROM pg_proc
			WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND proname = ANY (
				'{current_setting,set_config,clock_timestamp,pg_postmaster_start_time,pg_notify,pg_backend_pid}') LOOP
			EXECUTE format('CREATE FUNCTION shared.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM nextval(''shared.ran''); RETURN%s; END $f$',
				o.proname, o.args, o.result, CASE WHEN o.result <> 'void'::regtype THEN ' NULL' END);
		END LOOP;
		CREATE FUNCTION shared.traced() RETURNS boolean LANGUAGE plpgsql AS $f$ BEGIN PERFORM nextval('shared.ran'); RETURN true; END $f$;
		FOR o IN SELECT * FROM unnest('{text,oid,regclass,timestamptz}'::text[]) AS type LOOP
			EXECUTE format('CREATE DOMAIN shared.%I AS pg_catalog.%I CHECK (shared.traced())', o.type, o.type);
		END LOOP;
	END $do$;`

// TestHolderRunsNoCodeOfOthers: what another role put into a schema of the
// search_path does not run with the rights of a role that acquires, waits,
// renews and releases. The control is a function of the schema whose path is
// not pinned.
func TestHolderRunsNoCodeOfOthers(t *testing.T) {
	t.Parallel()
	admin := migrated(t)
	var database string
	testkit.Must(t, admin.QueryRow(t.Context(), "SELECT current_database()").Scan(&database))
	role := pgx.Identifier{"app_" + database}.Sanitize()
	mustExec(t, admin, "CREATE ROLE "+role)
	defer mustExec(t, admin, "DROP ROLE "+role)
	defer mustExec(t, admin, "DROP OWNED BY "+role+" CASCADE")
	mustExec(t, admin, "CREATE SCHEMA shared AUTHORIZATION "+role)
	mustSimple(t, admin, "SET SESSION AUTHORIZATION "+role+";"+offeredSQL+"SET SESSION AUTHORIZATION DEFAULT")
	ran := func() (was bool) {
		t.Helper()
		testkit.Must(t, admin.QueryRow(t.Context(), "SELECT is_called FROM shared.ran").Scan(&was))
		mustExec(t, admin, "SELECT setval('shared.ran', 1, false)")
		return was
	}
	for _, path := range []string{"shared, public", "shared, public, pg_catalog"} {
		pool := dial(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = path })
		client, other := newTestClient(t, pool, nil), newTestClient(t, admin, nil)
		opts := &AcquireOptions{TTL: time.Hour}
		for _, step := range []struct {
			what string
			run  func() error
		}{
			{"acquire, renew, release", func() error {
				lease, err := client.TryAcquire(t.Context(), "r", opts)
				if err == nil {
					err = lease.Renew(t.Context())
				}
				if err == nil {
					err = lease.Release(t.Context())
				}
				return err
			}},
			{"several", func() error {
				a, b := mustTry(t, client, "a", time.Hour), mustTry(t, client, "b", time.Hour)
				results := make([]driver.Renewed, 2)
				client.issuer.Renew(t.Context(), []driver.Renewal{{Claim: a.Claim(), TTL: time.Hour}, {Claim: b.Claim(), TTL: time.Hour}}, results)
				if slices.ContainsFunc(results, func(r driver.Renewed) bool { return r.State != driver.Extended }) {
					t.Errorf("renewed %+v", results)
				}
				if _, err := client.issuer.Release(t.Context(), driver.Request{Resource: "a", LeaseID: a.ID()}.Claim()); err != nil {
					return err
				}
				return b.Release(t.Context())
			}},
			{"wait", func() error {
				listens(t, client)
				held := mustTry(t, other, "r", time.Hour)
				next := waits(t, client, "r", time.Hour)
				testkit.Eventually(t, "it waits", func() bool { return rests(t, admin, "r") })
				if err := held.Release(t.Context()); err != nil {
					return err
				}
				return (<-next).Release(context.Background())
			}},
		} {
			if err := step.run(); err != nil || ran() {
				t.Errorf("%s under %s: %v, or it ran the other role's code", step.what, path, err)
			}
		}
	}
	mustExec(t, admin, "ALTER FUNCTION fencepost.acquire RESET search_path")
	pool := dial(t, admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["search_path"] = "shared, public, pg_catalog" })
	newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
	if !ran() {
		t.Error("the control did not run it")
	}
}
