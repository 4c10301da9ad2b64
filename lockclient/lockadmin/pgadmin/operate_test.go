package pgadmin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestAudit: records by pattern, by time and in pages, the latest first.
func TestAudit(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client, o := newTestClient(t, pool, nil), newRoleOperator(t, pool)
	var times []time.Time
	for _, resource := range []string{"a:1", "a:2", "a%", "b", "a:1"} {
		grant(t, client, resource, 1)
		done, err := o.ForceUnlock(t.Context(), resource, "Ada", "number "+resource, nil)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, done.At)
	}
	read := func(pattern string, from, to time.Time, limit int) (resources []string) {
		if limit == 0 {
			for r, err := range o.Audit(t.Context(), pattern, &lockadmin.AuditOptions{From: from, To: to}) {
				if err != nil {
					t.Fatal(err)
				}
				resources = append(resources, r.Resource)
			}
			return resources
		}
		q, err := o.auditQuery(pattern, &lockadmin.AuditOptions{From: from, To: to})
		if err != nil {
			t.Fatal(err)
		}
		for {
			page, err := o.records(t.Context(), q, limit)
			if err != nil || len(page) > limit {
				t.Fatal(len(page), err)
			}
			for _, r := range page {
				resources, q.Before = append(resources, r.Resource), r.ID
			}
			if len(page) < limit {
				return resources
			}
		}
	}
	latest := auditOf(t, o, "")
	for i, r := range latest { // continue from any record
		rest, err := all(o.Audit(t.Context(), "", &lockadmin.AuditOptions{Before: r.ID}))
		if err != nil || !slices.Equal(rest, latest[i+1:]) {
			t.Errorf("before %d: %+v, %v", r.ID, rest, err)
		}
	}
	never := time.Time{}
	for what, test := range map[string]struct{ got, want []string }{
		"all":           {read("", never, never, 0), []string{"a:1", "b", "a%", "a:2", "a:1"}},
		"pages of one":  {read("", never, never, 1), []string{"a:1", "b", "a%", "a:2", "a:1"}},
		"pages of five": {read("", never, never, 5), []string{"a:1", "b", "a%", "a:2", "a:1"}},
		"pattern":       {read("a", never, never, 2), []string{"a:1", "a:2", "a:1"}},
		"no wildcard":   {read("a%", never, never, 0), []string{"a%"}},
		"from is in":    {read("", times[3], never, 0), []string{"a:1", "b"}},
		"to is out":     {read("", never, times[1], 0), []string{"a:1"}},
		"between":       {read("a*", times[1], times[4], 1), []string{"a%", "a:2"}},
		"another zone":  {read("", times[3].In(time.FixedZone("", 3600)), never, 0), []string{"a:1", "b"}},
		"nothing":       {read("c", never, never, 0), nil},
		"in the future": {read("", times[4].Add(time.Hour), never, 0), nil},
		"by one's name": {read("b", times[0], times[4], 0), []string{"b"}},
	} {
		if !slices.Equal(test.got, test.want) {
			t.Errorf("%s: %q, want %q", what, test.got, test.want)
		}
	}
}

// TestReclaimedIsNotReleased: of grants that wait for the row, those that follow
// a release are not reported as reclaimed.
func TestReclaimedIsNotReleased(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	var seen leasetest.Tally
	c := newTestClient(t, pool, &lockclient.Options{Observer: &seen})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				l, err := c.Acquire(context.Background(), "r", &lockclient.AcquireOptions{TTL: time.Hour})
				if err != nil {
					t.Error(err)
					return
				}
				if err := l.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	testkit.Eventually(t, "the events, which come later", func() bool {
		return seen.Count(guard.OpAcquire) == 100 && seen.Count(guard.OpRelease) == 100
	})
	if got := seen.Text(); strings.Contains(got, "reclaim") {
		t.Error(got)
	}
}

// TestInspect: each problem is found, by its setting, and nothing else.
func TestInspect(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	grant(t, newTestClient(t, owner, nil), "r", 1)
	expected := []string{}
	found, err := newRoleOperator(t, owner).Inspect(t.Context())
	if err != nil || !strings.HasPrefix(of(t, found, "server").Detail, "PostgreSQL 1") || of(t, found, lockadmin.SettingSchema).Detail != fmt.Sprint("version ", pglease.Schema().Version()) ||
		!strings.HasPrefix(of(t, found, "timeline").Detail, "1, so failovers are noticed; stored epoch base 0") {
		t.Errorf("%+v, %v", found, err)
	} else if of(t, found, "fsync").Detail != "on" { // as on a private server
		expected = append(expected, "fsync")
	}
	with := func(parameters map[string]string) *pgxpool.Pool {
		return dial(t, owner.Config().ConnString(), func(c *pgxpool.Config) {
			for key, value := range parameters {
				c.ConnConfig.RuntimeParams[key] = value
			}
		})
	}
	open, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback(t.Context())
	for what, test := range map[string]struct {
		pool    *pgxpool.Pool
		prepare string
		found   []string
	}{
		"nothing":    {owner, "", nil},
		"isolation":  {with(map[string]string{"default_transaction_isolation": "serializable"}), "", []string{"default_transaction_isolation"}},
		"read only":  {with(map[string]string{"default_transaction_read_only": "on"}), "", []string{"default_transaction_read_only"}},
		"not synced": {with(map[string]string{"synchronous_commit": "off"}), "", []string{"synchronous_commit"}},
		"newer":      {owner, "INSERT INTO fencepost.migrations (component, version, name) VALUES ('lockclient', 99, 'later')", []string{lockadmin.SettingSchema, "schema objects"}},
		"none":       {owner, "ALTER SCHEMA fencepost RENAME TO hidden", []string{lockadmin.SettingSchema, "schema objects", "timeline", "clock set back"}},
	} {
		undo := map[string]string{
			"newer": "DELETE FROM fencepost.migrations WHERE version = 99", "none": "ALTER SCHEMA hidden RENAME TO fencepost",
		}[what]
		mustExec(t, owner, test.prepare)
		before := test.found
		all, err := newRoleOperator(t, test.pool).Inspect(t.Context())
		mustExec(t, owner, undo)
		var found []string
		for _, f := range problems(all) {
			found = append(found, f.Setting)
		}
		want := append(slices.Clone(expected), before...)
		slices.Sort(found)
		slices.Sort(want)
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("%s: found %q, want %q, %v", what, found, want, err)
		}
	}
	step := func(by string) { // as a step of the server's clock the other way would
		mustExec(t, owner, "UPDATE fencepost.leases SET acquired_at = acquired_at + $1::text::interval WHERE resource = 'stepped'", by)
	}
	mustTry(t, newTestClient(t, owner, nil), "stepped", time.Hour)
	step("2 hours")
	setBack := func() lockadmin.Finding {
		t.Helper()
		found, err := newRoleOperator(t, owner).Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return of(t, found, "clock set back")
	}
	if f := setBack(); f.Severity != lockadmin.SeverityWarning || !strings.Contains(f.Detail, ": 1;") {
		t.Errorf("a clock that was set back: %+v", f)
	}
	if info, err := newRoleOperator(t, owner).Get(t.Context(), "stepped"); err != nil || info.HeldFor > -time.Hour {
		t.Errorf("held for %v, %v", info.HeldFor, err)
	}
	step("-2 hours")
	if f := setBack(); f.Severity != lockadmin.SeverityOK {
		t.Errorf("control: %+v", f)
	}
	if _, err := open.Exec(t.Context(), "UPDATE fencepost.leases SET owner = owner"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the open transaction is seen", func() bool {
		found, err := newRoleOperator(t, owner).Inspect(t.Context())
		return err == nil && strings.HasPrefix(of(t, found, "blocker").Detail, fmt.Sprintf("server process %d (idle in transaction) has had", open.Conn().PgConn().PID()))
	})
	closed := dial(t, owner.Config().ConnString())
	closed.Close()
	if _, err := newRoleOperator(t, closed).Inspect(t.Context()); !errors.Is(err, guard.ErrUnavailable) {
		t.Errorf("closed: %v", err)
	}
}

// renumbered gives the client a process number other than the server's, as a
// pooler does.
type renumbered struct {
	server  io.Reader
	message []byte // what is left of it
}

func (r *renumbered) Read(p []byte) (int, error) {
	if len(r.message) == 0 {
		head := make([]byte, 5) // its kind, and its length without the kind
		if _, err := io.ReadFull(r.server, head); err != nil {
			return 0, err
		}
		r.message = append(head, make([]byte, binary.BigEndian.Uint32(head[1:])-4)...)
		if _, err := io.ReadFull(r.server, r.message[5:]); err != nil {
			return 0, err
		}
		if head[0] == 'K' { // BackendKeyData
			binary.BigEndian.PutUint32(r.message[5:], 1)
		}
	}
	n := copy(p, r.message)
	r.message = r.message[n:]
	return n, nil
}

// TestInspectBehindPooler: a process number other than the server's is noticed.
func TestInspectBehindPooler(t *testing.T) {
	t.Parallel()
	owner := migrated(t)
	pool := dial(t, owner.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
			return pgproto3.NewFrontend(&renumbered{server: r}, w)
		}
	})
	found, err := newRoleOperator(t, pool).Inspect(t.Context())
	if err != nil || of(t, found, "pooler").Severity != lockadmin.SeverityWarning {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestNoPool: an operator without a pool is refused.
func TestNoPool(t *testing.T) {
	t.Parallel()
	if o, err := New(nil, nil); o != nil || !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("no pool: %v", err)
	}
}
