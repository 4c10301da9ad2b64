package s3test

import (
	"net/http"
	"time"
)

// Fault is what goes wrong with a request, or merely happens around it. The
// zero value is nothing. Its parts combine, and take effect in the order of the
// fields.
type Fault struct {
	// DelayBefore is waited for after the request was received.
	DelayBefore time.Duration
	// Before is called next, before the request is looked at. It may block, and
	// may itself use the server.
	Before func(*Request)

	// Ignore are names of headers that the server overlooks, such as If-Match.
	// Checksums are verified nonetheless.
	Ignore []string
	// MergeMetadata keeps metadata of the object that is overwritten, where the
	// new object has none of that name.
	MergeMetadata bool
	// Race, if not zero, is how long the server waits between deciding the
	// conditions of a write and applying it, without deciding them again.
	Race time.Duration
	// Between is called in that gap. It may block, and may itself use the server.
	Between func(*Request)

	// After is called when the request has taken effect, if it has any, with the
	// status of the answer that has not been sent yet. It may block.
	After func(*Request, int)
	// DelayAfter is waited for next.
	DelayAfter time.Duration

	// ShortRanges refuses a suffix range that is longer than the object with
	// 416, as some gateways do, instead of answering with all of it.
	ShortRanges bool
	// Omit are names of headers that the answer lacks, such as Etag.
	Omit []string
	// Empty are names of headers that the answer has with an empty value.
	Empty []string
	// Cut ends the connection in the middle of the answer's body.
	Cut bool

	// Status, if not zero, is answered, with Code as the error's code or, if that
	// is empty, the usual one for the status. With status 200, and a code, the
	// answer is an error document, as Amazon gives for CompleteMultipartUpload.
	Status int
	Code   string
	// Lose closes the connection without an answer.
	Lose bool
	// Applied says that the request takes effect before Status or Lose do.
	// Otherwise it takes none: it is as if it had never been received.
	Applied bool
}

// Answer is the fault of a request that takes no effect and is answered with an
// error: 409 ConditionalRequestConflict, 500 InternalError, 503 SlowDown.
func Answer(status int) Fault { return Fault{Status: status} }

// AnswerApplied is the fault of a request that takes effect and is answered
// with an error nonetheless.
func AnswerApplied(status int) Fault { return Fault{Status: status, Applied: true} }

// LoseRequest is the fault of a request whose connection is closed before it
// takes effect.
func LoseRequest() Fault { return Fault{Lose: true} }

// LoseResponse is the fault of a request that takes effect, and whose
// connection is closed without an answer.
func LoseResponse() Fault { return Fault{Lose: true, Applied: true} }

// Slow is the fault of a request that waits before and after it takes effect.
func Slow(before, after time.Duration) Fault {
	return Fault{DelayBefore: before, DelayAfter: after}
}

// Race is the fault of a store that compares first and writes later.
func Race() Fault { return Fault{Race: 500 * time.Microsecond} }

// IgnoreConditions is the fault of a store that does not know about conditions.
func IgnoreConditions() Fault {
	return Fault{Ignore: []string{"If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}}
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

func (f *Fault) answer() *answer {
	code := f.Code
	if code == "" {
		code = codes[f.Status]
	}
	if code == "" {
		code = "InternalError"
	}
	a := fail(code)
	a.status = f.Status
	return a
}

// plan is all that happens to one request: the faults of all rules that match.
type plan []Fault

func (p plan) delayBefore() (d time.Duration) {
	for _, f := range p {
		d += f.DelayBefore
	}
	return d
}

func (p plan) delayAfter() (d time.Duration) {
	for _, f := range p {
		d += f.DelayAfter
	}
	return d
}

func (p plan) race() (d time.Duration) {
	for _, f := range p {
		d = max(d, f.Race)
	}
	return d
}

// gap is what happens between deciding the conditions of a write and applying
// it; false says that there is no gap.
func (p plan) gap(s *Server, req *Request) (wait func(), ok bool) {
	race := p.race()
	var hooks []func(*Request)
	for _, f := range p {
		if f.Between != nil {
			hooks = append(hooks, f.Between)
		}
	}
	return func() {
		s.sleep(race)
		for _, hook := range hooks {
			hook(req)
		}
	}, race > 0 || len(hooks) > 0
}

func (p plan) mergeMetadata() bool {
	return p.has(func(f *Fault) bool { return f.MergeMetadata })
}

func (p plan) has(is func(*Fault) bool) bool {
	for i := range p {
		if is(&p[i]) {
			return true
		}
	}
	return false
}

// spoil takes from a good answer what the faults say.
func (p plan) spoil(a *answer) {
	if a.header == nil {
		a.header = http.Header{}
	}
	for i := range p {
		for _, name := range p[i].Omit {
			a.header.Del(name)
		}
		for _, name := range p[i].Empty {
			a.header.Set(name, "")
		}
	}
}

// end returns the first fault that replaces the answer before, or after, the
// request takes effect.
func (p plan) end(applied bool) *Fault {
	for i, f := range p {
		if (f.Status != 0 || f.Lose) && f.Applied == applied {
			return &p[i]
		}
	}
	return nil
}
