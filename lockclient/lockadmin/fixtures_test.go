package lockadmin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/lockclient"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// patience is what tests wait where a limit is there to end a hang.
const patience = time.Minute

// Client is a process that holds leases and an operator of the same namespace.
type Client struct {
	*lockclient.Client
	*Operator
}

// newTestClient returns a client and an operator whose limits a busy machine keeps
// as well, where opts do not set them.
func newTestClient(t testing.TB, pool *pgxpool.Pool, opts *lockclient.Options) *Client {
	t.Helper()
	var o lockclient.Options
	if opts != nil {
		o = *opts
	}
	if o.OpTimeout == 0 {
		o.OpTimeout, o.LockTimeout = patience, cmp.Or(o.LockTimeout, patience/2)
	}
	c, err := lockclient.New(pool, "owner of "+t.Name()[:min(len(t.Name()), 80)], &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	op, err := New(pool, &Options{
		Logger: o.Logger, Observer: o.Observer, Namespace: o.Namespace, OpTimeout: o.OpTimeout, LockTimeout: o.LockTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Client{c, op}
}

// migrated returns a pool on a fresh database that has the schema.
func migrated(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := lockclient.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// dial returns a pool on url, changed by the given functions.
func dial(t testing.TB, url string, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// runOut ends a lease by the server's clock, as its TTL would.
func runOut(t testing.TB, pool *pgxpool.Pool, resource string) {
	t.Helper()
	mustExec(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = $1", resource)
}

func mustTry(t testing.TB, c *Client, resource string, ttl time.Duration) *lockclient.Lease {
	t.Helper()
	lease, err := c.TryAcquire(t.Context(), resource, &lockclient.AcquireOptions{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func countRows(t testing.TB, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM fencepost.leases`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func mustExec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// byLength returns how much a test does: the long form is asked for by
// FENCEPOST_LONG=1, which the children of a test inherit.
func byLength(short, long int) int {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return short
}

// eventually waits for as long as it takes on a busy machine.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", 2*patience, what)
		}
	}
}

// waiting waits until so many connections of the database wait for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, "they wait for a lock", func() bool {
		var now int
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND backend_type = 'client backend'`).Scan(&now)
		return err == nil && now == n
	})
}

// row is a line of fencepost.leases.
type row struct {
	Resource, Owner       string
	Token                 int64
	LeaseID               *string
	AcquiredAt, ExpiresAt time.Time
	Live                  bool // by the server's clock
}

func rowOf(t testing.TB, pool *pgxpool.Pool, resource string) row {
	t.Helper()
	var r row
	err := pool.QueryRow(context.Background(), `SELECT resource, owner, token, lease_id, CASE WHEN isfinite(acquired_at) THEN acquired_at ELSE 'epoch' END, expires_at,
		lease_id IS NOT NULL AND expires_at > clock_timestamp() FROM fencepost.leases WHERE resource = $1`, resource).
		Scan(&r.Resource, &r.Owner, &r.Token, &r.LeaseID, &r.AcquiredAt, &r.ExpiresAt, &r.Live)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// recorder keeps events and log lines.
type recorder struct {
	mu     sync.Mutex
	events []guard.Event
	log    bytes.Buffer
}

func (r *recorder) Observe(_ context.Context, e guard.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

// take returns what was recorded and forgets it.
func (r *recorder) take(t *testing.T) (events []guard.Event, lines []map[string]any) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	events, r.events = r.events, nil
	for dec := json.NewDecoder(&r.log); ; {
		var line map[string]any
		if err := dec.Decode(&line); err == io.EOF {
			return events, lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
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

// holdBack stops the processes of a forgetful server that write to its log by
// themselves. From then on a kill loses exactly what nobody waited for; without
// this it depends on when the kill comes. Kill ends stopped processes as well.
func holdBack(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var pids []string
	for end := time.Now().Add(time.Minute); len(pids) != 3; { // they start beside the first sessions
		if time.Now().After(end) {
			t.Fatalf("processes %v", pids)
		}
		err := pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(pid::text), '{}') FROM pg_stat_activity
			WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')`).Scan(&pids)
		if err != nil {
			t.Fatal(err)
		}
	}
	mustExec(t, pool, "COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; kill -STOP "+strings.Join(pids, " ")+"'")
}

// happening is one change of a lease's row, written down by a trigger while the
// row was locked: the order is that of the changes, the times are the server's.
type happening struct {
	Token                 int64
	LeaseID               *string
	Before                *string // the lease ID before the change
	TokenBefore           *int64
	AcquiredAt, ExpiresAt time.Time
	LoggedAt              time.Time
}

// watchHistory has every change of table written down.
func watchHistory(t testing.TB, pool *pgxpool.Pool, table string) {
	t.Helper()
	mustExec(t, pool, `CREATE TABLE history (seq bigserial PRIMARY KEY, resource text, token bigint, lease_id text,
		before text, token_before bigint, acquired_at timestamptz, expires_at timestamptz, logged_at timestamptz)`)
	mustExec(t, pool, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.history (resource, token, lease_id, before, token_before, acquired_at, expires_at, logged_at)
		VALUES (NEW.resource, NEW.token, NEW.lease_id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.lease_id END,
		        CASE WHEN TG_OP = 'UPDATE' THEN OLD.token END, NEW.acquired_at, NEW.expires_at, clock_timestamp());
		RETURN NULL; END $$`)
	mustExec(t, pool, `CREATE TRIGGER note AFTER INSERT OR UPDATE ON `+table+` FOR EACH ROW EXECUTE FUNCTION note()`)
}

func history(t testing.TB, pool *pgxpool.Pool, resource string) []happening {
	t.Helper()
	rows, err := pool.Query(context.Background(), `SELECT token, lease_id, before, token_before, acquired_at, expires_at, logged_at
		FROM history WHERE resource = $1 ORDER BY seq`, resource)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h happening, err error) {
		err = row.Scan(&h.Token, &h.LeaseID, &h.Before, &h.TokenBefore, &h.AcquiredAt, &h.ExpiresAt, &h.LoggedAt)
		return h, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// granted is what the server granted, by lease ID.
type granted map[string]int64

// checkHistory says what is wrong with the history of one resource: tokens must
// grow strictly from grant to grant, one lease ID has one token, and no lease
// begins before the one before it was released or ran out.
func checkHistory(all []happening) (grants granted, problems []string) {
	grants = granted{}
	var last int64
	var end time.Time // when the current lease ends
	for i, h := range all {
		switch {
		case h.LeaseID == nil: // released
			if h.Token < last {
				problems = append(problems, fmt.Sprintf("change %d: a release lowers the token from %d to %d", i, last, h.Token))
			}
		case h.Before != nil && *h.Before == *h.LeaseID && h.TokenBefore != nil && *h.TokenBefore == h.Token:
			if h.LoggedAt.After(end) && h.AcquiredAt.Before(end) {
				problems = append(problems, fmt.Sprintf("change %d: token %d was renewed %v after its end", i, h.Token, h.LoggedAt.Sub(end)))
			}
		default: // granted
			if h.Token <= last {
				problems = append(problems, fmt.Sprintf("change %d: token %d granted after %d", i, h.Token, last))
			}
			if h.AcquiredAt.Before(end) {
				problems = append(problems, fmt.Sprintf("change %d: token %d granted %v before the end of %d", i, h.Token, end.Sub(h.AcquiredAt), last))
			}
			if token, ok := grants[*h.LeaseID]; ok && token == h.Token {
				problems = append(problems, fmt.Sprintf("change %d: token %d granted twice to %s", i, h.Token, *h.LeaseID))
			}
			grants[*h.LeaseID] = h.Token
			last = max(last, h.Token)
		}
		end = h.ExpiresAt
	}
	return grants, problems
}
