package guard_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// multi are headers that can hold a key several times, as most can.
type multi map[string][]string

func (m multi) Get(key string) []string { return m[key] }
func (m multi) Set(key, value string)   { m[key] = []string{value} }

func TestCarrierRoundTrip(t *testing.T) {
	for _, claim := range []guard.Claim{
		{Resource: "r", Token: 1},
		{Resource: "tenant_123:billing-close:2026-04", Token: guard.MaxToken, LeaseID: "a"},
		{Resource: "日本 語", Token: 1<<53 + 1, LeaseID: strings.Repeat("x", 128)},
	} {
		carrier := multi{}
		if err := guard.Inject(claim, carrier.Set); err != nil {
			t.Fatal(err)
		}
		if got, err := guard.Extract(claim.Resource, carrier.Get); err != nil || got != claim {
			t.Errorf("Extract = %+v, %v; want %+v", got, err, claim)
		}
	}
}

// TestInjectReplaces: a message that is passed on must not keep the lease of
// the claim that it carried before.
func TestInjectReplaces(t *testing.T) {
	carrier := multi{}
	for _, claim := range []guard.Claim{{Resource: "r", Token: 1, LeaseID: "a"}, {Resource: "r", Token: 2}} {
		if err := guard.Inject(claim, carrier.Set); err != nil {
			t.Fatal(err)
		}
		if got, err := guard.Extract("r", carrier.Get); err != nil || got != claim {
			t.Errorf("Extract = %+v, %v; want %+v", got, err, claim)
		}
	}
}

func TestInjectRefusesInvalidClaims(t *testing.T) {
	for _, claim := range []guard.Claim{
		{}, {Resource: "r"}, {Token: 1}, {Resource: "r", Token: -1}, {Resource: "r\r\nfencing-token: 99", Token: 1},
		{Resource: "r", Token: 1, LeaseID: "a\n"},
	} {
		carrier := multi{}
		if err := guard.Inject(claim, carrier.Set); !errors.Is(err, guard.ErrInvalid) || len(carrier) != 0 {
			t.Errorf("Inject(%+v) = %v, and wrote %v; want ErrInvalid", claim, err, carrier)
		}
	}
}

func TestExtractRefuses(t *testing.T) {
	const token, resource, lease = guard.CarrierToken, guard.CarrierResource, guard.CarrierLease
	one := func(s string) []string { return []string{s} }
	for name, c := range map[string]struct {
		carrier multi
		want    guard.Reason
	}{
		"nothing at all":     {multi{}, guard.ReasonMissing},
		"no token":           {multi{resource: one("r"), lease: one("a")}, guard.ReasonMissing},
		"no values of token": {multi{token: {}, resource: one("r"), lease: one("a")}, guard.ReasonMissing},
		"no resource":        {multi{token: one("1"), lease: one("a")}, guard.ReasonInvalid},
		"two tokens":         {multi{token: {"1", "2"}, resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"one token twice":    {multi{token: {"1", "1"}, resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"two resources":      {multi{token: one("1"), resource: {"r", "other"}, lease: one("a")}, guard.ReasonInvalid},
		"two leases":         {multi{token: one("1"), resource: one("r"), lease: {"a", "b"}}, guard.ReasonInvalid},
		"another resource":   {multi{token: one("1"), resource: one("other"), lease: one("a")}, guard.ReasonMisdirected},
		"malformed resource": {multi{token: one("1"), resource: one("r\n"), lease: one("a")}, guard.ReasonInvalid},
		"no lease":           {multi{token: one("1"), resource: one("r")}, guard.ReasonInvalid},
		"other case":         {multi{token: one("1"), resource: one("R"), lease: one("a")}, guard.ReasonMisdirected},
		"empty token":        {multi{token: one(""), resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"zero":               {multi{token: one("0"), resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"leading zero":       {multi{token: one("01"), resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"two in one value":   {multi{token: one("1, 2"), resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"too high":           {multi{token: one("9223372036854775807"), resource: one("r"), lease: one("a")}, guard.ReasonInvalid},
		"malformed lease":    {multi{token: one("1"), resource: one("r"), lease: one("a\x00")}, guard.ReasonInvalid},
		"lease too long":     {multi{token: one("1"), resource: one("r"), lease: one(strings.Repeat("a", 129))}, guard.ReasonInvalid},
	} {
		got, err := guard.Extract("r", c.carrier.Get)
		if got != (guard.Claim{}) || guard.ReasonOf(err) != c.want {
			t.Errorf("%s: Extract = %+v, %v (%s); want no claim and %s", name, got, err, guard.ReasonOf(err), c.want)
		}
	}
	// The resource that the consumer derives is checked too.
	if got, err := guard.Extract("", multi{token: one("1"), resource: one(""), lease: one("a")}.Get); got != (guard.Claim{}) || !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("Extract of an empty resource = %+v, %v; want ErrInvalid", got, err)
	}
}
