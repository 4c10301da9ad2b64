package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

var modelCases = []testCase{
	{name: "P6/agrees-with-the-model", run: agreesWithModel},
}

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
		m.marks[c.Resource] = modelMark{Mark: markOf(c), raised: m.tick}
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

// modelRun is one random sequence on the model and the store.
type modelRun struct {
	*env
	model model
	rng   *rand.Rand
	tick  int // of the model at the latest cut
	log   []string
}

func agreesWithModel(ctx context.Context, e *env) error {
	r := &modelRun{env: e, model: model{marks: map[string]modelMark{}}, rng: e.rand(0)}
	for i := range e.Steps {
		if err := r.step(ctx, i); err != nil {
			last := r.log[max(0, len(r.log)-12):]
			return fmt.Errorf("step %d: %w\n\tthe last steps: %s", i, err, strings.Join(last, "; "))
		}
	}
	return nil
}

func (r *modelRun) step(ctx context.Context, i int) error {
	r.first = i % len(r.handles)
	switch n := r.rng.IntN(100); {
	case n < 78:
		return r.admit(ctx, r.store())
	case n < 92:
		name := r.name()
		r.note("Mark(%s)", quote(name))
		return hasMark(name, r.model.mark(name))(ctx, r.env)
	case n < 96:
		r.note("cut")
		r.model.tick++
		r.tick = r.model.tick
		return cut(ctx, r.env)
	case n < 99:
		want := r.model.retire(r.tick)
		r.note("Retire(before the latest cut)")
		return retires(atCut, want.Count, want.Floor)(ctx, r.env)
	default:
		want := r.model.retire(r.model.tick + 1)
		r.note("Retire(all)")
		return retires(future, want.Count, want.Floor)(ctx, r.env)
	}
}

func (r *modelRun) admit(ctx context.Context, s guard.Store) error {
	c := guard.Claim{Resource: r.name(), LeaseID: pick(r.rng, "", "a", "A", "b")}
	if r.rng.IntN(20) == 0 {
		bad := invalidClaims(c)
		c = bad[r.rng.IntN(len(bad))]
	} else {
		c.Token = max(1, r.model.mark(c.Resource).Token-2+guard.Token(r.rng.IntN(6)))
	}
	r.note("Admit(%s)", show(c))

	before := r.model.mark(c.Resource)
	wantMark, want := r.model.admit(c)
	got, err := s.Admit(ctx, c)
	if guard.ReasonOf(err) != guard.ReasonOf(want) {
		return fmt.Errorf("Admit(%s) with %s = %v; want %v", show(c), showMark(before), err, want)
	}
	var rejected *guard.RejectedError
	switch {
	case want == nil && got != wantMark:
		return fmt.Errorf("Admit(%s) with %s returned %s; want %s", show(c), showMark(before), showMark(got), showMark(wantMark))
	case errors.As(want, &rejected):
		if got != wantMark {
			return fmt.Errorf("Admit(%s) returned %s with its refusal; want %s", show(c), showMark(got), showMark(wantMark))
		}
		return rejection(err, rejected.Reason, rejected.Mark, c)
	}
	return nil
}

func (r *modelRun) name() string { return pick(r.rng, "r", "R", "r ", "other", "日本", "r%") }

func (r *modelRun) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
	if len(r.log) > 100 {
		r.log = slices.Clone(r.log[50:])
	}
}

func pick(rng *rand.Rand, from ...string) string { return from[rng.IntN(len(from))] }
