// Command river fences the jobs of River, a job queue in PostgreSQL, without a
// lease client: the attempt number that River counts is the fencing token.
//
//	go -C examples/thirdparty/river run .             the second attempt takes over, the first is refused
//	go -C examples/thirdparty/river run . -unfenced   both write
//
// It is in this module because River is a dependency that nothing else here needs.
// The code to copy is fence.go, and write in worker.go.
//
// A worker is stopped (SIGSTOP) for longer than River waits, RescueStuckJobsAfter.
// River hands its job out again; then the first worker continues and writes at
// the same time as the second. The context's deadline, JobTimeout, stops no statement that is on its
// way and no code that does not obey it.
//
// # What the number promises
//
// The claim of an attempt is the job ("river-job:7"), Attempt plus the number of
// snoozes, and AttemptedAt as the lease ID. It grows with each attempt after an
// error, a timeout, a rescue, a snooze, a shutdown and a manual retry. Attempt by
// itself does not: a snooze and a shutdown (SoftStopTimeout, StopAndCancel) give it back.
//
// # What it does not
//
//   - It fences attempts of one job. Two jobs on the same data, as of a periodic
//     job, have two resources and exclude each other nowhere: take a lease, or use
//     River's unique jobs and a constraint.
//   - River's own row is not fenced. What a stale attempt returns becomes the state
//     of the job while a newer one is running: nil completes it, so complete the job
//     in the fenced transaction (JobCompleteTx); an error hands it out once more,
//     and that attempt takes over; a snooze makes a number repeat, which the lease
//     ID turns into a conflict and the attempt after it ends.
//   - It is as durable as River's commit. With synchronous_commit off, or after a
//     restore, a number may come again: a conflict in the same database, and stale
//     at marks that are elsewhere.
//   - A job that is deleted leaves its mark: [sqlfence.DB.Retire] removes it. A new
//     job has a new ID, unless somebody resets the sequence; then it is refused as
//     stale until its attempts exceed the mark.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// roleVariable makes a process the first worker.
const roleVariable = "RIVER_EXAMPLE_WORKER"

type role struct {
	Database string
	Fenced   bool
}

// limit ends a run that hangs.
const limit = 2 * time.Minute

func main() {
	if encoded := os.Getenv(roleVariable); encoded != "" {
		demo.Main(limit, func(ctx context.Context, out io.Writer) error { return firstWorker(ctx, encoded, out) })
		return
	}
	unfenced := flag.Bool("unfenced", false, "write without the fence")
	flag.Parse()
	demo.Main(limit, func(ctx context.Context, out io.Writer) error {
		pool, cleanup, err := demo.Pool(ctx)
		if err != nil {
			return err
		}
		defer cleanup()
		return run(ctx, pool, !*unfenced, out)
	})
}

// newInvoicer returns a worker that tells out what it wrote, under a name.
func newInvoicer(pool *pgxpool.Pool, fenced bool, name string, out io.Writer, pause func(context.Context) error) (*invoicer, error) {
	db, err := sqlfence.Pgx(pool, nil)
	return &invoicer{pool: pool, db: db, fenced: fenced, pause: pause, wrote: func(attempt int, names []string, err error) {
		result := "written"
		if err != nil {
			result = "refused, " + string(guard.ReasonOf(err))
		}
		fmt.Fprintf(out, "%s, attempt %d, %s: %s\n", name, attempt, strings.Join(names, " and "), result)
	}}, err
}

// firstWorker is a process of its own, which is stopped while it waits for a line.
func firstWorker(ctx context.Context, encoded string, out io.Writer) error {
	var r role
	if err := json.Unmarshal([]byte(encoded), &r); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, r.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	worker, err := newInvoicer(pool, r.Fenced, "worker a", out, func(context.Context) error {
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		return err
	})
	if err != nil {
		return err
	}
	worker.retryAfter = time.Hour // run says when
	client, err := worker.newClient(river.QueueDefault, nil)
	if err != nil {
		return err
	}
	ended, unsubscribe := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed)
	defer unsubscribe()
	if err := client.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ended: // the report of this attempt is in the job's row
		return client.Stop(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run tells the story on an empty database, in some five seconds. A story that does
// not go on ends with an error, and with it the stopped worker.
func run(ctx context.Context, pool *pgxpool.Pool, fenced bool, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	atPause, goOn := make(chan struct{}), make(chan struct{})
	worker, err := newInvoicer(pool, fenced, "worker b", out, func(context.Context) error {
		close(atPause)
		<-goOn
		return nil
	})
	if err != nil {
		return err
	}
	if err := migrate(ctx, pool, worker.db); err != nil {
		return err
	}
	b, err := worker.newClient(river.QueueDefault, nil)
	if err != nil {
		return err
	}
	inserted, err := b.Insert(ctx, Invoice{}, nil)
	if err != nil {
		return err
	}
	id := inserted.Job.ID

	a, err := startFirst(role{pool.Config().ConnString(), fenced})
	if err != nil {
		return err
	}
	defer a.kill()
	if err := a.copyLine(out); err != nil {
		return err
	}
	if err := suspend(ctx, a.cmd.Process); err != nil {
		return err
	}
	fmt.Fprintln(out, "worker a is stopped; River rescues its job")
	if err := rescue(ctx, worker, id); err != nil {
		return err
	}

	if err := b.Start(ctx); err != nil {
		return err
	}
	defer b.StopAndCancel(context.WithoutCancel(ctx))
	select {
	case <-atPause:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Fprintln(out, "worker a continues")
	if err := resume(a.cmd.Process); err != nil {
		return err
	}
	if err := a.goOn(out); err != nil {
		return err
	}
	job, err := b.JobGet(ctx, id)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "worker b is at work, the job is %s\n", job.State)
	close(goOn)
	if fenced { // a's error has reset the job
		if err := poll(ctx, pool, "SELECT count(*) = $1 FROM invoices", len(customers)); err != nil {
			return err
		}
		if _, err := b.JobRetry(ctx, id); err != nil {
			return err
		}
		if err := poll(ctx, pool, "SELECT state = 'completed' FROM river_job WHERE id = $1", id); err != nil {
			return err
		}
	}
	if err := b.Stop(ctx); err != nil {
		return err
	}
	return judge(ctx, pool, fenced, out)
}

// rescue waits until River has taken the job away from the stopped worker. River's
// leader does so when it starts and every 30 s.
func rescue(ctx context.Context, worker *invoicer, id int64) error {
	const stuck = time.Second
	if err := poll(ctx, worker.pool, "SELECT attempted_at < clock_timestamp() - $2::interval FROM river_job WHERE id = $1", id, stuck); err != nil {
		return err
	}
	leader, err := worker.newClient("maintenance", func(c *river.Config) {
		c.LeaderElectionDisabled, c.JobTimeout, c.RescueStuckJobsAfter = false, stuck, stuck
		c.TestOnly = true // its services start at once
	})
	if err != nil {
		return err
	}
	if err := leader.Start(ctx); err != nil {
		return err
	}
	defer leader.StopAndCancel(context.WithoutCancel(ctx))
	// River's scheduler may have it available before anybody sees that it is retryable.
	if err := poll(ctx, worker.pool, "SELECT state IN ('retryable', 'available') FROM river_job WHERE id = $1", id); err != nil {
		return err
	}
	_, err = leader.JobRetry(ctx, id) // the scheduler would do it within 5 s
	return err
}

// poll waits until a query returns true.
func poll(ctx context.Context, pool *pgxpool.Pool, query string, args ...any) error {
	for {
		var yes bool
		if err := pool.QueryRow(ctx, query, args...).Scan(&yes); err != nil || yes {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// judge says whether each customer has one invoice, and fails if the story did not
// show what it promises.
func judge(ctx context.Context, pool *pgxpool.Pool, fenced bool, out io.Writer) error {
	rows, _ := pool.Query(ctx, "SELECT customer FROM invoices ORDER BY customer")
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "invoices:", strings.Join(all, ", "))
	if slices.Equal(all, customers) != fenced {
		return demo.ErrUnexpected
	}
	return nil
}

// first is the process of the first worker.
type first struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func startFirst(r role) (*first, error) {
	encoded, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &first{cmd: exec.Command(self)}
	f.cmd.Env = append(os.Environ(), roleVariable+"="+string(encoded))
	f.cmd.Stderr = os.Stderr
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.lines = bufio.NewScanner(stdout)
	return f, f.cmd.Start()
}

func (f *first) copyLine(out io.Writer) error {
	if !f.lines.Scan() {
		return errors.New("worker a ended early")
	}
	_, err := fmt.Fprintln(out, f.lines.Text())
	return err
}

// goOn lets the worker end its attempt, and returns when River knows how it ended.
func (f *first) goOn(out io.Writer) error {
	if _, err := io.WriteString(f.in, "\n"); err != nil {
		return err
	}
	if err := f.copyLine(out); err != nil {
		return err
	}
	return f.cmd.Wait()
}

func (f *first) kill() {
	f.in.Close()
	f.cmd.Process.Kill()
	f.cmd.Wait()
}
