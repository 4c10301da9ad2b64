package pgadmin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5/pgxpool"
)

// mutate replaces part of a function of the schema.
func mutate(t *testing.T, pool *pgxpool.Pool, function, take, put string) {
	t.Helper()
	var source string
	if err := pool.QueryRow(t.Context(), `SELECT pg_get_functiondef(('fencepost.' || $1)::regproc)`, function).Scan(&source); err != nil {
		t.Fatal(err)
	}
	mutant := strings.Replace(source, take, put, 1)
	if mutant == source {
		t.Fatalf("%s has no %q", function, take)
	}
	mustExec(t, pool, mutant)
}

// TestPurge: rows that have long been free are deleted, in small batches; those
// held, free for less time or waited for stay; every later token is above the
// floor.
func TestPurge(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	if done, err := client.Purge(t.Context(), nil); err != nil || done != (lockadmin.Purged{}) {
		t.Errorf("nothing to purge: %+v, %v", done, err)
	}
	mustExec(t, pool, `INSERT INTO fencepost.leases (resource, token, expires_at)
		SELECT 'old ' || i, i, clock_timestamp() - interval '25 hours' FROM generate_series(1, 250) i`)
	mustExec(t, pool, `INSERT INTO fencepost.leases (resource, token, expires_at, lease_id, wake_until) VALUES
		('expired', 300, clock_timestamp() - interval '25 hours', 'x', NULL),
		('fresh', 9000, clock_timestamp() - interval '23 hours', NULL, NULL),
		('held', 9000, clock_timestamp() + interval '1 hour', 'y', NULL),
		('wanted', 9000, clock_timestamp() - interval '25 hours', NULL, clock_timestamp() + interval '1 hour')`)
	if _, err := client.Advance(t.Context(), "advanced", 9000); err != nil {
		t.Fatal(err)
	}
	done, err := client.Purge(t.Context(), &lockadmin.PurgeOptions{Batch: 7})
	if err != nil || done.Count != 251 || done.Floor != 300 {
		t.Errorf("got %+v, %v", done, err)
	}
	if n := countRows(t, pool); n != 5 { // with the floor
		t.Errorf("%d rows are left", n)
	}
	for _, resource := range []string{"old 7", "expired", "never seen"} {
		if next := grant(t, client, resource, 1); next != 301 {
			t.Errorf("%s: token %v", resource, next)
		}
	}
	if done, err := client.Purge(t.Context(), nil); err != nil || done.Count != 0 || done.Floor != 300 {
		t.Errorf("again: %+v, %v", done, err)
	}
}

// TestPurgeManyRows: the whole table is examined, in more than one window.
func TestPurgeManyRows(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustExec(t, pool, `INSERT INTO fencepost.leases (resource, token, expires_at)
		SELECT 'r' || i, 1 + i, CASE WHEN i % 10 = 0 THEN '-infinity' ELSE clock_timestamp() END FROM generate_series(0, 2 * $1::int + 9) i`, window)
	done, err := newTestClient(t, pool, nil).Purge(t.Context(), &lockadmin.PurgeOptions{Batch: maxBatch})
	if err != nil || done.Count != 2*window/10+1 || done.Floor != 2*window+1 {
		t.Errorf("got %+v, %v", done, err)
	}
}

func TestPurgeInvalid(t *testing.T) {
	t.Parallel()
	client := newTestClient(t, nowhere(t), nil)
	for field, opts := range map[string]lockadmin.PurgeOptions{
		"OlderThan": {OlderThan: -1}, "Batch": {Batch: maxBatch + 1}, "LockTimeout": {LockTimeout: time.Minute},
	} {
		var invalid *guard.InvalidError
		if _, err := client.Purge(t.Context(), &opts); !errors.As(err, &invalid) || invalid.Field != "PurgeOptions."+field {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// TestPurgeFails: a purge that fails is logged, deletes nothing, and the next one works.
func TestPurgeFails(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	rec := &recorder{}
	client := newTestClient(t, pool, &lockclient.Options{Logger: slog.New(slog.NewJSONHandler(rec, nil))})
	opts := &lockadmin.PurgeOptions{OlderThan: time.Millisecond}
	last := grant(t, client, "r", 3)
	time.Sleep(10 * time.Millisecond)
	mustExec(t, pool, "ALTER FUNCTION fencepost.purge_leases RENAME TO gone")
	if _, err := client.Purge(t.Context(), opts); err == nil || rec.Count("lock_purge_failed") != 1 || countRows(t, pool) != 1 {
		t.Errorf("%v, %d rows, logged %s", err, countRows(t, pool), rec.Text())
	}
	mustExec(t, pool, "ALTER FUNCTION fencepost.gone RENAME TO purge_leases")
	if done, err := client.Purge(t.Context(), opts); err != nil || done.Count != 1 || done.Floor != last || countRows(t, pool) != 1 {
		t.Errorf("%+v, %v", done, err)
	}
}

// TestPurgeBesideOpenTransaction: a transaction that stays open and has a lock on
// the table blocks the purge, not the renewals: while the purge is postponed
// repeatedly none of them waits for a lock, as the server's lock_timeout shows,
// whatever else the machine does. The control queues without a limit, and a
// renewal waits behind it.
func TestPurgeBesideOpenTransaction(t *testing.T) {
	t.Parallel()
	pool := dial(t, migrated(t).Config().ConnString(), func(c *pgxpool.Config) { c.MaxConns = 12 })
	mustExec(t, pool, `INSERT INTO fencepost.leases (resource, token, expires_at) SELECT 'old ' || i, i, '-infinity' FROM generate_series(1, 50) i`)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "UPDATE fencepost.leases SET owner = 'somebody else' WHERE resource = 'old 1'"); err != nil {
		t.Fatal(err)
	}
	lease := mustTry(t, newTuned(t, pool, 150*time.Millisecond, lockclient.Options{OpTimeout: patience}), "renewed", time.Hour)
	purger := newTestClient(t, pool, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mustExec(t, pool, "CREATE SEQUENCE public.put_off") // which no rollback undoes
	mutate(t, pool, "lock_leases", "RAISE EXCEPTION USING ERRCODE = 'lock_not_available'", "PERFORM nextval('public.put_off'); RAISE EXCEPTION USING ERRCODE = 'lock_not_available'")
	putOff := func() (times int) {
		if err := pool.QueryRow(t.Context(), "SELECT last_value FROM public.put_off").Scan(&times); err != nil {
			t.Error(err)
		}
		return times
	}
	type result struct {
		lockadmin.Purged
		err error
	}
	outcome := make(chan result, 1)
	go func() {
		done, err := purger.Purge(ctx, &lockadmin.PurgeOptions{LockTimeout: 300 * time.Millisecond}) // a renewal would wait that long behind it
		outcome <- result{done, err}
	}()
	for renewals := 0; renewals < 50 || putOff() < 4; renewals++ {
		if err := lease.Renew(t.Context()); err != nil {
			t.Fatalf("a renewal beside the purge: %v", err)
		}
	}
	cancel()
	if r := <-outcome; r.Count != 0 || r.Blocked < 3 || !errors.Is(r.err, guard.ErrUnavailable) || !strings.Contains(fmt.Sprint(r.err), "open transaction") {
		t.Errorf("the purge: %+v, %v", r.Purged, r.err)
	}

	mutate(t, pool, "lock_leases", "IF v_there IS NOT NULL THEN", "IF false THEN")
	mutate(t, pool, "lock_leases", "PERFORM set_config('lock_timeout', p_wait_ms::text, true);", "")
	client := newTestClient(t, pool, nil)
	lease = mustTry(t, client, "stalled", time.Hour)
	go func() {
		done, err := client.Purge(t.Context(), nil)
		outcome <- result{done, err}
	}()
	pgtest.Blocked(t, pool, "fencepost.purge_leases(", 1)
	stalled := make(chan error, 1)
	go func() { stalled <- lease.Renew(t.Context()) }()
	pgtest.Blocked(t, pool, "fencepost.renew(", 1) // control: the renewal, behind the queued lock
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-stalled; err != nil {
		t.Errorf("control: %v", err)
	}
	if r := <-outcome; r.err != nil || r.Count != 50 {
		t.Errorf("after the end of the transaction: %+v", r)
	}
}
