package httpfence

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

func TestBadConfigurationPanics(t *testing.T) {
	store := newStore()
	bad := map[string]func(){
		"no store":           func() { New(nil, byPath, nil) },
		"no resource":        func() { New(store, nil, nil) },
		"no next":            func() { New(store, byPath, nil).Admit(nil) },
		"ChiParam":           func() { ChiParam("") },
		"PathValue":          func() { PathValue("") },
		"Literal empty":      func() { Literal("") },
		"Literal invalid":    func() { Literal("a\n") },
		"Join none":          func() { Join() },
		"Join nil":           func() { Join(Literal("a"), nil) },
		"no origins":         func() { NewTransport(nil, nil, nil) },
		"transport's header": func() { NewTransport(nil, []string{"http://a"}, &TransportOptions{TokenHeader: "a b"}) },
	}
	for name, o := range map[string]Options{
		"header with space":   {TokenHeader: "X Token"},
		"header with colon":   {TokenHeader: "X-Token:"},
		"header not ASCII":    {LeaseHeader: "X-L\u00e9ase"},
		"header with newline": {LeaseHeader: "X-Lease\n"},
		"headers equal":       {TokenHeader: "x-a", LeaseHeader: "X-A"},
		"equal to default":    {TokenHeader: "x-fencing-lease"},
		"header Host":         {TokenHeader: "host"},
		"header Connection":   {LeaseHeader: "connection"},
		"header TE":           {LeaseHeader: "TE"},
		"status 200":          {Statuses: map[guard.Reason]int{guard.ReasonStale: 200}},
		"status 399":          {Statuses: map[guard.Reason]int{guard.ReasonStale: 399}},
		"status 600":          {Statuses: map[guard.Reason]int{guard.ReasonStale: 600}},
		"status 100":          {Statuses: map[guard.Reason]int{guard.ReasonOther: 100}},
		"status 0":            {Statuses: map[guard.Reason]int{guard.ReasonOther: 0}},
		"unknown reason":      {Statuses: map[guard.Reason]int{"novel": 400}},
		"no reason":           {Statuses: map[guard.Reason]int{guard.ReasonNone: 400}},
		"Retry-After":         {RetryAfter: -1},
		"method":              {UnguardedMethods: []string{"GET "}},
		"empty method":        {UnguardedMethods: []string{""}},
	} {
		bad[name] = func() { New(store, byPath, &o) }
	}
	for name, f := range bad {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if s, _ := recover().(string); !strings.HasPrefix(s, "httpfence: ") {
					t.Errorf("panic %q", s)
				}
			}()
			f()
		})
	}
	// The control: what is allowed does not panic.
	New(store, byPath, &Options{
		TokenHeader: "a", LeaseHeader: "b", Statuses: map[guard.Reason]int{guard.ReasonStale: 400, guard.ReasonOther: 599},
		UnguardedMethods: []string{"PURGE"},
	})
}
