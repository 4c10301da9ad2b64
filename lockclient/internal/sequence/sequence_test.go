package sequence

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// TestFailed: what is certain is known by this package's types. A cause that anybody may
// have given a context promises nothing, whatever sentinel it is.
func TestFailed(t *testing.T) {
	engine := errors.New("the connection was lost")
	held := &driver.HeldError{Resource: "r"}
	cause := func(cause error) error {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		return context.Cause(ctx)
	}
	for _, c := range []struct {
		err     error
		verdict guard.Reason
		want    guard.Reason
	}{
		{nil, guard.ReasonOutcomeUnknown, guard.ReasonNone},
		{engine, guard.ReasonOutcomeUnknown, guard.ReasonOutcomeUnknown},
		{engine, guard.ReasonUnavailable, guard.ReasonUnavailable},
		{engine, guard.ReasonSetup, guard.ReasonSetup},
		{Unwritten{engine}, guard.ReasonOutcomeUnknown, guard.ReasonUnavailable},
		{Unwritten{engine}, guard.ReasonSetup, guard.ReasonSetup},
		{Foreign{"lease/r", "x"}, guard.ReasonOutcomeUnknown, guard.ReasonSetup},
		{Unwritten{Refusal{fmt.Errorf("%w: restored", guard.ErrMarkAhead)}}, guard.ReasonOutcomeUnknown, guard.ReasonMarkAhead},
		{cause(guard.ErrMarkAhead), guard.ReasonOutcomeUnknown, guard.ReasonOutcomeUnknown},
		{cause(guard.ErrSetup), guard.ReasonOutcomeUnknown, guard.ReasonOutcomeUnknown},
		{cause(held), guard.ReasonOutcomeUnknown, guard.ReasonOutcomeUnknown},
	} {
		err := Failed("acquire", guard.Claim{Resource: "r"}, c.err, func(error) guard.Reason { return c.verdict })
		if got := guard.ReasonOf(err); got != c.want {
			t.Errorf("%v, of which the engine's verdict is %s: %v, want %s", c.err, c.verdict, err, c.want)
		}
	}
	if err := Failed("acquire", guard.Claim{}, Refusal{held}, nil); err != error(held) {
		t.Errorf("a refusal: %v", err)
	}
}

// TestRead: a lease is read as it was stored, with the token of its write unless that has
// been replaced; what is not a lease is foreign.
func TestRead(t *testing.T) {
	stored := New(driver.Request{LeaseID: "a", Owner: "o", Metadata: "m"}, 100)
	got, err := Read("lease/r", stored.Text(), 7)
	if err != nil || got.ID != "a" || got.Owner != "o" || got.Metadata != "m" || got.Token != 107 {
		t.Errorf("%+v, %v", got, err)
	}
	if moved, err := Read("lease/r", got.Text(), 9); err != nil || moved.Token != 107 {
		t.Errorf("moved: %+v, %v", moved, err)
	}
	for _, text := range []string{"x", `{"v":2,"id":"a","base":"1"}`, `{"v":1,"base":"1"}`, `{"v":1,"id":"a","base":"-1"}`,
		`{"v":1,"id":"a","base":"9223372036854775800"}`, `{"v":1,"id":"a","base":"1","token":"-5"}`} {
		if l, err := Read("lease/r", []byte(text), 7); !errors.As(err, new(Foreign)) {
			t.Errorf("%s: %+v, %v", text, l, err)
		}
	}
}

// TestBase: a base of the next epoch is above what a restore may have lost, also if the
// base is ahead of the clock; an advance leaves room for later tokens.
func TestBase(t *testing.T) {
	ahead := First() + 1<<50
	if got := Raised(ahead); got < ahead+1<<36 {
		t.Errorf("%d is raised to %d", ahead, got)
	}
	if first := First(); Raised(5) < first {
		t.Errorf("raised below the clock")
	}
	free := func() (Standing, error) { return Standing{Base: 100, Number: 7}, nil }
	for above, ok := range map[guard.Token]bool{-1: false, 0: false, 1: true, 1<<62 - 1: true, 1 << 62: false, guard.MaxToken + 1: false} {
		reached, err := Advance(above, free, func(base int64) (bool, error) { return Token(base, 7) == above, nil })
		if err = Failed("advance", guard.Claim{}, err, nil); (err == nil) != ok || err != nil && !errors.Is(err, guard.ErrInvalid) || ok && reached != max(above, 107) {
			t.Errorf("advance to %v: %v, %v", above, reached, err)
		}
	}
}
