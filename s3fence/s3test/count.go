package s3test

import (
	"fmt"
	"maps"
)

// count notes a request and returns its ID.
func (s *Server) count(op Op) string {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	s.received++
	s.counts[op]++
	return fmt.Sprintf("%016X", s.received)
}

func (s *Server) countAnswer(op Op, status int) {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	if s.answers[op] == nil {
		s.answers[op] = map[int]int{}
	}
	s.answers[op][status]++
}

// Count returns the number of requests received for the operations, or for all
// if none is named.
func (s *Server) Count(ops ...Op) int {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	sum := 0
	if len(ops) == 0 {
		for _, n := range s.counts {
			sum += n
		}
	}
	for _, op := range ops {
		sum += s.counts[op]
	}
	return sum
}

// Answers returns how often the operation was answered with each status. Zero
// stands for a connection that was closed instead.
func (s *Server) Answers(op Op) map[int]int {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	if s.answers[op] == nil {
		return map[int]int{}
	}
	return maps.Clone(s.answers[op])
}

// ResetCounts sets all counters to zero.
func (s *Server) ResetCounts() {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	clear(s.counts)
	clear(s.answers)
}
