package guardtest_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// marks is what the handles of one store share, and what a restart keeps.
type marks struct {
	mu sync.Mutex
	of map[string]entry
}

type entry struct {
	guard.Mark
	raised time.Time
}

func newMarks() *marks { return &marks{of: map[string]entry{}} }

// mutant is a correct store with one bug switched on. It states the rule
// itself instead of calling guard.Decide, so that the rule can be broken.
type mutant struct {
	*marks
	floor  *guard.Token // shared like the marks; s.mu guards it
	bug    string
	copy   map[string]guard.Mark // what a lagging replica shows
	reads  int
	writes int
	admits int

	release chan struct{} // ends a call that hangs
}

func (s *mutant) has(bugs ...string) bool { return slices.Contains(bugs, s.bug) }

// window is a gap in which every other goroutine of a race runs: on fake time
// no goroutine wakes before all the others wait as well.
func window() { time.Sleep(200 * time.Microsecond) }

// key returns the key under which the mark of a resource is stored.
func (s *mutant) key(resource string) string {
	switch s.bug {
	case "resource trimmed":
		return strings.TrimSpace(resource)
	case "resource lower-cased":
		return strings.ToLower(resource)
	case "resource normalised":
		return strings.ReplaceAll(resource, "e\u0301", "\u00e9")
	case "resource cut":
		return resource[:min(len(resource), 256)]
	case "resource taken for a pattern":
		return strings.ReplaceAll(resource, "_", "%")
	case "resource without its quotes":
		return strings.ReplaceAll(resource, "''", "'")
	}
	return resource
}

// mark returns the mark of resource; the caller holds s.mu.
func (s *mutant) mark(resource string) guard.Mark {
	if v, ok := s.of[s.key(resource)]; ok {
		if s.has("floor applied to every mark") && v.Token < *s.floor {
			return guard.Mark{Token: *s.floor, Floor: true}
		}
		return v.Mark
	}
	if s.has("floor ignored") {
		return guard.Mark{}
	}
	return guard.Mark{Token: *s.floor, Floor: *s.floor > 0}
}

// lower reports whether token a counts as lower than b.
func (s *mutant) lower(a, b guard.Token) bool {
	switch s.bug {
	case "tokens compared as text":
		return a.String() < b.String()
	case "tokens compared as floats":
		return float64(a) < float64(b)
	case "tokens compared as 32 bits":
		return int32(a) < int32(b)
	case "lower token admitted":
		return false
	}
	return a < b
}

func (s *mutant) sameLease(a, b string) bool {
	switch s.bug {
	case "leases not compared":
		return true
	case "leases compared without case":
		return strings.EqualFold(a, b)
	case "leases trimmed":
		return strings.TrimSpace(a) == strings.TrimSpace(b)
	case "no lease equals every lease":
		return a == b || a == "" || b == ""
	case "no lease in the mark equals every lease":
		return a == b || b == ""
	}
	return a == b
}

// decide states the rule.
func (s *mutant) decide(mark guard.Mark, c guard.Claim) guard.Reason {
	conflict := guard.ReasonConflict
	if s.has("conflict reported as stale") {
		conflict = guard.ReasonStale
	}
	switch {
	case s.has("other lease of a lower token is a conflict") && c.LeaseID != mark.LeaseID && c.Token < mark.Token:
		return conflict
	case s.lower(c.Token, mark.Token):
		return guard.ReasonStale
	case mark.Floor && s.has("retired resource stays closed"):
		return guard.ReasonStale
	case c.Token != mark.Token || s.has("lower token admitted"):
		return guard.ReasonNone
	case mark.Floor && s.has("token at the floor admitted"):
		return guard.ReasonNone
	case mark.Floor && s.has("lease compared with the floor's"):
		return conflict
	case mark.Floor:
		return guard.ReasonStale
	case !s.sameLease(c.LeaseID, mark.LeaseID):
		return conflict
	case s.has("equal token refused"):
		return guard.ReasonStale
	}
	return guard.ReasonNone
}

func (s *mutant) refusal(r guard.Reason, mark guard.Mark, c guard.Claim) error {
	e := &guard.RejectedError{Reason: r, Claim: c, Mark: mark}
	switch s.bug {
	case "facts missing":
		return r.Err()
	case "mark missing in the facts":
		e.Mark = guard.Mark{}
	case "claim missing in the facts":
		e.Claim = guard.Claim{}
	case "floor not told from a mark":
		e.Mark.Floor = false
	}
	return e
}

// invalid validates the input.
func (s *mutant) invalid(c guard.Claim) error {
	switch s.bug {
	case "nothing validated":
		return nil
	case "highest int64 is a token":
		if c.Token == math.MaxInt64 {
			return nil
		}
	case "resource length in characters":
		if n := len([]rune(c.Resource)); len(c.Resource) > guard.MaxResourceLen && n <= guard.MaxResourceLen {
			return nil
		}
	}
	return c.Validate()
}

func (s *mutant) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	invalid := s.invalid(c)
	if invalid != nil && !s.has("state for invalid claims") {
		if s.has("invalid reported as unavailable") {
			return guard.Mark{}, guard.Unavailable("admit", c, nil)
		}
		return guard.Mark{}, invalid
	}
	if ctx.Err() != nil && !s.has("context ignored", "written and then unavailable") {
		if s.has("bare context error") {
			return guard.Mark{}, ctx.Err()
		}
		return guard.Mark{}, guard.Unavailable("admit", c, ctx.Err())
	}
	if s.has("panics") && c.Token == 20 {
		panic("twenty")
	}
	if s.has("hangs") && c.Token == 20 {
		<-s.release // deaf to ctx
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.mark(c.Resource)
	if c.Token > old.Token && s.has("read, then write") {
		s.mu.Unlock()
		window()
		s.mu.Lock()
	}
	if old == (guard.Mark{}) && s.has("new resource refused") {
		return old, s.refusal(guard.ReasonNotFound, old, c)
	}
	if _, known := s.of[s.key(c.Resource)]; !known && s.has("lost insert is unavailable") {
		s.mu.Unlock()
		window()
		s.mu.Lock()
		if _, known := s.of[s.key(c.Resource)]; known {
			return old, guard.Unavailable("admit", c, nil)
		}
	}
	if reason := s.decide(old, c); reason != guard.ReasonNone {
		s.afterRefusal(old, c)
		if s.has("refused claim's mark not returned") {
			return guard.Mark{}, s.refusal(reason, old, c)
		}
		return old, s.refusal(reason, old, c)
	}
	now := guard.Mark{Token: c.Token, LeaseID: c.LeaseID}
	if s.admits++; s.admits%1000 == 0 && s.has("drops every 1,000th admission") {
		return now, nil
	}
	if old != now || s.has("reading is a raise") {
		s.of[s.key(c.Resource)] = entry{now, time.Now()}
		s.writes++
	}
	if s.writes == 1000 && s.has("forgets all after 1,000 admits") {
		clear(s.of)
	}
	if len(s.of) > 1000 && s.has("evicts a mark above 1,000") {
		for key := range s.of {
			delete(s.of, key)
			break
		}
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < time.Second && s.has("unavailable when cut halfway") {
		window()
	}
	if ctx.Err() != nil && s.has("written and then unavailable", "unavailable when cut halfway") {
		return old, guard.Unavailable("admit", c, ctx.Err())
	}
	if s.has("old mark returned") {
		return old, invalid
	}
	return now, invalid
}

// afterRefusal does what only a mutant does with a refused claim.
func (s *mutant) afterRefusal(old guard.Mark, c guard.Claim) {
	key := s.key(c.Resource)
	switch s.bug {
	case "refused claim lowers the mark":
		if c.Token < old.Token && !old.Floor {
			s.of[key] = entry{guard.Mark{Token: c.Token, LeaseID: c.LeaseID}, time.Now()}
		}
	case "refused lease replaces the mark's":
		if c.Token == old.Token && !old.Floor {
			s.of[key] = entry{guard.Mark{Token: old.Token, LeaseID: c.LeaseID}, time.Now()}
		}
	case "state for refused claims":
		if old.Floor {
			s.of[key] = entry{old, time.Now()}
		}
	}
}
