package river

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// customers are whom the job invoices. The table has no unique constraint, as a
// ledger has none: an invoice that is written twice is paid twice.
var customers = []string{"alice", "bob", "carol", "dave"}

const schema = "CREATE TABLE invoices (customer text NOT NULL, attempt int NOT NULL)"

// migrate creates the tables of River, of the fence and of this program.
func migrate(ctx context.Context, pool *pgxpool.Pool, db *sqlfence.DB[pgx.Tx]) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if err := sqladmin.Pgx(pool).Migrate(ctx); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, schema)
	return err
}

// Invoice is the job: an invoice for each customer that has none.
type Invoice struct{}

func (Invoice) Kind() string { return "invoice" }

// invoicer works the job: it reads what is missing and writes it, two customers
// a transaction, so that an attempt continues where the one before it ended.
type invoicer struct {
	river.WorkerDefaults[Invoice]
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	fenced bool
	// Between the transactions it says that it is paused, and waits; wrote is called after each.
	paused, goOn chan struct{}
	wrote        func(attempt int, names []string, err error)
	// retryAfter is how long the job waits after an attempt that failed.
	retryAfter time.Duration
}

func (w *invoicer) Work(ctx context.Context, job *river.Job[Invoice]) error {
	// Much code does not obey its context: a library with timeouts of its own, a
	// statement that is already on its way.
	ctx = context.WithoutCancel(ctx)
	rows, _ := w.pool.Query(ctx, "SELECT customer FROM invoices")
	done, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(customers), func(c string) bool { return slices.Contains(done, c) })
	for names := range slices.Chunk(missing, max(1, (len(missing)+1)/2)) {
		last := names[len(names)-1] == customers[len(customers)-1]
		err := w.write(ctx, func(ctx context.Context, tx pgx.Tx) error {
			for _, customer := range names {
				if _, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ($1, $2)", customer, job.Attempt); err != nil {
					return err
				}
			}
			if !last {
				return nil
			}
			// In the same transaction, so that a stale attempt completes nothing.
			_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
			return err
		})
		w.wrote(job.Attempt, names, err)
		if err != nil {
			return err
		}
		if !last {
			w.paused <- struct{}{}
			<-w.goOn
		}
	}
	return nil
}

// write runs one transaction, in the fence or without.
func (w *invoicer) write(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	if !w.fenced {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return f(ctx, tx) })
	}
	claim, ok := guard.ClaimFrom(ctx)
	if !ok {
		return errors.New("the middleware is missing")
	}
	return w.db.InTx(ctx, claim, f)
}

func (w *invoicer) NextRetry(*river.Job[Invoice]) time.Time { return time.Now().Add(w.retryAfter) }

// quiet drops River's log, which reports what the story shows.
var quiet = slog.New(slog.DiscardHandler)

// newClient returns a client that works the queue, one job at a time.
func (w *invoicer) newClient(queue string, change func(*river.Config)) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	config := &river.Config{
		Queues: map[string]river.QueueConfig{queue: {MaxWorkers: 1}}, Workers: workers, Logger: quiet,
		LeaderElectionDisabled: true, FetchCooldown: river.FetchCooldownMin, FetchPollInterval: 50 * time.Millisecond,
	}
	if w.fenced {
		config.Plugins = []rivertype.Plugin{&fence{db: w.db}}
	}
	if change != nil {
		change(config)
	}
	client, err := river.NewClient(riverpgxv5.New(w.pool), config)
	if err != nil {
		return nil, fmt.Errorf("client of queue %s: %w", queue, err)
	}
	return client, nil
}
