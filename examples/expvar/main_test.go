package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// variables is what the program prints.
type variables struct {
	Attempted  int            `json:"acquisitions_attempted"`
	Granted    int            `json:"acquisitions_granted"`
	Contended  int            `json:"acquisitions_contended"`
	Renewals   int            `json:"renewals_failed"`
	Releases   int            `json:"releases_failed"`
	Lost       int            `json:"leases_lost"`
	Reclaimed  int            `json:"expired_reclaimed"`
	Forced     int            `json:"force_unlocks"`
	Conflicts  int            `json:"fencing_conflicts"`
	Rejections map[string]int `json:"fencing_rejections"`
	Latency    shape          `json:"acquisition_seconds"`
	Hold       shape          `json:"hold_seconds"`
}

type shape struct {
	Count   int
	Sum     float64
	Buckets []struct {
		AtMost float64 `json:"at_most"`
		Count  int
	}
}

// TestCounts: what really happened is what is counted. The control is a second
// observer that nobody was given.
func TestCounts(t *testing.T) {
	t.Parallel() // it waits for a lease to run out
	metrics, control := &Metrics{}, &Metrics{}
	if err := happen(t.Context(), pgtest.Pool(t), metrics); err != nil {
		t.Fatal(err)
	}
	var got, none variables
	if err := errors.Join(json.Unmarshal([]byte(metrics.Map().String()), &got), json.Unmarshal([]byte(control.Map().String()), &none)); err != nil {
		t.Fatal(err)
	}
	if none.Attempted != 0 || len(none.Rejections) != 0 || none.Latency.Count != 0 {
		t.Errorf("the control has counted: %+v", none)
	}
	if got.Granted != 3 || got.Lost != 2 || got.Reclaimed != 1 || got.Forced != 1 || got.Renewals != 1 || got.Releases != 0 || got.Conflicts != 1 ||
		got.Rejections["stale"] != 1 || got.Rejections["conflict"] != 1 || len(got.Rejections) != 2 {
		t.Errorf("%+v", got)
	}
	// The acquire after the short lease may find it held for a moment longer.
	if got.Attempted != 4 || got.Contended < 1 || got.Contended > 2 {
		t.Errorf("%d attempted, %d contended", got.Attempted, got.Contended)
	}
	for name, h := range map[string]shape{"latency": got.Latency, "hold": got.Hold} {
		want := map[string]int{"latency": 4, "hold": 3}[name]
		last := h.Buckets[len(h.Buckets)-1]
		if h.Count != want || last.Count != want || h.Sum <= 0 || h.Buckets[0].Count > last.Count {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{time.Millisecond, 2 * time.Millisecond, time.Hour} {
		h.observe(d)
	}
	want := `{"count":3,"sum":3600.003,"buckets":[{"at_most":0.001,"count":1},{"at_most":0.01,"count":2},{"at_most":0.1,"count":2},` +
		`{"at_most":1,"count":2},{"at_most":10,"count":2},{"at_most":100,"count":2},{"at_most":1000,"count":2}]}`
	if h.String() != want {
		t.Errorf("%s, want %s", h.String(), want)
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	m := &Metrics{}
	if n := testing.AllocsPerRun(1000, func() {
		m.Observe(t.Context(), guard.Event{Op: guard.OpAcquire, Duration: time.Millisecond})
		m.Observe(t.Context(), guard.Event{Op: guard.OpRelease, Duration: time.Millisecond})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), &Metrics{}, &out); err != nil || !json.Valid(out.Bytes()) {
		t.Errorf("%v\n%s", err, &out)
	}
}
