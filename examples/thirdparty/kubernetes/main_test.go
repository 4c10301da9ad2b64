package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
)

// TestKubernetes: the late write of a leader that was cut off is refused. The control: without
// the fence it replaces the newer balance.
func TestKubernetes(t *testing.T) {
	for fenced, want := range map[bool]string{true: "the balance is 150", false: "the balance is 100, the payments are 150"} {
		testkit.CaptureDefault(t)
		t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
		var out bytes.Buffer
		if err := run(t.Context(), &out, fenced); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("fenced %v: %v\n%s", fenced, err, &out)
		}
	}
}

// TestCampaign: a leader whose lease is lost, or whose work returns, leads nobody any more. It resigns, and
// campaigns again; without its resigning the election would stand and nobody would work.
func TestCampaign(t *testing.T) {
	testkit.CaptureDefault(t)
	pool := pgtest.Pool(t)
	if err := pgadmin.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	config := election(fake.NewClientset(), "replica-1")
	config.RetryPeriod = 10 * time.Millisecond
	locks := guard.Must(lockclient.New(guard.Must(pglock.New(pool, nil)), "replica-1", nil))
	defer locks.Close(context.WithoutCancel(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	rounds, over := make(chan int, 3), make(chan bool)
	round := 0
	go func() {
		defer close(over)
		campaign(ctx, config, locks, func(ctx context.Context) error {
			round++
			rounds <- round
			switch round {
			case 1: // the lease runs out
				_, err := pool.Exec(ctx, "UPDATE fencepost.leases SET expires_at = clock_timestamp()")
				lease, _ := guard.LeaseFrom(ctx)
				if renewal := lease.(*lockclient.Lease).Renew(ctx); err != nil || !errors.Is(renewal, guard.ErrLeaseLost) {
					t.Errorf("the lease was not lost: %v, %v", err, renewal)
				}
				<-ctx.Done()
				return nil
			case 2:
				return errors.New("the work failed")
			}
			<-ctx.Done()
			return nil
		})
	}()
	for want := 1; want <= 3; want++ {
		if got := testkit.Receive(t, "the leader's work", rounds); got != want {
			t.Fatalf("round %d, want %d", got, want)
		}
	}
	stop()
	testkit.Receive(t, "the end of the campaign", over)
}
