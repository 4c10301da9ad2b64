package s3test_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

var puts = []s3test.Op{s3test.PutObject}

func TestAnswers(t *testing.T) {
	for _, f := range []struct {
		name    string
		fault   s3test.Fault
		status  int
		body    string
		applied bool
	}{
		{"409", s3test.Respond(409), 409, "<Code>ConditionalRequestConflict</Code>", false},
		{"500", s3test.Respond(500), 500, "<Code>InternalError</Code>", false},
		{"503", s3test.Respond(503), 503, "<Code>SlowDown</Code>", false},
		{"409 although applied", s3test.RespondApplied(409), 409, "<Code>ConditionalRequestConflict</Code>", true},
		{"500 although applied", s3test.RespondApplied(500), 500, "<Code>InternalError</Code>", true},
		{"another code", s3test.Fault{Status: 400, Code: "ExpiredToken"}, 400, "<Code>ExpiredToken</Code>", false},
		{"an error with status 200", s3test.Fault{Status: 200, Code: "InternalError"}, 200, "<Code>InternalError</Code>", false},
		{"lost request", s3test.LoseRequest(), 0, "", false},
		{"lost response", s3test.LoseResponse(), 0, "", true},
	} {
		t.Run(f.name, func(t *testing.T) {
			c := newClient(t, s3test.Options{})
			c.put("a", "before")
			injection := c.server.Inject(s3test.Rule{Ops: puts, Fault: f.fault})
			r, err := c.try(http.MethodPut, "/a", "after")
			if (err != nil) != (f.status == 0) {
				t.Fatal(err)
			}
			if err == nil && (r.status != f.status || !strings.Contains(r.body, f.body) || !strings.Contains(r.body, "<RequestId>")) {
				t.Errorf("%d %s", r.status, r.body)
			}
			want := "before"
			if f.applied {
				want = "after"
			}
			c.holds("a", want)
			if n := injection.Fired(); n != 1 {
				t.Errorf("fired %d times", n)
			}
			injection.Remove()
			c.put("a", "well again")
		})
	}
}

func TestRuleSelects(t *testing.T) {
	get := s3test.Rule{Ops: []s3test.Op{s3test.GetObject}}
	for _, r := range []struct {
		name   string
		rule   s3test.Rule
		suffer string // of PUTs to a/1, a/2, b/1, b/2, a/1
	}{
		{"all", s3test.Rule{}, "a/1 a/2 b/1 b/2 a/1"},
		{"other operation", get, ""},
		{"key", s3test.Rule{Key: "a/1"}, "a/1 a/1"},
		{"prefix", s3test.Rule{Prefix: "b/"}, "b/1 b/2"},
		{"function", s3test.Rule{Match: func(r *s3test.Request) bool { return string(r.Body) == "2" }}, "b/1"},
		{"skip", s3test.Rule{Skip: 3}, "b/2 a/1"},
		{"times", s3test.Rule{Times: 2}, "a/1 a/2"},
		{"skip and times", s3test.Rule{Skip: 1, Times: 1, Prefix: "a/"}, "a/2"},
		{"script", s3test.Rule{Script: []s3test.Fault{s3test.Respond(500), {}, s3test.Respond(500)}}, "a/1 b/1"},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := newClient(t, s3test.Options{})
			if r.rule.Script == nil {
				r.rule.Fault = s3test.Respond(500)
			}
			c.server.Inject(r.rule)
			var suffered []string
			for i, key := range []string{"a/1", "a/2", "b/1", "b/2", "a/1"} {
				answer, err := c.try(http.MethodPut, "/"+key, fmt.Sprint(i))
				if err != nil {
					t.Fatal(err)
				}
				if answer.status == 500 {
					suffered = append(suffered, key)
				}
			}
			if got := strings.Join(suffered, " "); got != r.suffer {
				t.Errorf("%q, want %q", got, r.suffer)
			}
		})
	}
}

// The same seed gives the same faults, another seed others, about as often as
// requested.
func TestProbabilityIsSeeded(t *testing.T) {
	draw := func(seed uint64) string {
		c := newClient(t, s3test.Options{Seed: seed})
		c.server.Inject(s3test.Rule{Ops: puts, Probability: 0.3, Fault: s3test.Respond(503)})
		var luck strings.Builder
		for range 200 {
			r, err := c.try(http.MethodPut, "/a", "x")
			if err != nil {
				t.Fatal(err)
			}
			luck.WriteString(map[bool]string{true: "x", false: "."}[r.status == 503])
		}
		return luck.String()
	}
	first := draw(1)
	if n := strings.Count(first, "x"); n < 30 || n > 90 {
		t.Errorf("%d of 200 at a probability of 0.3", n)
	}
	if again := draw(1); again != first {
		t.Errorf("the same seed, and yet\n%s\n%s", first, again)
	}
	if other := draw(2); other == first {
		t.Error("another seed changes nothing")
	}
}

func TestFaultsCombine(t *testing.T) {
	c := newClient(t, s3test.Options{})
	var mu sync.Mutex
	var events []string
	note := func(e string) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}
	c.server.Inject(s3test.Rule{Fault: s3test.Fault{
		Before: func(r *s3test.Request) { note("before " + string(r.Body)) },
		After:  func(r *s3test.Request, status int) { note(fmt.Sprint("after ", status)) },
	}})
	c.server.Inject(s3test.Rule{Ops: puts, Fault: s3test.IgnoreConditions()})
	c.put("a", "1", "If-Match", `"no such thing"`)
	if want := []string{"before 1", "after 200"}; !slices.Equal(events, want) {
		t.Errorf("%q, want %q", events, want)
	}
	c.server.ClearFaults()
	c.do(412, "", http.MethodPut, "/a", "2", "If-None-Match", "*")
}

func TestIgnoreAndMerge(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.put("a", "1", "x-amz-meta-one", "1", "x-amz-meta-both", "1")
	c.server.Inject(s3test.Rule{Ops: puts, Fault: s3test.Fault{MergeMetadata: true, Ignore: []string{"x-amz-meta-hidden"}}})
	c.put("a", "2", "x-amz-meta-two", "2", "x-amz-meta-both", "2", "x-amz-meta-hidden", "2")
	o, _ := c.server.Object(bucket, "a")
	if got := fmt.Sprint(o.Metadata); got != "map[both:2 one:1 two:2]" {
		t.Errorf("metadata %s", got)
	}
	// What had been stored has not changed.
	if got := fmt.Sprint(c.server.History(bucket, "a")[0].Metadata); got != "map[both:1 one:1]" {
		t.Errorf("metadata before %s", got)
	}
}

// A store that compares first and writes later acknowledges two writers.
func TestRace(t *testing.T) {
	c := newClient(t, s3test.Options{})
	etag := c.put("a", "0")
	var wg, decided sync.WaitGroup
	decided.Add(2)
	c.server.Inject(s3test.Rule{Ops: puts, Fault: s3test.Fault{Between: func(*s3test.Request) {
		decided.Done()
		decided.Wait()
	}}})
	for i := range 2 {
		wg.Go(func() {
			if r, err := c.try(http.MethodPut, "/a", fmt.Sprint(i+1), "If-Match", etag); err != nil || r.status != 200 {
				t.Error(r, err)
			}
		})
	}
	wg.Wait()
	h := c.server.History(bucket, "a")
	if len(h) != 3 || h[1].Replaced != etag || h[2].Replaced != h[1].ETag {
		t.Errorf("%+v", h)
	}
}

// Answers to readers that gateways have been seen to give.
func TestSpoiltAnswers(t *testing.T) {
	c := newClient(t, s3test.Options{})
	c.put("a", "body")
	get := func(f s3test.Fault) (*reply, error) {
		t.Helper()
		in := c.server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.GetObject}, Fault: f})
		defer in.Remove()
		r, err := c.try(http.MethodGet, "/a", "", "Range", "bytes=-10")
		if r == nil {
			t.Fatal(err)
		}
		return r, err
	}
	if r, err := get(s3test.Fault{}); r.status != 206 || r.body != "body" || r.header.Get("Etag") == "" || err != nil {
		t.Errorf("without a fault: %+v, %v", r, err)
	}
	if r, _ := get(s3test.Fault{ShortRanges: true}); r.status != 416 {
		t.Errorf("ShortRanges: %d", r.status)
	}
	if r, _ := get(s3test.Fault{Omit: []string{"Etag"}}); len(r.header["Etag"]) != 0 {
		t.Errorf("Omit: %v", r.header)
	}
	if r, err := get(s3test.Fault{Cut: true}); r.body != "bo" || err == nil {
		t.Errorf("Cut: %q, %v", r.body, err)
	}
}

// What a hook holds takes effect when it lets go, and not before.
func TestHooksHold(t *testing.T) {
	c := newClient(t, s3test.Options{})
	etag := c.put("a", "0")
	arrived, release := make(chan *s3test.Request), make(chan struct{})
	c.server.Inject(s3test.Rule{Ops: puts, Times: 1, Fault: s3test.Fault{Before: func(r *s3test.Request) { arrived <- r; <-release }}})
	status := make(chan int, 1)
	go func() {
		r, err := c.try(http.MethodPut, "/a", "old", "If-Match", etag)
		if err != nil {
			t.Error(err)
			r = &reply{}
		}
		status <- r.status
	}()
	if held := testkit.Receive(t, "the old write", arrived); held.Key != "a" || string(held.Body) != "old" {
		t.Errorf("%+v", held)
	}
	c.put("a", "new", "If-Match", etag)
	close(release)
	if got := testkit.Receive(t, "its response", status); got != http.StatusPreconditionFailed {
		t.Errorf("status %d", got)
	}
	c.holds("a", "new")

	c.server.Inject(s3test.Rule{Ops: puts, Fault: s3test.Fault{Lose: true, Applied: true, After: func(_ *s3test.Request, status int) {
		if status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		c.holds("b", "1")
	}}})
	if r, err := c.try(http.MethodPut, "/b", "1"); err == nil {
		t.Errorf("%+v", r)
	}
}
