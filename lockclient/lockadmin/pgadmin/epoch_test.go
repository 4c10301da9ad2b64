package pgadmin

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// asRole returns a pool on the same database with the rights of an application:
// those that the package documentation names, and no more.
func asRole(t *testing.T, pool *pgxpool.Pool, grants string) *pgxpool.Pool {
	t.Helper()
	role := "fencepost_test_" + strings.ReplaceAll(input.NewLeaseID(), "-", "")
	mustExec(t, pool, "CREATE ROLE "+role)
	t.Cleanup(func() {
		mustExec(t, pool, "DROP OWNED BY "+role)
		mustExec(t, pool, "DROP ROLE "+role)
	})
	mustExec(t, pool, "GRANT USAGE ON SCHEMA fencepost TO "+role)
	mustExec(t, pool, "GRANT SELECT ON fencepost.migrations TO "+role)
	mustExec(t, pool, "GRANT "+grants+" ON fencepost.leases TO "+role)
	return dial(t, pool.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
}

// wrapped replaces the server's function with one that fails.
func wrapped(raise string) string {
	return `DO $do$ BEGIN
		ALTER FUNCTION pg_catalog.pg_current_wal_lsn() RENAME TO unwrapped;
		CREATE FUNCTION pg_catalog.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS $$ BEGIN ` + raise + `; END $$;
	END $do$`
}

// hidden replaces the server's function with one that may not be called.
func hidden(function, result string) string {
	return `DO $do$ BEGIN
		ALTER FUNCTION pg_catalog.` + function + ` RENAME TO unwrapped_too;
		CREATE FUNCTION pg_catalog.` + function + ` RETURNS ` + result + ` LANGUAGE plpgsql AS $$ BEGIN
			RAISE insufficient_privilege USING MESSAGE = 'no ` + function + `'; END $$;
	END $do$`
}

// TestEpochHidden: if the server hides what the epoch is computed from, tokens
// are granted under the stored base, with one warning per client and a flag. An
// ordinary role sees everything.
func TestEpochHidden(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hide             string
		says             string
		timeline, system bool
	}{
		"nothing":    {"SELECT", "", true, true},
		"timeline":   {wrapped("RAISE insufficient_privilege USING MESSAGE = 'no function pg_current_wal_lsn'"), "no function pg_current_wal_lsn", false, true},
		"wrapper":    {wrapped("RAISE EXCEPTION 'not on this service'"), "not on this service", false, true},
		"identifier": {hidden("pg_control_system()", "TABLE (system_identifier bigint)"), "no pg_control_system()", true, false},
		"start":      {"REVOKE EXECUTE ON FUNCTION pg_postmaster_start_time() FROM PUBLIC", "permission denied for function pg_postmaster_start_time", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			owner := migrated(t)
			mustExec(t, owner, "GRANT EXECUTE ON FUNCTION fencepost.adopt_epoch TO PUBLIC")
			pool := asRole(t, owner, "SELECT, INSERT, UPDATE")
			mustExec(t, owner, test.hide)
			var rec recorder
			client := newTestClient(t, pool, &lockclient.Options{Logger: slog.New(slog.NewJSONHandler(&rec, nil))})
			if last := grant(t, client, "r", 3); last != 3 {
				t.Errorf("the third token is %v", last)
			}
			e, err := entered(t, pool)
			if err != nil || e.Number != 0 || (e.Timeline == 1) != test.timeline || (e.SystemIdentifier != "") != test.system ||
				!strings.Contains(e.Hidden, test.says) || (e.Hidden == "") != (test.says == "") {
				t.Errorf("the epoch is %+v, %v", e, err)
			}
			if raised, err := newRoleOperator(t, owner).RaiseEpoch(t.Context()); err != nil || raised.Number != 1 || raised.Base != 1 {
				t.Errorf("raised: %+v, %v", raised, err)
			}
			pool.Reset() // new connections ask again, but do not warn again
			if last := grant(t, client, "r", 2); last != 1<<pglease.EpochShift+2 {
				t.Errorf("after the raise: token %v", last)
			}
			warnings := 0
			_, lines := rec.Take(t)
			for _, line := range lines {
				if line["msg"] == "lock_epoch_hidden" {
					warnings++
					if line["level"] != "WARN" || !strings.Contains(line["hidden"].(string), test.says) {
						t.Errorf("the event is %v", line)
					}
				}
			}
			if want := min(1, len(test.says)); warnings != want {
				t.Errorf("%d warnings, want %d", warnings, want)
			}
		})
	}
}

// entered returns what an issuer on pool sees of the server.
func entered(t *testing.T, pool *pgxpool.Pool) (e pglease.Epoch, err error) {
	t.Helper()
	server := &pglease.Server{Pool: pool, OpTimeout: patience, LockTimeout: patience, Logger: testkit.Logger(t)}
	err = server.On(t.Context(), pool, patience, func(ctx context.Context, conn *pgx.Conn, wait string) error {
		in, err := server.Enter(ctx, conn, wait)
		if err == nil {
			e = in.Epoch
		}
		return err
	})
	return e, err
}

// TestEpochFailsClosed: an error other than a hidden value stops every grant.
func TestEpochFailsClosed(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustExec(t, pool, wrapped("RAISE EXCEPTION USING ERRCODE = 'io_error', MESSAGE = 'disk on fire'"))
	client := newTestClient(t, pool, nil)
	if _, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour}); !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("got %v", err)
	}
	if n := countRows(t, pool); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestEpochsUsedUp: past the last epoch nothing is granted, instead of a token
// that wraps around, and the error says why.
func TestEpochsUsedUp(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustExec(t, pool, "UPDATE fencepost.epoch SET base = 8388606")
	client := newTestClient(t, pool, nil)
	if e, err := client.RaiseEpoch(t.Context()); err != nil || e.Number != 8388607 {
		t.Fatalf("the last epoch: %+v, %v", e, err)
	}
	if last := grant(t, client, "r", 1); last != 8388607<<pglease.EpochShift+1 {
		t.Errorf("token %v", last)
	}
	if _, err := client.RaiseEpoch(t.Context()); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "room for 8388607") {
		t.Errorf("one more: %v", err)
	}
	if last := grant(t, client, "r", 1); last != 8388607<<pglease.EpochShift+2 {
		t.Errorf("after the refusal: token %v", last)
	}
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '1'")
	if _, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour}); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "room for 8388607") {
		t.Errorf("a copy: %v", err)
	}
	mustExec(t, pool, "UPDATE fencepost.leases SET token = $1 WHERE resource = ''", int64(guard.MaxToken))
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = NULL")
	if _, err := newTestClient(t, pool, nil).TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour}); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "used up") {
		t.Errorf("above the last token: %v", err)
	}
}

// TestTimelines: the epoch follows the timeline, up to the last one for which a
// token has room; past it nothing is granted.
func TestTimelines(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustExec(t, pool, "CREATE TABLE public.timeline AS SELECT 1::bigint AS n")
	mustExec(t, pool, `DO $do$ BEGIN
		ALTER FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RENAME TO unwrapped;
		CREATE FUNCTION pg_catalog.pg_walfile_name(pg_lsn) RETURNS text LANGUAGE sql AS
			$$ SELECT lpad(upper(to_hex(n)), 8, '0') || '0000000000000001' FROM public.timeline $$;
	END $do$`)
	for _, test := range []struct {
		timeline int64
		want     guard.Token
	}{
		{1, 1}, {2, 1<<pglease.EpochShift + 1}, {5, 4<<pglease.EpochShift + 1},
		{3, 4<<pglease.EpochShift + 2}, // behind: never lower
		{1<<22 + 1, 1<<22<<pglease.EpochShift + 1}, {1 << 23, (1<<23-1)<<pglease.EpochShift + 1},
		{1<<23 + 1, 0}, {1<<32 - 1, 0},
	} {
		mustExec(t, pool, "UPDATE timeline SET n = $1", test.timeline)
		client := newTestClient(t, pool, nil)
		if test.want == 0 {
			if _, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour}); !errors.Is(err, guard.ErrSetup) || !strings.Contains(err.Error(), "room for 8388607") {
				t.Errorf("timeline %d: %v", test.timeline, err)
			}
			continue
		}
		if token := grant(t, client, "r", 1); token != test.want {
			t.Errorf("timeline %d: token %v, want %v", test.timeline, token, test.want)
		}
		if e, err := client.Epoch(t.Context()); err != nil || e.Timeline != test.timeline {
			t.Errorf("timeline %d: %+v, %v", test.timeline, e, err)
		}
	}
}
