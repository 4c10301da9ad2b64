//go:build unix

package s3suite

import (
	"slices"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/suites/s3/s3conform"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

func target(g *gateway.Gateway) s3conform.Target {
	return s3conform.Target{
		Endpoint: g.URL, Region: g.Region, AccessKeyID: g.AccessKeyID, SecretAccessKey: g.SecretAccessKey,
		Differs: map[string]string{},
	}
}

// What is tested against s3test has been tested against the behaviour of a real
// store, as far as the same suite passes on both.
func TestCorrect(t *testing.T) {
	g := gateway.Start(t, gateway.Versitygw)
	s3conform.Run(t, target(g))
}

// The suite must notice a real store that loses races, and nothing else about
// it, since requests that come one after the other are served well.
func TestRacing(t *testing.T) {
	g := gateway.Start(t, gateway.RacingVersitygw)
	target := target(g)
	races := []string{"race to create has one winner", "race to replace has one winner"}
	// A real store cannot be told when to race, so the suite is run until it has
	// met both races, which is the first time but on a very busy machine.
	for run := 0; len(races) > 0; run++ {
		if run == 10 {
			t.Fatalf("not noticed: %q", races)
		}
		failures, err := s3conform.Check(t.Context(), target)
		testkit.Must(t, err)
		for _, f := range failures {
			t.Log(f)
			races = slices.DeleteFunc(races, func(name string) bool { return name == f.Case })
			if !slices.Contains(s3conform.Races(), f.Case) {
				t.Errorf("without a race: %s", f)
			}
		}
	}
}
