// Command cron runs a job of each tenant in three replicas, by gocron. A replica is stopped
// in its job for longer than its lease lasts, another takes over, and the first goes on.
//
//	go run ./cron             from examples/thirdparty: its late write is refused
//	go run ./cron -unfenced   the control: its late write replaces the newer balance
//
// The code to copy is rebuild. A lease does not make a job run once: a replica whose clock is
// late finds it free. What must happen once a day needs a row with a unique key that says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

var jobs = guard.Must(guard.NewTemplate("{tenant}:rebuild-balance"))

// replica is one process of the service.
type replica struct {
	name   string
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	locks  *lockclient.Client
	cron   gocron.Scheduler
	fenced bool
	pause  func(ctx context.Context, tenant string) context.Context // where a replica is stopped, which it does not notice
}

// rebuild is the job: it adds a tenant's payments up and stores the sum.
func (r *replica) rebuild(ctx context.Context, tenant string) error {
	name, err := jobs.Name(tenant)
	if err != nil {
		return err
	}
	err = r.locks.TryHold(ctx, name, nil, func(ctx context.Context) error {
		var cents int64
		if err := r.pool.QueryRow(ctx, "SELECT sum(cents) FROM payments WHERE tenant = $1", tenant).Scan(&cents); err != nil {
			return err
		}
		return r.store(r.pause(ctx, tenant), tenant, cents)
	})
	if errors.Is(err, lockclient.ErrHeld) {
		err = nil // another replica is at it
	}
	return err
}

func (r *replica) store(ctx context.Context, tenant string, cents int64) error {
	const update = "UPDATE balances SET cents = $2 WHERE tenant = $1"
	if !r.fenced {
		_, err := r.pool.Exec(ctx, update, tenant, cents)
		return err
	}
	claim, _ := guard.ClaimFrom(ctx)
	_, err := r.db.Exec(ctx, claim, update, tenant, cents) // InTx is for more than one statement
	return err
}

func main() {
	unfenced := flag.Bool("unfenced", false, "write without the fence")
	flag.Parse()
	demo.Main(2*time.Minute, func(ctx context.Context, out io.Writer) error { return run(ctx, out, !*unfenced) })
}

func run(ctx context.Context, out io.Writer, fenced bool) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	_, err = pool.Exec(ctx, `CREATE TABLE payments (tenant text, cents bigint); INSERT INTO payments VALUES ('acme', 100), ('ember', 7);
		CREATE TABLE balances (tenant text PRIMARY KEY, cents bigint); INSERT INTO balances VALUES ('acme', 0), ('ember', 0)`)
	if err = errors.Join(err, pgadmin.Migrate(ctx, pool)); err != nil { // the schemas of leases and marks
		return err
	}
	var paused, over atomic.Bool
	stopped, wake, late := make(chan *replica), make(chan bool), make(chan error)
	var replicas []*replica
	for _, name := range []string{"replica-1", "replica-2", "replica-3"} {
		locks := guard.Must(lockclient.New(guard.Must(pglock.New(pool, nil)), name, nil))
		cron := guard.Must(gocron.NewScheduler(gocron.WithStopTimeout(time.Minute)))
		r := &replica{name: name, pool: pool, db: guard.Must(sqlfence.Pgx(pool, nil)), locks: locks, cron: cron, fenced: fenced}
		defer r.locks.Close(context.WithoutCancel(ctx))
		r.pause = func(ctx context.Context, tenant string) context.Context {
			if tenant == "acme" && !paused.Swap(true) {
				stopped <- r
				<-wake
			}
			return context.WithoutCancel(ctx)
		}
		for _, tenant := range []string{"acme", "ember"} {
			guard.Must(r.cron.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(func() {
				if over.Load() {
					return
				}
				if err := r.rebuild(ctx, tenant); over.Load() && tenant == "acme" {
					late <- err // of the replica that was stopped
				}
			}), gocron.WithSingletonMode(gocron.LimitModeReschedule)))
		}
		r.cron.Start()
		defer r.cron.Shutdown()
		replicas = append(replicas, r)
	}
	first := <-stopped
	fmt.Fprintf(out, "%s has read 100 and is stopped; a payment of 50 arrives; its lease runs out\n", first.name)
	if _, err := pool.Exec(ctx, `INSERT INTO payments VALUES ('acme', 50);
		UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = 'acme:rebuild-balance'`); err != nil {
		return err
	}
	const balance = "SELECT cents FROM balances WHERE tenant = 'acme'"
	var cents int64
	for ; cents != 150; time.Sleep(10 * time.Millisecond) {
		if err := pool.QueryRow(ctx, balance).Scan(&cents); err != nil {
			return err
		}
	}
	for _, r := range replicas { // so that no later run hides what happens now
		if r != first {
			err = errors.Join(err, r.cron.Shutdown())
		}
	}
	over.Store(true)
	close(wake)
	refusal := <-late
	if err := pool.QueryRow(ctx, balance).Scan(&cents); err != nil {
		return err
	}
	fmt.Fprintf(out, "another replica takes over and stores 150\n%s wakes up and stores 100: %v\nthe balance is %d, the payments are 150\n", first.name, refusal, cents)
	if fenced != (cents == 150) {
		return demo.ErrUnexpected
	}
	return err
}
