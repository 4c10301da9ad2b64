package pglease_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pause"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestCancelledStandbyWait: a wait for the synchronous standby that is cancelled ends
// in a warning alone, and the standby may not have the commit. The outcome of every
// call is unknown, also in a session that hides warnings; the control is the same
// statement by itself, which the driver calls a success. (P5)
func TestCancelledStandbyWait(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(t.Context(), nil)
	testkit.Must(t, err)
	t.Cleanup(func() { server.Stop() })
	pool := leasetest.Dial(t, server.URL(), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_min_messages"] = "error" })
	testkit.Must(t, pglock.Migrate(t.Context(), pool))
	i := newIssuer(t, pool, nil)
	before := acquire(t, i, "before", "mine")
	operator := &pglease.Server{Pool: pool, OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2, Grace: pause.Grace, Operator: true}
	standby := func(names string) {
		mustExec(t, pool, "ALTER SYSTEM SET synchronous_standby_names = '"+names+"'")
		mustExec(t, pool, "SELECT pg_reload_conf()")
		testkit.Eventually(t, "all know it", func() bool {
			return names == value[string](t, pool, "SELECT current_setting('synchronous_standby_names')")
		})
	}
	standby("nobody")
	var cancelled atomic.Int64
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for done := []string{}; ; { // each statement is cancelled once
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				rows, _ := pool.Query(context.Background(), `WITH waiting AS MATERIALIZED (SELECT pid, concat(pid, ' ', query_start) AS id FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND concat(pid, ' ', query_start) <> ALL ($1))
					SELECT id FROM waiting WHERE pg_cancel_backend(pid)`, done)
				more, _ := pgx.CollectRows(rows, pgx.RowTo[string])
				done = append(done, more...)
				cancelled.Add(int64(len(more)))
			}
		}
	}()
	// Commits wait from when the checkpointer knows it, which may be later.
	testkit.Eventually(t, "commits wait", func() bool {
		mustExec(t, pool, "UPDATE fencepost.leases SET metadata = 'y' WHERE resource = 'before'")
		return cancelled.Load() > 0
	})
	raise := func(ctx context.Context, conn *pgx.Conn, lockTimeout string) error {
		_, err := operator.Reenter(ctx, conn, pglease.Raise{More: 1}, lockTimeout)
		return err
	}
	for what, call := range map[string]func() error{
		"the first acquire": func() error { _, err := i.Acquire(t.Context(), ask("first", "a")); return err },
		"an acquire":        func() error { _, err := i.Acquire(t.Context(), ask("later", "a")); return err },
		"a renewal": func() error {
			results := make([]driver.Renewed, 1)
			i.Renew(t.Context(), []driver.Renewal{{Claim: before, TTL: 2 * time.Hour}}, results)
			return results[0].Err
		},
		"a release that spends": func() error {
			_, err := i.Release(t.Context(), guard.Claim{Resource: "other", LeaseID: "a"})
			return err
		},
		"an operator's": func() error {
			return pglease.Failure("raise", guard.Claim{}, operator.On(t.Context(), pool, testkit.Patience, raise))
		},
	} {
		if err := call(); !errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("%s: %v, want an unknown outcome", what, err)
		}
	}
	if _, err := pool.Exec(t.Context(), "UPDATE fencepost.leases SET metadata = 'x' WHERE resource = 'before'"); err != nil {
		t.Errorf("the control: %v", err)
	}
	close(stop)
	<-stopped
	standby("")
	granted := value[int64](t, pool, "SELECT token FROM fencepost.leases WHERE resource = 'later'")
	if again := acquire(t, i, "later", "a"); int64(again.Token) != granted {
		t.Errorf("the same lease ID finds token %v instead of %d", again.Token, granted)
	}
	operator = &pglease.Server{Pool: pool, OpTimeout: testkit.Patience, LockTimeout: testkit.Patience / 2, Grace: pause.Grace, Operator: true}
	testkit.Check(t, operator.On(t.Context(), pool, testkit.Patience, raise))
}

// TestAnySession: settings of a session change no answer: the format of times with
// every way to send statements, and a statement_timeout that is shorter than the wait
// for a locked row, after which an acquire or a release is worth repeating.
func TestAnySession(t *testing.T) {
	t.Parallel()
	base := migrated(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		i := newIssuer(t, dial(t, base, func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = mode
			c.ConnConfig.RuntimeParams["datestyle"] = "German"
		}), nil)
		name := mode.String()
		claim := acquire(t, i, name, "mine")
		if _, err := i.Acquire(t.Context(), ask(name, "other")); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("%s: %v", name, err)
		}
		results := make([]driver.Renewed, 1)
		if i.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Hour}}, results); results[0].State != driver.Extended {
			t.Errorf("%s: renewed: %+v", name, results[0])
		}
		w, err := i.Watch(t.Context(), driver.Watch{Resource: name}, func() {})
		if err != nil || w.Held == nil || w.Held.Token != claim.Token {
			t.Errorf("%s: %+v, %v", name, w.Held, err)
		}
		release(t, i, claim)
	}
	i := newIssuer(t, dial(t, base, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "200" }), nil)
	held := acquire(t, newIssuer(t, base, nil), "held", "mine") // whose sessions have no timeout
	tx, err := base.Begin(t.Context())
	testkit.Must(t, err)
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT FROM fencepost.leases WHERE resource = 'held' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Release(t.Context(), held); !errors.Is(err, driver.ErrBusy) || !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("a release that statement_timeout ended: %v", err)
	}
}

// TestRowSecurity: a policy that hides rows from the issuer's role is an error, and not
// a lease that is over. The control is the function without the setting.
func TestRowSecurity(t *testing.T) {
	t.Parallel()
	admin := migrated(t)
	role := "hidden_" + strings.ReplaceAll(input.NewLeaseID(), "-", "")
	mustExec(t, admin, "CREATE ROLE "+role+" LOGIN PASSWORD 'x'")
	t.Cleanup(func() { mustExec(t, admin, "DROP OWNED BY "+role); mustExec(t, admin, "DROP ROLE "+role) })
	mustExec(t, admin, "GRANT USAGE ON SCHEMA fencepost TO "+role)
	mustExec(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fencepost TO "+role)
	mustExec(t, admin, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO "+role)
	i := newIssuer(t, dial(t, admin, func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "x" }), nil)
	claim := acquire(t, i, "r", "mine")
	renew := func() driver.Renewed {
		results := make([]driver.Renewed, 1)
		i.Renew(t.Context(), []driver.Renewal{{Claim: claim, TTL: time.Hour}}, results)
		return results[0]
	}
	mustExec(t, admin, "ALTER TABLE fencepost.leases ENABLE ROW LEVEL SECURITY")
	_, acquired := i.Acquire(t.Context(), ask("r", "other"))
	_, released := i.Release(t.Context(), claim)
	_, found := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {})
	for what, err := range map[string]error{"acquire": acquired, "renew": renew().Err, "release": released, "look": found} {
		if pg := pglease.Error(err); !errors.Is(err, guard.ErrSetup) || pg == nil || pg.Code != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
	mustExec(t, admin, "ALTER FUNCTION fencepost.renew RESET row_security")
	if got := renew(); got.State != driver.Over {
		t.Errorf("the control: %+v", got)
	}
	mustExec(t, admin, "ALTER FUNCTION fencepost.watch RESET row_security")
	if got, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {}); got.Held != nil || err != nil {
		t.Errorf("the control: sees %v, %v", got.Held, err)
	}
	mustExec(t, admin, "ALTER TABLE fencepost.leases DISABLE ROW LEVEL SECURITY")
	if got := renew(); got.State != driver.Extended {
		t.Errorf("without the policy: %+v", got)
	}
	if got, err := i.Watch(t.Context(), driver.Watch{Resource: "r"}, func() {}); err != nil || got.Held == nil || got.Held.LeaseID != claim.LeaseID {
		t.Errorf("without the policy: sees %v, %v", got.Held, err)
	}
}

// TestLookOnAStandby: a session that cannot write, as on a standby, may not have the
// latest leases yet: looking at one there fails, and does not say that it is over.
func TestLookOnAStandby(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	acquire(t, newIssuer(t, pool, nil), "r", "mine")
	i := newIssuer(t, dial(t, pool, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on" }), nil)
	for _, resource := range []string{"r", "free"} {
		if got, err := i.Watch(t.Context(), driver.Watch{Resource: resource}, func() {}); got.Held != nil || guard.ReasonOf(err) != guard.ReasonUnavailable {
			t.Errorf("sees %v, %v", got.Held, err)
		}
	}
}
