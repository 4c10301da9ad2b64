package river

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
)

// TestRiver (P1, P2): the attempt that River's rescue has overtaken writes nothing, and each
// customer gets one invoice. The control: without the fence both attempts write, and the first
// completes the job under the second.
func TestRiver(t *testing.T) {
	for fenced, want := range map[bool]string{
		true:  "worker a, attempt 1, alice and bob: written; worker b, attempt 2, carol: written; worker a, attempt 1, carol and dave: refused, stale; worker b, attempt 2, dave: written",
		false: "worker a, attempt 1, alice and bob: written; worker b, attempt 2, carol: written; worker a, attempt 1, carol and dave: written; worker b, attempt 2, dave: written",
	} {
		t.Run(fmt.Sprint("fenced ", fenced), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			db, err := sqlfence.Pgx(pool, nil)
			if err == nil {
				err = migrate(t.Context(), pool, db)
			}
			if err != nil {
				t.Fatal(err)
			}
			said := make(chan string, 8)
			var all []string
			next := func() { all = append(all, testkit.Receive(t, "what a worker wrote", said)) }
			a, b := newInvoicer(pool, db, fenced, "worker a", said), newInvoicer(pool, db, fenced, "worker b", said)
			client := a.start(t)
			inserted, err := client.Insert(t.Context(), Invoice{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			id := inserted.Job.ID
			next() // a has read and written, and stands still before the rest
			testkit.Receive(t, "the first worker's pause", a.paused)
			stopped := make(chan error, 1)
			go func() { stopped <- client.Stop(t.Context()) }() // it takes no other job
			rescue(t, b, id)
			b.start(t)
			next()
			testkit.Receive(t, "the second worker's pause", b.paused)
			close(a.goOn)
			next()
			if err := testkit.Receive(t, "the end of the first worker", stopped); err != nil {
				t.Fatal(err)
			}
			job, err := client.JobGet(t.Context(), id)
			if err != nil || (string(job.State) == "completed") == fenced {
				t.Errorf("while worker b is at work the job is %s, %v", job.State, err)
			}
			close(b.goOn)
			next()
			if got := strings.Join(all, "; "); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			rows, _ := pool.Query(t.Context(), "SELECT customer FROM invoices ORDER BY customer")
			if names, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || slices.Equal(names, customers) != fenced {
				t.Errorf("invoices: %v, %v", names, err)
			}
		})
	}
}

// newInvoicer returns a worker that says what it wrote, under a name.
func newInvoicer(pool *pgxpool.Pool, db *sqlfence.DB[pgx.Tx], fenced bool, name string, said chan<- string) *invoicer {
	w := &invoicer{pool: pool, db: db, fenced: fenced, paused: make(chan struct{}, 1), goOn: make(chan struct{}), retryAfter: time.Hour}
	w.wrote = func(attempt int, names []string, err error) {
		result := "written"
		if err != nil {
			result = "refused, " + string(guard.ReasonOf(err))
		}
		said <- fmt.Sprintf("%s, attempt %d, %s: %s", name, attempt, strings.Join(names, " and "), result)
	}
	return w
}

// start works the queue until the test ends.
func (w *invoicer) start(t *testing.T) *river.Client[pgx.Tx] {
	t.Helper()
	client, err := w.newClient(river.QueueDefault, nil)
	if err == nil {
		err = client.Start(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.StopAndCancel(context.Background()) })
	return client
}

// rescue waits until River has taken the job away from its worker. River's leader does so when it
// starts and every 30 s.
func rescue(t *testing.T, worker *invoicer, id int64) {
	t.Helper()
	const stuck = time.Second
	await(t, worker.pool, "SELECT attempted_at < clock_timestamp() - $2::interval FROM river_job WHERE id = $1", id, stuck)
	leader, err := worker.newClient("maintenance", func(c *river.Config) {
		c.LeaderElectionDisabled, c.JobTimeout, c.RescueStuckJobsAfter = false, stuck, stuck
		c.TestOnly = true // its services start at once
	})
	if err == nil {
		err = leader.Start(context.WithoutCancel(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer leader.StopAndCancel(context.Background())
	// River's scheduler may have it available before anybody sees that it is retryable.
	await(t, worker.pool, "SELECT state IN ('retryable', 'available') FROM river_job WHERE id = $1", id)
	if _, err = leader.JobRetry(t.Context(), id); err != nil { // the scheduler would do it within 5 s
		t.Fatal(err)
	}
}

// await waits until a query returns true.
func await(t *testing.T, pool *pgxpool.Pool, query string, args ...any) {
	t.Helper()
	testkit.Eventually(t, query, func() (yes bool) {
		if err := pool.QueryRow(t.Context(), query, args...).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	})
}
