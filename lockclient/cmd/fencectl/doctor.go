package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

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
		Action: a.doctor,
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

func (a *app) doctor(ctx context.Context, cmd *cli.Command) error {
	if _, err := arguments(cmd); err != nil {
		return err
	}
	s, err := connect(ctx, cmd) // here the schema is a finding
	if err != nil {
		return err
	}
	defer s.close()
	f := &findings{}
	began := time.Now()
	if err := s.ping(ctx); err != nil {
		return failed("connect", err) // nothing else can be checked
	}
	f.checks = append(f.checks, check{"connect", checkOK, target(s.pool.Config().ConnConfig), time.Since(began).Seconds()})
	ready := f.schema(ctx, s)
	f.settings(ctx, s)
	f.guarded(ctx, s)
	if ready {
		f.endToEnd(ctx, s)
	} else {
		f.add("end to end", checkWarn, "not tried without the schema")
	}
	if err := a.printFindings(cmd, f); err != nil {
		return err
	}
	if f.worst() == checkFail {
		return &coded{exitUnhealthy, "unhealthy", errors.New("something must be repaired, see the lines with " + checkFail)}
	}
	return nil
}

func (s *session) ping(ctx context.Context) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	return s.pool.Ping(ctx)
}

// schema reports whether leases can be granted with this build's schema.
func (f *findings) schema(ctx context.Context, s *session) (ready bool) {
	ready = true
	have, err := s.versions(ctx)
	for _, component := range components {
		name := "schema " + component
		switch wrong := compare(component, have[component], known(component)); {
		case noRights(err):
			f.add(name, checkWarn, "this role may not read fencepost.migrations")
		case err != nil:
			f.add(name, checkFail, "%v", err)
		case wrong != nil && component == marksComponent && have[component].applied == 0:
			f.add(name, checkWarn, "not there: needed for marks (fenced transactions, stores, triggers), run fencectl migrate")
		case wrong != nil:
			f.add(name, checkFail, "%v", wrong)
			ready = ready && component != leasesComponent
		default:
			f.add(name, checkOK, "version %d", have[component].applied)
		}
	}
	return ready
}

// guarded looks for tables that were given triggers and are no longer guarded,
// or not fully, and for a server on which no fence works.
func (f *findings) guarded(ctx context.Context, s *session) {
	const name = "guarded tables"
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	switch err := s.admin.Probe(ctx); {
	case guard.ReasonOf(err) == guard.ReasonSetup:
		f.add("locks and snapshots", checkFail, "%v", err)
	case err != nil:
		f.add("locks and snapshots", checkWarn, "not looked at: %v", err)
	}
	tables, err := s.admin.Triggers(ctx)
	switch {
	case schemaReason(err) != "": // the schema's row says so
		return
	case noRights(err):
		f.add(name, checkWarn, "not looked at: %v", err)
		return
	case err != nil:
		f.add(name, checkFail, "%v", err)
		return
	}
	whole := 0
	for _, t := range tables {
		for _, found := range t.Findings {
			f.add(name, checkFail, "%s", found)
		}
		if t.Trigger.InsecureReportOnly {
			f.add(name, checkWarn, "%s: reports only, refuses nothing; %s", strings.Join(t.Trigger.Table, "."), refusals(t.Refusals))
		} else if len(t.Findings) == 0 {
			whole++
		}
	}
	f.add(name, checkOK, "%d with all their triggers refuse writes without a claim", whole)
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
	var took probed
	var err error
	for end := time.Now().Add(otherDoctor); ; time.Sleep(50 * time.Millisecond) {
		took, err = s.probe(ctx, doctorResource)
		if !errors.Is(err, lockclient.ErrHeld) || time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}
	for step, took := range took {
		n := len(took)
		if n == 0 {
			continue
		}
		median := took[(n-1)/2]
		status, detail := checkOK, fmt.Sprintf("median of %d, the slowest took %s", n, milliseconds(took[n-1]))
		if median > slow {
			status, detail = checkWarn, detail+fmt.Sprintf("; slow: over %s", slow)
		}
		f.checks = append(f.checks, check{steps[step], status, detail, median.Seconds()})
	}
	switch {
	case noRights(err):
		f.add("end to end", checkWarn, "not tried, the role may not issue leases: %v", err)
	case errors.Is(err, lockclient.ErrHeld):
		f.add("end to end", checkWarn, "not tried, somebody holds the lease, perhaps another doctor: %v", err)
	case err != nil:
		f.add("end to end", checkFail, "%v", err)
	}
}

func (a *app) printFindings(cmd *cli.Command, f *findings) error {
	if asJSON(cmd) {
		return a.printJSON(object{"status": f.worst(), "checks": f.checks})
	}
	t := newTable(a.out, "STATUS", "CHECK", ">TIME", "DETAIL")
	for _, c := range f.checks {
		took := ""
		if c.Seconds > 0 {
			took = milliseconds(time.Duration(c.Seconds * float64(time.Second)))
		}
		t.row(c.Status, c.Name, took, c.Detail)
	}
	return t.flush()
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
}

// settings prints the rows about the server: what [lockadmin.Operator.Inspect]
// found wrong, and the rest unchanged.
func (f *findings) settings(ctx context.Context, s *session) {
	in, err := s.op.Inspect(ctx)
	if err != nil {
		f.add("settings", checkFail, "%v", err)
		return
	}
	rows := []struct{ setting, fine string }{
		{"server", firstWords(in.Server, 2) + ", database " + in.Database + ", role " + in.User},
		{"standby", "no"},
		{"pooler", "none between"},
		{"default_transaction_isolation", in.DefaultIsolation},
		{"default_transaction_read_only", in.DefaultReadOnly},
		{"synchronous_commit", in.SynchronousCommit},
		{"fsync", in.Fsync},
		{"full_page_writes", in.FullPageWrites},
		{"timeline", fmt.Sprintf("%d, so failovers are noticed; stored epoch base %d", in.Timeline, in.EpochBase)},
		{"blocker", "none"},
		{"clock", "within " + max(in.ClockAhead.Abs(), in.ClockError, time.Millisecond).Round(time.Millisecond).String() + " of this machine's"},
	}
	wrong := map[string]lockadmin.Finding{}
	for _, found := range in.Findings {
		wrong[found.Setting] = found
	}
	delete(wrong, "schema") // has a row of its own
	for _, row := range rows {
		if found, bad := wrong[row.setting]; bad {
			f.found(found)
			delete(wrong, row.setting)
			continue
		}
		f.add(row.setting, checkOK, "%s", row.fine)
	}
	for _, found := range in.Findings { // those that this list does not include
		if _, left := wrong[found.Setting]; left {
			f.found(found)
		}
	}
}

func (f *findings) found(found lockadmin.Finding) {
	status := checkWarn
	if found.Severity == lockadmin.SeverityError {
		status = checkFail
	}
	f.add(found.Setting, status, "%s; %s", found.Problem, found.Remedy)
}

func firstWords(s string, n int) string {
	words := strings.Fields(s)
	return strings.Join(words[:min(n, len(words))], " ")
}
