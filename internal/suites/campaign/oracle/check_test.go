package oracle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const res = "http-admit:0"

// sound is a history of two holders in which nothing is wrong: the first is
// overtaken while it pauses between its read and its second write.
func sound() *History {
	h := &History{Final: map[string]Final{}, Handlers: map[string]bool{"http-admit": true}}
	now := int64(0)
	add := func(o Op) *Op {
		now += 10
		o.Resource, o.ID = res, fmt.Sprint("op", now)
		if o.Call == 0 {
			o.Call = now
		}
		if o.Return == 0 {
			o.Return = now + 5
		}
		if o.Outcome == "" {
			o.Outcome = OK
		}
		h.Ops = append(h.Ops, &o)
		return &o
	}
	add(Op{Kind: Acquire, Token: 1, Lease: "a", Until: 60})
	add(Op{Kind: Raise, Token: 1, Lease: "a"})
	add(Op{Kind: Read, Token: 1})
	add(Op{Kind: Write, Token: 1, Write: "w1", N: 1})
	add(Op{Kind: Acquire, Token: 2, Lease: "b", Until: 500, Return: 70})
	now += 20
	add(Op{Kind: Raise, Token: 2, Lease: "b"})
	add(Op{Kind: Read, Token: 2, Write: "w1", N: 1})
	add(Op{Kind: Write, Token: 1, Write: "x", Base: "w1", N: 2, Outcome: Stale})
	add(Op{Kind: Write, Token: 2, Write: "w2", Base: "w1", N: 2})
	add(Op{Kind: Write, Token: 2, Write: "w3", Base: "w2", N: 3, Outcome: Unknown})
	add(Op{Kind: Write, Token: 2, Write: "y", Base: "w3", N: 4, Outcome: Unavailable})
	add(Op{Kind: Read, Token: 2, Write: "w3", N: 3})
	for _, write := range []string{"w1", "w2", "w3"} {
		h.handle(write)
	}
	h.Log = []Entry{
		{Seq: 1, Resource: res, Raised: true, Token: 1},
		{Seq: 2, Resource: res, Token: 1, Write: "w1", N: 1},
		{Seq: 3, Resource: res, Raised: true, Token: 2},
		{Seq: 4, Resource: res, Token: 2, Write: "w2", Base: "w1", N: 2},
		{Seq: 5, Resource: res, Token: 2, Write: "w3", Base: "w2", N: 3},
	}
	h.Grants = []Grant{
		{Seq: 1, Resource: res, Lease: "a", Token: 1, At: 1000, Expires: 2000},
		{Seq: 2, Resource: res, Lease: "b", Token: 2, OldToken: 1, OldLease: "a", OldExpires: 2000, At: 2000, Expires: 3000},
	}
	h.Final[res] = Final{"w3", 3}
	return h
}

func judge(t *testing.T, h *History) []string {
	t.Helper()
	found := Check(h)
	more, open := Linearizable(h, 10*time.Second)
	if len(open) > 0 {
		t.Fatalf("undecided: %v", open)
	}
	var names []string
	for _, v := range append(found, more...) {
		if v.Resource != res || v.Surface != "http-admit" || v.Detail == "" {
			t.Errorf("a violation that does not say where: %+v", v)
		}
		names = append(names, v.Check)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestSoundHistory(t *testing.T) {
	if found := judge(t, sound()); len(found) > 0 {
		t.Errorf("a sound history is accused of %q", found)
	}
}

// handle adds a handler's record.
func (h *History) handle(write string) {
	h.Ops = append(h.Ops, &Op{ID: "handled " + write, Resource: res, Kind: Handled, Call: 1, Write: write})
}

// find returns the operation that attempts the write.
func (h *History) find(write string) *Op {
	i := slices.IndexFunc(h.Ops, func(o *Op) bool { return o.Write == write && o.Kind == Write })
	return h.Ops[i]
}

func (h *History) all(kind Kind) (ops []*Op) {
	for _, o := range h.Ops {
		if o.Kind == kind {
			ops = append(ops, o)
		}
	}
	return ops
}

// broken lists histories with one thing wrong, and the checks that must notice.
// Others may notice, too.
var broken = []struct {
	name   string
	break_ func(h *History)
	checks []string
}{
	{"a stale write took effect after a raise alone", func(h *History) {
		h.Log = slices.Insert(h.Log, 3, Entry{Seq: 3, Resource: res, Token: 1, Write: "x", Base: "w1", N: 2})
	}, []string{OlderToken, Refused, LostUpdate}},
	{"the raise was left out", func(h *History) { // the case that a comparison at write time cannot handle
		h.find("x").Outcome = OK
		h.Log = []Entry{h.Log[0], h.Log[1], {Seq: 3, Resource: res, Token: 1, Write: "x", Base: "w1", N: 2}, h.Log[3], h.Log[4]}
		h.handle("x")
	}, []string{LostUpdate, Counter, Register}},
	{"a write counts twice", func(h *History) { h.Log[4].N = 4 }, []string{Counter}},
	{"the end is not what the log says", func(h *History) { h.Final[res] = Final{"w2", 2} }, []string{Counter}},
	{"an acknowledged write is lost", func(h *History) { h.Log = h.Log[:4]; h.find("w3").Outcome = OK }, []string{Missing}},
	{"a lost answer was retried into a second write", func(h *History) {
		h.Log = append(h.Log, Entry{Seq: 6, Resource: res, Token: 2, Write: "w3", Base: "w2", N: 3})
	}, []string{Twice}},
	{"unavailable, and applied", func(h *History) { h.find("w3").Outcome = Unavailable }, []string{Refused}},
	{"nobody asked for it", func(h *History) {
		h.Log = append(h.Log, Entry{Seq: 6, Resource: res, Token: 2, Write: "z", Base: "w3", N: 4})
	}, []string{Phantom, Unhandled}},
	{"applied under another token", func(h *History) { h.Log[4].Token = 3 }, []string{Phantom}},
	{"stale, though nobody came after it", func(h *History) { h.find("y").Outcome = Stale }, []string{NoCause}},
	{"a conflict among holders of their own tokens", func(h *History) { h.find("y").Outcome = "conflict" }, []string{NoCause}},
	{"a token is issued twice", func(h *History) {
		h.Grants[1].Token = 1
		h.all(Acquire)[1].Token = 1
	}, []string{GrantOrder, Leases}},
	{"the row forgot its token", func(h *History) { h.Grants[1].OldToken = 7 }, []string{GrantOrder}},
	{"a lease is given away before its end", func(h *History) { h.Grants[1].At = 1999 }, []string{GrantOver}},
	{"a grant that the table does not know", func(h *History) { h.Grants = h.Grants[:1] }, []string{GrantTwice}},
	{"the deadline counted from the response", func(h *History) { h.all(Acquire)[0].Until = 75 }, []string{BothHolders}},
	{"a write around the handler", func(h *History) {
		h.Ops = slices.DeleteFunc(h.Ops, func(o *Op) bool { return o.Kind == Handled && o.Write == "w2" })
	}, []string{Unhandled}},
	{"a read of what was overwritten", func(h *History) { h.all(Read)[2].Write = "w1" }, []string{Register}},
	{"a refusal before there was a reason", func(h *History) {
		h.Ops = append(h.Ops, &Op{ID: "early", Resource: res, Kind: Raise, Token: 1, Outcome: Stale, Call: 21, Return: 22})
	}, []string{NoCause, Register}},
	{"tokens by the clients' order go down", func(h *History) {
		a := h.all(Acquire)
		a[0].Call, a[0].Return, a[0].Until = 300, 310, 320
	}, []string{Leases}},
}

func TestBrokenHistories(t *testing.T) {
	noticed := map[string]bool{}
	for _, b := range broken {
		t.Run(b.name, func(t *testing.T) {
			h := sound()
			b.break_(h)
			found := judge(t, h)
			for _, check := range b.checks {
				noticed[check] = true
				if !slices.Contains(found, check) {
					t.Errorf("it is accused of %q, not of %q", found, check)
				}
			}
		})
	}
	for _, check := range Checks {
		if !noticed[check] {
			t.Errorf("no broken history shows that %q can be reported", check)
		}
	}
}

// TestHoldersUnderSkew: a step of the server's clock excuses only what it
// explains.
func TestHoldersUnderSkew(t *testing.T) {
	for _, c := range []struct {
		span Span
		want bool
	}{{Span{20, 30}, false}, {Span{200, 300}, true}} {
		h := sound()
		h.all(Acquire)[0].Until = 75
		h.Skewed = []Span{c.span}
		if got := slices.Contains(judge(t, h), BothHolders); got != c.want {
			t.Errorf("with a step at %v: reported %v, want %v", c.span, got, c.want)
		}
	}
}

// TestLostAnswers: what a client could not learn is taken from the log,
// whether or not it took effect, and whether or not its client is dead.
func TestLostAnswers(t *testing.T) {
	for name, change := range map[string]func(h *History){
		"not applied":           func(h *History) { h.Log = h.Log[:4]; h.Final[res] = Final{"w2", 2}; h.all(Read)[2].Write = "w2" },
		"its client was killed": func(h *History) { h.find("w3").Return, h.find("w3").Outcome = 0, "" },
		"a raise without an answer": func(h *History) {
			r := h.all(Raise)[1]
			r.Return, r.Outcome = 0, ""
		},
		"a grant without an answer": func(h *History) {
			a := h.all(Acquire)[1]
			a.Return, a.Outcome, a.Until = 0, "", 0
		},
	} {
		h := sound()
		change(h)
		if found := judge(t, h); len(found) > 0 {
			t.Errorf("%s: it is accused of %q", name, found)
		}
	}
}

func TestReadOps(t *testing.T) {
	const call = `{"id":"a","kind":"write","call":1}` + "\n"
	const answer = `{"id":"a","kind":"write","return":2,"outcome":"ok"}` + "\n"
	ops, err := ReadOps(strings.NewReader(call + answer + `{"id":"b","kind":"read","call":3}` + "\n" + `{"id":"b","ret`))
	if err != nil || len(ops) != 2 || ops[0].Call != 1 || ops[0].Return != 2 || ops[0].Outcome != OK || ops[1].Return != 0 {
		t.Errorf("%+v, %v", ops, err)
	}
	for _, bad := range []string{answer, call + call, call + answer + answer, "{\n" + call} {
		if _, err := ReadOps(strings.NewReader(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}
