package pgadmin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

func startServer(t *testing.T, opts *pgtest.Options) *pgtest.Server {
	t.Helper()
	server, err := pgtest.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	return server
}

// grant acquires and releases, n times, and returns the last token.
func grant(t *testing.T, c *Client, resource string, n int) (last guard.Token) {
	t.Helper()
	for range n {
		lease := mustTry(t, c, resource, time.Hour)
		if lease.Token() <= last {
			t.Errorf("%s: token %v after %v", resource, lease.Token(), last)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// withoutEpoch returns what the acquire grants if nobody enters the epoch: the
// control of the following tests.
func withoutEpoch(t *testing.T, pool *pgxpool.Pool, resource string) (token guard.Token) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `INSERT INTO fencepost.leases AS l (resource, token, lease_id, owner, acquired_at, expires_at)
		SELECT $1, coalesce(max(f.token), 0) + 1, $2, 'control', clock_timestamp(), clock_timestamp() FROM fencepost.leases f WHERE f.resource = ''
		ON CONFLICT (resource) DO UPDATE SET token = greatest(l.token + 1, excluded.token), lease_id = excluded.lease_id, expires_at = excluded.expires_at
		RETURNING token`, resource, input.NewLeaseID()).Scan(&token)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// TestPromotedStandby is P3 across a failover that loses grants: replication
// stops, the primary goes on granting, the standby is promoted. Every token
// that it grants is above all of the primary's, on resources that it knows and
// on those that it does not; without the epoch the tokens repeat.
func TestPromotedStandby(t *testing.T) {
	t.Parallel()
	primary := startServer(t, nil)
	pool := dial(t, primary.URL())
	if err := pglock.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	client := newTestClient(t, pool, nil)
	if last := grant(t, client, "known", 3); last != 3 {
		t.Errorf("the third token of a new server is %v", last)
	}
	standby, err := primary.Standby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop() })
	other := dial(t, standby.URL())
	follower := newTestClient(t, other, nil)
	if _, err := follower.TryAcquire(t.Context(), "known", &lockclient.AcquireOptions{TTL: time.Hour}); !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "standby") {
		t.Errorf("a standby: %v", err)
	}
	receives := func() bool {
		var receivers int
		if err := other.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'").Scan(&receivers); err != nil {
			t.Fatal(err)
		}
		return receivers > 0
	}
	eventually(t, "replication runs", receives) // or it could begin after it has stopped
	mustExec(t, other, "ALTER SYSTEM SET primary_conninfo = ''")
	mustExec(t, other, "SELECT pg_reload_conf()")
	eventually(t, "replication stops", func() bool { return !receives() })
	lost := map[string]guard.Token{"known": grant(t, client, "known", 5), "unheard of": grant(t, client, "unheard of", 5)}
	mustExec(t, other, "SELECT pg_promote(true, 60)")

	for resource, token := range lost {
		if again := withoutEpoch(t, other, resource); again > token {
			t.Errorf("%s: the control grants %v after %v: nothing was lost", resource, again, token)
		}
	}
	time.Sleep(2 * time.Millisecond) // the control's leases are over
	for resource, token := range lost {
		// The client and its connections date from before the promotion.
		if next := grant(t, follower, resource, 3); next <= token || next != 1<<pglease.EpochShift+3 {
			t.Errorf("%s: token %v after %v", resource, next, token)
		}
	}
	if e, err := follower.Epoch(t.Context()); err != nil || e.Number != 1 || e.Base != 0 || e.Timeline != 2 || e.Hidden != "" || e.Floor != 1<<pglease.EpochShift {
		t.Errorf("the epoch is %+v, %v", e, err)
	}
	// Later grants are also above what Advance put into a later epoch.
	if _, err := follower.AdvanceFloor(t.Context(), 5<<pglease.EpochShift+7); err != nil {
		t.Fatal(err)
	}
	if e, err := follower.Epoch(t.Context()); err != nil || e.Number != 5 || e.Base != 4 {
		t.Errorf("the epoch is %+v, %v: the next timeline's would not be above", e, err)
	}
}

// postgresTool runs one of the server's programs.
func postgresTool(t *testing.T, server *pgtest.Server, in []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(server.Bin(), name), args...)
	cmd.Env = append(os.Environ(), "PGAPPNAME="+name)
	cmd.Stdin = bytes.NewReader(in)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, errs.Bytes())
	}
	return out.Bytes()
}

// TestRestoredDump: a dump is restored into a fresh cluster, into another
// database, and over itself while a client is running. Each time every later
// token is above all that were granted, including those since the dump; without
// the epoch they repeat.
func TestRestoredDump(t *testing.T) {
	t.Parallel()
	server, fresh := startServer(t, nil), startServer(t, &pgtest.Options{Fresh: true})
	pool := dial(t, server.URL())
	if err := pglock.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	client := newTestClient(t, pool, nil)
	grant(t, client, "known", 3)
	dump := postgresTool(t, server, nil, "pg_dump", "--clean", "--if-exists", "--schema=fencepost", server.URL())
	last := map[string]guard.Token{"known": grant(t, client, "known", 5), "unheard of": grant(t, client, "unheard of", 5)}
	database, drop, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer drop()
	for i, place := range []struct{ name, url string }{
		{"fresh cluster", fresh.URL()}, {"other database", database}, {"over itself", server.URL()}, {"over itself again", server.URL()},
	} {
		t.Run(place.name, func(t *testing.T) {
			postgresTool(t, server, dump, "psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", place.url)
			restored, user := dial(t, place.url), client
			if place.url != server.URL() {
				user = newTestClient(t, restored, nil)
			}
			for resource, token := range last {
				if again := withoutEpoch(t, restored, resource); again > token && i < 3 {
					t.Errorf("%s: the control grants %v after %v: nothing was lost", resource, again, token)
				}
			}
			time.Sleep(2 * time.Millisecond)
			want := guard.Token(1<<pglease.EpochShift + 2)
			if i == 3 {
				// The dump does not contain the first restore: that is what
				// RaiseEpoch is for.
				e, err := user.RaiseEpoch(t.Context())
				if err != nil || e.Number != 2 {
					t.Fatalf("RaiseEpoch: %+v, %v", e, err)
				}
				want = 2<<pglease.EpochShift + 2
			}
			for resource, token := range last {
				if next := grant(t, user, resource, 2); next != want {
					t.Errorf("%s: token %v after %v, want %v", resource, next, token, want)
				}
			}
			var recorded string
			if err := restored.QueryRow(t.Context(), "SELECT system_identifier FROM fencepost.epoch").Scan(&recorded); err != nil {
				t.Fatal(err)
			}
			if e, err := user.Epoch(t.Context()); err != nil || e.SystemIdentifier != recorded || e.Timeline != 1 {
				t.Errorf("the epoch is %+v, %v, recorded %s", e, err, recorded)
			}
		})
	}
}

// TestEnteredOnce: clients that come to a copy at once raise its base by one,
// before any of them grants.
func TestEnteredOnce(t *testing.T) {
	t.Parallel()
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 8 })
	mustExec(t, pool, "UPDATE fencepost.epoch SET system_identifier = '1', base = 6")
	tokens := make(chan guard.Token)
	for i := range 8 {
		client := newTestClient(t, pool, nil)
		go func() {
			lease, err := client.TryAcquire(context.Background(), fmt.Sprint("r", i), &lockclient.AcquireOptions{TTL: time.Hour})
			if err != nil {
				t.Error(err)
				tokens <- 0
				return
			}
			tokens <- lease.Token()
		}()
	}
	for range 8 {
		if token := <-tokens; token != 7<<pglease.EpochShift+1 {
			t.Errorf("token %v", token)
		}
	}
}
