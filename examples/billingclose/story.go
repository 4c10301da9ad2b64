package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// patient makes the story end the lease of worker a itself, so that no test has to be faster
// than a TTL.
var patient = false

// payouts names the resource of another job of the tenant.
var payouts = guard.Must(guard.NewTemplate("{tenant}:payouts:{period}"))

// story is one run: a database, a ledger, an S3 server, two workers, one pause.
type story struct {
	fenced bool
	show   *timeline
	pool   *pgxpool.Pool
	store  *s3test.Server
	role   role
}

// run tells the story and judges the result. Whatever happens, it leaves no
// process and no file.
func run(ctx context.Context, fenced bool, show *timeline) (summary, error) {
	url, stop, err := pgtest.Provide(ctx)
	if err != nil {
		return summary{}, err
	}
	defer stop()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return summary{}, err
	}
	defer pool.Close()
	s := &story{fenced: fenced, show: show, pool: pool, role: role{Database: url, Fenced: fenced, Patient: patient}}
	if err := s.prepare(ctx); err != nil {
		return summary{}, err
	}

	ledger, err := newLedger(pool, fenced)
	if err != nil {
		return summary{}, err
	}
	server := httptest.NewServer(ledger)
	defer server.Close()
	s.role.Ledger = server.URL
	s.store = s3test.Start(&s3test.Options{Buckets: []string{exportBucket}})
	defer s.store.Close()
	s.role.Store = s.store.URL()
	behind := ", behind httpfence"
	if !fenced {
		behind = ", behind nothing"
	}
	show.line("ledger", 0, s.role.Ledger+behind, "")
	show.line("s3", 0, s.role.Store+", in this process", "")
	return s.tell(ctx)
}

func (s *story) prepare(ctx context.Context) error {
	var version string
	if err := s.pool.QueryRow(ctx, "SELECT split_part(version(), ' on ', 1)").Scan(&version); err != nil {
		return err
	}
	s.show.line("postgres", 0, version, "")
	if err := createSchema(ctx, s.pool); err != nil {
		return err
	}
	if err := pglock.Migrate(ctx, s.pool); err != nil {
		return err
	}
	return sqladmin.Pgx(s.pool).Migrate(ctx)
}

func (s *story) tell(ctx context.Context) (summary, error) {
	j := newJudge(s.fenced)

	a, err := s.start("a")
	if err != nil {
		return summary{}, err
	}
	defer a.kill()
	if err := s.follow(ctx, a, false, j, "granted", "invoices", "export"); err != nil {
		return summary{}, err
	}
	if err := a.pause(ctx); err != nil {
		return summary{}, err
	}
	s.show.line("kernel", 0, fmt.Sprintf("SIGSTOP: worker a (pid %d) stands still, half-way", a.cmd.Process.Pid), "")
	if err := correct(ctx, s.pool, "ember", 250); err != nil {
		return summary{}, err
	}
	s.show.line("metering", 0, "a correction arrives: ember +2.50; worker a has the old amount in memory", "")

	if s.role.Patient {
		if _, err := s.pool.Exec(ctx, "UPDATE fencepost.leases SET expires_at = clock_timestamp()"); err != nil {
			return summary{}, err
		}
	}
	b, err := s.start("b")
	if err != nil {
		return summary{}, err
	}
	defer b.kill()
	s.show.line("worker b", 0, "waits for the lease of worker a to expire", "")
	if err := s.follow(ctx, b, false, j, "granted", "takeover", "invoices", "ledger", "export", "close", "done"); err != nil {
		return summary{}, err
	}
	if err := b.wait(ctx); err != nil {
		return summary{}, err
	}
	s.show.line("worker b", 0, "releases the lease and ends", "")
	if err := s.misdirect(ctx, j); err != nil {
		return summary{}, err
	}
	before, err := s.state(ctx)
	if err != nil {
		return summary{}, err
	}

	s.show.line("kernel", 0, "SIGCONT: worker a goes on where it was, sure that it holds the lease", "")
	if err := a.goOn(); err != nil {
		return summary{}, err
	}
	if err := s.follow(ctx, a, true, j, "invoices", "ledger", "export", "close", "lost", "done"); err != nil {
		return summary{}, err
	}
	if err := a.wait(ctx); err != nil {
		return summary{}, err
	}
	after, err := s.state(ctx)
	if err != nil {
		return summary{}, err
	}
	s.show.final(after)
	return j.judge(before, after), nil
}

// misdirect has another job of the tenant, the payouts, post to the ledger of
// the close by mistake. Its token is the newest of its own resource and says
// nothing about this one: admitted here, it would make every worker of the close
// stale.
func (s *story) misdirect(ctx context.Context, j *judge) error {
	claim := guard.Claim{Resource: guard.Must(payouts.Name(tenant, period)), Token: 20, LeaseID: "payouts"}
	client := &http.Client{Timeout: time.Minute}
	if s.fenced {
		transport, err := httpfence.NewTransport(nil, []string{s.role.Ledger}, nil)
		if err != nil {
			return err
		}
		client.Transport = transport
	}
	refusal := postToLedger(guard.WithClaim(ctx, claim), client, s.role.Ledger, "payouts", 9900)
	answer := "✗ APPLIED, under another resource's token"
	if errors.Is(refusal, guard.ErrMisdirected) {
		answer = "✓ refused with 400: the token is for " + claim.Resource
	} else if refusal != nil {
		return refusal
	}
	j.noteMisdirected(refusal)
	s.show.line("payouts", claim.Token, "posts 99.00 to this ledger by mistake", answer)
	return nil
}

// state reads what is in the database and in the bucket.
func (s *story) state(ctx context.Context) (state, error) {
	now, err := readState(ctx, s.pool)
	if err == nil {
		now.Export, err = readExport(s.store, s.fenced)
	}
	return now, err
}

func (s *story) start(name string) (*process, error) {
	r := s.role
	r.Name = name
	return startWorker(r)
}

// follow shows a worker's reports, which must be those in want. An acknowledged
// or a refused step is part of the story; a step that failed otherwise ends it.
func (s *story) follow(ctx context.Context, p *process, late bool, j *judge, want ...string) error {
	for _, what := range want {
		r, err := p.next(ctx)
		if err != nil {
			return err
		}
		if r.What != what {
			return fmt.Errorf("worker %s reported %q (%s %s), the story expects %q", p.name, r.What, r.Text, r.Error, what)
		}
		s.show.worker(p.name, r, late)
		if r.Error != "" && !late {
			return fmt.Errorf("worker %s: %s: %s", p.name, r.Text, r.Error)
		}
		if late && r.Error != "" && r.Reason != guard.ReasonStale && r.What != "lost" {
			return fmt.Errorf("worker %s: %s: expected a stale refusal: %s", p.name, r.Text, r.Error)
		}
		j.note(p.name, r, late)
	}
	return nil
}
