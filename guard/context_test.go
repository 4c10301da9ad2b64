package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

type fakeLease struct{ claim guard.Claim }

func (l fakeLease) Claim() guard.Claim { return l.claim }
func (l fakeLease) Valid() bool        { return true }

type key struct{}

func TestClaimInContext(t *testing.T) {
	one := guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}
	two := guard.Claim{Resource: "r", Token: 11, LeaseID: "b"}
	lease := fakeLease{claim: two}
	plain := context.WithValue(t.Context(), key{}, "value")

	for _, c := range []struct {
		name  string
		ctx   context.Context
		claim guard.Claim // zero: none
		lease guard.Lease
	}{
		{"plain", plain, guard.Claim{}, nil},
		{"claim", guard.WithClaim(plain, one), one, nil},
		{"lease", guard.WithLease(plain, lease), two, lease},
		{"claim in lease", guard.WithClaim(guard.WithLease(plain, lease), one), one, nil},
		{"lease in claim", guard.WithLease(guard.WithClaim(plain, one), lease), two, lease},
		{"claim in claim", guard.WithClaim(guard.WithClaim(plain, one), two), two, nil},
		{"through a value", context.WithValue(guard.WithLease(plain, lease), key{}, "value"), two, lease},
		{"through WithoutCancel", context.WithoutCancel(guard.WithClaim(plain, one)), one, nil},
	} {
		claim, ok := guard.ClaimFrom(c.ctx)
		if claim != c.claim || ok != (c.claim != guard.Claim{}) {
			t.Errorf("%s: ClaimFrom = %+v, %t; want %+v", c.name, claim, ok, c.claim)
		}
		got, ok := guard.LeaseFrom(c.ctx)
		if got != c.lease || ok != (c.lease != nil) {
			t.Errorf("%s: LeaseFrom = %+v, %t; want %+v", c.name, got, ok, c.lease)
		}
		if v := c.ctx.Value(key{}); v != "value" {
			t.Errorf("%s: another's value is %v", c.name, v)
		}
	}
}

// TestClaimContextKeepsTheRest: the carrier is a custom context, so the test
// shows that it passes on what contexts pass on.
func TestClaimContextKeepsTheRest(t *testing.T) {
	deadline := time.Now().Add(time.Hour)
	parent, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	ctx := guard.WithClaim(parent, guard.Claim{Resource: "r", Token: 10})
	if d, ok := ctx.Deadline(); !ok || !d.Equal(deadline) {
		t.Errorf("Deadline = %v, %t", d, ok)
	}

	cause := errors.New("lost")
	outer, cancelOuter := context.WithCancelCause(ctx)
	inner, cancelInner := context.WithCancel(guard.WithLease(outer, fakeLease{}))
	defer cancelInner()
	if inner.Err() != nil {
		t.Fatal("ended too early")
	}
	cancelOuter(cause)
	testkit.Receive(t, "the cancel to arrive", inner.Done())
	if !errors.Is(inner.Err(), context.Canceled) || context.Cause(inner) != cause {
		t.Errorf("Err = %v, Cause = %v", inner.Err(), context.Cause(inner))
	}
	if ctx.Err() != nil {
		t.Errorf("the parent ended too: %v", ctx.Err())
	}
}

func TestClaimContextAllocatesOnce(t *testing.T) {
	parent := t.Context()
	claim := guard.Claim{Resource: "r", Token: 10, LeaseID: "a"}
	var ctx context.Context
	if n := testing.AllocsPerRun(1000, func() { ctx = guard.WithClaim(parent, claim) }); n != 1 {
		t.Errorf("WithClaim: %v allocations; want 1", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = guard.ClaimFrom(ctx) }); n != 0 {
		t.Errorf("ClaimFrom: %v allocations; want none", n)
	}
}

func TestObserverAllocatesNothing(t *testing.T) {
	var sum guard.Token
	var o guard.Observer = guard.ObserverFunc(func(_ context.Context, e guard.Event) { sum += e.Claim.Token })
	ctx := t.Context()
	event := guard.Event{Op: guard.OpAdmit, Surface: "test", Claim: guard.Claim{Resource: "r", Token: 1}}
	if n := testing.AllocsPerRun(1000, func() { o.Observe(ctx, event) }); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
	if sum == 0 {
		t.Error("the function was not called")
	}
}

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
		testkit.Must(t, guard.Inject(claim, carrier.Set))
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
		testkit.Must(t, guard.Inject(claim, carrier.Set))
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

type testLease struct {
	valid bool
	err   error
}

func (*testLease) Claim() guard.Claim { return guard.Claim{Resource: "r", Token: 7, LeaseID: "l"} }
func (l *testLease) Valid() bool      { return l.valid }
func (l *testLease) Err() error       { return l.err }

// plainLease has no method Err.
type plainLease struct{ guard.Lease }

// TestLost: a lost lease is one type with its facts, whoever knows of it. The
// controls are a lease that is valid and a claim without a lease.
func TestLost(t *testing.T) {
	claim := (*testLease)(nil).Claim()
	over, released := errors.New("the hold ended"), errors.New("lease released")
	own := &guard.LostError{Claim: claim, Cause: errors.New("the deadline passed"), LastRenewal: errors.New("no route")}
	other := &guard.LostError{Claim: guard.Claim{Resource: "other", Token: 1}}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	for name, c := range map[string]struct {
		ctx   context.Context
		cause error // nil: any
		same  error
	}{
		"the lease's own error":  {guard.WithLease(ended, &testLease{err: own}), own.Cause, own},
		"another reason":         {guard.WithLease(t.Context(), &testLease{err: released}), released, nil},
		"another lease's error":  {guard.WithLease(t.Context(), &testLease{err: other}), other, nil},
		"nothing known":          {guard.WithLease(t.Context(), plainLease{&testLease{}}), nil, nil},
		"the end of the context": {guard.WithLease(ended, plainLease{&testLease{}}), over, nil},
	} {
		err := guard.Lost(c.ctx)
		var lost *guard.LostError
		if !errors.Is(err, guard.ErrLeaseLost) || !errors.As(err, &lost) || lost.Claim != claim || !errors.Is(err, c.cause) && c.cause != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.same != nil && err != c.same || errors.As(err, new(*guard.RejectedError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := `fencepost: lease lost: token 7 for "r": the deadline passed; the last one: no route`; own.Error() != want {
		t.Errorf("%q, want %q", own, want)
	}
	for _, ctx := range []context.Context{t.Context(), ended, guard.WithClaim(ended, claim), guard.WithLease(ended, &testLease{valid: true, err: own})} {
		testkit.Check(t, guard.Lost(ctx))
	}
}

func TestLogObserver(t *testing.T) {
	var out bytes.Buffer
	o := guard.LogObserver(slog.New(slog.NewJSONHandler(&out, nil)))
	claim := guard.Claim{Resource: "r", Token: 4, LeaseID: "a"}
	mark := guard.Mark{Token: 5, LeaseID: "b"}
	if guard.LogObserver(nil) != nil {
		t.Error("an observer that logs nowhere is not nil")
	}
	refusal := guard.Decide(guard.SameOrNewer, mark, claim)
	o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql", Claim: claim, Mark: mark, Reason: guard.ReasonStale, Err: refusal})
	var line map[string]any
	testkit.Must(t, json.Unmarshal(out.Bytes(), &line))
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
	for reason, want := range map[guard.Reason]string{
		guard.ReasonUnavailable: "fencing_failed", guard.ReasonSetup: "fencing_failed", guard.ReasonOther: "fencing_failed", "novel": "fencing_failed",
		guard.ReasonMissing: "fencing_rejected", guard.ReasonNotFound: "fencing_rejected", guard.ReasonLeaseLost: "fencing_lost",
	} {
		out.Reset()
		o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql", Reason: reason, Err: guard.ErrInvalid})
		if !bytes.Contains(out.Bytes(), []byte(want+`"`)) || bytes.Contains(out.Bytes(), []byte("mark")) {
			t.Errorf("%s: %s", reason, &out)
		}
	}
	out.Reset()
	o.Observe(t.Context(), guard.Event{Op: guard.OpContend, Surface: "sql", Reason: guard.ReasonOther, Err: guard.ErrUnavailable})
	o.Observe(t.Context(), guard.Event{Op: guard.OpWrite, Surface: "sql"})
	o.Observe(t.Context(), guard.Event{Op: guard.OpRenew, Surface: "lock", Reason: guard.ReasonUnavailable, Err: guard.ErrUnavailable})
	if out.Len() != 0 {
		t.Errorf("logged a success, a raise that waits, or what the lease client logs itself: %s", &out)
	}
}
