package pgerr

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost-go/fencepost/guard"
)

// TestUnreplicated: only a warning about a commit is one, and its outcome is unknown.
func TestUnreplicated(t *testing.T) {
	for name, test := range map[string]struct {
		notice pgconn.Notice
		want   bool
	}{
		"cancelled":              {pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "SyncRepWaitForLSN"}, true},
		"translated":             {pgconn.Notice{Severity: "WARNUNG", Code: "01000", Routine: "SyncRepWaitForLSN"}, true},
		"control: of the class":  {pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "heap_vacuum_rel"}, false},
		"terminated":             {pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "57P01", Routine: "SyncRepWaitForLSN"}, true},
		"control: RAISE":         {pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Routine: "exec_stmt_raise"}, false},
		"control: a notice":      {pgconn.Notice{SeverityUnlocalized: "NOTICE", Code: "00000"}, false},
		"control: other warning": {pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "25P01"}, false},
	} {
		if got := Unreplicated(&test.notice); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if got := Reason(ErrUnreplicated, Commit); got != guard.ReasonOutcomeUnknown {
		t.Errorf("the outcome is %s", got)
	}
}
