package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// model is what a store is to one caller: guard.Decide over a map. Its clock
// ticks only where the test has slept, so that it agrees with any clock.
type model struct {
	marks map[string]modelMark
	floor guard.Token
	tick  int
}

type modelMark struct {
	guard.Mark
	raised int
}

func (m *model) mark(resource string) guard.Mark {
	if v, ok := m.marks[resource]; ok {
		return v.Mark
	}
	return guard.Mark{Token: m.floor, Floor: m.floor != guard.NoToken}
}

func (m *model) admit(c guard.Claim) (guard.Mark, error) {
	if err := c.Validate(); err != nil {
		return guard.Mark{}, err
	}
	mark := m.mark(c.Resource)
	if err := guard.Decide(guard.SameOrNewer, mark, c); err != nil {
		return mark, err
	}
	if c.Token > mark.Token {
		m.marks[c.Resource] = modelMark{markOf(c), m.tick}
	}
	return markOf(c), nil
}

func (m *model) retire(before int) guard.Retired {
	r := guard.Retired{Floor: m.floor}
	for resource, v := range m.marks {
		if v.raised < before {
			delete(m.marks, resource)
			r.Count++
			r.Floor = max(r.Floor, v.Token)
		}
	}
	m.floor = r.Floor
	return r
}

// step is one call of a case, made on the store and on the model, which must agree.
type step func(ctx context.Context, e *env) error

// script makes its steps one after the other, and then retires every mark, whose number and
// floor show what the steps left.
func script(steps ...step) step {
	return func(ctx context.Context, e *env) error {
		for _, s := range append(steps, retire(future)) {
			if err := s(ctx, e); err != nil {
				return err
			}
		}
		return nil
	}
}

// next returns the handle of the next call.
func (e *env) next() guard.Store {
	e.calls++
	return e.handle(e.calls - 1)
}

// admit presents each claim, and looks at the mark that it left, through the other handle.
func admit(cs ...guard.Claim) step {
	return func(ctx context.Context, e *env) error {
		for _, c := range cs {
			wantMark, want := e.model.admit(c)
			mark, err := e.next().Admit(ctx, c)
			if err := agrees(c, mark, err, wantMark, want); err != nil {
				return err
			}
			if err := look(c.Resource)(ctx, e); err != nil {
				return fmt.Errorf("after Admit(%s) = %v: %w", show(c), err, err)
			}
		}
		return nil
	}
}

// agrees compares the response to a claim, and every fact in its refusal, with what is wanted.
func agrees(c guard.Claim, mark guard.Mark, err error, wantMark guard.Mark, want error) error {
	got, reason := guard.ReasonOf(err), guard.ReasonOf(want)
	switch {
	case want == nil && err != nil:
		return fmt.Errorf("Admit(%s) = %w (%s); want it admitted", show(c), err, got)
	case want != nil && err == nil:
		return fmt.Errorf("Admit(%s) was admitted; want it refused as %s", show(c), reason)
	case got != reason:
		return fmt.Errorf("Admit(%s) = %w (%s); want %s", show(c), err, got, reason)
	case reason == guard.ReasonInvalid:
		return nil
	case mark != wantMark:
		return fmt.Errorf("Admit(%s) = %v returned %s; want %s", show(c), err, showMark(mark), showMark(wantMark))
	case want == nil:
		return nil
	}
	var facts *guard.RejectedError
	switch {
	case !errors.As(err, &facts):
		return fmt.Errorf("Admit(%s) = %w, a %T; want a *guard.RejectedError in its tree", show(c), err, err)
	case facts.Reason != reason:
		return fmt.Errorf("Admit(%s): RejectedError.Reason is %q; want %q", show(c), facts.Reason, reason)
	case facts.Claim != c:
		return fmt.Errorf("Admit(%s): RejectedError.Claim is %s; want what was offered", show(c), show(facts.Claim))
	case facts.Mark != wantMark:
		return fmt.Errorf("Admit(%s): RejectedError.Mark is %s; want %s", show(c), showMark(facts.Mark), showMark(wantMark))
	}
	return nil
}

// look reads the mark of each resource.
func look(resources ...string) step {
	return func(ctx context.Context, e *env) error {
		for _, r := range resources {
			got, err := e.next().Mark(ctx, r)
			want := e.model.mark(r)
			switch invalid := guard.ValidateResource(r) != nil; {
			case invalid && guard.ReasonOf(err) != guard.ReasonInvalid:
				return fmt.Errorf("Mark(%s) = %s, %v; want an error that is guard.ErrInvalid", quote(r), showMark(got), err)
			case !invalid && err != nil:
				return fmt.Errorf("Mark(%s) = %w; want %s", quote(r), err, showMark(want))
			case !invalid && got != want:
				return fmt.Errorf("Mark(%s) is %s; want %s", quote(r), showMark(got), showMark(want))
			}
		}
		return nil
	}
}

// The times before which a case retires marks: none; the latest cut; after everything that the
// case will do, by any reasonable clock.
const (
	never = iota
	atCut
	future
)

func retire(before int) step {
	return func(ctx context.Context, e *env) error {
		at, tick := time.Time{}, 0
		switch before {
		case atCut:
			at, tick = e.cut, e.model.tick
		case future:
			at, tick = time.Now().Add(time.Hour), e.model.tick+1
		}
		want := e.model.retire(tick)
		got, err := e.next().Retire(ctx, at)
		switch {
		case err != nil:
			return fmt.Errorf("retiring: %w; want %d marks retired", err, want.Count)
		case got != want:
			return fmt.Errorf("retiring deleted %d marks and returned the floor %d; want %d and %d", got.Count, got.Floor, want.Count, want.Floor)
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
	e.cut = time.Now()
	e.model.tick++
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

// random is a sequence of random calls, with tokens close to the mark.
func random(ctx context.Context, e *env) error {
	rng := e.rand(0)
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	var log []string
	for i := range 8 * e.Rounds {
		name := pick("r", "R", "r ", "other", "日本", "r%")
		var s step
		var what string
		switch n := rng.IntN(100); {
		case n < 78:
			c := guard.Claim{Resource: name, LeaseID: pick("", "a", "A", "b")}
			if rng.IntN(20) == 0 {
				bad := invalidClaims(c)
				c = bad[rng.IntN(len(bad))]
			} else {
				c.Token = max(1, e.model.mark(name).Token-2+guard.Token(rng.IntN(6)))
			}
			s, what = admit(c), "Admit("+show(c)+")"
		case n < 92:
			s, what = look(name), "Mark("+quote(name)+")"
		case n < 96:
			s, what = cut, "cut"
		case n < 99:
			s, what = retire(atCut), "Retire(before the latest cut)"
		default:
			s, what = retire(future), "Retire(all)"
		}
		log = append(log, what)
		if err := s(ctx, e); err != nil {
			return fmt.Errorf("step %d: %w\n\tthe last steps: %s", i, err, strings.Join(log[max(0, len(log)-12):], "; "))
		}
	}
	return nil
}

// markOf returns the mark that admitting c leaves.
func markOf(c guard.Claim) guard.Mark { return guard.Mark{Token: c.Token, LeaseID: c.LeaseID} }

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
