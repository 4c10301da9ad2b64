package main

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestMarksRaiseOfAnotherLease: a token that belongs to another lease, a lease ID that belongs
// to another token, and a name that was never leased are refused, and both leases are named. The
// control shows what the refusal prevents: with --above-issuer the holder is locked out, show
// says both ways in which that may have happened, and the cure that it names works.
func TestMarksRaiseOfAnotherLease(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	lease := hold(t, pool, "worker-1", "billing", time.Hour)
	former := hold(t, pool, "worker-1", "cut", time.Hour)
	must(t, url, "force-unlock", "cut", "--actor", "ana", "--reason", "it hangs", "--request-id", "INC-1", "--yes")
	invalidated := former.Token() + 1
	hold(t, pool, "worker-2", "cut", time.Hour)
	raise := func(resource string, token guard.Token, leaseID string, more ...string) []string {
		return append([]string{"marks", "raise", resource, token.String(), "--lease-id", leaseID, "--yes"}, more...)
	}
	before := value[string](t, pool, state)
	for _, c := range []refusal{
		{"the holder's token, a typing error", raise("billing", lease.Token(), "typo"), exitRefused, "conflict", lease.ID()},
		{"the holder's token, no lease", raise("billing", lease.Token(), ""), exitRefused, "conflict", lease.ID()},
		{"both are named", raise("billing", lease.Token(), "typo"), exitRefused, "conflict", "not to lease typo"},
		{"the invalidated token, the cut lease", raise("cut", invalidated, former.ID()), exitRefused, "conflict", "INC-1"},
		{"the cut token, another lease", raise("cut", former.Token(), "typo"), exitRefused, "conflict", former.ID()},
		{"a lease of another token", raise("cut", invalidated+1, former.ID()), exitRefused, "conflict", "belongs to lease"},
		{"a name that was never leased", raise("bilingl", 1, "x"), exitRefused, "mark_ahead", "--above-issuer"},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, url) })
	}
	if value[string](t, pool, state) != before {
		t.Error("a refused raise changed something")
	}
	must(t, url, raise("cut", invalidated, "INC-1")...)
	must(t, url, raise("billing", lease.Token(), lease.ID())...)
	if !admits(t, pool, lease.Claim()) {
		t.Error("the holder's own claim locks it out")
	}

	other := hold(t, pool, "worker-1", "other", time.Hour)
	must(t, url, raise("other", other.Token(), "typo", "--above-issuer")...)
	if admits(t, pool, other.Claim()) {
		t.Error("control: the holder is not locked out")
	}
	if out := must(t, url, "show", "other"); !strings.Contains(out, "TWO LEASES HAVE ONE TOKEN, or the mark was raised by hand") || !strings.Contains(out, "force-unlock --raise") {
		t.Error(out)
	}
	must(t, url, "force-unlock", "other", "--actor", "ana", "--reason", "a typing error", "--raise", "--yes")
	if !admits(t, pool, hold(t, pool, "worker-2", "other", time.Hour).Claim()) {
		t.Error("the next holder is refused after the cure")
	}
}
