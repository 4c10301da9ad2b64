package main

import (
	"errors"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient"
)

// TestProbe: it acquires real leases, measures all rounds but the first, gives the
// lease back, and says who is in the way.
func TestProbe(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	s := &session{pool: pool, timeout: 5 * time.Second}
	p, err := s.probe(t.Context(), "probe")
	for _, took := range p {
		if len(took) != probeRounds || took[0] <= 0 || took[0] > took[probeRounds-1] {
			t.Errorf("%v, %v", p, err)
		}
	}
	lease := hold(t, pool, "w", "probe", time.Hour)
	if lease.Token() != probeRounds+2 {
		t.Errorf("after %d rounds the next token is %v", probeRounds+1, lease.Token())
	}
	var held *lockclient.HeldError
	if p, err = s.probe(t.Context(), "probe"); !errors.As(err, &held) || held.LeaseID != lease.ID() || len(p[0]) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
