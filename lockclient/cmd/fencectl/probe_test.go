package main

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
)

// TestProbe: it acquires real leases, measures all rounds but the first, gives the
// lease back, and says who is in the way.
func TestProbe(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	s := opened(t, url)
	p, err := s.probe(t.Context(), "probe")
	if err != nil || len(p) != 3 {
		t.Fatalf("%d steps, %v", len(p), err)
	}
	for _, step := range p {
		if len(step.took) != probeRounds || slices.Min(step.took) <= 0 {
			t.Errorf("%s: %v", step.name, step.took)
		}
	}
	lease := hold(t, pool, "w", "probe", time.Hour)
	if lease.Token() != probeRounds+2 {
		t.Errorf("after %d rounds the next token is %v", probeRounds+1, lease.Token())
	}
	var held *lockclient.HeldError
	if p, err = s.probe(t.Context(), "probe"); !errors.As(err, &held) || held.LeaseID != lease.ID() || len(p[0].took) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
