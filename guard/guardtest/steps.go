package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// resource is the name that the cases with one resource use. All share it, so
// that a harness whose stores are not isolated fails.
const resource = "tenant_123:billing-close:2026-04"

// claim returns a claim on resource.
func claim(token guard.Token, lease string) guard.Claim {
	return guard.Claim{Resource: resource, Token: token, LeaseID: lease}
}

// named returns a claim on a resource of that name, under lease "a".
func named(name string, token guard.Token) guard.Claim {
	return guard.Claim{Resource: name, Token: token, LeaseID: "a"}
}

// markOf returns the mark that admitting c leaves.
func markOf(c guard.Claim) guard.Mark { return guard.Mark{Token: c.Token, LeaseID: c.LeaseID} }

// floorOf returns the mark of a resource that has none of its own, in a store
// with that floor.
func floorOf(t guard.Token) guard.Mark { return guard.Mark{Token: t, Floor: true} }

// step is one call of a case, and what it expects. Each checks one thing, so that the
// cases that fail say which thing is broken: admitted and refused check only the verdict.
type step func(ctx context.Context, e *env) error

// inOrder runs steps until one fails.
func inOrder(steps ...step) step {
	return func(ctx context.Context, e *env) error {
		for _, s := range steps {
			if err := s(ctx, e); err != nil {
				return err
			}
		}
		return nil
	}
}

// each runs a step for each claim.
func each(cs []guard.Claim, s func(guard.Claim) step) step {
	var steps []step
	for _, c := range cs {
		steps = append(steps, s(c))
	}
	return inOrder(steps...)
}

// byOther runs a step on the other handle.
func byOther(s step) step {
	return func(ctx context.Context, e *env) error {
		e.first++
		defer func() { e.first-- }()
		return s(ctx, e)
	}
}

func admitted(cs ...guard.Claim) step {
	return func(ctx context.Context, e *env) error { return admittedBy(ctx, e.store(), cs...) }
}

func admittedBy(ctx context.Context, s guard.Store, cs ...guard.Claim) error {
	for _, c := range cs {
		if _, err := s.Admit(ctx, c); err != nil {
			return fmt.Errorf("Admit(%s) = %w; want it admitted", show(c), err)
		}
	}
	return nil
}

// notAdmitted leaves the reason to other cases.
func notAdmitted(c guard.Claim) step {
	return func(ctx context.Context, e *env) error {
		if _, err := e.store().Admit(ctx, c); err == nil {
			return fmt.Errorf("Admit(%s) was admitted", show(c))
		}
		return nil
	}
}

func refused(want guard.Reason, cs ...guard.Claim) step {
	return func(ctx context.Context, e *env) error { return refusedBy(ctx, e.store(), want, cs...) }
}

func refusedBy(ctx context.Context, s guard.Store, want guard.Reason, cs ...guard.Claim) error {
	for _, c := range cs {
		switch _, err := s.Admit(ctx, c); {
		case err == nil:
			return fmt.Errorf("Admit(%s) was admitted; want it refused as %s", show(c), want)
		case guard.ReasonOf(err) != want:
			return fmt.Errorf("Admit(%s) = %w (%s); want %s", show(c), err, guard.ReasonOf(err), want)
		}
	}
	return nil
}

func returnsMark(c guard.Claim) step {
	return func(ctx context.Context, e *env) error {
		got, err := e.store().Admit(ctx, c)
		if err != nil {
			return fmt.Errorf("Admit(%s) = %w; want it admitted", show(c), err)
		}
		if want := markOf(c); got != want {
			return fmt.Errorf("Admit(%s) returned %s; want %s, the claim's own", show(c), showMark(got), showMark(want))
		}
		return nil
	}
}

// rejected checks the facts: the mark that Admit returns and everything in the
// *guard.RejectedError.
func rejected(want guard.Reason, mark guard.Mark, c guard.Claim) step {
	return func(ctx context.Context, e *env) error {
		got, err := e.store().Admit(ctx, c)
		if err == nil {
			return fmt.Errorf("Admit(%s) was admitted; want it refused as %s", show(c), want)
		}
		if got != mark {
			return fmt.Errorf("Admit(%s) returned %s with its refusal; want %s, the mark that refused", show(c), showMark(got), showMark(mark))
		}
		return rejection(err, want, mark, c)
	}
}

func rejection(err error, want guard.Reason, mark guard.Mark, c guard.Claim) error {
	var r *guard.RejectedError
	switch {
	case !errors.As(err, &r):
		return fmt.Errorf("Admit(%s) = %w, a %T; want a *guard.RejectedError in its tree", show(c), err, err)
	case r.Reason != want:
		return fmt.Errorf("Admit(%s): RejectedError.Reason is %q; want %q", show(c), r.Reason, want)
	case r.Claim != c:
		return fmt.Errorf("Admit(%s): RejectedError.Claim is %s; want what was offered", show(c), show(r.Claim))
	case r.Mark != mark:
		return fmt.Errorf("Admit(%s): RejectedError.Mark is %s; want %s", show(c), showMark(r.Mark), showMark(mark))
	case guard.ReasonOf(err) != want:
		return fmt.Errorf("Admit(%s): errors.Is finds %s; want %s, as RejectedError.Reason says", show(c), guard.ReasonOf(err), want)
	}
	return nil
}

func hasMark(resource string, want guard.Mark) step {
	return func(ctx context.Context, e *env) error { return hasMarkBy(ctx, e.store(), resource, want) }
}

func hasMarkBy(ctx context.Context, s guard.Store, resource string, want guard.Mark) error {
	got, err := s.Mark(ctx, resource)
	if err != nil {
		return fmt.Errorf("Mark(%s) = %w; want %s", quote(resource), err, showMark(want))
	}
	if got != want {
		return fmt.Errorf("Mark(%s) is %s; want %s", quote(resource), showMark(got), showMark(want))
	}
	return nil
}

// The times before which a case retires marks: after everything that the case will do, by
// any reasonable clock; none; and the latest cut.
func future(*env) time.Time  { return time.Now().Add(time.Hour) }
func never(*env) time.Time   { return time.Time{} }
func atCut(e *env) time.Time { return e.before }

// retires checks the count of Retire and, unless floor is negative, the floor.
func retires(before func(*env) time.Time, count int64, floor guard.Token) step {
	return func(ctx context.Context, e *env) error {
		got, err := e.store().Retire(ctx, before(e))
		switch {
		case err != nil:
			return fmt.Errorf("retiring: %w; want %d marks retired", err, count)
		case got.Count != count:
			return fmt.Errorf("retiring deleted %d marks; want %d", got.Count, count)
		case floor >= 0 && got.Floor != floor:
			return fmt.Errorf("retiring returned the floor %d; want %d", got.Floor, floor)
		}
		return nil
	}
}

// cut remembers a time that is, by any clock within Margin of this one, after
// everything done before the call and before everything done after it.
func cut(ctx context.Context, e *env) error {
	if err := sleep(ctx, e.Margin); err != nil {
		return err
	}
	e.before = time.Now()
	return sleep(ctx, e.Margin)
}

// restart replaces the store with the one that a restart gives.
func restart(ctx context.Context, e *env) error {
	old := e.handles[0]
	e.handles = nil
	s, err := e.Reopen(ctx, old)
	if err != nil {
		return fmt.Errorf("Harness.Reopen: %w", err)
	}
	e.handles = []guard.Store{s}
	return nil
}

func show(c guard.Claim) string {
	return fmt.Sprintf("token %d of %s under lease %s", int64(c.Token), quote(c.Resource), quote(c.LeaseID))
}

func showMark(m guard.Mark) string {
	switch {
	case m == (guard.Mark{}):
		return "no mark"
	case m.Floor && m.LeaseID == "":
		return fmt.Sprintf("the floor %d", m.Token)
	}
	return fmt.Sprintf("the mark %d under lease %s (Floor: %t)", m.Token, quote(m.LeaseID), m.Floor)
}

// quote shows a name that may be a megabyte of anything.
func quote(s string) string {
	if len(s) > 80 {
		return strconv.QuoteToASCII(s[:80]) + "... (" + strconv.Itoa(len(s)) + " bytes)"
	}
	return strconv.QuoteToASCII(s)
}
