package sqlfence_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// TestVerdicts: every reason has its verdict, and none would loop forever.
func TestVerdicts(t *testing.T) {
	want := map[guard.Reason]verdict{
		guard.ReasonStale: drop, guard.ReasonLeaseLost: drop, guard.ReasonSpent: acknowledge,
		guard.ReasonSetup: halt, guard.ReasonUnavailable: redeliver, guard.ReasonOutcomeUnknown: redeliver,
	}
	for _, reason := range guard.Reasons() {
		v, ok := want[reason]
		if !ok {
			v = deadLetter
		}
		if got := verdictOf(reason.Err()); got != v {
			t.Errorf("%s: %s, want %s", reason, got, v)
		}
	}
	if verdictOf(nil) != acknowledge || verdictOf(errors.New("x")) != deadLetter {
		t.Error("success or another error has another verdict")
	}
}

func TestConsume(t *testing.T) {
	pool := pgtest.Pool(t)
	c := &consumer{guard.Must(sqlfence.Pgx(pool, nil))}
	testkit.Must(t, sqladmin.Pgx(pool).Migrate(t.Context()))
	if _, err := pool.Exec(t.Context(), consumerSchema); err != nil {
		t.Fatal(err)
	}
	newer := guard.Claim{Resource: "account:acme", Token: 11, LeaseID: "b"}
	good := guard.Must(produce("good", 1, "acme", newer))
	with := func(change func(*message)) message {
		m := good
		m.ID, m.Headers = "bad", slices.Clone(good.Headers)
		change(&m)
		return m
	}
	for _, c2 := range []struct {
		name string
		m    message
		want error
	}{
		{"good", good, nil},
		{"again", good, nil},
		{"stale", with(func(m *message) { m.Headers.set(guard.CarrierToken, "10") }), guard.ErrStale},
		{"conflict", with(func(m *message) { m.Headers.set(guard.CarrierLease, "a") }), guard.ErrConflict},
		{"no token", with(func(m *message) { m.Headers = nil }), guard.ErrMissing},
		{"two tokens", with(func(m *message) { m.Headers = append(m.Headers, m.Headers...) }), guard.ErrInvalid},
		{"another account's token", with(func(m *message) { m.Account = "other" }), guard.ErrInvalid},
		{"no account", with(func(m *message) { m.Account = "" }), guard.ErrInvalid},
		{"unknown account", guard.Must(produce("bad", 1, "none", guard.Claim{Resource: "account:none", Token: 1})), guard.ErrNotFound},
	} {
		if err := c.consume(t.Context(), c2.m); !errors.Is(err, c2.want) || (err == nil) != (c2.want == nil) {
			t.Errorf("%s: %v", c2.name, err)
		}
	}
	var cents, consumed int
	testkit.Must(t, pool.QueryRow(t.Context(), "SELECT (SELECT cents FROM accounts), (SELECT count(*) FROM consumed)").Scan(&cents, &consumed))
	if cents != 1 || consumed != 1 {
		t.Errorf("the account is at %d after %d messages", cents, consumed)
	}
	// The control: without the fence the late message changes the account.
	late := with(func(m *message) { m.Headers.set(guard.CarrierToken, "10") })
	testkit.Must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return apply(t.Context(), tx, late) }))
	if err := pool.QueryRow(t.Context(), "SELECT cents FROM accounts").Scan(&cents); err != nil || cents != 2 {
		t.Errorf("control: %d, %v", cents, err)
	}
}
