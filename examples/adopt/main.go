// Command adopt replaces an advisory lock by leases and fences while the service
// runs, and takes it back.
//
//	go run ./examples/adopt
//
// Three versions of a worker add to a tenant's balance in two steps, which only one
// at a time may do: the old one under pg_advisory_lock, the new one under a lease and
// a fence, and between them one that holds both locks. README.md says what to do at
// each step, also for other locks, and for objects and HTTP services; worker.go is
// the code of the versions.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

func main() { demo.Main(2*time.Minute, run) }

// rounds is how often each replica works in each step.
const rounds = 10

// step is a step of the adoption: a change to the database, and the replicas that
// run after it, side by side.
type step struct {
	name     string
	change   func(ctx context.Context) error
	replicas []version
}

func run(ctx context.Context, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	s, err := newService(pool)
	if err != nil {
		return err
	}
	if err := s.create(ctx); err != nil {
		return err
	}
	defer s.client.Close(context.WithoutCancel(ctx))
	nothing := func(context.Context) error { return nil }
	trigger := sqladmin.Trigger{Table: []string{"balances"}, Resource: names, Columns: map[string]string{"tenant": "tenant"}}
	reporting := trigger
	reporting.InsecureReportOnly = true
	admin := sqladmin.Pgx(pool)
	for _, step := range []step{
		{"as it was", nothing, []version{s.old, s.old}},
		{"1 the schemas are there", func(ctx context.Context) error {
			return errors.Join(pglock.Migrate(ctx, pool), admin.Migrate(ctx))
		}, []version{s.old, s.old}},
		{"2 triggers report", func(ctx context.Context) error { return admin.InstallTrigger(ctx, reporting) }, []version{s.old, s.old}},
		{"3 the version with both locks rolls out", nothing, []version{s.old, s.both, s.both}},
		{"4 triggers refuse", func(ctx context.Context) error { return admin.InstallTrigger(ctx, trigger) }, []version{s.both, s.both}},
		{"5 the version with leases rolls out", nothing, []version{s.both, s.leased, s.leased}},
		{"back to 4", nothing, []version{s.leased, s.both}},
		{"back to 3", func(ctx context.Context) error { return admin.InstallTrigger(ctx, reporting) }, []version{s.both, s.old}},
		{"back to 1", func(ctx context.Context) error { return admin.RemoveTrigger(ctx, []string{"balances"}) }, []version{s.old, s.old}},
	} {
		if err := step.change(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if err := s.replicas(ctx, step.replicas...); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		balance, want, err := s.audit(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-42s %d replicas, at most %d at work, balance %d of %d\n", step.name, len(step.replicas), s.most, balance, want)
		if s.most != 1 || balance != want {
			return demo.ErrUnexpected
		}
	}
	return nil
}

// service is what the versions share.
type service struct {
	pool   *pgxpool.Pool
	db     *sqlfence.DB[pgx.Tx]
	client *lockclient.Client

	mu           sync.Mutex
	inside, most int // workers at work, now and at most
	done         int64
}

func newService(pool *pgxpool.Pool) (*service, error) {
	db, err := sqlfence.Pgx(pool, nil)
	if err != nil {
		return nil, err
	}
	issuer, err := pglock.New(pool, nil)
	if err != nil {
		return nil, err
	}
	client, err := lockclient.New(issuer, "replica", nil)
	return &service{pool: pool, db: db, client: client}, err
}

// create makes the table that the service has had all along.
func (s *service) create(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "CREATE TABLE balances (tenant text PRIMARY KEY, cents bigint NOT NULL); INSERT INTO balances VALUES ('acme', 0)")
	return err
}

// replicas runs the given versions side by side.
func (s *service) replicas(ctx context.Context, versions ...version) error {
	var all sync.WaitGroup
	errs := make([]error, len(versions))
	for i, work := range versions {
		all.Go(func() {
			for n := 0; n < rounds && errs[i] == nil; n++ {
				errs[i] = work(ctx, "acme")
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// add adds a cent in two steps, between which nobody else may write.
func (s *service) add(ctx context.Context, q querier, tenant string) error {
	s.mu.Lock()
	s.inside++
	s.most = max(s.most, s.inside)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.inside--
		s.mu.Unlock()
	}()
	var cents int64
	if err := q.QueryRow(ctx, "SELECT cents FROM balances WHERE tenant = $1", tenant).Scan(&cents); err != nil {
		return err
	}
	_, err := q.Exec(ctx, "UPDATE balances SET cents = $2 WHERE tenant = $1", tenant, cents+1)
	if err == nil {
		s.mu.Lock()
		s.done++
		s.mu.Unlock()
	}
	return err
}

// audit compares the balance with what was added.
func (s *service) audit(ctx context.Context) (balance, want int64, err error) {
	err = s.pool.QueryRow(ctx, "SELECT cents FROM balances").Scan(&balance)
	return balance, s.done, err
}

var names = guard.Must(guard.NewTemplate("{tenant}:balance"))
