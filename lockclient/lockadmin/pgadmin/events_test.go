package pgadmin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TestOperatorEvents: each call that changes something is reported once, by its
// name, with who, what and how far; one that fails or changes nothing is not
// reported as done.
func TestOperatorEvents(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	client := newTestClient(t, pool, nil)
	rec := &recorder{}
	o, err := New(pool, &Options{OpTimeout: patience, Logger: slog.New(slog.NewJSONHandler(rec, nil)), Observer: rec})
	o.reportFor = patience
	if err != nil {
		t.Fatal(err)
	}
	lease := mustTry(t, client, "r", time.Hour)
	var done lockadmin.ForceUnlocked
	for _, step := range []struct {
		name string
		call func() error
		want map[string]any // nil: nothing is reported
	}{
		{"force unlock", func() (err error) {
			done, err = o.ForceUnlock(t.Context(), "r", "Ada", "INC-1", &lockadmin.ForceUnlockOptions{RequestID: "request"})
			return err
		}, map[string]any{"msg": "lock_force_unlocked", "level": "WARN", "resource": "r", "actorId": "Ada", "reason": "INC-1", "requestId": "request",
			"fencingToken": "2", "leaseId": lease.ID(), "ownerId": lease.Owner(), "auditId": 1.0}},
		{"force unlock of nothing", func() error {
			if _, err := o.ForceUnlock(t.Context(), "none", "Ada", "INC-2", &lockadmin.ForceUnlockOptions{RequestID: "another"}); !errors.Is(err, guard.ErrNotFound) {
				return errors.Join(errors.New("not refused"), err)
			}
			return nil
		}, map[string]any{"msg": "lock_force_unlock_failed", "level": "WARN", "resource": "none", "actorId": "Ada", "requestId": "another"}},
		{"advance", func() error { _, err := o.Advance(t.Context(), "advanced", 41); return err },
			map[string]any{"msg": "lock_advanced", "level": "INFO", "resource": "advanced", "above": "41"}},
		{"advance of what is invalid", func() error {
			if _, err := o.Advance(t.Context(), "advanced", 0); !errors.Is(err, guard.ErrInvalid) {
				return errors.Join(errors.New("not refused"), err)
			}
			return nil
		}, nil},
		{"purge of nothing", func() error { _, err := o.Purge(t.Context(), nil); return err }, nil},
		{"purge", func() error { // of what was cut nothing: its lease ID is spent for an hour
			time.Sleep(2 * time.Millisecond)
			_, err := o.Purge(t.Context(), &lockadmin.PurgeOptions{OlderThan: time.Millisecond})
			return err
		}, map[string]any{"msg": "lock_purged", "level": "INFO", "purged": 1.0, "floor": "41", "blocked": 0.0}},
		{"epoch", func() error { _, err := o.Epoch(t.Context()); return err }, nil},
		{"raise epoch", func() error { _, err := o.RaiseEpoch(t.Context()); return err },
			map[string]any{"msg": "lock_epoch_raised", "level": "INFO", "epoch": 1.0, "floor": "1099511627776", "restored": false}},
	} {
		if err := step.call(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		events, lines := rec.Take(t)
		if step.want == nil && (len(lines) != 0 || len(events) != 0) || step.want != nil && len(lines) != 1 {
			t.Errorf("%s told %v, %v", step.name, lines, events)
			continue
		}
		for key, value := range step.want {
			if lines[0][key] != value {
				t.Errorf("%s: %s is %v, expected %v", step.name, key, lines[0][key], value)
			}
		}
		switch step.name {
		case "force unlock":
			if len(events) != 1 || events[0].Op != guard.OpForceUnlock || events[0].Surface != "lock" || events[0].Claim != done.Invalidated || events[0].Err != nil || events[0].Duration <= 0 {
				t.Errorf("%s: observed %+v", step.name, events)
			}
		case "force unlock of nothing":
			if len(events) != 1 || events[0].Reason != guard.ReasonNotFound || events[0].Err == nil || events[0].Claim != (guard.Claim{Resource: "none", LeaseID: "another"}) {
				t.Errorf("%s: observed %+v", step.name, events)
			}
		}
	}
}

// TestOptionsInvalid: each is refused with its field and value, and what is left
// out has its default.
func TestOptionsInvalid(t *testing.T) {
	t.Parallel()
	pool := nowhere(t)
	for field, options := range map[string][]Options{
		"Options.OpTimeout":   {{OpTimeout: -1}, {OpTimeout: time.Millisecond - 1}, {OpTimeout: time.Hour + 1}},
		"Options.LockTimeout": {{LockTimeout: -1}, {LockTimeout: 5 * time.Second}, {OpTimeout: time.Second, LockTimeout: time.Second}, {LockTimeout: 1}},
	} {
		for i, opts := range options {
			var invalid *guard.InvalidError
			if o, err := New(pool, &opts); o != nil || !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%s %d: %v", field, i, err)
			}
		}
	}
	for _, opts := range []*Options{nil, {}, {OpTimeout: time.Millisecond}, {OpTimeout: time.Hour, LockTimeout: time.Hour - 1}, {LockTimeout: time.Millisecond}} {
		if _, err := New(pool, opts); err != nil {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	o, err := New(pool, nil)
	if err != nil || o.server.OpTimeout != 5*time.Second || o.server.LockTimeout != 2*time.Second || o.server.Logger != slog.Default() || !o.server.Operator {
		t.Errorf("the defaults are %+v, %v", o, err)
	}
	if o, err := New(pool, &Options{OpTimeout: time.Second}); err != nil || o.server.LockTimeout != 750*time.Millisecond {
		t.Errorf("three quarters: %v, %v", o.server.LockTimeout, err)
	}
}

// TestUnanswered: every call fails if the server cannot be reached, and returns
// nothing else.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	closed := dial(t, pool.Config().ConnString())
	closed.Close()
	o := newRoleOperator(t, closed)
	cause := errors.New("the operator's own")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	ended := newRoleOperator(t, pool)
	for name, call := range map[string]func(ctx context.Context, o *Operator) (any, error){
		"inspect": func(ctx context.Context, o *Operator) (any, error) {
			found, err := o.Inspect(ctx)
			return len(found) != 0, err
		},
		"get": func(ctx context.Context, o *Operator) (any, error) {
			info, err := o.Get(ctx, "r")
			return info.Resource, err
		},
		"list": func(ctx context.Context, o *Operator) (any, error) {
			got, err := all(o.List(ctx, "", nil))
			return len(got) != 0, err
		},
		"audit": func(ctx context.Context, o *Operator) (any, error) {
			got, err := all(o.Audit(ctx, "", nil))
			return len(got) != 0, err
		},
		"epoch": func(ctx context.Context, o *Operator) (any, error) {
			got, err := o.Epoch(ctx)
			return got.SystemIdentifier, err
		},
		"raise epoch": func(ctx context.Context, o *Operator) (any, error) {
			got, err := o.RaiseEpoch(ctx)
			return got.SystemIdentifier, err
		},
		"advance": func(ctx context.Context, o *Operator) (any, error) {
			got, err := o.Advance(ctx, "r", 5)
			return got != guard.NoToken, err
		},
		"advance floor": func(ctx context.Context, o *Operator) (any, error) {
			got, err := o.AdvanceFloor(ctx, 5)
			return got != guard.NoToken, err
		},
		"purge": func(ctx context.Context, o *Operator) (any, error) {
			got, err := o.Purge(ctx, nil)
			return got.Count != 0, err
		},
		"force unlock": func(ctx context.Context, o *Operator) (any, error) {
			got, err := o.ForceUnlock(ctx, "r", "a", "b", nil)
			return got.Invalidated.Resource, err
		},
	} {
		for what, got := range map[string]func() (any, error){
			"closed":    func() (any, error) { return call(t.Context(), o) },
			"cancelled": func() (any, error) { return call(cancelled, ended) },
		} {
			value, err := got()
			if !errors.Is(err, guard.ErrUnavailable) || value != "" && value != false || (what == "cancelled") != errors.Is(err, cause) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, %s: %v, %v", name, what, value, err)
			}
		}
	}
	repeatable := newRoleOperator(t, dial(t, pool.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	}))
	_, raised := repeatable.RaiseEpoch(t.Context())
	_, advanced := repeatable.Advance(t.Context(), "r", 5)
	for _, err := range []error{raised, advanced} {
		if !errors.Is(err, guard.ErrUnavailable) || !strings.Contains(err.Error(), "isolation") {
			t.Errorf("repeatable read: %v", err)
		}
	}
	if n := countRows(t, pool); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	mustExec(t, pool, "DROP SCHEMA fencepost CASCADE")
	if _, err := newRoleOperator(t, pool).Get(t.Context(), "r"); !errors.Is(err, guard.ErrSetup) || pglease.Error(err) == nil {
		t.Errorf("without the schema: %v", err)
	}
}

// TestFindings: each problem is found on its own, with its severity, and a value
// at its bound is not a problem.
func TestFindings(t *testing.T) {
	t.Parallel()
	build := pglease.Schema().Version()
	fine := func() inspection {
		return inspection{schema: build, usable: build, isolation: "read committed", readOnly: "off", fsync: "on", fullPageWrites: "on", synchronousCommit: "on"}
	}
	all := len(new(inspection).findings())
	for name, test := range map[string]struct {
		change func(in *inspection)
		want   []string // severity and setting
		says   string
	}{
		"nothing":          {func(*inspection) {}, nil, ""},
		"a standby":        {func(in *inspection) { in.standby, in.readOnly = true, "on" }, []string{"error standby"}, "standby"},
		"read only":        {func(in *inspection) { in.readOnly = "on" }, []string{"error default_transaction_read_only"}, "nothing can be written"},
		"no schema":        {func(in *inspection) { in.schema = 0 }, []string{"error schema lockclient"}, "no schema"},
		"an older schema":  {func(in *inspection) { in.schema, in.usable = build-1, build-1 }, []string{"error schema lockclient"}, fmt.Sprintf("has version %d, this build needs %d", build-1, build)},
		"a newer schema":   {func(in *inspection) { in.schema, in.usable = build+1, build+1 }, []string{"error schema lockclient"}, fmt.Sprintf("has version %d, this build knows %d", build+1, build)},
		"a newer, usable":  {func(in *inspection) { in.schema = build + 1 }, nil, ""},
		"isolation":        {func(in *inspection) { in.isolation = "serializable" }, []string{"error default_transaction_isolation"}, `"serializable"`},
		"fsync":            {func(in *inspection) { in.fsync = "off" }, []string{"error fsync"}, "again"},
		"full pages":       {func(in *inspection) { in.fullPageWrites = "off" }, []string{"warning full_page_writes"}, "damage"},
		"commit off":       {func(in *inspection) { in.synchronousCommit = "off" }, []string{"warning synchronous_commit"}, `"off"`},
		"commit local":     {func(in *inspection) { in.synchronousCommit = "local" }, []string{"warning synchronous_commit"}, `"local"`},
		"commit applied":   {func(in *inspection) { in.synchronousCommit = "remote_apply" }, nil, ""},
		"hidden":           {func(in *inspection) { in.hidden = "no timeline" }, []string{"warning timeline"}, "no timeline"},
		"pooled":           {func(in *inspection) { in.pooled = true }, []string{"warning pooler"}, "poll"},
		"a blocker":        {func(in *inspection) { in.blocker = 4711 }, []string{"warning blocker"}, "process 4711"},
		"locked":           {func(in *inspection) { in.locker, in.lockerWaitsFor = 4711, []int32{42} }, []string{"error locked"}, "process 4711 has or awaits a lock that keeps everybody out of the leases, as VACUUM FULL, CLUSTER and ALTER TABLE do; it waits for [42]"},
		"row security":     {func(in *inspection) { in.rowSecurity = []string{"leases", "spent"} }, []string{"error row-level security"}, "leases, spent"},
		"an old snapshot":  {func(in *inspection) { in.snapshot, in.snapshotAge = 4711, time.Minute+1 }, []string{"warning old snapshot"}, "process 4711 has a snapshot for 1m0s"},
		"a snapshot":       {func(in *inspection) { in.snapshot, in.snapshotAge = 4711, time.Minute }, nil, ""},
		"a clock set back": {func(in *inspection) { in.ahead = 3 }, []string{"warning clock set back"}, ": 3;"},
		"several":          {func(in *inspection) { in.pooled, in.schema, in.ahead, in.fsync = true, 0, 1, "off" }, []string{"error schema lockclient", "warning pooler", "error fsync", "warning clock set back"}, "no schema"},
	} {
		in := fine()
		test.change(&in)
		found := in.findings()
		bad := problems(found)
		var got []string
		for _, f := range bad {
			got = append(got, string(f.Severity)+" "+f.Setting)
			if f.Remedy == "" {
				t.Errorf("%s: no remedy: %+v", name, f)
			}
		}
		if !slices.Equal(got, test.want) || len(bad) > 0 && !strings.Contains(bad[0].Detail, test.says) || len(found) != all {
			t.Errorf("%s: %+v, expected %q", name, found, test.want)
		}
	}
}

// problems are those of the findings that say that something is wrong.
func problems(found []lockadmin.Finding) []lockadmin.Finding {
	return slices.DeleteFunc(slices.Clone(found), func(f lockadmin.Finding) bool { return f.Severity == lockadmin.SeverityOK })
}

// of returns the finding about a setting.
func of(t testing.TB, found []lockadmin.Finding, setting string) lockadmin.Finding {
	t.Helper()
	i := slices.IndexFunc(found, func(f lockadmin.Finding) bool { return f.Setting == setting })
	if i < 0 {
		t.Fatalf("nothing is said of %s: %+v", setting, found)
	}
	return found[i]
}

// TestNobodyWaitsForReports: a force unlock returns the claim that it has invalidated, for
// the raise that stops the cut holder, although the logger and the observer block.
func TestNobodyWaitsForReports(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	mustTry(t, newTestClient(t, pool, nil), "r", time.Hour)
	gate := make(chan struct{})
	c := clogged{gate, &sync.WaitGroup{}}
	c.calls.Add(2)
	o, err := New(pool, &Options{OpTimeout: patience, Logger: slog.New(slog.NewTextHandler(c, nil)), Observer: c})
	if err != nil {
		t.Fatal(err)
	}
	if done, err := o.ForceUnlock(t.Context(), "r", "ana", "it hangs", nil); err != nil || done.Invalidated.Token != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	close(gate)
	c.calls.Wait()
}

// clogged is a logger and an observer that block, on a full pipe for example.
type clogged struct {
	until chan struct{}
	calls *sync.WaitGroup
}

func (c clogged) Write(b []byte) (int, error)          { <-c.until; c.calls.Done(); return len(b), nil }
func (c clogged) Observe(context.Context, guard.Event) { <-c.until; c.calls.Done() }
