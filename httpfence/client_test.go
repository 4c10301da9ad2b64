package httpfence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/internal/testkit"
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
	testkit.Must(t, err)
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

// TestDo: nil is returned for a success only, whoever responds, and what a client's
// Timeout or a proxy says of a write is an unknown outcome. The control is client.Do
// with ErrorFrom, which takes a proxy's 502 for nothing.
func TestDo(t *testing.T) {
	fence := newFence(newStore(), literal("r"), nil)
	if _, err := fence.AdmitRequest(newRequest("", "12", "m")); err != nil {
		t.Fatal(err)
	}
	admitted := fence.Admit(http.HandlerFunc(ok))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fenced" {
			admitted.ServeHTTP(w, r)
			return
		}
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "its own words")
	}))
	defer server.Close()
	client := &http.Client{Transport: newTransport(nil, []string{server.URL}, nil)}
	for _, c := range []struct {
		method, path string
		want         guard.Reason
		status       int
	}{
		{"POST", "/200", "", 0}, {"POST", "/fenced", "stale", 0}, {"POST", "/502", "outcome_unknown", 502}, {"POST", "/500", "outcome_unknown", 500},
		{"GET", "/502", "other", 502}, {"POST", "/404", "other", 404}, {"POST", "/304", "other", 304}, {"DELETE", "/412", "other", 412}, {"GET", "/200", "", 0},
	} {
		r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), c.method, server.URL+c.path, nil))
		resp, err := Do(client, r)
		if guard.ReasonOf(err) != c.want || c.status != 0 && (!strings.Contains(err.Error(), strconv.Itoa(c.status)) || resp.StatusCode != c.status) {
			t.Errorf("%s %s: %v", c.method, c.path, err)
		}
		if body := mustRead(t, resp); c.path != "/fenced" && c.path != "/304" && body != "its own words" {
			t.Errorf("%s %s: body %q", c.method, c.path, body)
		}
		_ = resp.Body.Close()
		if got := guard.ReasonFor(held, err); err != nil && c.want != "" && got != guard.ReasonOther {
			t.Errorf("%s %s: taken for the word of this process: %v", c.method, c.path, got)
		}
		resp, err = client.Do(r)
		testkit.Must(t, err)
		if err := ErrorFrom(resp); c.path == "/502" && err != nil {
			t.Errorf("control: %v", err)
		}
		_ = resp.Body.Close()
	}
}

// TestDoSeesThroughTimeouts: http.Client puts an error of its own in place of the
// Transport's, which is the control.
func TestDoSeesThroughTimeouts(t *testing.T) {
	never := roundTrip(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	noConnection := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	for name, c := range map[string]struct {
		base   http.RoundTripper
		method string
		want   guard.Reason
	}{
		"no response": {never, "POST", "outcome_unknown"}, "no connection": {noConnection, "POST", "unavailable"}, "a read": {never, "GET", "other"},
	} {
		client := &http.Client{Transport: newTransport(c.base, []string{"http://ours.test"}, nil), Timeout: time.Millisecond}
		asked := false // for a connection
		send := func(do func(r *http.Request) (*http.Response, error)) error {
			asked = false
			ctx := httptrace.WithClientTrace(guard.WithClaim(t.Context(), held), &httptrace.ClientTrace{GetConn: func(string) { asked = true }})
			_, err := do(guard.Must(http.NewRequestWithContext(ctx, c.method, "http://ours.test/", nil)))
			return err
		}
		err := send(func(r *http.Request) (*http.Response, error) { return Do(client, r) })
		for c.base == noConnection && !asked { // the time was over before the request began
			client.Timeout *= 2
			err = send(func(r *http.Request) (*http.Response, error) { return Do(client, r) })
		}
		var timeout net.Error
		if guard.ReasonOf(err) != c.want || !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%s: %v", name, err)
		}
		if err := send(client.Do); err == nil {
			t.Errorf("control, %s: no error", name)
		}
	}
	lost := &lease{claim: held}
	lost.lost.Store(true)
	r := guard.Must(http.NewRequestWithContext(guard.WithLease(t.Context(), lost), "POST", "http://ours.test/", nil))
	if _, err := Do(&http.Client{Transport: newTransport(never, []string{"http://ours.test"}, nil)}, r); !errors.Is(err, guard.ErrLeaseLost) {
		t.Errorf("a lost lease: %v", err)
	}
}

// TestRaiseAt: another service is a place like any other.
func TestRaiseAt(t *testing.T) {
	store := newStore()
	fence := guard.Must(New(store, literal("r"), &Options{Logger: silent}))
	server := httptest.NewServer(http.HandlerFunc(fence.Raise))
	defer server.Close()
	client := &http.Client{Transport: newTransport(nil, []string{server.URL}, nil)}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) }))
	defer proxy.Close()
	place := func(url string) guard.Place { return guard.Place{Name: url, Raise: RaiseAt(client, url)} }
	claim := guard.Claim{Resource: "r", Token: 7, LeaseID: "l, m"}
	if err := guard.RaiseAll(t.Context(), claim, place(server.URL)); err != nil || store.mark(t, "r") != (guard.Mark{Token: 7, LeaseID: "l, m"}) {
		t.Errorf("%v, mark %+v", err, store.mark(t, "r"))
	}
	for url, want := range map[string]error{server.URL: guard.ErrStale, proxy.URL: nil, "::": guard.ErrInvalid} {
		old := claim
		old.Token = 6
		err := guard.RaiseAll(guard.WithClaim(t.Context(), claim), old, place(url))
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestWhatWasRefused: the client learns which part of its request was missing or invalid,
// and is not told of a token when it was the body or the proof.
func TestWhatWasRefused(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		verify error
		err    error // of the handler
		want   guard.Reason
		says   string
	}{
		"a long body":           {"a body of more than ten bytes", nil, nil, "invalid", `body of POST / "": is longer than the server takes`},
		"no proof":              {"", guard.Missing(proof.Header), nil, "missing", proof.Header + " of POST / did not reach the server; TransportOptions.Proof"},
		"a bad proof":           {"", guard.Invalid("proof", "", "has expired"), nil, "invalid", "proof of POST /"},
		"the handler's input":   {"", nil, guard.Invalid("amount", "-1", "must be positive"), "invalid", "amount of POST /"},
		"a field that is no id": {"", nil, guard.Invalid("a\nb", "", "x"), "invalid", "claim or another part of POST /"},
	} {
		tx := guard.Must(NewTx(&fakeTx{store: newStore()}, literal("r"), &Options{MaxBody: 10, Logger: silent, Verify: func(guard.Claim, *http.Request) error { return c.verify }}))
		server := httptest.NewServer(tx.InTxFunc(func(w http.ResponseWriter, _ *http.Request) error { return c.err }))
		client := &http.Client{Transport: newTransport(nil, []string{server.URL}, nil)}
		r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", server.URL+"/", strings.NewReader(c.body)))
		_, err := Do(client, r)
		if guard.ReasonOf(err) != c.want || !strings.Contains(fmt.Sprint(err), c.says) || strings.Contains(fmt.Sprint(err), "token") {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
	r := guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), held), "POST", "http://ours.test/x", nil))
	if err := ErrorFrom(&http.Response{StatusCode: 428, Header: http.Header{ReasonHeader: {"missing"}}, Request: r}); !errors.Is(err, guard.ErrMissing) || !strings.Contains(err.Error(), "claim of POST /x did not reach the server") {
		t.Errorf("without a body: %v", err)
	}
}

// wireStatuses is the documented table, written out a second time on purpose.
var wireStatuses = map[guard.Reason]int{
	guard.ReasonMissing: 428, guard.ReasonInvalid: 400, guard.ReasonMisdirected: 400,
	guard.ReasonStale: 412, guard.ReasonSpent: 412, guard.ReasonConflict: 412, guard.ReasonMarkAhead: 412,
	guard.ReasonNotFound: 404, guard.ReasonUnfenced: 409, guard.ReasonUnavailable: 503, guard.ReasonSetup: 500,
	guard.ReasonOutcomeUnknown: 500, guard.ReasonLeaseLost: 500, guard.ReasonOther: 500,
}

// rejections are the reasons for which the error is a *guard.RejectedError: a claim
// was compared. Whoever looks for that type must not find it in a failure.
var rejections = []guard.Reason{
	guard.ReasonStale, guard.ReasonSpent, guard.ReasonConflict, guard.ReasonMarkAhead, guard.ReasonNotFound, guard.ReasonUnfenced,
}

// TestStatusTable goes through the table in both directions: error to response by
// Relay, response to error by ErrorFrom.
func TestStatusTable(t *testing.T) {
	all := append(guard.Reasons(), guard.ReasonOther)
	if got := slices.Sorted(maps.Keys(wireStatuses)); !slices.Equal(got, slices.Sorted(slices.Values(all))) {
		t.Fatalf("the table has %v, package guard %v", got, all)
	}
	if len(rows) != len(all) {
		t.Fatalf("%d rows for %d reasons", len(rows), len(all))
	}
	fence := newFence(newStore(), literal("r"), nil)
	types := map[any]bool{}
	for _, reason := range all {
		t.Run(string(reason), func(t *testing.T) {
			err := reason.Err()
			if err == nil {
				err = errors.New("a driver's error")
			}
			r := httptest.NewRequest("POST", "/acct/a/close", nil)
			r = r.WithContext(guard.WithClaim(r.Context(), guard.Claim{Resource: "r", Token: 5}))
			w := httptest.NewRecorder()
			fence.Relay(w, r, fmt.Errorf("wrapped: %w", err))

			resp := w.Result()
			resp.Request = r
			if resp.StatusCode != wireStatuses[reason] {
				t.Errorf("status %d, want %d", resp.StatusCode, wireStatuses[reason])
			}
			h := resp.Header
			if h.Get("Content-Type") != "application/problem+json" || h.Get("Cache-Control") != "no-store" {
				t.Errorf("header %v", h)
			}
			if retry := h.Get("Retry-After"); (retry == "2") != (reason == guard.ReasonUnavailable) {
				t.Errorf("Retry-After %q", retry)
			}
			back := ErrorFrom(resp)
			if guard.ReasonOf(back) != reason {
				t.Errorf("came back as %v", back)
			}
			if sentinel := reason.Err(); sentinel != nil && !errors.Is(back, sentinel) {
				t.Errorf("%v is not %v", back, sentinel)
			}
			var rejected *guard.RejectedError
			if is := errors.As(back, &rejected); is != slices.Contains(rejections, reason) {
				t.Errorf("%v is a rejection: %t", back, is)
			}
			if reason == guard.ReasonMissing && !errors.Is(back, guard.ErrInvalid) {
				t.Errorf("%v is not invalid", back)
			}
			var failed *guard.FailedError
			if errors.As(back, &failed) && (failed.Claim.Token != 5 || failed.Op != "POST /acct/a/close") {
				t.Errorf("claim %+v, op %q", failed.Claim, failed.Op)
			}
			if errors.As(back, &rejected) && (rejected.Claim.Token != 5 || rejected.Mark != guard.Mark{}) {
				t.Errorf("claim %+v, mark %+v", rejected.Claim, rejected.Mark)
			}
			a := read(t, resp)
			want := "tag:fencepost-go.github.io,2026:problem/" + string(reason)
			if a.problem["type"] != want || a.problem["status"] != float64(wireStatuses[reason]) || types[want] {
				t.Errorf("problem %v, want the type %q, its own", a.problem, want)
			}
			types[want] = true
			for _, member := range []string{"title", "detail"} {
				if s, _ := a.problem[member].(string); s == "" {
					t.Errorf("no %s", member)
				}
			}
		})
	}
}

// TestUnknownErrorsAreNeverSuccess covers what the table has no row for.
func TestUnknownErrorsAreNeverSuccess(t *testing.T) {
	fence := newFence(newStore(), literal("r"), nil)
	for _, err := range []error{nil, errors.New("x"), &guard.RejectedError{Reason: "novel"}, &guard.RejectedError{}} {
		w := httptest.NewRecorder()
		fence.Reject(w, httptest.NewRequest("POST", "/", nil), err)
		relayed := httptest.NewRecorder()
		fence.Relay(relayed, httptest.NewRequest("POST", "/", nil), err)
		if w.Code != http.StatusInternalServerError || relayed.Code != w.Code {
			t.Errorf("%v: status %d, relayed %d", err, w.Code, relayed.Code)
		}
	}
}
