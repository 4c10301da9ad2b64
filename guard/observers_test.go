package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

func TestObservers(t *testing.T) {
	if guard.Observers() != nil || guard.Observers(nil, nil) != nil || guard.LogObserver(nil) != nil {
		t.Error("nothing to tell must be nil, which costs nothing")
	}
	var told []string
	as := func(name string) guard.Observer {
		return guard.ObserverFunc(func(context.Context, guard.Event) { told = append(told, name) })
	}
	guard.Observers(nil, as("one")).Observe(t.Context(), guard.Event{})
	guard.Observers(as("two"), nil, as("three")).Observe(t.Context(), guard.Event{})
	if len(told) != 3 || told[0] != "one" || told[1] != "two" || told[2] != "three" {
		t.Errorf("told %v", told)
	}
}

func TestLogObserver(t *testing.T) {
	var out bytes.Buffer
	o := guard.LogObserver(slog.New(slog.NewJSONHandler(&out, nil)))
	claim := guard.Claim{Resource: "r", Token: 4, LeaseID: "a"}
	mark := guard.Mark{Token: 5, LeaseID: "b"}
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
	o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql"})
	o.Observe(t.Context(), guard.Event{Op: guard.OpRenew, Surface: "lock", Reason: guard.ReasonUnavailable, Err: guard.ErrUnavailable})
	if out.Len() != 0 {
		t.Errorf("logged a success, or what the lease client logs itself: %s", &out)
	}
}
