package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/urfave/cli/v3"
)

// doctorResource is what doctor leases, always the same, so that it leaves one
// row and not one per call.
const doctorResource = "fencepost-probe"

func (a *app) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Category: categoryLook,
		Usage: "acquire, renew and release a lease, and check the settings that matter",
		Description: "Leases " + doctorResource + " a few times for the end-to-end test, and changes\n" +
			"nothing else. Ends with exit code 10 if something must be repaired, and with 0\n" +
			"if there are only warnings.",
		Flags:  []cli.Flag{roleFlag()},
		Action: a.on(nil, (*call).doctor), // here the schema is a finding
	}
}

// The verdicts of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "FAIL"
)

// check is one finding.
type check struct {
	Name    string  `json:"check"`
	Status  string  `json:"status"`
	Detail  string  `json:"detail"`
	Seconds float64 `json:"seconds,omitempty"`
}

// findings collects checks.
type findings struct{ checks []check }

func (f *findings) add(name, status, format string, args ...any) {
	f.checks = append(f.checks, check{Name: name, Status: status, Detail: oneLine(fmt.Sprintf(format, args...))})
}

func (f *findings) worst() string {
	worst := checkOK
	for _, c := range f.checks {
		if c.Status == checkFail || c.Status == checkWarn && worst == checkOK {
			worst = c.Status
		}
	}
	return worst
}

func (c *call) doctor(ctx context.Context) error {
	f := &findings{}
	usable := true
	if c.postgres != nil {
		began := time.Now()
		if err := c.ping(ctx); err != nil {
			return failed("connect", err) // nothing else can be checked
		}
		f.checks = append(f.checks, check{"connect", checkOK, c.target, time.Since(began).Seconds()})
	} else if _, err := c.op.Get(ctx, "fencectl-doctor"); err != nil {
		if code, _ := exitOf(err); code == exitUnavailable {
			return err // nothing else can be checked
		}
	}
	if usable = f.settings(ctx, c.session); c.postgres != nil && f.marks(ctx, c.session) {
		f.objects(ctx, c.session)
		f.guarded(ctx, c.session, c.cmd.String("role"))
	}
	if usable {
		f.endToEnd(ctx, c.session)
	} else {
		f.add("end to end", checkWarn, "not tried: see schema "+leasesComponent)
	}
	if ctx.Err() != nil { // what failed then says nothing about the server
		return ctx.Err()
	}
	return c.conclude(f)
}

func (c *call) printFindings(f *findings) error {
	if c.asJSON() {
		return c.print(object{"status": f.worst(), "checks": f.checks}, "")
	}
	t := newTable(c.out, "STATUS", "CHECK", "TIME", "DETAIL")
	for _, c := range f.checks {
		row(t, c.Status, c.Name, orNothing(c.Seconds > 0, milliseconds(time.Duration(c.Seconds*float64(time.Second)))), c.Detail)
	}
	return t.Flush()
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
}

// failed says what the error of a statement that writes nothing means.
func failed(op string, err error) error { return guard.Unavailable(op, guard.Claim{}, err) }

func (s *session) ping(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.pool.Ping(ctx)
}

// settings looks at what leases need. It reports whether this build may use the
// schema, as far as that is known.
func (f *findings) settings(ctx context.Context, s *session) (usable bool) {
	found, err := s.op.Inspect(ctx)
	if errors.Is(err, errors.ErrUnsupported) {
		return true
	}
	if err != nil {
		f.add("settings", checkFail, "%v", err)
	}
	usable = true
	for _, in := range found {
		switch in.Severity {
		case lockadmin.SeverityOK:
			f.add(in.Setting, checkOK, "%s", in.Detail)
		case lockadmin.SeverityWarning:
			f.add(in.Setting, checkWarn, "%s; %s", in.Detail, in.Remedy)
		default:
			f.add(in.Setting, checkFail, "%s; %s", in.Detail, in.Remedy)
			usable = usable && in.Setting != lockadmin.SettingSchema
		}
	}
	return usable
}

// marks looks at what marks need: a server on which a fence works, and their schema.
// It reports whether the schema is there.
func (f *findings) marks(ctx context.Context, s *session) (there bool) {
	const name = "schema " + marksComponent
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	switch err := s.admin.Probe(ctx); {
	case errors.Is(err, guard.ErrSetup):
		f.add("locks and snapshots", checkFail, "%v", err)
	case err != nil:
		f.add("locks and snapshots", checkWarn, "not looked at: %v", err)
	}
	have, err := s.versions(ctx)
	switch {
	case sqlState(err) == "42501":
		f.add(name, checkWarn, "not looked at: this role may not read fencepost.migrations")
		return true
	case err != nil:
		f.add(name, checkFail, "%v", err)
		return true
	}
	marks := have[len(have)-1]
	switch wrong := unusable(marks, s.target); {
	case marks.Applied == 0:
		f.add(name, checkWarn, "not there: needed for marks (fenced transactions, stores, triggers), run fencectl migrate")
		return false
	case wrong != nil:
		f.add(name, checkFail, "%v", wrong)
	default:
		f.add(name, checkOK, "version %d", marks.Applied)
	}
	return true
}

// objects compares the functions, tables and triggers of the marks with this build's. Those of
// the leases are a setting.
func (f *findings) objects(ctx context.Context, s *session) {
	const name = "objects " + marksComponent
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := s.admin.Verify(ctx, sqladmin.Verification{})
	for _, one := range found {
		f.add(name, checkFail, "%s; %s", one, migrate.RepairWith)
	}
	switch {
	case err != nil:
		f.add(name, checkWarn, "not looked at: %v", err)
	case len(found) == 0:
		f.add(name, checkOK, "all there, as this build has them")
	}
}

// guarded looks for tables that were given triggers and are no longer guarded, or not
// fully, and for what lets a role get around them.
func (f *findings) guarded(ctx context.Context, s *session, role string) {
	const name = "guarded tables"
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	tables, err := s.admin.Triggers(ctx)
	switch {
	case sqlState(err) == "42501":
		f.add(name, checkWarn, "not looked at: %v", err)
		return
	case err != nil:
		f.add(name, checkFail, "%v", err)
		return
	}
	whole := 0
	var installed []sqladmin.Trigger
	for _, t := range tables {
		table := strings.Join(t.Trigger.Table, ".")
		again := orNothing(t.Trigger.Resource != nil, "; run fencectl triggers "+mode(t.Trigger)+" "+quoted(table))
		for _, found := range t.Findings {
			f.add(name, checkFail, "%s%s", found, again)
		}
		if t.Trigger.Resource != nil {
			installed = append(installed, t.Trigger)
		}
		if t.Trigger.InsecureReportOnly {
			f.add(name, checkWarn, "%s: reports only, refuses nothing; %s", table, refusals(t.Refusals))
		} else if len(t.Findings) == 0 {
			whole++
		}
	}
	f.add(name, checkOK, "%d with all their triggers refuse writes without a claim", whole)
	if role != "" {
		f.role(ctx, s, role, installed)
	}
}

// mode is the command that installs such triggers.
func mode(t sqladmin.Trigger) string {
	if t.InsecureReportOnly {
		return "report"
	}
	return "enforce"
}

// role looks for what lets a role get around the triggers.
func (f *findings) role(ctx context.Context, s *session, role string, installed []sqladmin.Trigger) {
	name := "role " + role
	found, err := s.admin.Verify(ctx, sqladmin.Verification{Triggers: installed, Role: role})
	if err != nil {
		f.add(name, checkFail, "not looked at: %v", err)
		return
	}
	bad := 0
	for _, one := range found {
		if one.Subject == name { // guarded has the rest
			bad++
			f.add(name, checkFail, "%s; let a role that the service is not a member of own the tables and schema fencepost, REVOKE the right, and GRANT what fencectl roles prints", one.Problem)
		}
	}
	if bad == 0 {
		f.add(name, checkOK, "cannot get around the triggers of %s", count(int64(len(installed)), "table"))
	}
}

// refusals says what triggers in report-only mode would have refused.
func refusals(by map[guard.Reason]int64) string {
	var all []string
	for _, reason := range slices.Sorted(maps.Keys(by)) {
		if by[reason] > 0 {
			all = append(all, fmt.Sprint(by[reason], " ", reason))
		}
	}
	if len(all) == 0 {
		return "would have refused nothing so far"
	}
	return "would have refused " + strings.Join(all, ", ")
}

const (
	// otherDoctor is how long to wait for another doctor's lease.
	otherDoctor = 3 * time.Second
	// slow is the median of a step from which on doctor warns.
	slow = 250 * time.Millisecond
)

// endToEnd does what a holder does, a few times.
func (f *findings) endToEnd(ctx context.Context, s *session) {
	var steps []step
	var err error
	for end := time.Now().Add(otherDoctor); ; time.Sleep(50 * time.Millisecond) {
		steps, err = s.probe(ctx, doctorResource)
		if !errors.Is(err, lockclient.ErrHeld) || time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}
	for _, step := range steps {
		n := len(step.took)
		if n == 0 {
			continue
		}
		slices.Sort(step.took)
		median := step.took[(n-1)/2]
		status, detail := checkOK, fmt.Sprintf("median of %d, the slowest took %s", n, milliseconds(step.took[n-1]))
		if median > slow {
			status, detail = checkWarn, detail+fmt.Sprintf("; slow: over %s", slow)
		}
		f.checks = append(f.checks, check{step.name, status, detail, median.Seconds()})
	}
	code, _ := exitOf(err)
	switch {
	case err == nil:
	case code == exitNoRights:
		f.add("end to end", checkWarn, "not tried: this role or identity may not lease the name of the test: %v", err)
	case errors.Is(err, lockclient.ErrHeld):
		f.add("end to end", checkWarn, "not tried, somebody holds the lease, perhaps another doctor: %v", err)
	default:
		f.add("end to end", checkFail, "%v", err)
	}
}

// step is one of what a holder does.
type step struct {
	name string
	run  func() error
	took []time.Duration
}

const probeRounds = 5

// probe acquires, renews and releases a lease for real, a few times. The first
// round does not count: it checks the schema, enters the epoch and may have to
// connect. On an error, what was measured before it is returned.
func (s *session) probe(ctx context.Context, resource string) ([]step, error) {
	quiet := slog.New(slog.DiscardHandler)
	issuer, err := s.issue()
	if err != nil {
		return nil, err
	}
	client, err := lockclient.New(issuer, "operator", &lockclient.Options{OpTimeout: s.timeout, Logger: quiet})
	if err != nil {
		return nil, err
	}
	defer client.Close(ctx)
	var lease *lockclient.Lease
	steps := []step{
		{name: "acquire", run: func() (err error) {
			lease, err = client.TryAcquire(ctx, resource, &lockclient.AcquireOptions{TTL: 10 * time.Second})
			return err
		}},
		{name: "renew", run: func() error { return lease.Renew(ctx) }},
		{name: "release", run: func() error { return lease.Release(ctx) }},
	}
	for round := range probeRounds + 1 {
		var failed error
		for i := range steps {
			began := time.Now()
			failed = cmp.Or(failed, steps[i].run())
			if i == 0 && failed != nil {
				break // there is nothing to release
			}
			if round > 0 && failed == nil {
				steps[i].took = append(steps[i].took, time.Since(began))
			}
		}
		if failed != nil {
			return steps, failed
		}
	}
	return steps, nil
}
