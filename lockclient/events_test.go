package lockclient

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestEvents: what each event reports, by name, operation and attributes.
func TestEvents(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	rec := &recorder{}
	opts := &Options{Observer: rec, Logger: slog.New(slog.NewJSONHandler(rec, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	client, other := newTestClient(t, pool, opts), newTestClient(t, pool, nil)
	move := movable(client)
	var lease *Lease
	expect := func(what string, ops []guard.Op, names ...string) ([]guard.Event, []map[string]any) {
		t.Helper()
		events, lines := rec.Take(t)
		client.events.mu.Lock()
		clear(client.events.trouble) // each is new
		client.events.mu.Unlock()
		var gotOps []guard.Op
		for _, e := range events {
			gotOps = append(gotOps, e.Op)
			if e.Surface != "lock" || e.Claim.Resource == "" || e.Claim.LeaseID == "" || e.Reason != guard.ReasonOf(e.Err) || (e.Duration <= 0) != (e.Op == guard.OpContend) {
				t.Errorf("%s: event %+v", what, e)
			}
		}
		var gotNames []string
		for _, line := range lines {
			gotNames = append(gotNames, line["msg"].(string))
			if line["resource"] == "" || line["ownerId"] != client.owner || line["leaseId"] == "" || line["ttlSeconds"] == nil {
				t.Errorf("%s: line %v", what, line)
			}
			if token, _ := line["fencingToken"].(string); lease != nil && line["leaseId"] == lease.ID() && token != lease.Token().String() {
				t.Errorf("%s: line %v", what, line)
			}
		}
		if !slices.Equal(gotOps, ops) || !slices.Equal(gotNames, names) {
			t.Errorf("%s: observed %v, logged %v, want %v, %v", what, gotOps, gotNames, ops, names)
		}
		return events, lines
	}
	mustTry(t, client, "warm", time.Minute).Release(t.Context()) // has entered the server
	rec.Take(t)
	lease = mustTry(t, client, "r", time.Minute)
	expect("granted", []guard.Op{guard.OpAcquire}, "lock_acquired")
	if err := lease.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("renewed", []guard.Op{guard.OpRenew}, "lock_renewed")
	lease.Release(t.Context())
	lease.Release(t.Context())
	expect("released", []guard.Op{guard.OpRelease}, "lock_released")

	lease = mustTry(t, client, "r", time.Minute)
	rec.Take(t)
	move(time.Minute)
	if lease.Valid() {
		t.Error("the lease is not over")
	}
	expect("lost by the clock", []guard.Op{guard.OpLost}, "lock_lost")
	runOut(t, pool, "r") // for the server, which comes later

	lease = mustTry(t, client, "r", time.Minute)
	events, _ := expect("granted after it ran out", []guard.Op{guard.OpReclaim, guard.OpAcquire}, "lock_acquired")
	if events[0].Claim != lease.Claim() {
		t.Errorf("reclaimed: %+v", events[0])
	}
	lease.Release(t.Context())
	lease = mustTry(t, client, "r", time.Minute)
	lease.Release(t.Context())
	expect("granted after a release", []guard.Op{guard.OpRelease, guard.OpAcquire, guard.OpRelease}, "lock_released", "lock_acquired", "lock_released")

	lease = mustTry(t, client, "cut", time.Minute)
	rec.Take(t)
	mustExec(t, pool, "UPDATE fencepost.leases SET lease_id = NULL")
	lease.Renew(t.Context())
	events, _ = expect("lost by the server", []guard.Op{guard.OpLost, guard.OpRenew}, "lock_lost", "lock_renew_failed")
	if !errors.Is(events[0].Err, ErrLeaseLost) || events[0].Reason != guard.ReasonLeaseLost {
		t.Errorf("lost by the server: %+v", events[0])
	}
	lease.Release(t.Context())
	expect("release of a lost lease", nil)

	holder := mustTry(t, other, "held", time.Minute)
	client.TryAcquire(t.Context(), "held", &AcquireOptions{TTL: time.Minute})
	events, lines := expect("refused", []guard.Op{guard.OpContend, guard.OpAcquire}, "lock_contended")
	if !errors.Is(events[0].Err, ErrHeld) || !errors.Is(events[1].Err, ErrHeld) || events[0].Claim.Token != guard.NoToken || lines[0]["holderId"] != holder.Owner() ||
		lines[0]["holderToken"] != strconv.Itoa(int(holder.Token())) {
		t.Errorf("refused: %+v, %v", events[0], lines[0])
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		eventually(t, "it is told who has the lease", func() bool { return refused(client, "held") })
	}()
	client.Acquire(ctx, "held", &AcquireOptions{TTL: time.Minute})
	expect("waited in vain", []guard.Op{guard.OpContend, guard.OpAcquire}, "lock_contended", "lock_acquire_failed")

	lease = mustTry(t, client, "unreleased", time.Minute)
	rec.Take(t)
	client.Close(context.Background())
	pool.Close() // or the release would go through it
	lease.Renew(t.Context())
	lease.Release(t.Context())
	_, lines = expect("closed", []guard.Op{guard.OpRelease}, "lock_release_failed")
	if len(lines) == 1 && !strings.Contains(lines[0]["error"].(string), "closed") {
		t.Errorf("closed: %v", lines[0])
	}
}
