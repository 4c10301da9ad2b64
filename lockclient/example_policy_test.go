package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/locktest"
)

// The issuer is down: give up, the job queue runs the work again.
func ExampleClient_TryAcquire_failFast() {
	var t testing.T // a test has its own
	client, issuer := locktest.New(&t, nil)
	defer client.Close(context.Background())
	issuer.FailAcquires(1)

	_, err := client.TryAcquire(context.Background(), "report:2026-04", &lockclient.AcquireOptions{TTL: time.Minute})
	fmt.Println("run it again later:", errors.Is(err, guard.ErrUnavailable))
	// Output: run it again later: true
}

// The issuer is down: the work must be done, however late. Acquire waits until the issuer is
// back, or its context ends.
func ExampleClient_Acquire_wait() {
	var t testing.T
	client, issuer := locktest.New(&t, &lockclient.Options{Logger: slog.New(slog.DiscardHandler)})
	defer client.Close(context.Background())
	issuer.FailAcquires(3)

	lease, err := client.Acquire(context.Background(), "report:2026-04", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("token", lease.Claim().Token)
	// Output: token 1
}

// The issuer goes down while the work is in progress: fenced writes go on under
// the claim until a successor has begun.
func ExampleClient_Hold_goOnWithout() {
	var t testing.T
	client, issuer := locktest.New(&t, nil)
	defer client.Close(context.Background())
	marks := guard.NewMemory() // stands for the resource
	write := func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx)
		_, err := marks.Admit(ctx, claim)
		return err
	}

	err := client.Hold(context.Background(), "report:2026-04", &lockclient.AcquireOptions{TTL: time.Minute}, func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx)
		ctx = guard.WithClaim(context.WithoutCancel(ctx), claim) // the claim without the lease's deadline

		issuer.FailRenewals(1000)
		issuer.Advance(2 * time.Minute) // the lease has run out
		fmt.Println("without a lease:", write(ctx))

		successor := issuer.Steal("report:2026-04", "worker-8", time.Minute) // the issuer is back
		fmt.Println("the successor:  ", write(guard.WithClaim(context.Background(), successor)))
		return write(ctx)
	})
	fmt.Println("afterwards:     ", errors.Is(err, guard.ErrStale))
	// Output:
	// without a lease: <nil>
	// the successor:   <nil>
	// afterwards:      true
}
