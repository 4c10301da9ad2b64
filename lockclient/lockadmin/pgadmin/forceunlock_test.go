package pgadmin

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5/pgxpool"
)

func tokenOf(t testing.TB, pool *pgxpool.Pool, resource string) (token int64) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), "SELECT token FROM fencepost.leases WHERE resource = $1", resource).Scan(&token); err != nil {
		t.Fatal(err)
	}
	return token
}

func auditOf(t testing.TB, o *Operator, pattern string) []lockadmin.AuditRecord {
	t.Helper()
	records, err := all(o.Audit(t.Context(), pattern, nil))
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// all collects what an iterator yields, up to its error.
func all[T any](seq iter.Seq2[T, error]) (got []T, err error) {
	for one, err := range seq {
		if err != nil {
			return got, err
		}
		got = append(got, one)
	}
	return got, nil
}

// TestForceUnlock: it invalidates a token, records itself, wakes a waiter, and the
// holder learns from a renewal or a release who cut it and why.
func TestForceUnlock(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, other, o := newTestClient(t, pool, nil), newTestClient(t, pool, nil), newRoleOperator(t, pool)
	for how, end := range map[string]func(*lockclient.Lease) error{
		"renew":   func(l *lockclient.Lease) error { return l.Renew(t.Context()) },
		"release": func(l *lockclient.Lease) error { return l.Release(t.Context()) },
	} {
		lease := mustTry(t, client, how, time.Hour)
		next := make(chan *lockclient.Lease, 1)
		go func() {
			l, err := other.Acquire(context.Background(), how, &lockclient.AcquireOptions{TTL: time.Hour})
			if err != nil {
				t.Error(err)
			}
			next <- l
		}()
		awaited(t, o, how)
		ear, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var process string
		if err := ear.QueryRow(t.Context(), "SELECT waiters[1] FROM fencepost.leases WHERE resource = $1", how).Scan(&process); err != nil {
			t.Fatal(err)
		}
		if _, err := ear.Exec(t.Context(), `LISTEN "`+pglease.Channel+`.`+process+`"`); err != nil {
			t.Fatal(err)
		}
		done, err := o.ForceUnlock(t.Context(), how, "Ada", "worker-7 hangs, INC-42", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: lease.ID()})
		if err != nil {
			t.Fatal(err)
		}
		successor := <-next
		if heard, err := ear.Conn().WaitForNotification(t.Context()); err != nil || !strings.HasPrefix(heard.Payload, pglease.Topic(how)+" ") {
			t.Errorf("the waiter was sent %+v, %v", heard, err)
		}
		ear.Release()
		if done.Invalidated.Resource != how || done.Invalidated.Token != lease.Token()+1 || done.Invalidated.LeaseID == "" || done.Invalidated.LeaseID == lease.ID() ||
			done.Cut.LeaseID != lease.ID() || done.Cut.Owner != lease.Owner() || done.Cut.State != lockadmin.StateHeld || done.Cut.Token != lease.Token() || done.Repeated {
			t.Errorf("%+v", done)
		}
		if done.Cut.HeldFor <= 0 || done.Cut.HeldFor != done.At.Sub(done.Cut.CreatedAt) || done.Cut.Remaining <= 0 || done.Cut.Remaining > time.Hour {
			t.Errorf("the cut lease had been held for %v, with %v left", done.Cut.HeldFor, done.Cut.Remaining)
		}
		if successor.Token() != done.Invalidated.Token+1 {
			t.Errorf("the successor has token %v after %v was invalidated", successor.Token(), done.Invalidated.Token)
		}
		err = end(lease)
		var cut *lockclient.ForceUnlockedError
		var lost *lockclient.LostError
		if !errors.Is(err, lockclient.ErrLeaseLost) || !errors.Is(err, lockclient.ErrForceUnlocked) || !errors.As(err, &lost) || !errors.As(err, &cut) ||
			cut.Actor != "Ada" || cut.Reason != "worker-7 hangs, INC-42" || !cut.At.Equal(done.At) {
			t.Errorf("%s: %v", how, err)
		}
		records := auditOf(t, o, how)
		if len(records) != 1 || records[0].ID != done.AuditID || records[0].Action != lockadmin.ActionForceUnlock || records[0].Token != done.Invalidated.Token ||
			records[0].RequestID != done.Invalidated.LeaseID || records[0].Actor != "Ada" || records[0].Cut != done.Cut {
			t.Errorf("audit: %+v", records)
		}
		if r := rowOf(t, pool, how); !r.Live || *r.LeaseID != successor.ID() {
			t.Errorf("the successor's row: %+v", r)
		}
	}
}

// TestForceUnlockSpends: an acquire of the cut holder that a network has delayed is
// not granted after the cut. (P8)
func TestForceUnlockSpends(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	lease := mustTry(t, client, "r", time.Hour)
	if _, err := o.ForceUnlock(t.Context(), "r", "a", "b", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute, LeaseID: lease.ID()}); !errors.Is(err, lockclient.ErrLeaseIDSpent) {
		t.Errorf("the cut lease's ID again: %v", err)
	}
	mustTry(t, client, "r", time.Hour)
}

// TestForceUnlockFences is P1: with the invalidated claim raised at the resource the
// cut holder's writes are stale at once. The control does not raise, and the cut
// holder still writes.
func TestForceUnlockFences(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	for _, raise := range []bool{true, false} {
		store := guard.NewMemory()
		lease := mustTry(t, client, "r", time.Hour)
		if _, err := store.Admit(t.Context(), lease.Claim()); err != nil {
			t.Fatal(err)
		}
		done, err := o.ForceUnlock(t.Context(), "r", "Ada", "stuck", nil)
		if err != nil {
			t.Fatal(err)
		}
		if raise {
			for range 2 { // once more is harmless
				if _, err := store.Admit(t.Context(), done.Invalidated); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := store.Admit(t.Context(), lease.Claim()); errors.Is(err, guard.ErrStale) != raise {
			t.Errorf("raised %t: the cut holder's write: %v", raise, err)
		}
		next := mustTry(t, client, "r", time.Hour)
		if _, err := store.Admit(t.Context(), next.Claim()); err != nil {
			t.Errorf("raised %t: the successor's write: %v", raise, err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestForceUnlockOfNobody: an expired, a released and an advanced lease can be
// force-unlocked, because a paused holder may come back to each.
func TestForceUnlockOfNobody(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	mustTry(t, client, "expired", time.Hour)
	mustTry(t, client, "free", time.Hour).Release(t.Context())
	if _, err := client.Advance(t.Context(), "advanced", 7); err != nil {
		t.Fatal(err)
	}
	runOut(t, pool, "expired")
	for resource, want := range map[string]struct {
		state lockadmin.LeaseState
		token guard.Token
	}{"expired": {lockadmin.StateExpired, 2}, "free": {lockadmin.StateFree, 2}, "advanced": {lockadmin.StateFree, 8}} {
		done, err := o.ForceUnlock(t.Context(), resource, "Ada", "to be sure", nil)
		if err != nil || done.Cut.State != want.state || done.Invalidated.Token != want.token {
			t.Errorf("%s: %+v, %v", resource, done, err)
		}
		// Nobody held it, and the answer, the audit, the remaining row and, when it
		// is cut again, the invalidated token's owner say so.
		left, err := o.Get(t.Context(), resource)
		if err != nil || left.Owner != "" || !left.CreatedAt.IsZero() || left.LeaseID != "" || left.Token != want.token {
			t.Errorf("%s is left as %+v, %v", resource, left, err)
		}
		again, err := o.ForceUnlock(t.Context(), resource, "Ada", "once more", nil)
		if err != nil || again.Cut.Owner != "" || !again.Cut.CreatedAt.IsZero() || again.Cut.Token != want.token || again.Cut.State != lockadmin.StateFree {
			t.Errorf("%s, cut again: %+v, %v", resource, again, err)
		}
		for i, r := range auditOf(t, o, resource) { // the latest first
			if _, held := r.Holder(); held || i == 0 && r.Cut != again.Cut || i == 1 && r.Cut != done.Cut {
				t.Errorf("%s: record %d names %+v", resource, i, r.Cut)
			}
		}
		if want.state == lockadmin.StateFree && done.Cut.Owner != "" || want.state == lockadmin.StateExpired && done.Cut.Owner == "" {
			t.Errorf("%s was of %q", resource, done.Cut.Owner)
		}
		want.token++
		if got := grant(t, client, resource, 1); got != want.token+1 {
			t.Errorf("%s: the next token is %v", resource, got)
		}
	}
	// Above what a lost server may have granted, as a grant would be.
	epoch, err := o.RaiseEpoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done, err := o.ForceUnlock(t.Context(), "free", "Ada", "after a restore", nil)
	if err != nil || done.Invalidated.Token != epoch.Floor+1 {
		t.Errorf("%v above the floor %v, %v", done.Invalidated, epoch.Floor, err)
	}
}

// TestForceUnlockRefused: each has its exact reason, and nothing changes.
func TestForceUnlockRefused(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	old := mustTry(t, client, "r", time.Hour)
	old.Release(t.Context())
	lease := mustTry(t, client, "r", time.Hour)
	before := fingerprint(t, pool)
	long := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		field, resource, actor, reason string
		opts                           lockadmin.ForceUnlockOptions
	}{
		{"resource", "", "a", "b", lockadmin.ForceUnlockOptions{}},
		{"resource", "a\x00", "a", "b", lockadmin.ForceUnlockOptions{}},
		{"actor", "r", "", "b", lockadmin.ForceUnlockOptions{}},
		{"actor", "r", " \t ", "b", lockadmin.ForceUnlockOptions{}},
		{"actor", "r", "a\nb", "b", lockadmin.ForceUnlockOptions{}},
		{"actor", "r", long, "b", lockadmin.ForceUnlockOptions{}},
		{"reason", "r", "a", "", lockadmin.ForceUnlockOptions{}},
		{"reason", "r", "a", "\u2003 \u00a0", lockadmin.ForceUnlockOptions{}},
		{"reason", "r", "a", "\xff", lockadmin.ForceUnlockOptions{}},
		{"reason", "r", "a", long, lockadmin.ForceUnlockOptions{}},
		{"ExpectedLeaseID", "r", "a", "b", lockadmin.ForceUnlockOptions{ExpectedLeaseID: "a\x00"}},
		{"RequestID", "r", "a", "b", lockadmin.ForceUnlockOptions{RequestID: long}},
	} {
		_, err := o.ForceUnlock(t.Context(), test.resource, test.actor, test.reason, &test.opts)
		var invalid *guard.InvalidError
		if !errors.Is(err, guard.ErrInvalid) || !errors.As(err, &invalid) || invalid.Field != test.field {
			t.Errorf("%s: %.200v", test.field, err)
		}
	}
	_, err := o.ForceUnlock(t.Context(), "unknown", "a", "b", nil)
	var rejected *guard.RejectedError
	if !errors.Is(err, guard.ErrNotFound) || !errors.As(err, &rejected) || rejected.Claim.Resource != "unknown" {
		t.Errorf("unknown: %v", err)
	}
	_, err = o.ForceUnlock(t.Context(), "r", "a", "b", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: old.ID()})
	var changed *lockadmin.LeaseChangedError
	if !errors.Is(err, lockadmin.ErrLeaseChanged) || !errors.As(err, &changed) || changed.Expected != old.ID() || changed.Now.LeaseID != lease.ID() ||
		changed.Now.State != lockadmin.StateHeld || !strings.Contains(err.Error(), lease.ID()) {
		t.Errorf("a successor's: %v", err)
	}
	if after := fingerprint(t, pool); !slices.Equal(before, after) || lease.Renew(t.Context()) != nil {
		t.Errorf("something changed: %q, before %q", after, before)
	}
	lease.Release(t.Context())
	if _, err = o.ForceUnlock(t.Context(), "r", "a", "b", &lockadmin.ForceUnlockOptions{ExpectedLeaseID: lease.ID()}); !errors.As(err, &changed) || changed.Now.State != lockadmin.StateFree {
		t.Errorf("released meanwhile: %v", err)
	}
	if records := auditOf(t, o, ""); len(records) != 0 {
		t.Errorf("refusals were recorded: %+v", records)
	}
}

// TestAuditRequiresActorAndReason: a caller of the function without this
// package cannot record an actor or reason of only spaces either.
func TestAuditRequiresActorAndReason(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	for _, test := range []struct{ actor, reason, constraint string }{
		{"Ada", "stuck", ""}, // control
		{" \t\n", "stuck", "audit_actor"},
		{"Ada", "\t\t", "audit_reason"},
	} {
		_, err := pool.Exec(t.Context(), `INSERT INTO fencepost.audit (id, action, resource, actor, reason, request_id, token, cut_state, cut_token, cut_owner, cut_acquired_at, cut_expires_at)
			VALUES (1, 'force_unlock', 'r', $1, $2, $1 || $2, 1, 'free', 1, '', now(), now())`, test.actor, test.reason)
		if pg := pglease.Error(err); test.constraint == "" && err != nil || test.constraint != "" && (pg == nil || pg.ConstraintName != test.constraint) {
			t.Errorf("actor %q, reason %q: %v, want %q", test.actor, test.reason, err, test.constraint)
		}
	}
}
