package s3test

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Fault is what goes wrong with a request, or merely happens around it. The zero
// value does nothing. Its parts combine, and take effect in the order of the
// fields.
type Fault struct {
	// Before is called first, before the request is examined. It may block, and
	// may itself use the server.
	Before func(*Request)

	// Ignore lists names of headers that the server ignores, such as If-Match.
	Ignore []string
	// MergeMetadata keeps metadata of the overwritten object where the new
	// object has none of that name.
	MergeMetadata bool
	// Between is called between deciding the conditions of a write and applying it,
	// and they are not decided again. It may block, and may itself use the server.
	Between func(*Request)

	// After is called when the request has taken effect, if it has any, with the
	// status of the response that has not been sent yet. It may block.
	After func(*Request, int)

	// ShortRanges refuses a suffix range that is longer than the object with
	// 416, as some gateways do, instead of responding with all of it.
	ShortRanges bool
	// Omit lists names of headers that the response lacks, such as Etag.
	Omit []string
	// MetadataFirst and ETagFirst make the server look twice for one read:
	// first for the metadata, or the ETag, and after Between for all the rest.
	MetadataFirst, ETagFirst bool
	// Cut ends the connection in the middle of the response's body.
	Cut bool

	// Status, if not zero, is the response's status, with Code as the error's code
	// or, if that is empty, the usual one for the status. With status 200 and a
	// code, the response is an error document.
	Status int
	Code   string
	// Foreign makes the response one of something in between, with Status, or 200 if that
	// is zero: Page is its body, and nothing in it is S3's.
	Foreign bool
	Page    string
	// Lose closes the connection without a response.
	Lose bool
	// Applied says that the request takes effect before Status or Lose does.
	// Otherwise it has no effect, as if it had never been received.
	Applied bool
}

// Respond is the fault of a request that takes no effect and fails with a
// status: 409 ConditionalRequestConflict, 500 InternalError, 503 SlowDown.
func Respond(status int) Fault { return Fault{Status: status} }

// NotFoundByProxy is the fault of a request that something in front of the store, which
// has no route to it for a moment, responds to with 404 and a page of its own.
func NotFoundByProxy(page string) Fault { return Fault{Foreign: true, Status: 404, Page: page} }

// RespondApplied is the fault of a request that takes effect and whose response
// is an error nonetheless.
func RespondApplied(status int) Fault { return Fault{Status: status, Applied: true} }

// LoseRequest is the fault of a request whose connection is closed before it
// takes effect.
func LoseRequest() Fault { return Fault{Lose: true} }

// LoseResponse is the fault of a request that takes effect, and whose
// connection is closed without a response.
func LoseResponse() Fault { return Fault{Lose: true, Applied: true} }

// Race is the fault of a store that compares first and writes later.
func Race() Fault {
	return Fault{Between: func(*Request) { time.Sleep(500 * time.Microsecond) }}
}

// IgnoreConditions is the fault of a store that does not know about conditions.
func IgnoreConditions() Fault {
	return Fault{Ignore: []string{"If-Match", "If-None-Match"}}
}

// codes are the usual codes of statuses that tests ask for.
var codes = map[int]string{
	400: "RequestTimeout",
	403: "AccessDenied",
	404: "NoSuchKey",
	409: "ConditionalRequestConflict",
	412: "PreconditionFailed",
	500: "InternalError",
	501: "NotImplemented",
	503: "SlowDown",
}

func (f *Fault) response() *response {
	if f.Foreign {
		return &response{status: cmp.Or(f.Status, http.StatusOK), header: http.Header{"Content-Type": {"text/html"}}, body: []byte(f.Page), foreign: true}
	}
	a := fail(cmp.Or(f.Code, codes[f.Status], "InternalError"))
	a.status = f.Status
	return a
}

// plan is everything that happens to one request: the faults of all rules that
// match.
type plan []Fault

// gap is what happens between deciding the conditions of a write and applying
// it; false says that there is no gap.
func (p plan) gap(req *Request) (wait func(), ok bool) {
	return func() {
		for _, f := range p {
			if f.Between != nil {
				f.Between(req)
			}
		}
	}, p.has(func(f *Fault) bool { return f.Between != nil })
}

func (p plan) has(is func(*Fault) bool) bool {
	for i := range p {
		if is(&p[i]) {
			return true
		}
	}
	return false
}

// tearing reports whether a read looks twice.
func (p plan) tearing() bool {
	return p.has(func(f *Fault) bool { return f.MetadataFirst || f.ETagFirst })
}

// tear puts what the first look saw into the headers of a read.
func (p plan) tear(h http.Header, before *Object) {
	if p.has(func(f *Fault) bool { return f.MetadataFirst }) {
		for name := range h {
			if strings.HasPrefix(name, metaPrefix) {
				h.Del(name)
			}
		}
		for name, value := range before.Metadata {
			h.Set(metaPrefix+name, value)
		}
	}
	if p.has(func(f *Fault) bool { return f.ETagFirst }) {
		h.Set("Etag", before.ETag)
	}
}

// spoil removes from a good response what the faults say.
func (p plan) spoil(a *response) {
	if a.header == nil {
		a.header = http.Header{}
	}
	for i := range p {
		for _, name := range p[i].Omit {
			a.header.Del(name)
		}
	}
}

// end returns the first fault that replaces the response before, or after, the
// request takes effect.
func (p plan) end(applied bool) *Fault {
	for i, f := range p {
		if (f.Status != 0 || f.Lose || f.Foreign) && f.Applied == applied {
			return &p[i]
		}
	}
	return nil
}

// Rule says which requests suffer which fault. A request must satisfy all
// conditions that are given; the zero value matches every request.
type Rule struct {
	// Ops are the operations; none means all.
	Ops []Op
	// Key and Prefix, a prefix of the key, restrict what is addressed.
	Key    string
	Prefix string
	// Match, if not nil, decides about requests that satisfy the above. It is
	// called for one request at a time and must not use the server.
	Match func(*Request) bool
	// Skip is the number of matching requests that pass without the fault first.
	Skip int
	// Probability is the chance that a matching request suffers the fault. Zero
	// is 1.
	Probability float64
	// Times is the number of requests that suffer the fault. Zero means without limit.
	Times int

	// Fault is what each of those requests suffers.
	Fault Fault
	// Script, if not empty, replaces Fault: the first of those requests suffers
	// its first entry, and so on. When it is used up, the rule is spent.
	Script []Fault
}

// Injection is a rule in force.
type Injection struct {
	server *Server
	rule   Rule
	rng    *rand.Rand
	seen   int
	fired  int
}

// Inject puts a rule into force for requests that arrive from now on.
func (s *Server) Inject(rule Rule) *Injection {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	s.injected++
	i := &Injection{server: s, rule: rule, rng: rand.New(rand.NewPCG(s.opts.Seed, s.injected))}
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

// ClearFaults removes all rules.
func (s *Server) ClearFaults() {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	s.rules = nil
}

func (s *Server) plan(req *Request) plan {
	s.rulesMu.Lock()
	defer s.rulesMu.Unlock()
	var p plan
	for _, i := range s.rules {
		if f, hit := i.draw(req); hit {
			p = append(p, f)
		}
	}
	return p
}

// draw returns the fault that the request suffers, if any.
func (i *Injection) draw(req *Request) (f Fault, hit bool) {
	r := &i.rule
	switch {
	case len(r.Ops) > 0 && !slices.Contains(r.Ops, req.Op),
		r.Key != "" && r.Key != req.Key,
		!strings.HasPrefix(req.Key, r.Prefix),
		r.Match != nil && !r.Match(req):
		return f, false
	}
	i.seen++
	switch {
	case i.seen <= r.Skip,
		r.Times > 0 && i.fired >= r.Times,
		len(r.Script) > 0 && i.fired >= len(r.Script),
		r.Probability != 0 && i.rng.Float64() >= r.Probability:
		return f, false
	}
	i.fired++
	if len(r.Script) > 0 {
		return r.Script[i.fired-1], true
	}
	return r.Fault, true
}
