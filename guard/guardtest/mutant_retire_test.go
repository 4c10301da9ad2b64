package guardtest_test

import (
	"context"
	"maps"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

func (s *mutant) Mark(ctx context.Context, resource string) (guard.Mark, error) {
	if err := guard.ValidateResource(resource); err != nil && !s.has("nothing validated", "any resource has a mark") {
		return guard.Mark{}, err
	}
	if ctx.Err() != nil && !s.has("context ignored", "mark read whatever the context") {
		return guard.Mark{}, guard.Unavailable("read mark", guard.Claim{Resource: resource}, ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	mark := s.mark(resource)
	switch s.bug {
	case "floor not shown":
		if mark.Floor {
			return guard.Mark{}, nil
		}
	case "looking leaves a mark":
		if mark == (guard.Mark{}) {
			s.of[resource] = entry{mark, time.Now()}
		}
	case "marks shown from a cache":
		if s.reads++; s.reads%5 == 1 {
			s.copy = map[string]guard.Mark{}
			for r, v := range s.of {
				s.copy[r] = v.Mark
			}
		}
		if v, ok := s.copy[resource]; ok {
			return v, nil
		}
	}
	return mark, nil
}

func (s *mutant) Retire(ctx context.Context, before time.Time) (guard.Retired, error) {
	if ctx.Err() != nil && !s.has("context ignored", "retires whatever the context", "retired and then unavailable") {
		return guard.Retired{}, guard.Unavailable("retire", guard.Claim{}, ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	chosen := maps.Clone(s.of)
	maps.DeleteFunc(chosen, func(_ string, v entry) bool {
		switch s.bug {
		case "retire ignores the time":
			return false
		case "zero time means now":
			return !before.IsZero() && !v.raised.Before(before)
		}
		return !v.raised.Before(before)
	})
	if s.has("mark raised while retiring is deleted") {
		s.mu.Unlock()
		window()
		s.mu.Lock()
	}
	floor := *s.floor
	if s.has("floor overwritten") && len(chosen) > 0 {
		floor = 0
	}
	lowest := guard.MaxToken
	for resource, v := range chosen {
		delete(s.of, resource)
		floor, lowest = max(floor, v.Token), min(lowest, v.Token)
	}
	switch {
	case s.has("floor not raised"):
		floor = *s.floor
	case s.has("floor is the lowest") && len(chosen) > 0:
		floor = max(*s.floor, lowest)
	case s.has("floor follows the deletion"):
		s.mu.Unlock()
		window()
		s.mu.Lock()
	}
	if s.has("floor lowered by a race") {
		s.mu.Unlock()
		window()
		s.mu.Lock()
		*s.floor = floor // whatever another Retire has set it to
	} else if floor > *s.floor || s.has("floor overwritten") {
		*s.floor = floor
	}
	if ctx.Err() != nil && s.has("retired and then unavailable") {
		return guard.Retired{}, guard.Unavailable("retire", guard.Claim{}, ctx.Err())
	}
	r := guard.Retired{Count: int64(len(chosen)), Floor: *s.floor}
	switch s.bug {
	case "retire counts nothing":
		r.Count = 0
	case "retire returns no floor":
		r.Floor = 0
	}
	return r, nil
}

// newMutant returns an empty store; the bug "" means none.
func newMutant(bug string) *mutant {
	return &mutant{marks: newMarks(), floor: new(guard.Token), bug: bug}
}

// replica returns another handle on s.
func (s *mutant) replica() *mutant {
	r := &mutant{marks: s.marks, floor: s.floor, bug: s.bug}
	switch s.bug {
	case "replica has marks of its own":
		r.marks, r.floor = newMarks(), new(guard.Token)
	case "replica has a floor of its own":
		r.floor = new(guard.Token)
	}
	return r
}

// reopened returns s after a restart.
func (s *mutant) reopened() *mutant {
	r := newMutant(s.bug)
	if !s.has("forgets at restart") {
		r.of = s.of
	}
	if !s.has("forgets at restart", "forgets the floor at restart") {
		*r.floor = *s.floor
	}
	if s.has("forgets leases at restart") {
		for name, v := range r.of {
			v.LeaseID = ""
			r.of[name] = v
		}
	}
	return r
}
