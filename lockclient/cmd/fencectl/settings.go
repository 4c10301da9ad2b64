package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// settings are the rows about the server: what [lockadmin.Operator.Inspect]
// found wrong, and the rest as it is.
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
	for _, found := range in.Findings { // what this list does not know
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
