// Command jobtable fences the jobs of a table of one's own, without a lease client: the
// table counts attempts, and the number of an attempt is its token. A worker is stopped in
// the middle of a job, another one takes the job over, and then the first goes on.
//
//	go run ./examples/jobtable             its late writes are refused
//	go run ./examples/jobtable -unfenced   the control: a customer gets two invoices
//
// The code to copy is the type worker. Only the statement of take may change the column
// attempt, and no job may give an attempt back. That statement is also the raise of the
// row: from its COMMIT on, no older attempt changes the row. The rule is SameOrNewer for the
// same reason: take has stored the attempt already, and OncePerToken would refuse the finish
// as spent. The column has to be bigint: ALTER TABLE jobs ALTER COLUMN attempt TYPE bigint.
//
// A worker whose FOR UPDATE SKIP LOCKED transaction stays open for the whole job needs no
// token for what it writes in there: the row lock fences it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqlrow"
)

const schema = `
CREATE TABLE jobs (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'new', started_at timestamptz, attempt bigint NOT NULL DEFAULT 0);
CREATE TABLE customers (name text);
CREATE TABLE invoices (customer text, attempt bigint);
INSERT INTO jobs (id) VALUES (7);
INSERT INTO customers VALUES ('alice'), ('bob')`

// take hands out a job that is new, or whose worker has not finished it in time.
const take = `
UPDATE jobs SET state = 'running', started_at = clock_timestamp(), attempt = attempt + 1
WHERE id = (SELECT id FROM jobs WHERE state = 'new' OR state = 'running' AND started_at < clock_timestamp() - interval '10 minutes'
	ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, attempt`

var (
	name = guard.Must(guard.NewTemplate("job:{id:int}"))
	jobs = guard.Must(sqlrow.NewTable([]string{"jobs"}, []string{"id"}, name, &sqlrow.TableOptions{TokenColumn: "attempt", Rule: guard.SameOrNewer}))
)

type worker struct {
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx] // transactions: the invoices
	rows   sqlrow.Executor      // single rows: the job's own
	fenced bool
	pause  func() // where the story stops a worker
}

// work takes a job, writes an invoice for each customer that has none, and finishes it.
func (w *worker) work(ctx context.Context) error {
	var id int64
	var attempt guard.Token
	if err := w.pool.QueryRow(ctx, take).Scan(&id, &attempt); err != nil {
		return err
	}
	claim := guard.Claim{Resource: guard.Must(name.Name(strconv.FormatInt(id, 10))), Token: attempt}
	if err := w.db.Raise(ctx, claim); err != nil { // before it reads: no older attempt writes invoices from here on
		return err
	}
	rows, _ := w.pool.Query(ctx, "SELECT name FROM customers WHERE name NOT IN (SELECT customer FROM invoices) ORDER BY name")
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for i, customer := range missing {
		if i > 0 {
			w.pause()
		}
		if err := w.invoice(ctx, claim, customer); err != nil {
			return err
		}
	}
	return w.finish(ctx, claim, id)
}

func (w *worker) invoice(ctx context.Context, claim guard.Claim, customer string) error {
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO invoices VALUES ($1, $2)", customer, int64(claim.Token))
		return err
	}
	if !w.fenced {
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return insert(ctx, tx) })
	}
	return w.db.InTx(ctx, claim, insert)
}

func (w *worker) finish(ctx context.Context, claim guard.Claim, id int64) error {
	if !w.fenced {
		_, err := w.pool.Exec(ctx, "UPDATE jobs SET state = 'done' WHERE id = $1", id)
		return err
	}
	return jobs.Update(ctx, w.rows, claim, sqlrow.Key{id}, sqlrow.Set{"state": "done"})
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
	if err := errors.Join(err, sqladmin.Pgx(pool).Migrate(ctx)); err != nil {
		return err
	}
	stopped, wake, late := make(chan bool), make(chan bool), make(chan error)
	first := worker{pool, guard.Must(sqlfence.Pgx(pool, nil)), sqlrow.Pgx(pool), fenced, func() { close(stopped); <-wake }}
	second := first
	second.pause = func() {}
	go func() { late <- first.work(ctx) }()
	select {
	case <-stopped:
	case err := <-late:
		return err
	}
	fmt.Fprintln(out, "the first worker has written the invoice of alice and is stopped, for longer than a job may take")
	if _, err := pool.Exec(ctx, "UPDATE jobs SET started_at = started_at - interval '1 hour'"); err != nil {
		return err
	}
	fmt.Fprintf(out, "the second worker takes the job over and finishes it: %v\n", second.work(ctx))
	close(wake)
	refusal := <-late
	// Whatever became of its invoices: an older attempt does not finish the job, either.
	finish := first.finish(ctx, guard.Claim{Resource: "job:7", Token: 1}, 7)
	var invoices int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM invoices").Scan(&invoices); err != nil {
		return err
	}
	fmt.Fprintf(out, "the first wakes up, and writes the invoice of bob: %v\nand finishes the job: %v\n%d invoices for 2 customers\n", refusal, finish, invoices)
	if fenced != errors.Is(refusal, guard.ErrStale) || fenced != errors.Is(finish, guard.ErrStale) || fenced != (invoices == 2) {
		return demo.ErrUnexpected
	}
	return nil
}
