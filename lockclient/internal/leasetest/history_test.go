package leasetest

import (
	"testing"
	"time"
)

// TestCheckHistory: the checker finds the faults that it is meant to find.
func TestCheckHistory(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	id := func(s string) *string { return &s }
	grant := func(token int64, lease string, from, to int) Happening {
		return Happening{Token: token, LeaseID: id(lease), AcquiredAt: at(from), ExpiresAt: at(to), LoggedAt: at(from)}
	}
	release := func(token int64, when int) Happening {
		return Happening{Token: token, ExpiresAt: at(when), LoggedAt: at(when)}
	}
	renew := func(token int64, lease string, from, when, to int) Happening {
		return Happening{Token: token, TokenBefore: &token, LeaseID: id(lease), Before: id(lease), AcquiredAt: at(from), LoggedAt: at(when), ExpiresAt: at(to)}
	}
	for name, test := range map[string]struct {
		all []Happening
		bad bool
	}{
		"good":              {[]Happening{grant(1, "a", 0, 10), renew(1, "a", 0, 5, 15), release(1, 12), grant(2, "b", 12, 20), grant(3, "c", 20, 30)}, false},
		"repeated token":    {[]Happening{grant(1, "a", 0, 10), release(1, 5), grant(1, "b", 5, 10)}, true},
		"lower token":       {[]Happening{grant(2, "a", 0, 10), release(2, 5), grant(1, "b", 5, 10)}, true},
		"overlap":           {[]Happening{grant(1, "a", 0, 10), grant(2, "b", 9, 20)}, true},
		"overlap, renewed":  {[]Happening{grant(1, "a", 0, 10), renew(1, "a", 0, 5, 15), grant(2, "b", 12, 20)}, true},
		"renewed too late":  {[]Happening{grant(1, "a", 0, 10), renew(1, "a", 0, 11, 15)}, true},
		"lowered by nobody": {[]Happening{grant(5, "a", 0, 10), release(1, 5)}, true},
	} {
		if _, problems := CheckHistory(test.all); (len(problems) > 0) != test.bad {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
