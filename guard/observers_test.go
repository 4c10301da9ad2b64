package guard_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

func TestLogObserver(t *testing.T) {
	var out bytes.Buffer
	o := guard.LogObserver(slog.New(slog.NewJSONHandler(&out, nil)))
	claim := guard.Claim{Resource: "r", Token: 4, LeaseID: "a"}
	mark := guard.Mark{Token: 5, LeaseID: "b"}
	if guard.LogObserver(nil) != nil {
		t.Error("an observer that logs nowhere is not nil")
	}
	refusal := guard.Decide(guard.SameOrNewer, mark, claim)
	o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql", Claim: claim, Mark: mark, Reason: guard.ReasonStale, Err: refusal})
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"level": "WARN", "msg": "fencing_rejected", "op": "write", "surface": "sql", "reason": "stale", "resource": "r",
		"fencingToken": "4", "leaseId": "a", "mark": "5", "error": refusal.Error(),
	} {
		if line[key] != want {
			t.Errorf("%s is %v, want %q", key, line[key], want)
		}
	}
	out.Reset()
	o.Observe(t.Context(), guard.Event{Op: guard.OpAdmit, Surface: "s3", Reason: guard.ReasonConflict, Err: guard.ErrConflict})
	if !bytes.Contains(out.Bytes(), []byte(`"level":"ERROR"`)) {
		t.Errorf("a conflict: %s", &out)
	}
	out.Reset()
	for reason, want := range map[guard.Reason]string{
		guard.ReasonUnavailable: "fencing_failed", guard.ReasonSetup: "fencing_failed", guard.ReasonOther: "fencing_failed", "novel": "fencing_failed",
		guard.ReasonMissing: "fencing_rejected", guard.ReasonNotFound: "fencing_rejected", guard.ReasonLeaseLost: "fencing_lost",
	} {
		out.Reset()
		o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql", Reason: reason, Err: guard.ErrInvalid})
		if !bytes.Contains(out.Bytes(), []byte(want+`"`)) || bytes.Contains(out.Bytes(), []byte("mark")) {
			t.Errorf("%s: %s", reason, &out)
		}
	}
	out.Reset()
	o.Observe(t.Context(), guard.Event{Op: guard.OpContend, Surface: "sql", Reason: guard.ReasonOther, Err: guard.ErrUnavailable})
	o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql"})
	o.Observe(t.Context(), guard.Event{Op: guard.OpRenew, Surface: "lock", Reason: guard.ReasonUnavailable, Err: guard.ErrUnavailable})
	if out.Len() != 0 {
		t.Errorf("logged a success, a raise that waits, or what the lease client logs itself: %s", &out)
	}
}
