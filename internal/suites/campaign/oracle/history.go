// Package oracle judges a run of the campaign: it compares what the resources
// recorded with the outcomes that the clients saw.
//
// It has two sources. The resource-side log ([Entry], [Grant]) is the order in
// which writes took effect, written inside the resource. The client histories
// ([Op]) say what each client asked, when, and with what outcome. Neither is
// believed about what the other knows better: the log cannot say what was
// acknowledged, and a client cannot say what took effect.
//
// [Check] compares the two by hand-written invariants; [Linearizable] gives the
// histories to porcupine with a model of a fenced register.
package oracle

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Kind is what a client asked for.
type Kind string

// The operations of a client.
const (
	Acquire Kind = "acquire"
	Raise   Kind = "raise"
	Read    Kind = "read"
	Write   Kind = "write"
	Release Kind = "release"
	// Handled does not come from a client: a handler was about to write.
	Handled Kind = "handled"
)

// Outcomes that are not a reason of package guard.
const (
	OK      = "ok"
	Held    = "held"            // an acquire was refused: another client has the lease
	Unknown = "outcome_unknown" // also of an operation that never returned
	Stale   = "stale"
	// Unavailable says that nothing was written.
	Unavailable = "unavailable"
)

// Op is one operation of a client. Times are nanoseconds of the machine's
// monotonic clock, which all processes share.
type Op struct {
	ID       string `json:"id"`
	Client   string `json:"client"`
	Resource string `json:"resource"`
	Kind     Kind   `json:"kind"`
	Token    int64  `json:"token,omitempty"`
	Lease    string `json:"lease,omitempty"`
	// Write is the ID of the write that is attempted or was read; Base is that
	// of the write it is based on.
	Write string `json:"write,omitempty"`
	Base  string `json:"base,omitempty"`
	N     int64  `json:"n,omitempty"`
	Call  int64  `json:"call,omitempty"`
	// Return is 0 for an operation that never returned.
	Return  int64  `json:"return,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Error   string `json:"error,omitempty"`
	// Until is when a granted lease ends by its holder's clock.
	Until int64 `json:"until,omitempty"`
}

// Surface returns the part of a resource's name that says through which surface
// it is written.
func Surface(resource string) string {
	surface, _, _ := strings.Cut(resource, ":")
	return surface
}

// unknown reports whether the client does not know the outcome.
func (o *Op) unknown() bool { return o.Return == 0 || o.Outcome == Unknown }

// ReadOps reads a client's history: one JSON object a line, one for the call
// and one for the return, joined by ID. A last line that was cut, because its
// writer was killed, is ignored; any other is an error.
func ReadOps(r io.Reader) ([]*Op, error) {
	var ops []*Op
	byID := map[string]*Op{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return ops, nil // what is left over was cut
		}
		if err != nil {
			return nil, err
		}
		var o Op
		if err := json.Unmarshal(line, &o); err != nil {
			return nil, fmt.Errorf("history line %q: %w", line, err)
		}
		call := byID[o.ID]
		switch {
		case call == nil && o.Return == 0:
			byID[o.ID] = &o
			ops = append(ops, &o)
		case call != nil && call.Return == 0 && o.Return != 0:
			o.Call = call.Call
			*call = o
		default:
			return nil, fmt.Errorf("history line %q is neither the call nor the return of its operation", line)
		}
	}
}

// Entry is one change that took effect, in the order of the resource's own log.
type Entry struct {
	Seq      int64  `json:"seq"`
	Resource string `json:"resource"`
	// Raised says that only the mark was raised.
	Raised bool   `json:"raised,omitempty"`
	Token  int64  `json:"token"`
	Lease  string `json:"lease,omitempty"`
	Write  string `json:"write,omitempty"`
	Base   string `json:"base,omitempty"`
	N      int64  `json:"n,omitempty"`
}

// Grant is one grant of a lease as the leases' table recorded it. Times are
// microseconds of the server's clock.
type Grant struct {
	Seq      int64  `json:"seq"`
	Resource string `json:"resource"`
	Lease    string `json:"lease"`
	Token    int64  `json:"token"`
	// OldToken, OldLease and OldExpires are what the grant replaced; OldLease
	// is empty if the lease was free.
	OldToken   int64  `json:"oldToken"`
	OldLease   string `json:"oldLease,omitempty"`
	OldExpires int64  `json:"oldExpires,omitempty"`
	At         int64  `json:"at"`
	Expires    int64  `json:"expires"`
}

// Final is a resource's state at the end.
type Final struct {
	Write string `json:"write"`
	N     int64  `json:"n"`
}

// Span is a stretch of monotonic time.
type Span struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// History is all that is known of a run.
type History struct {
	Ops    []*Op            `json:"-"`
	Log    []Entry          `json:"-"`
	Grants []Grant          `json:"-"`
	Final  map[string]Final `json:"final"`
	// Handlers are the surfaces whose writes are [Handled].
	Handlers map[string]bool `json:"-"`
	// Skewed lists the times at which the server's clock was stepped; leases
	// that overlap one of them promise nothing about each other's end.
	Skewed []Span `json:"skewed,omitempty"`
}
