// Command kubernetes keeps the leader election of client-go and fences what the leader writes. A
// leader is cut off from the API server while it works, another replica is elected, and the
// first goes on: the election cannot stop that.
//
//	go run ./kubernetes             from examples/thirdparty: the late write is refused
//	go run ./kubernetes -unfenced   the control: the late write replaces the newer balance
//
// The code to copy is campaign.go: Hold inside OnStartedLeading. The API server is client-go's own fake
// clientset, which keeps the Lease in memory; the election is the real one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetest "k8s.io/client-go/testing"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

func main() {
	unfenced := flag.Bool("unfenced", false, "write without the fence")
	flag.Parse()
	demo.Main(2*time.Minute, func(ctx context.Context, out io.Writer) error { return run(ctx, out, !*unfenced) })
}

// store is what the leader writes; InTx is for more than one statement.
func store(ctx context.Context, pool *pgxpool.Pool, db *sqlfence.DB[pgx.Tx], fenced bool, cents int64) error {
	const update = "UPDATE balance SET cents = $1"
	if !fenced {
		_, err := pool.Exec(ctx, update, cents)
		return err
	}
	claim, _ := guard.ClaimFrom(ctx)
	_, err := db.Exec(ctx, claim, update, cents)
	return err
}

func run(ctx context.Context, out io.Writer, fenced bool) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	_, err = pool.Exec(ctx, `CREATE TABLE payments (cents bigint); INSERT INTO payments VALUES (100);
		CREATE TABLE balance (cents bigint); INSERT INTO balance VALUES (0)`)
	if err = errors.Join(err, pgadmin.Migrate(ctx, pool)); err != nil {
		return err
	}
	db, kube, cutOff := guard.Must(sqlfence.Pgx(pool, nil)), fake.NewClientset(), atomic.Bool{}
	kube.PrependReactor("update", "leases", func(action kubetest.Action) (bool, runtime.Object, error) {
		lease := action.(kubetest.UpdateAction).GetObject().(*coordination.Lease)
		if cutOff.Load() && *lease.Spec.HolderIdentity == "replica-1" {
			return true, nil, errors.New("the API server cannot be reached")
		}
		return false, nil, nil
	})
	ctx, stop := context.WithCancel(ctx)
	var replicas sync.WaitGroup
	defer func() { stop(); replicas.Wait() }()
	stopped, wake, stored := make(chan bool), make(chan bool), make(chan error)
	start := func(identity string) {
		locks := guard.Must(lockclient.New(guard.Must(pglock.New(pool, nil)), identity, nil))
		config := election(kube, identity)
		config.RetryPeriod = 100 * time.Millisecond // for the demo
		var rounds atomic.Int64
		replicas.Go(func() {
			defer locks.Close(context.WithoutCancel(ctx))
			campaign(ctx, config, locks, func(ctx context.Context) error {
				defer func() { <-ctx.Done() }() // a leader's next round would be here
				if rounds.Add(1) > 1 {
					return nil // it leads again: its story is told
				}
				var cents int64
				if err := pool.QueryRow(ctx, "SELECT sum(cents) FROM payments").Scan(&cents); err != nil {
					return err
				}
				if identity == "replica-1" {
					stopped <- true
					<-wake // it stands still, and notices nothing
				}
				stored <- store(context.WithoutCancel(ctx), pool, db, fenced, cents)
				return nil
			})
		})
	}
	start("replica-1")
	<-stopped
	cutOff.Store(true)
	fmt.Fprintln(out, "replica-1 leads, has read 100 and is cut off; a payment of 50 arrives; its leases run out")
	_, err = pool.Exec(ctx, `INSERT INTO payments VALUES (50); UPDATE fencepost.leases SET expires_at = clock_timestamp()`)
	leases := kube.CoordinationV1().Leases("billing")
	if lease, getErr := leases.Get(ctx, "balances", meta.GetOptions{}); err == nil && getErr == nil {
		*lease.Spec.HolderIdentity = "" // as if LeaseDuration were over
		_, err = leases.Update(ctx, lease, meta.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	start("replica-2")
	fmt.Fprintln(out, "replica-2 is elected, stores 150:", <-stored)
	close(wake)
	fmt.Fprintln(out, "replica-1 goes on, stores 100:", <-stored)
	var cents int64
	err = pool.QueryRow(ctx, "SELECT cents FROM balance").Scan(&cents)
	fmt.Fprintf(out, "the balance is %d, the payments are 150\n", cents)
	if err == nil && fenced != (cents == 150) {
		err = demo.ErrUnexpected
	}
	return err
}
