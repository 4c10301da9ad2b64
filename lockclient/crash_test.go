package lockclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/pglock"

	"github.com/jackc/pgx/v5/pgxpool"
)

// acknowledged is what was acknowledged to a client about one resource.
type acknowledged struct {
	token   guard.Token
	expires time.Time // not before this, by this machine's wall clock
	live    bool      // granted, and no release was begun
	last    error     // the error that ended the worker
	after   bool      // a call that began after the server was gone succeeded
}

// TestServerKilled: a server whose default is synchronous_commit=off is killed
// in the middle of acquires, renewals and releases. No failure is reported as a
// success; what was granted and renewed is there afterwards, and the next token
// is higher.
func TestServerKilled(t *testing.T) {
	expectNoGoroutines(t)
	server := forgetful(t)
	pool := dial(t, server.URL(), func(c *pgxpool.Config) { c.MaxConns = 16 })
	testkit.Must(t, pglock.Migrate(t.Context(), pool))
	client := newTuned(t, pool, pglock.Options{RenewConns: 8}, &Options{OpTimeout: 800 * time.Millisecond})
	patient := newTestClient(t, pool, nil)
	var last [4]guard.Token
	for round := range byLength(2, 5) { // for both ways to end
		var gone atomic.Bool
		var told [4]acknowledged
		var wg, first sync.WaitGroup
		first.Add(len(told))
		for i := range told {
			wg.Go(func() { told[i] = hammer(client, fmt.Sprintf("r%d", i), &first, &gone) })
		}
		first.Wait()
		stop := server.Kill
		if round%2 == 1 {
			stop = server.StopImmediate // which waits for the stopped processes
		} else {
			holdBack(t, pool)
		}
		time.Sleep(time.Duration(30+rand.IntN(70)) * time.Millisecond)
		testkit.Must(t, stop())
		gone.Store(true)
		wg.Wait()
		testkit.Must(t, server.Restart(t.Context()))
		pool.Reset()
		for i, a := range told {
			resource := fmt.Sprintf("r%d", i)
			if reason := guard.ReasonOf(a.last); a.after || reason != guard.ReasonUnavailable && reason != guard.ReasonOutcomeUnknown {
				t.Errorf("round %d, %s: after the kill %t, %v", round, resource, a.after, a.last)
			}
			if a.token <= last[i] {
				t.Errorf("round %d, %s: token %v, and %v in the round before", round, resource, a.token, last[i])
			}
			r := rowOf(t, pool, resource)
			if r.Token < int64(a.token) {
				t.Errorf("round %d, %s: token %v was granted, the row has %d", round, resource, a.token, r.Token)
			}
			if a.live && (!r.Live || r.ExpiresAt.Before(a.expires)) {
				t.Errorf("round %d, %s: granted up to %v, the row is %+v", round, resource, a.expires, r)
			}
			mustExec(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = $1", resource)
			next := mustTry(t, patient, resource, time.Hour)
			if next.Token() <= a.token {
				t.Errorf("round %d, %s: token %v was granted, then %v", round, resource, a.token, next.Token())
			}
			last[i] = next.Token()
			testkit.Check(t, next.Release(t.Context()))
		}
	}
}

// hammer acquires, renews and releases until something fails.
func hammer(client *Client, resource string, first *sync.WaitGroup, gone *atomic.Bool) (a acknowledged) {
	ctx := context.Background()
	const ttl = time.Hour
	began := sync.OnceFunc(first.Done)
	defer began()
	for {
		sent, late := time.Now(), gone.Load()
		lease, err := client.TryAcquire(ctx, resource, &AcquireOptions{TTL: ttl})
		if err != nil && a.token == guard.NoToken && !gone.Load() {
			continue // a busy machine: the kill waits for a first grant
		}
		if err != nil {
			a.last = err
			return a
		}
		a.token, a.expires, a.live = lease.Token(), sent.Add(ttl), true
		began()
		a.after = a.after || late
		for range 3 {
			sent, late = time.Now(), gone.Load()
			if err := lease.Renew(ctx); err != nil {
				a.last = err
				return a
			}
			a.expires, a.after = sent.Add(ttl), a.after || late
		}
		a.live, late = false, gone.Load()
		if err := lease.Release(ctx); err != nil {
			a.last = err
			return a
		}
		a.after = a.after || late
	}
}

// TestKilledControl: without the raise the same server issues an acknowledged
// token again after a kill, so the test above would notice.
func TestKilledControl(t *testing.T) {
	t.Parallel()
	server := forgetful(t)
	pool := dial(t, server.URL())
	testkit.Must(t, pglock.Migrate(t.Context(), pool))
	alter(t, pool, "acquire", "IN ('off', 'local')", "IN ('none')")
	mustExec(t, pool, "CHECKPOINT")
	grant := func() (token int64) {
		err := pool.QueryRow(t.Context(), grantSQL, grantArgs("r", input.NewLeaseID(), time.Microsecond)...).Scan(&token)
		testkit.Must(t, err)
		return token
	}
	holdBack(t, pool)
	before := grant()
	testkit.Must(t, server.Kill())
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	if after := grant(); after > before {
		t.Errorf("token %d, then %d: the kill loses nothing on this server", before, after)
	}
}

// TestServerAway: nothing is sent to a server that is down, renewals and
// releases included, and the lease is held up to its deadline.
func TestServerAway(t *testing.T) {
	expectNoGoroutines(t)
	server := forgetful(t)
	pool := dial(t, server.URL())
	testkit.Must(t, pglock.Migrate(t.Context(), pool))
	client := newTestClient(t, pool, nil)
	lease := mustTry(t, client, "r", time.Hour)
	testkit.Must(t, server.StopFast())
	pool.Reset()
	_, acquired := client.TryAcquire(t.Context(), "r", &AcquireOptions{TTL: time.Hour})
	for what, err := range map[string]error{"acquire": acquired, "renew": lease.Renew(t.Context())} {
		if !errors.Is(err, guard.ErrUnavailable) || errors.Is(err, guard.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !lease.Valid() {
		t.Error("the lease is over")
	}
	if err := lease.Release(t.Context()); !errors.Is(err, guard.ErrUnavailable) || lease.Valid() {
		t.Errorf("release: %v", err)
	}
	testkit.Must(t, server.Restart(t.Context()))
	if err := lease.Release(t.Context()); err != nil || rowOf(t, pool, "r").Live {
		t.Errorf("release again: %v, row %+v", err, rowOf(t, pool, "r"))
	}
}

// forgetful is a server that acknowledges before it writes to disk, and writes
// as late as it can.
func forgetful(t *testing.T) *pgtest.Server {
	t.Helper()
	server, err := pgtest.Start(t.Context(), &pgtest.Options{Settings: map[string]string{
		"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off",
		"wal_buffers": "32MB", // more than a test writes: a session whose buffers are full writes them
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	return server
}

// holdBack stops the processes of a forgetful server that write to its log on
// their own. From then on a kill loses exactly what nobody waited for; without
// this it depends on when the kill comes. Kill ends stopped processes too.
func holdBack(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var pids []string
	testkit.Eventually(t, "three processes that write, which start with the first sessions", func() bool {
		err := pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(pid::text), '{}') FROM pg_stat_activity
			WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')`).Scan(&pids)
		return err == nil && len(pids) == 3
	})
	mustExec(t, pool, "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; kill -STOP "+strings.Join(pids, " ")+"'")
}
