package pgadmin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// TestForceUnlockLostAnswer: a request whose answer is lost is found again by
// its ID, by the call itself or by a later one, and invalidates only one token. The
// control, a later call under another ID, cuts the successor.
func TestForceUnlockLostAnswer(t *testing.T) {
	t.Parallel()
	direct := migrated(t)
	pool, proxy := behindProxy(t, direct.Config().ConnString())
	o, err := New(pool, &Options{OpTimeout: patience, LockTimeout: patience / 2, Logger: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	client := newTestClient(t, direct, nil)
	for range 4 { // prepares the statements on the connections
		grant(t, client, "warm", 1)
		if _, err := o.ForceUnlock(t.Context(), "warm", "a", "b", nil); err != nil {
			t.Fatal(err)
		}
	}
	mustTry(t, client, "once", time.Hour)
	proxy.Cut.Store(1)
	done, err := o.ForceUnlock(t.Context(), "once", "a", "b", nil)
	if err != nil || !done.Repeated || done.Invalidated.Token != 2 || len(auditOf(t, o, "once")) != 1 {
		t.Errorf("one answer lost: %+v, %v", done, err)
	}

	lease := mustTry(t, client, "r", time.Hour)
	if _, err := o.Get(t.Context(), "r"); err != nil { // a connection to send it on
		t.Fatal(err)
	}
	proxy.Cut.Store(1 << 40)
	ctx, giveUp := context.WithCancel(t.Context())
	var lost atomic.Int64 // the first is that of the statement, the others are those of new connections
	count := func() {
		if lost.Add(1) == 3 {
			giveUp()
		}
	}
	proxy.Answered.Store(&count)
	_, err = o.ForceUnlock(ctx, "r", "a", "b", nil)
	proxy.Answered.Store(nil)
	var failed *guard.FailedError
	if !errors.Is(err, guard.ErrOutcomeUnknown) || !errors.As(err, &failed) || failed.Claim.Resource != "r" || failed.Claim.LeaseID == "" {
		t.Fatalf("every answer lost: %v", err)
	}
	proxy.Cut.Store(0)
	eventually(t, "the server does it (the control)", func() bool { return tokenOf(t, direct, "r") == 2 })
	successor := mustTry(t, client, "r", time.Hour)
	done, err = o.ForceUnlock(t.Context(), "r", "a", "b", &lockadmin.ForceUnlockOptions{RequestID: failed.Claim.LeaseID})
	if err != nil || !done.Repeated || done.Invalidated.Token != 2 || done.Cut.LeaseID != lease.ID() {
		t.Errorf("asked again: %+v, %v", done, err)
	}
	if err := successor.Renew(t.Context()); err != nil {
		t.Errorf("the successor: %v", err)
	}
	if _, err := o.ForceUnlock(t.Context(), "warm", "a", "b", &lockadmin.ForceUnlockOptions{RequestID: failed.Claim.LeaseID}); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("the ID of another resource's request: %v", err)
	}
	if _, err := o.ForceUnlock(t.Context(), "r", "a", "b", nil); err != nil || successor.Renew(t.Context()) == nil {
		t.Errorf("the control: another request does not cut: %v", err)
	}
}

// TestForceUnlockAtOnce: of many concurrent requests under one ID only one
// acts; of many under different IDs each invalidates a token of its own.
func TestForceUnlockAtOnce(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	o := newRoleOperator(t, pool)
	grant(t, newTestClient(t, pool, nil), "r", 1)
	run := func(id string) (tokens []guard.Token, acted int) {
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				done, err := o.ForceUnlock(t.Context(), "r", "a", "b", &lockadmin.ForceUnlockOptions{RequestID: id})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				tokens = append(tokens, done.Invalidated.Token)
				if !done.Repeated {
					acted++
				}
			})
		}
		all.Wait()
		slices.Sort(tokens)
		return slices.Compact(tokens), acted
	}
	if tokens, acted := run("one"); len(tokens) != 1 || acted != 1 {
		t.Errorf("one request: tokens %v, %d acted", tokens, acted)
	}
	if tokens, acted := run(""); len(tokens) != 8 || acted != 8 {
		t.Errorf("eight requests: tokens %v, %d acted", tokens, acted)
	}
	if records := auditOf(t, o, ""); len(records) != 9 {
		t.Errorf("%d records", len(records))
	}
}

// TestForceUnlockFullQueue: a full notification queue does not prevent an
// operator from cutting a lease that somebody waits for. The control is a
// function that notifies nevertheless.
func TestForceUnlockFullQueue(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	mustExec(t, pool, `DO $do$ BEGIN
		ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO unwrapped;
		CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION USING ERRCODE = '54000', MESSAGE = 'too many notifications in the NOTIFY queue'; END $$;
	END $do$`)
	cut := func(resource string) error {
		mustTry(t, client, resource, time.Hour)
		mustExec(t, pool, "UPDATE fencepost.leases SET wake_until = clock_timestamp() + interval '1 minute' WHERE resource = $1", resource)
		_, err := o.ForceUnlock(t.Context(), resource, "a", "b", nil)
		return err
	}
	if err := cut("r"); err != nil || tokenOf(t, pool, "r") != 2 || len(auditOf(t, o, "r")) != 1 {
		t.Errorf("%v, token %d", err, tokenOf(t, pool, "r"))
	}
	mutate(t, pool, "spend", " AND p_topic <> ''", "")
	if err := cut("control"); !errors.Is(err, guard.ErrUnavailable) || tokenOf(t, pool, "control") != 1 {
		t.Errorf("control: %v, token %d", err, tokenOf(t, pool, "control"))
	}
}

// TestRequestIDOfTwoResources: of two requests at once, under one ID and on two
// resources, the later one is refused for that reason, and not as a failure.
func TestRequestIDOfTwoResources(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	mustTry(t, client, "first", time.Hour)
	second := mustTry(t, client, "second", time.Hour)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "SELECT fencepost.force_unlock('first', 'a', 'b', '', 'one', NULL, 100, NULL, 'fencepost.leases'::regclass)"); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := o.ForceUnlock(t.Context(), "second", "a", "b", &lockadmin.ForceUnlockOptions{RequestID: "one"})
		refused <- err
	}()
	pgtest.Blocked(t, pool, "fencepost.force_unlock(", 1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-refused; !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if err := second.Renew(t.Context()); err != nil {
		t.Errorf("the second lease: %v", err)
	}
}
