package river

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
)

type scripted struct{}

func (scripted) Kind() string { return "scripted" }

// script is a worker whose attempts end as the test says, one after another.
type script struct {
	river.WorkerDefaults[scripted]
	begun chan attempt
}

// attempt is one that waits for the test.
type attempt struct {
	number int
	claim  guard.Claim
	end    chan<- error
}

func (s *script) Work(ctx context.Context, job *river.Job[scripted]) error {
	claim, _ := guard.ClaimFrom(ctx)
	end := make(chan error, 1)
	s.begun <- attempt{job.Attempt, claim, end}
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (*script) NextRetry(*river.Job[scripted]) time.Time { return time.Now() }

type scene struct {
	*testing.T
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	script *script
}

func newScene(t *testing.T) *scene {
	pool := pgtest.Pool(t)
	db, err := sqlfence.Pgx(pool, nil)
	if err == nil {
		err = migrate(t.Context(), pool, db)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &scene{t, pool, db, &script{begun: make(chan attempt, 8)}}
}

// start returns a client that works one job at a time until the test ends.
func (s *scene) start() *river.Client[pgx.Tx] {
	s.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, s.script)
	client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}, Workers: workers, Logger: quiet, LeaderElectionDisabled: true,
		FetchCooldown: river.FetchCooldownMin, FetchPollInterval: 20 * time.Millisecond, Plugins: []rivertype.Plugin{&fence{db: s.db}},
	})
	if err == nil {
		err = client.Start(context.WithoutCancel(s.Context()))
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { client.StopAndCancel(context.Background()) })
	return client
}

// next waits for the next attempt.
func (s *scene) next() attempt {
	s.Helper()
	return testkit.Receive(s.T, "an attempt", s.script.begun)
}

// TestNumbersGrow (P3): the token grows over an error, a snooze, a shutdown of the
// client and a manual retry. The control is the attempt number alone.
func TestNumbersGrow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	client := s.start()
	inserted, err := client.Insert(t.Context(), scripted{}, &river.InsertOpts{MaxAttempts: 3})
	if err != nil {
		t.Fatal(err)
	}
	id := inserted.Job.ID
	var numbers []int
	var tokens []guard.Token
	add := func(a attempt) chan<- error {
		numbers, tokens = append(numbers, a.number), append(tokens, a.claim.Token)
		return a.end
	}
	add(s.next()) <- errors.New("an error")
	add(s.next()) <- river.JobSnooze(0)
	add(s.next())
	if err := client.StopAndCancel(t.Context()); err != nil { // the third attempt returns context.Canceled
		t.Fatal(err)
	}
	client = s.start()
	add(s.next()) <- errors.New("the last error")
	await(t, s.pool, "SELECT state = 'discarded' FROM river_job WHERE id = $1", id)
	if _, err := client.JobRetry(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	add(s.next()) <- nil
	await(t, s.pool, "SELECT state = 'completed' FROM river_job WHERE id = $1", id)
	if want := []guard.Token{1, 2, 3, 4, 5}; !slices.Equal(tokens, want) {
		t.Errorf("tokens %v, not %v", tokens, want)
	}
	if want := []int{1, 2, 2, 3, 4}; !slices.Equal(numbers, want) {
		t.Errorf("attempts %v, not %v: the control is broken", numbers, want)
	}

	// The mark stays when the job is deleted; the next job has another resource.
	if _, err := client.JobDelete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	resource := guard.Must(jobs.Name("1"))
	if mark, err := s.db.Mark(t.Context(), resource); err != nil || mark.Token != 5 {
		t.Errorf("mark %v, %v", mark, err)
	}
	if _, err := client.Insert(t.Context(), scripted{}, nil); err != nil {
		t.Fatal(err)
	}
	a := s.next()
	a.end <- nil
	if a.claim.Token != 1 || a.claim.Resource == resource {
		t.Errorf("the next job has the claim %v", a.claim)
	}
}

// TestShutdownRepeatsNumber is the control of the middleware's last lines: a client
// without them gives the number of an attempt that it stopped to the next one.
func TestShutdownRepeatsNumber(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	begun := make(chan int, 2)
	worker := river.WorkFunc(func(ctx context.Context, job *river.Job[scripted]) error {
		begun <- job.Attempt
		<-ctx.Done()
		return ctx.Err()
	})
	for i := range 2 {
		workers := river.NewWorkers()
		river.AddWorker(workers, worker)
		client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}, Workers: workers, Logger: quiet, LeaderElectionDisabled: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if _, err := client.Insert(t.Context(), scripted{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		if number := <-begun; number != 1 {
			t.Errorf("attempt %d, not 1", number)
		}
		if err := client.StopAndCancel(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStaleSnooze (P4): a stale attempt that snoozes makes River hand a number out
// twice. The second holder of it is refused, and the attempt after it takes over.
func TestStaleSnooze(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	client := s.start()
	inserted, err := client.Insert(t.Context(), scripted{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	id := inserted.Job.ID
	first := s.next()
	if _, err := s.pool.Exec(t.Context(), "UPDATE river_job SET state = 'available' WHERE id = $1", id); err != nil { // as a rescue
		t.Fatal(err)
	}
	s.start()
	second := s.next()
	first.end <- river.JobSnooze(0)
	third := s.next()
	job, err := client.JobGet(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if first.claim.Token != 1 || second.claim.Token != 2 || third.claim.Token != 3 {
		t.Errorf("claims %v, %v, %v", first.claim, second.claim, third.claim)
	}
	if len(job.Errors) != 1 || !strings.Contains(job.Errors[0].Error, guard.ErrConflict.Error()) {
		t.Errorf("errors %v: the repeated number was not refused as a conflict", job.Errors)
	}
	write := func(a attempt) error {
		return s.db.InTx(t.Context(), a.claim, func(context.Context, pgx.Tx) error { return nil })
	}
	if err := write(third); err != nil {
		t.Error(err)
	}
	for _, a := range []attempt{first, second} {
		if err := write(a); !errors.Is(err, guard.ErrStale) {
			t.Errorf("token %v: %v", a.claim.Token, err)
		}
	}
	second.end <- nil
	third.end <- nil
}
