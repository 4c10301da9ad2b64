package lockadmin

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
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
	if err != nil {
		t.Fatal(err)
	}
	lease := mustTry(t, client, "r", time.Hour)
	var done ForceUnlocked
	for _, step := range []struct {
		name string
		call func() error
		want map[string]any // nil: nothing is reported
	}{
		{"force unlock", func() (err error) {
			done, err = o.ForceUnlock(t.Context(), "r", "Ada", "INC-1", &ForceUnlockOptions{RequestID: "request"})
			return err
		}, map[string]any{"msg": "lock_force_unlocked", "level": "WARN", "resource": "r", "actor": "Ada", "reason": "INC-1", "requestId": "request",
			"fencingToken": "2", "leaseId": lease.ID(), "ownerId": lease.Owner(), "auditId": 1.0}},
		{"force unlock of nothing", func() error {
			if _, err := o.ForceUnlock(t.Context(), "none", "Ada", "INC-2", &ForceUnlockOptions{RequestID: "another"}); !errors.Is(err, guard.ErrNotFound) {
				return errors.Join(errors.New("not refused"), err)
			}
			return nil
		}, map[string]any{"msg": "lock_force_unlock_failed", "level": "WARN", "resource": "none", "actor": "Ada", "requestId": "another"}},
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
			_, err := o.Purge(t.Context(), &PurgeOptions{OlderThan: time.Millisecond})
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
		"Options.Namespace":   {{Namespace: "\x00"}},
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
// nothing else; an empty Inspection does not count as a result.
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
			in, err := o.Inspect(ctx)
			return in.Server + in.User, err
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
			if !errors.Is(err, guard.ErrUnavailable) || value != "" && value != false || (what == "cancelled") != errors.Is(err, cause) {
				t.Errorf("%s, %s: %v, %v", name, what, value, err)
			}
		}
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
	fine := func() Inspection {
		return Inspection{Schema: 2, SchemaWanted: 2, DefaultIsolation: "read committed", DefaultReadOnly: "off", Fsync: "on", FullPageWrites: "on", SynchronousCommit: "on"}
	}
	for name, test := range map[string]struct {
		change func(in *Inspection)
		want   []string // severity and setting, the worst first
		says   string
	}{
		"nothing":            {func(*Inspection) {}, nil, ""},
		"a standby":          {func(in *Inspection) { in.Standby, in.DefaultReadOnly = true, "on" }, []string{"error standby"}, "standby"},
		"read only":          {func(in *Inspection) { in.DefaultReadOnly = "on" }, []string{"error default_transaction_read_only"}, "nothing can be written"},
		"no schema":          {func(in *Inspection) { in.Schema = 0 }, []string{"error schema"}, "no schema"},
		"an older schema":    {func(in *Inspection) { in.Schema = 1 }, []string{"error schema"}, "has version 1, this build needs 2"},
		"a newer schema":     {func(in *Inspection) { in.Schema = 3 }, []string{"error schema"}, "has version 3, this build knows 2"},
		"a newer, usable":    {func(in *Inspection) { in.Schema, in.SchemaUsable = 3, true }, nil, ""},
		"isolation":          {func(in *Inspection) { in.DefaultIsolation = "serializable" }, []string{"error default_transaction_isolation"}, `"serializable"`},
		"fsync":              {func(in *Inspection) { in.Fsync = "off" }, []string{"error fsync"}, "again"},
		"full pages":         {func(in *Inspection) { in.FullPageWrites = "off" }, []string{"warning full_page_writes"}, "damage"},
		"commit off":         {func(in *Inspection) { in.SynchronousCommit = "off" }, []string{"warning synchronous_commit"}, `"off"`},
		"commit local":       {func(in *Inspection) { in.SynchronousCommit = "local" }, []string{"warning synchronous_commit"}, `"local"`},
		"commit applied":     {func(in *Inspection) { in.SynchronousCommit = "remote_apply" }, nil, ""},
		"hidden":             {func(in *Inspection) { in.Hidden = "no timeline" }, []string{"warning timeline"}, "no timeline"},
		"pooled":             {func(in *Inspection) { in.Pooled = true }, []string{"warning pooler"}, "poll"},
		"a blocker":          {func(in *Inspection) { in.Blocker = 4711 }, []string{"warning blocker"}, "process 4711"},
		"locked":             {func(in *Inspection) { in.Locker, in.LockerWaitsFor = 4711, []int32{42} }, []string{"error locked"}, "process 4711 has or awaits a lock that keeps everybody out of the leases, as VACUUM FULL, CLUSTER and ALTER TABLE do; it waits for [42]"},
		"row security":       {func(in *Inspection) { in.RowSecurity = []string{"leases", "spent"} }, []string{"error row-level security"}, "leases, spent"},
		"an old snapshot":    {func(in *Inspection) { in.Snapshot, in.SnapshotAge = 4711, time.Minute+1 }, []string{"warning old snapshot"}, "process 4711 has a snapshot for 1m0s"},
		"a snapshot":         {func(in *Inspection) { in.Snapshot, in.SnapshotAge = 4711, time.Minute }, nil, ""},
		"a clock set back":   {func(in *Inspection) { in.Ahead = 3 }, []string{"warning clock set back"}, ": 3;"},
		"clocks":             {func(in *Inspection) { in.ClockAhead = -1001 * time.Millisecond }, []string{"warning clock"}, "is 1.001s behind this"},
		"clocks, as told":    {func(in *Inspection) { in.ClockAhead = time.Second }, nil, ""},
		"clocks, unsure":     {func(in *Inspection) { in.ClockAhead, in.ClockError = 3*time.Second, 2*time.Second }, nil, ""},
		"clocks, sure":       {func(in *Inspection) { in.ClockAhead, in.ClockError = 3*time.Second+1, 2*time.Second }, []string{"warning clock"}, "is 3s ahead of this"},
		"the worst is first": {func(in *Inspection) { in.Pooled, in.Schema, in.Ahead, in.Fsync = true, 0, 1, "off" }, []string{"error schema", "error fsync", "warning pooler", "warning clock set back"}, "no schema"},
	} {
		in := fine()
		test.change(&in)
		found := in.findings()
		var got []string
		for _, f := range found {
			got = append(got, string(f.Severity)+" "+f.Setting)
		}
		if !slices.Equal(got, test.want) || len(found) > 0 && !strings.Contains(found[0].Problem, test.says) || found == nil {
			t.Errorf("%s: %+v, expected %q", name, found, test.want)
		}
	}
}
