package httpfence

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/fencepost-go/fencepost/guard"
)

func response(status int, contentType, content string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(content))}
}

func TestErrorFrom(t *testing.T) {
	const problem = "application/problem+json"
	stale := `{"type":"` + problemPrefix + `stale","mark":"12","floor":true}`
	for name, c := range map[string]struct {
		resp   *http.Response
		reason guard.Reason
		mark   guard.Mark
	}{
		"ours":                      {response(412, problem, stale), "stale", guard.Mark{Token: 12, Floor: true}},
		"charset":                   {response(412, "Application/Problem+JSON; charset=utf-8", stale), "stale", guard.Mark{Token: 12, Floor: true}},
		"status overridden":         {response(423, problem, stale), "stale", guard.Mark{Token: 12, Floor: true}},
		"ours at 502":               {response(502, problem, stale), "stale", guard.Mark{Token: 12, Floor: true}},
		"no mark":                   {response(412, problem, `{"type":"`+problemPrefix+`conflict"}`), "conflict", guard.Mark{}},
		"mark is a number":          {response(412, problem, `{"type":"`+problemPrefix+`stale","mark":12}`), "stale", guard.Mark{}},
		"mark is malformed":         {response(412, problem, `{"type":"`+problemPrefix+`stale","mark":"+12"}`), "stale", guard.Mark{}},
		"a later version's":         {response(412, problem, `{"type":"`+problemPrefix+`novel"}`), "other", guard.Mark{}},
		"the bare prefix":           {response(412, problem, `{"type":"`+problemPrefix+`"}`), "other", guard.Mark{}},
		"other":                     {response(500, problem, `{"type":"`+problemPrefix+`other"}`), "other", guard.Mark{}},
		"success":                   {response(200, problem, stale), "", guard.Mark{}},
		"redirect":                  {response(307, problem, stale), "", guard.Mark{}},
		"plain 412":                 {response(412, "text/plain", "precondition failed"), "", guard.Mark{}},
		"412 without a type":        {response(412, "", stale), "", guard.Mark{}},
		"412 as JSON":               {response(412, "application/json", stale), "", guard.Mark{}},
		"somebody else's problem":   {response(412, problem, `{"type":"https://example.com/stale"}`), "", guard.Mark{}},
		"about:blank":               {response(412, problem, `{"title":"x"}`), "", guard.Mark{}},
		"type is no string":         {response(412, problem, `{"type":["`+problemPrefix+`stale"]}`), "", guard.Mark{}},
		"other case of the member":  {response(412, problem, `{"Type":"`+problemPrefix+`stale"}`), "", guard.Mark{}},
		"prefix later in the type":  {response(412, problem, `{"type":"x`+problemPrefix+`stale"}`), "", guard.Mark{}},
		"no JSON":                   {response(412, problem, "<html>"), "", guard.Mark{}},
		"cut":                       {response(412, problem, stale[:20]), "", guard.Mark{}},
		"an array":                  {response(412, problem, "["+stale+"]"), "", guard.Mark{}},
		"null":                      {response(412, problem, "null"), "", guard.Mark{}},
		"empty":                     {response(412, problem, ""), "", guard.Mark{}},
		"too large":                 {response(412, problem, stale+strings.Repeat(" ", maxProblem)), "", guard.Mark{}},
		"502 of a proxy":            {response(502, "text/html", "bad gateway"), "", guard.Mark{}},
		"504 of a proxy":            {response(504, "text/html", "gateway timeout"), "", guard.Mark{}},
		"just below the size limit": {response(412, problem, stale+strings.Repeat(" ", maxProblem-len(stale))), "stale", guard.Mark{Token: 12, Floor: true}},
	} {
		t.Run(name, func(t *testing.T) {
			content := mustRead(t, c.resp)
			c.resp.Body = io.NopCloser(strings.NewReader(content))
			err := ErrorFrom(c.resp)
			if guard.ReasonOf(err) != c.reason {
				t.Fatalf("%v, want the reason %q", err, c.reason)
			}
			var rejected *guard.RejectedError
			if err != nil && name != "other" && (!errors.As(err, &rejected) || rejected.Mark != c.mark) {
				t.Errorf("%#v", err)
			}
			if name == "other" && (rejected != nil || !strings.Contains(err.Error(), "for a reason other than the claim")) {
				t.Errorf("%v", err)
			}
			if got := mustRead(t, c.resp); got != content {
				t.Errorf("the body is %d bytes afterwards, was %d", len(got), len(content))
			}
		})
	}
	// A misdirected claim comes back with both names; without a body, with its own.
	for guarded, resp := range map[string]*http.Response{
		"acme": response(400, problem, `{"type":"`+problemPrefix+`misdirected","claimed":"r","guarded":"acme"}`),
		"":     {StatusCode: 400, Header: http.Header{ReasonHeader: {"misdirected"}}},
	} {
		resp.Request = newRequest("", "", "").WithContext(guard.WithClaim(t.Context(), held))
		var e *guard.MisdirectedError
		if err := ErrorFrom(resp); !errors.As(err, &e) || e.Claimed != "r" || e.Guarded != guarded || !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
	if ErrorFrom(nil) != nil || ErrorFrom(&http.Response{StatusCode: 412}) != nil {
		t.Error("nothing is not ours")
	}
}

func mustRead(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestErrorFromABrokenBody: if the reason is unknown, the error is neither nil
// nor one of guard's.
func TestErrorFromABrokenBody(t *testing.T) {
	broken := errors.New("connection reset")
	b := &body{Reader: io.MultiReader(strings.NewReader(`{"type":`), iotest.ErrReader(broken))}
	resp := response(412, "application/problem+json", "")
	resp.Body = b
	err := ErrorFrom(resp)
	if !errors.Is(err, broken) || guard.ReasonOf(err) != guard.ReasonOther {
		t.Errorf("%v", err)
	}
	if again, err := io.ReadAll(resp.Body); string(again) != `{"type":` || !errors.Is(err, broken) {
		t.Errorf("the caller reads %q, %v", again, err)
	}
	if err := resp.Body.Close(); err != nil || !b.closed.Load() {
		t.Error("Close does not reach the body")
	}
}

// TestErrorFromReadsLittle: an endless problem does not hang or fill memory.
func TestErrorFromReadsLittle(t *testing.T) {
	n := 0
	endless := readerFunc(func(p []byte) (int, error) { n += len(p); return len(p), nil })
	resp := response(412, "application/problem+json", "")
	resp.Body = io.NopCloser(endless)
	if err := ErrorFrom(resp); err != nil || n > maxProblem+1 {
		t.Errorf("%v after %d bytes", err, n)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
