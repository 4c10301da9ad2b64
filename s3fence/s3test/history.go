package s3test

import (
	"fmt"
	"time"
)

// Mutation is a change to an object that took effect.
type Mutation struct {
	// Seq is the place in the order of all changes on the server, from 1.
	Seq    int64
	Op     Op
	Bucket string
	// Object is what was stored. For a deletion it has only the key.
	Object
	// Replaced is the ETag of the object that was there before, with quotes, or
	// empty if there was none.
	Replaced string
	Time     time.Time
}

// record adds to the history. s.mu is held.
func (s *Server) record(c *call, previous, next *Object, now time.Time) {
	s.seq++
	m := Mutation{Seq: s.seq, Op: c.Op, Bucket: c.Bucket, Time: now}
	m.Key = c.Key
	if next != nil {
		m.Object = *next
	}
	if previous != nil {
		m.Replaced = previous.ETag
	}
	s.history = append(s.history, m)
}

// History returns the changes to an object, in the order in which they took
// effect. With an empty key it returns those of the bucket; with an empty
// bucket as well, those of the server. A request that changed nothing, such as
// deleting a missing object, is not in it.
func (s *Server) History(bucket, key string) []Mutation {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []Mutation
	for _, m := range s.history {
		if (bucket == "" || m.Bucket == bucket) && (key == "" || m.Key == key) {
			found = append(found, m)
		}
	}
	return found
}

// Seq is the Seq of the last change on the server, 0 before the first.
func (s *Server) Seq() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// Object returns the object that is stored now.
func (s *Server) Object(bucket, key string) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[bucket]
	if b == nil || b.objects[key] == nil {
		return Object{}, false
	}
	return *b.objects[key], true
}

// Objects returns what is stored in a bucket now, sorted by key.
func (s *Server) Objects(bucket string) []Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.buckets[bucket]
	if b == nil {
		return nil
	}
	var found []Object
	for _, key := range b.keys {
		found = append(found, *b.objects[key])
	}
	return found
}

// count notes a request and returns its ID.
func (s *Server) count(op Op) string {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	s.received++
	s.counts[op]++
	return fmt.Sprintf("%016X", s.received)
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

// ResetCounts sets all counts to zero.
func (s *Server) ResetCounts() {
	s.countMu.Lock()
	defer s.countMu.Unlock()
	clear(s.counts)
}
