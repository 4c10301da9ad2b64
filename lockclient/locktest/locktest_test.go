package locktest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
)

// TestServer: what the server offers besides the suite.
func TestServer(t *testing.T) {
	opts := &lockclient.AcquireOptions{TTL: time.Minute}
	run := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
	run("advance", func(t *testing.T) {
		client, server := New(t, nil)
		before := server.Now()
		lease, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		testkit.Must(t, err)
		server.Advance(59 * time.Minute)
		if !lease.Valid() || server.Now().Sub(before) < 59*time.Minute {
			t.Error("over too early")
		}
		server.Advance(time.Minute)
		if len(lease.Done()) > 0 || lease.Valid() {
			t.Error("not over")
		}
		<-lease.Done()
	})
	run("advance wakes a waiter", func(t *testing.T) {
		client, server := New(t, nil)
		other := server.Client(t, "other", nil)
		first, err := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		testkit.Must(t, err)
		time.AfterFunc(20*time.Millisecond, func() { server.Advance(time.Hour) })
		next, err := other.Acquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if err != nil || next.Token() != 2 || first.Valid() || server.Last("r") != 2 {
			t.Errorf("got %v", err)
		}
	})
	run("steal", func(t *testing.T) {
		client, server := New(t, nil)
		err := client.Hold(t.Context(), "r", opts, func(ctx context.Context) error {
			claim := server.Steal("r", "thief", time.Hour)
			if now, owner, ok := server.Holder("r"); !ok || now != claim || owner != "thief" || claim.Token != 2 {
				t.Errorf("the holder is %+v %s", now, owner)
			}
			server.Advance(25 * time.Second)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, lockclient.ErrLeaseLost) {
			t.Error(err)
		}
	})
	run("expire", func(t *testing.T) {
		client, server := New(t, nil)
		lease, _ := client.TryAcquire(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
		if !server.Expire("r") || server.Expire("r") || !lease.Valid() {
			t.Error("not ended on the server alone")
		}
		if err := lease.Renew(t.Context()); !errors.Is(err, lockclient.ErrLeaseLost) {
			t.Error(err)
		}
	})
	run("faults", func(t *testing.T) {
		client, server := New(t, nil)
		server.FailAcquires(1)
		acquire := &lockclient.AcquireOptions{TTL: time.Hour}
		if _, err := client.TryAcquire(t.Context(), "r", acquire); !errors.Is(err, guard.ErrUnavailable) {
			t.Error(err)
		}
		lease, err := client.TryAcquire(t.Context(), "r", acquire)
		if err != nil || lease.Token() != 1 {
			t.Fatal(err)
		}
		server.FailRenewals(1)
		if err := lease.Renew(t.Context()); !errors.Is(err, guard.ErrUnavailable) {
			t.Error(err)
		}
		if err := lease.Renew(t.Context()); err != nil {
			t.Error("after the failure:", err)
		}
	})
}

// TestRenewsInBubble: in a bubble of testing/synctest time passes by sleeping,
// and Hold renews meanwhile.
func TestRenewsInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewals leasetest.Tally
		client, server := New(t, &lockclient.Options{Observer: &renewals})
		err := client.Hold(t.Context(), "r", &lockclient.AcquireOptions{TTL: time.Minute}, func(ctx context.Context) error {
			time.Sleep(time.Hour)
			server.FailRenewals(3)
			time.Sleep(time.Hour)
			return context.Cause(ctx)
		})
		if synctest.Wait(); err != nil || renewals.Count(guard.OpRenew) < 300 {
			t.Error(err)
		}
	})
}
