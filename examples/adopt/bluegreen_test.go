package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin/pgadmin"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// side is one of two servers of a blue/green switch-over, with the schema and a guarded table.
type side struct {
	*testing.T
	url    string
	pool   *pgxpool.Pool
	fence  *sqlfence.DB[pgx.Tx]
	client *lockclient.Client
}

func newSide(t *testing.T) *side {
	t.Helper()
	server, err := pgtest.Start(context.Background(), &pgtest.Options{Settings: map[string]string{"wal_level": "logical"}})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	t.Cleanup(func() { server.Stop() })
	s := &side{T: t}
	s.url, _, err = server.NewDatabase(t.Context()) // it goes with its server
	must(err)
	s.pool, err = pgxpool.New(context.Background(), s.url)
	must(err)
	t.Cleanup(s.pool.Close)
	must(pgadmin.Migrate(t.Context(), s.pool))
	s.exec("CREATE TABLE entries (account text NOT NULL, token bigint NOT NULL, n int NOT NULL, PRIMARY KEY (account, token, n))")
	must(sqladmin.Pgx(s.pool).InstallTrigger(t.Context(), sqladmin.Trigger{Table: []string{"entries"},
		Resource: guard.Must(guard.NewTemplate("{account}:entries")), Columns: map[string]string{"account": "account"}}))
	s.fence, err = sqlfence.Pgx(s.pool, nil)
	must(err)
	issuer, err := pglock.New(s.pool, nil)
	must(err)
	s.client, err = lockclient.New(issuer, "worker", nil)
	must(err)
	t.Cleanup(func() { s.client.Close(context.Background()) })
	return s
}

func (s *side) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

func (s *side) int(sql string, args ...any) (n int64) {
	s.Helper()
	if err := s.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (s *side) lease(resource string) *lockclient.Lease {
	s.Helper()
	lease, err := s.client.TryAcquire(s.Context(), resource, nil)
	if err != nil {
		s.Fatal(err)
	}
	return lease
}

func (s *side) write(claim guard.Claim, n int64) error {
	return s.fence.InTx(context.Background(), claim, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO entries VALUES ('acme', $1, $2)", int64(claim.Token), n)
		return err
	})
}

// TestBlueGreen (P1, P3): a switch-over by logical replication with a holder at work, by the
// steps of README.md. What the holder's writes were acknowledged for is there, it is stale on the new
// server, and tokens go on growing. The controls leave out a step: without the marks it is not
// stale, and without the epoch the first token is lower.
func TestBlueGreen(t *testing.T) {
	testkit.CaptureDefault(t)
	for _, leaveOut := range []string{"", "the marks", "the epoch"} {
		t.Run("without "+leaveOut, func(t *testing.T) {
			const resource = "acme:entries"
			blue, green := newSide(t), newSide(t)
			blue.lease(resource).Release(t.Context()) // so that the holder's token is not the first
			lease := blue.lease(resource)
			var acknowledged atomic.Int64
			ended := make(chan error, 1)
			go func() {
				for n := int64(1); ; n++ {
					if err := blue.write(lease.Claim(), n); err != nil {
						ended <- err
						return
					}
					acknowledged.Store(n)
				}
			}()
			testkit.Eventually(t, "the holder to write", func() bool { return acknowledged.Load() > 3 })

			tables := "entries, fencepost.marks"
			if leaveOut == "the marks" {
				tables = "entries"
			}
			blue.exec("CREATE PUBLICATION upgrade FOR TABLE " + tables)
			green.exec("CREATE SUBSCRIPTION upgrade CONNECTION '" + blue.url + "' PUBLICATION upgrade")
			testkit.Eventually(t, "the initial copy", func() bool {
				return green.int("SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'") == 0
			})

			// Stop writing, wait for the rest, and cut.
			blue.exec(fmt.Sprintf("ALTER DATABASE %s SET default_transaction_read_only = on", pgx.Identifier{blue.pool.Config().ConnConfig.Database}.Sanitize()))
			administrator, err := blue.pool.Acquire(t.Context()) // no session that it has ended itself
			if err != nil {
				t.Fatal(err)
			}
			for len(ended) == 0 { // also sessions that the pool opens in between
				if _, err := administrator.Exec(t.Context(), "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"); err != nil {
					t.Fatal(err)
				}
			}
			administrator.Release()
			blue.pool.Reset() // its idle sessions have ended
			if err := <-ended; guard.ReasonOf(err) != guard.ReasonUnavailable && guard.ReasonOf(err) != guard.ReasonOutcomeUnknown {
				t.Errorf("the holder at the switch-over: %v", err)
			}
			caught := blue.int("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
			testkit.Eventually(t, "the subscription to catch up", func() bool {
				return blue.int("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'upgrade' AND confirmed_flush_lsn - '0/0' >= $1", caught) == 1
			})
			green.exec("DROP SUBSCRIPTION upgrade")
			if got := green.int("SELECT count(*) FROM entries"); got < acknowledged.Load() {
				t.Errorf("%d entries of %d that were acknowledged", got, acknowledged.Load())
			}

			operator, err := pgadmin.New(green.pool, nil)
			if err != nil {
				t.Fatal(err)
			}
			if leaveOut != "the epoch" {
				if _, err := operator.RaiseEpoch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			next := green.lease(resource)
			if grows := next.Token() > lease.Token(); grows != (leaveOut != "the epoch") {
				t.Errorf("the first token is %v, the last was %v", next.Token(), lease.Token())
			}
			// An older holder than the mark, which a client still has.
			older := guard.Claim{Resource: resource, Token: lease.Token() - 1, LeaseID: "older"}
			if err := green.write(older, 0); (guard.ReasonOf(err) == guard.ReasonStale) != (leaveOut != "the marks") {
				t.Errorf("an older holder on the new server: %v", err)
			}
			if leaveOut != "" {
				return
			}
			if err := green.write(next.Claim(), 1); err != nil {
				t.Errorf("the new holder: %v", err)
			}
			if err := green.write(lease.Claim(), 1<<20); guard.ReasonOf(err) != guard.ReasonStale {
				t.Errorf("the old holder on the new server: %v", err)
			}
		})
	}
}
