package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient"
)

// Every sentence about a claim is true: a fence decides as show says.
func TestExplainIsTrue(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	raise := func(resource string, token guard.Token, lease string) {
		if err := fenced(t, pool).Raise(t.Context(), guard.Claim{Resource: resource, Token: token, LeaseID: lease}); err != nil {
			t.Fatal(err)
		}
	}
	raiseLease := func(l *lockclient.Lease) { raise(l.Resource(), l.Token(), l.Claim().LeaseID) }
	s := opened(t, url)
	said := map[string]bool{}
	for _, c := range []struct {
		name   string
		make   func(l *lockclient.Lease)
		offset int // of the token, from the lease's
		lease  string
		answer guard.Reason
		why    string
	}{
		{"held-unmarked", func(*lockclient.Lease) {}, 0, "", "", "the resource has no mark, and its holder has the lease: its first write sets the mark"},
		{"held-current", raiseLease, 0, "", "", "the mark is this claim, and its holder has the lease"},
		{"older", raiseLease, -1, "", guard.ReasonStale, "a newer holder has written or raised it"},
		{"other-lease", raiseLease, 0, "somebody", guard.ReasonConflict, "two holders have one token"},
		{"other-lease-unmarked", func(*lockclient.Lease) {}, 0, "somebody", "", "ALTHOUGH LEASE"},
		{"made-up", raiseLease, 1000, "", "", "NEVER ISSUED"},
		{"expired", func(l *lockclient.Lease) {
			raiseLease(l)
			exec1(t, pool, "UPDATE fencepost.leases SET expires_at = clock_timestamp() WHERE resource = $1", l.Resource())
		}, 0, "", "", "its lease has expired"},
		{"released", func(l *lockclient.Lease) { raiseLease(l); l.Release(t.Context()) }, 0, "", "", "the mark is this claim: its lease is over"},
		{"released-unmarked", func(l *lockclient.Lease) { l.Release(t.Context()) }, 0, "", "", "the resource has no mark"},
		{"advanced", func(l *lockclient.Lease) {
			l.Release(t.Context())
			raise(l.Resource(), l.Token()+10, "elsewhere")
			advance(t, s, l.Resource(), l.Token()+10)
		}, 10, "", "", "the mark is this claim: no lease has its token"},
		{"advanced-unmarked", func(l *lockclient.Lease) {
			l.Release(t.Context())
			advance(t, s, l.Resource(), l.Token()+10)
		}, 5, "", "", "whichever it is; no lease has its token"},
		{"advanced-above", func(l *lockclient.Lease) {
			l.Release(t.Context())
			raise(l.Resource(), 1, "first")
			advance(t, s, l.Resource(), l.Token()+10)
		}, 5, "", "", "although no lease has its token"},
		{"above-and-over", func(l *lockclient.Lease) { raise(l.Resource(), 1, "first"); l.Release(t.Context()) }, 0, "", "", "although its lease is over"},
	} {
		advance(t, s, c.name, 4)
		lease := hold(t, pool, "w", c.name, time.Hour)
		c.make(lease)
		claim := guard.Claim{Resource: c.name, Token: lease.Token() + guard.Token(c.offset), LeaseID: c.lease}
		e, err := s.explain(t.Context(), claim, c.lease != "")
		if err != nil {
			t.Fatal(err)
		}
		if e.Decision != c.answer || !strings.Contains(e.Why, c.why) {
			t.Errorf("%s: %q because %s; expected %q because ... %s", c.name, e.Decision, e.Why, c.answer, c.why)
		}
		if got := admits(t, pool, e.Claim); got != (e.Decision == guard.ReasonNone) {
			t.Errorf("%s: explain says %q, the fence admits: %v", c.name, e.Decision, got)
		}
		said[e.Why] = true
	}
	if len(said) < 10 {
		t.Errorf("%d different sentences of 10", len(said))
	}
	for _, bad := range [][]string{{"show", "a", "0"}, {"show", "a", "x"}, {"show", "", "1"}, {"show", "a", ""}, {"show", "a", "--lease-id", "l"}, {"show", "a", "1", "2"}} {
		if r := fencectl(t, url, bad...); r.code != exitUsage {
			t.Errorf("%q: exit code %d: %s", bad, r.code, r.errOut)
		}
	}
	if out := must(t, url, "show", "never-leased", "7"); !strings.Contains(out, "NEVER ISSUED") {
		t.Error(out)
	}
}
