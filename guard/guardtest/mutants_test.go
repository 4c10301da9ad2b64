package guardtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
)

// harness returns the harness of a store with that bug and all capabilities.
func harness(bug string) guardtest.Harness {
	return guardtest.Harness{
		New: func(context.Context) (guard.Store, error) { return newMutant(bug), nil },
		Replica: func(_ context.Context, s guard.Store) (guard.Store, error) {
			return s.(*mutant).replica(), nil
		},
		Reopen: func(_ context.Context, s guard.Store) (guard.Store, error) {
			return s.(*mutant).reopened(), nil
		},
		Margin: time.Millisecond, // the mutants read the test's own clock
	}
}

// mutants says which cases must catch which bug. A bug may fail more cases.
var mutants = []struct {
	bug    string
	caught []string
}{
	{"equal token refused", []string{"P1/higher-token-raises", "P4/racing-leases-of-one-token-have-one-winner"}},
	{"new resource refused", []string{"P1/higher-token-raises", "P6/agrees-with-the-model"}},
	{"lower token admitted", []string{"P1/lower-token-is-stale", "P1/no-stale-admission-among-racing-raises"}},
	{"tokens compared as text", []string{"P1/boundary-tokens", "P1/higher-token-raises"}},
	{"tokens compared as floats", []string{"P1/boundary-tokens"}},
	{"tokens compared as 32 bits", []string{"P1/boundary-tokens"}},
	{"read, then write", []string{"P1/no-stale-admission-among-racing-raises", "P4/racing-leases-of-one-token-have-one-winner"}},
	{"lost insert is unavailable", []string{"P4/racing-leases-of-one-token-have-one-winner"}},
	{"refused claim lowers the mark", []string{"P1/lower-token-is-stale", "P1/no-stale-admission-among-racing-raises"}},
	{"old mark returned", []string{"P1/higher-token-raises"}},
	{"refused claim's mark not returned", []string{"P1/lower-token-is-stale", "P4/other-lease-is-a-conflict"}},
	{"looking leaves a mark", []string{"P6/unknown-resource-has-no-mark"}},
	{"marks shown from a cache", []string{"P1/no-stale-admission-among-racing-raises", "P1/replicas-share-marks", "P1/higher-token-raises"}},

	{"leases not compared", []string{"P4/other-lease-is-a-conflict", "P4/racing-leases-of-one-token-have-one-winner"}},
	{"leases compared without case", []string{"P4/lease-ids-are-byte-exact"}},
	{"leases trimmed", []string{"P4/lease-ids-are-byte-exact", "P4/other-lease-is-a-conflict"}},
	{"no lease equals every lease", []string{"P4/other-lease-is-a-conflict"}},
	{"no lease in the mark equals every lease", []string{"P4/other-lease-is-a-conflict"}},
	{"refused lease replaces the mark's", []string{"P4/other-lease-is-a-conflict"}},
	{"conflict reported as stale", []string{"P4/other-lease-is-a-conflict"}},
	{"other lease of a lower token is a conflict", []string{"P1/lower-token-is-stale"}},
	{"facts missing", []string{"P1/lower-token-is-stale", "P4/other-lease-is-a-conflict", "P1/the-floor-refuses"}},
	{"mark missing in the facts", []string{"P1/lower-token-is-stale", "P4/other-lease-is-a-conflict", "P1/the-floor-refuses"}},
	{"claim missing in the facts", []string{"P1/lower-token-is-stale", "P4/other-lease-is-a-conflict"}},

	{"resource trimmed", []string{"P1/resources-are-byte-exact"}},
	{"resource lower-cased", []string{"P1/resources-are-byte-exact", "P6/agrees-with-the-model"}},
	{"resource normalised", []string{"P1/resources-are-byte-exact"}},
	{"resource cut", []string{"P1/resources-are-byte-exact"}},
	{"resource taken for a pattern", []string{"P1/resources-are-byte-exact"}},
	{"resource without its quotes", []string{"P1/resources-are-byte-exact"}},

	{"nothing validated", []string{"P5/invalid-claim-is-refused"}},
	{"highest int64 is a token", []string{"P5/invalid-claim-is-refused"}},
	{"resource length in characters", []string{"P5/invalid-claim-is-refused"}},
	{"invalid reported as unavailable", []string{"P5/invalid-claim-is-refused"}},
	{"state for invalid claims", []string{"P5/invalid-claim-is-refused"}},
	{"any resource has a mark", []string{"P5/invalid-claim-is-refused"}},

	{"context ignored", []string{"P5/ended-context-is-never-success"}},
	{"bare context error", []string{"P5/ended-context-is-never-success"}},
	{"mark read whatever the context", []string{"P5/ended-context-is-never-success"}},
	{"retires whatever the context", []string{"P5/ended-context-is-never-success"}},
	{"retired and then unavailable", []string{"P5/ended-context-is-never-success"}},
	{"written and then unavailable", []string{"P5/ended-context-is-never-success"}},
	{"unavailable when cut halfway", []string{"P5/call-cut-halfway-tells-the-truth"}},

	{"retire ignores the time", []string{"P3/retire-before-the-zero-time-retires-nothing", "P3/retire-deletes-only-older-marks"}},
	{"zero time means now", []string{"P3/retire-before-the-zero-time-retires-nothing"}},
	{"reading is a raise", []string{"P6/same-claim-again-is-no-raise"}},
	{"retire counts nothing", []string{"P6/retire-returns-count-and-floor"}},
	{"retire returns no floor", []string{"P6/retire-returns-count-and-floor"}},
	{"floor ignored", []string{"P1/the-floor-refuses", "P1/no-stale-admission-while-retiring"}},
	{"floor not raised", []string{"P1/the-floor-refuses", "P1/no-stale-admission-while-retiring"}},
	{"floor is the lowest", []string{"P1/the-floor-refuses", "P6/retire-returns-count-and-floor"}},
	{"floor follows the deletion", []string{"P1/no-stale-admission-while-retiring"}},
	{"mark raised while retiring is deleted", []string{"P1/no-stale-admission-while-retiring"}},
	{"floor overwritten", []string{"P3/floor-never-lowers"}},
	{"floor lowered by a race", []string{"P1/no-stale-admission-while-retiring"}},
	{"token at the floor admitted", []string{"P1/the-floor-refuses"}},
	{"lease compared with the floor's", []string{"P1/the-floor-refuses"}},
	{"floor applied to every mark", []string{"P6/surviving-marks-ignore-the-floor"}},
	{"floor not told from a mark", []string{"P1/the-floor-refuses"}},
	{"floor not shown", []string{"P1/the-floor-refuses"}},
	{"retired resource stays closed", []string{"P6/above-the-floor-is-admitted"}},
	{"state for refused claims", []string{"P1/the-floor-refuses"}},

	{"replica has marks of its own", []string{"P1/replicas-share-marks", "P1/no-stale-admission-among-racing-raises"}},
	{"replica has a floor of its own", []string{"P1/replicas-share-the-floor"}},
	{"forgets at restart", []string{"P3/restart-remembers-marks", "P3/restart-remembers-the-floor"}},
	{"forgets the floor at restart", []string{"P3/restart-remembers-the-floor"}},
	{"forgets leases at restart", []string{"P3/restart-remembers-marks"}},
	{"forgets all after 1,000 admits", []string{"P1/no-mark-is-forgotten-among-many"}},
	{"drops every 1,000th admission", []string{"P1/no-mark-is-forgotten-among-many"}},
	{"evicts a mark above 1,000", []string{"P1/no-mark-is-forgotten-among-many"}},

	{"panics", []string{"P1/lower-token-is-stale"}},
}

// onFakeTime checks a store in a bubble, where time passes only when every
// goroutine waits: all other goroutines overtake one that sleeps in a mutant's
// window, and nothing is late on a slow machine.
func onFakeTime(t *testing.T, h guardtest.Harness) (failures []guardtest.Failure) {
	t.Helper()
	h.Seed = 1 // what the callers present is the same each time, too
	synctest.Test(t, func(t *testing.T) { failures = guardtest.Check(t.Context(), h) })
	return failures
}

func TestMutantsFail(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.bug, func(t *testing.T) {
			var failed []string
			for _, f := range onFakeTime(t, harness(m.bug)) {
				failed = append(failed, f.Case)
			}
			for _, name := range m.caught {
				if !slices.Contains(failed, name) {
					t.Errorf("%s did not catch it; these did: %s", name, strings.Join(failed, ", "))
				}
			}
		})
	}
}

// TestNoIdleCase: a case that catches no mutant is not known to prove anything.
func TestNoIdleCase(t *testing.T) {
	catching := map[string]bool{}
	for _, m := range mutants {
		for _, name := range m.caught {
			catching[name] = true
		}
	}
	names := guardtest.CaseNames(harness(""))
	for _, name := range names {
		if !catching[name] {
			t.Errorf("case %s catches no mutant", name)
		}
	}
	for name := range catching {
		if !slices.Contains(names, name) {
			t.Errorf("the table names %s, which is no case", name)
		}
	}
}

// TestUnbrokenStorePasses is the control, on fake time, and on real time with
// many runs at once, which varies the scheduling of their goroutines.
func TestUnbrokenStorePasses(t *testing.T) {
	var real [20][]guardtest.Failure
	var wg sync.WaitGroup
	for i := range real {
		wg.Go(func() { real[i] = guardtest.Check(t.Context(), harness("")) })
	}
	wg.Wait()
	for _, f := range slices.Concat(onFakeTime(t, harness("")), slices.Concat(real[:]...)) {
		t.Error(f)
	}
}

// TestHungStoreFails: a store that never returns fails only the cases in which
// it hangs, and does not stop the run.
func TestHungStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := harness("hangs")
		h.New = func(context.Context) (guard.Store, error) {
			s := newMutant("hangs")
			s.release = release
			return s, nil
		}
		h.Replica, h.Reopen = nil, nil
		var failed []string
		for _, f := range guardtest.Check(t.Context(), h) {
			failed = append(failed, f.Case)
			if !errors.Is(f, context.DeadlineExceeded) || !strings.Contains(f.Error(), "did not return") {
				t.Errorf("%v; want one that says that the time was over", f)
			}
		}
		if !slices.Contains(failed, "P1/lower-token-is-stale") || slices.Contains(failed, "P1/higher-token-raises") {
			t.Errorf("failed: %v", failed)
		}
		close(release)
		time.Sleep(time.Second) // a bubble's goroutines must end before it does
	})
}
