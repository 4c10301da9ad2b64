// Command backfill copies the entries of an old system into a ledger: work of hours under a
// lease of a minute, which Hold renews. A worker is killed or stopped between two batches,
// another one goes on where it was, and then the first wakes up.
//
//	go run ./examples/backfill             its late batch is refused
//	go run ./examples/backfill -unfenced   the control: entries are copied twice, and the cursor goes back
//
// The code to copy is the method copy. The cursor is written in the transaction of the
// entries, so that whoever takes over goes on exactly where the last commit was. It is read
// after the raise, so that no older holder moves it after that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
)

const schema = `
CREATE TABLE ledger (entry bigint NOT NULL);
CREATE TABLE progress (last_entry bigint NOT NULL);
INSERT INTO progress VALUES (0)`

const entries, batch = 100, 10

// oldSystem returns the entries after one. It may take minutes.
func oldSystem(after int64) (ids []int64) {
	for id := after + 1; id <= min(after+batch, entries); id++ {
		ids = append(ids, id)
	}
	return ids
}

type worker struct {
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	locks  *lockclient.Client
	fenced bool
	pause  func(context.Context) context.Context // where the story stops a worker, which does not notice
}

// copy copies what is not copied yet.
func (w *worker) copy(ctx context.Context) error {
	return w.locks.Hold(ctx, "ledger:backfill", &lockclient.AcquireOptions{TTL: time.Minute}, func(ctx context.Context) error {
		claim, _ := guard.ClaimFrom(ctx)
		if err := w.db.Raise(ctx, claim); err != nil {
			return err
		}
		for {
			var last int64
			if err := w.pool.QueryRow(ctx, "SELECT last_entry FROM progress").Scan(&last); err != nil {
				return err
			}
			ids := oldSystem(last)
			if len(ids) == 0 {
				return nil
			}
			ctx := w.pause(ctx)
			if err := w.store(ctx, claim, ids); err != nil {
				return err
			}
		}
	})
}

// store writes a batch and the cursor in one transaction.
func (w *worker) store(ctx context.Context, claim guard.Claim, ids []int64) error {
	write := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO ledger SELECT unnest($1::bigint[])", ids)
		if err == nil {
			_, err = tx.Exec(ctx, "UPDATE progress SET last_entry = $1", ids[len(ids)-1])
		}
		return err
	}
	if !w.fenced {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return write(ctx, tx) })
	}
	return w.db.InTx(ctx, claim, write)
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
	_, err = pool.Exec(ctx, schema)
	if err := errors.Join(err, pgadmin.Migrate(ctx, pool)); err != nil { // the schemas of leases and marks
		return err
	}
	start := func(name string, pause func(context.Context) context.Context) (*worker, func()) {
		locks := guard.Must(lockclient.New(guard.Must(pglock.New(pool, nil)), name, nil))
		return &worker{pool, guard.Must(sqlfence.Pgx(pool, nil)), locks, fenced, pause}, func() { locks.Close(context.WithoutCancel(ctx)) }
	}
	var batches atomic.Int32
	stopped, wake, late := make(chan bool), make(chan bool), make(chan error)
	first, end := start("first", func(ctx context.Context) context.Context {
		if batches.Add(1) == 4 {
			close(stopped)
			<-wake
		}
		return context.WithoutCancel(ctx)
	})
	defer end()
	second, end := start("second", func(ctx context.Context) context.Context { return ctx })
	defer end()
	go func() { late <- first.copy(ctx) }()
	select {
	case <-stopped:
	case err := <-late:
		return err
	}
	fmt.Fprintln(out, "the first worker has copied 30 entries and read 10 more; it is stopped, and its lease runs out")
	if _, err := pool.Exec(ctx, "UPDATE fencepost.leases SET expires_at = clock_timestamp()"); err != nil {
		return err
	}
	fmt.Fprintf(out, "the second goes on at entry 31 and copies the rest: %v\n", second.copy(ctx))
	close(wake)
	refusal := <-late
	var copied, last int
	if err := pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM ledger), last_entry FROM progress").Scan(&copied, &last); err != nil {
		return err
	}
	fmt.Fprintf(out, "the first wakes up and stores what it had read: %v\n%d entries of %d are in the ledger\n", refusal, copied, entries)
	if fenced != (copied == entries) {
		return demo.ErrUnexpected
	}
	return nil
}
