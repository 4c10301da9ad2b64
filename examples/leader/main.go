// Command leader elects one of three workers as leader, as controllers in
// Kubernetes do, with Hold in a loop.
//
//	go run ./examples/leader            a shutdown, a takeover, a stale write that is refused
//	go run ./examples/leader -unfenced  the same without the fence: the stale write is applied
//
// The first leader is shut down gracefully. The second loses its lease to an
// operator and writes once more before it notices. The code to copy is in
// leader.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

const name = "scheduler:leader"

func main() {
	unfenced := flag.Bool("unfenced", false, "write without the fence")
	flag.Parse()
	demo.Main(2*time.Minute, func(ctx context.Context, out io.Writer) error { return run(ctx, out, !*unfenced) })
}

// story is what the workers share: a table with one row, the schedule.
type story struct {
	out    io.Writer
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	fenced bool
	leads  chan term // a worker has become the leader
}

// term is one worker's term as leader.
type term struct {
	ctx    context.Context
	claim  guard.Claim
	worker string
}

func run(ctx context.Context, out io.Writer, fenced bool) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	s := &story{out: out, pool: pool, fenced: fenced, leads: make(chan term)}
	if s.db, err = sqlfence.Pgx(pool, nil); err != nil {
		return err
	}
	if err := errors.Join(pglock.Migrate(ctx, pool), sqladmin.Pgx(pool).Migrate(ctx)); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE schedule (by text NOT NULL); INSERT INTO schedule VALUES ('nobody')"); err != nil {
		return err
	}
	op, err := lockadmin.New(pool, nil)
	if err != nil {
		return err
	}

	shutDown, err := s.start(ctx, "worker-1")
	if err != nil {
		return err
	}
	first := <-s.leads
	if err := s.write(first.ctx, first.worker); err != nil {
		return err
	}
	stop, err := s.start(ctx, "worker-2")
	if err != nil {
		return err
	}
	defer stop()
	fmt.Fprintln(out, "worker-1 is shut down: it releases the lease")
	shutDown()
	second := <-s.leads
	if err := s.write(second.ctx, second.worker); err != nil {
		return err
	}

	stopThird, err := s.start(ctx, "worker-3")
	if err != nil {
		return err
	}
	defer stopThird()
	fmt.Fprintln(out, "an operator takes the lease from worker-2, which has not noticed yet")
	if _, err := op.ForceUnlock(ctx, name, "ada", "worker-2 hangs", nil); err != nil {
		return err
	}
	third := <-s.leads
	if err := s.write(third.ctx, third.worker); err != nil {
		return err
	}
	late := s.write(guard.WithClaim(ctx, second.claim), second.worker)

	var by string
	if err := pool.QueryRow(ctx, "SELECT by FROM schedule").Scan(&by); err != nil {
		return err
	}
	if fenced {
		fmt.Fprintf(out, "FENCED: 3 leaders, the stale write was refused, the schedule is by %s\n", by)
	} else {
		fmt.Fprintf(out, "UNFENCED: 3 leaders, the stale write was applied, the schedule is by %s\n", by)
	}
	if fenced != errors.Is(late, guard.ErrStale) || fenced != (by == third.worker) {
		return demo.ErrUnexpected
	}
	return nil
}

// start starts a worker; the returned function stops it and waits for it to end.
func (s *story) start(ctx context.Context, worker string) (stop func(), err error) {
	issuer, err := pglock.New(s.pool, nil)
	if err != nil {
		return nil, err
	}
	client, err := lockclient.New(issuer, worker, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer client.Close(context.WithoutCancel(ctx))
		err := lead(ctx, client, name, func(ctx context.Context) error {
			claim, _ := guard.ClaimFrom(ctx)
			fmt.Fprintf(s.out, "%s leads with token %v\n", worker, claim.Token)
			select {
			case s.leads <- term{ctx, claim, worker}:
			case <-ctx.Done():
			}
			<-ctx.Done() // the leader's work would be here
			return context.Cause(ctx)
		})
		if err != nil {
			fmt.Fprintf(s.out, "%s: %v\n", worker, err)
		}
	}()
	return func() { cancel(); <-ended }, nil
}

// write replaces the schedule under the claim in ctx.
func (s *story) write(ctx context.Context, worker string) error {
	claim, _ := guard.ClaimFrom(ctx)
	const update = "UPDATE schedule SET by = $1"
	var err error
	if s.fenced {
		err = s.db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, update, worker)
			return err
		})
	} else {
		_, err = s.pool.Exec(ctx, update, worker)
	}
	answer := "done"
	if err != nil {
		answer = err.Error()
	}
	fmt.Fprintf(s.out, "%s writes the schedule under token %v: %s\n", worker, claim.Token, answer)
	return err
}
