package s3test

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// Rule says which requests suffer which fault. A request must satisfy all
// conditions that are given; the zero value matches every request.
type Rule struct {
	// Ops are the operations; none means all.
	Ops []Op
	// Bucket, Key and Prefix, a prefix of the key, restrict what is addressed.
	Bucket string
	Key    string
	Prefix string
	// Match, if not nil, decides about requests that satisfy the above. Requests
	// are asked for one at a time; it must not use the server.
	Match func(*Request) bool
	// Skip is the number of matching requests that are left alone first.
	Skip int
	// Probability is that of a matching request to suffer the fault. Zero is 1.
	Probability float64
	// Times is the number of requests that suffer the fault. Zero is no limit.
	Times int

	// Fault is suffered by each of those requests.
	Fault Fault
	// Script, if not empty, replaces Fault: the first of those requests suffers
	// its first entry, and so on. When it is used up, the rule is spent.
	Script []Fault
	// Decide, if not nil, replaces Fault: it returns the fault for each of those
	// requests. It must not use the server.
	Decide func(*Request) Fault
}

// Injection is a rule in force.
type Injection struct {
	server *Server
	rule   Rule
	deal   func(*Request) Fault
	rng    *rand.Rand
	seen   int
	fired  int
}

// Inject puts a rule into force for requests that arrive from now on.
func (s *Server) Inject(rule Rule) *Injection {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	s.injected++
	i := &Injection{server: s, rule: rule, deal: rule.dealer(), rng: rand.New(rand.NewPCG(s.opts.Seed, s.injected))}
	s.rules = append(s.rules, i)
	return i
}

// Remove ends the rule for requests that arrive from now on.
func (i *Injection) Remove() {
	s := i.server
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	s.rules = slices.DeleteFunc(slices.Clone(s.rules), func(other *Injection) bool { return other == i })
}

// Fired returns the number of requests that have suffered the fault.
func (i *Injection) Fired() int {
	i.server.rulesMu.Lock()
	defer i.server.rulesMu.Unlock()
	return i.fired
}

// ClearFaults removes all rules and lets all pauses go.
func (s *Server) ClearFaults() {
	s.rulesMu.Lock()
	s.rules = nil
	pauses := s.pauses
	s.pauses = nil
	s.rulesMu.Unlock()
	for _, p := range pauses {
		p.Release()
	}
}

func (s *Server) plan(req *Request) plan {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	var p plan
	for _, i := range s.rules {
		if i.draw(req) {
			p = append(p, i.deal(req))
		}
	}
	return p
}

// draw decides whether the request suffers the fault.
func (i *Injection) draw(req *Request) bool {
	r := &i.rule
	switch {
	case len(r.Ops) > 0 && !slices.Contains(r.Ops, req.Op),
		r.Bucket != "" && r.Bucket != req.Bucket,
		r.Key != "" && r.Key != req.Key,
		!strings.HasPrefix(req.Key, r.Prefix),
		r.Match != nil && !r.Match(req):
		return false
	}
	i.seen++
	switch {
	case i.seen <= r.Skip,
		r.Times > 0 && i.fired >= r.Times,
		len(r.Script) > 0 && i.fired >= len(r.Script),
		r.Probability != 0 && i.rng.Float64() >= r.Probability:
		return false
	}
	i.fired++
	return true
}

// dealer returns what deals out the rule's faults, one call for each request.
func (r Rule) dealer() func(*Request) Fault {
	dealt := 0
	return func(req *Request) Fault {
		dealt++
		switch {
		case len(r.Script) > 0:
			return r.Script[dealt-1]
		case r.Decide != nil:
			return r.Decide(req)
		default:
			return r.Fault
		}
	}
}
