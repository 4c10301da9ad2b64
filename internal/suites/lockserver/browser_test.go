// Package lockserver tests lockclient/lockhttp with tools that the root module
// does not depend on: its description with an OpenAPI validator, its page in
// headless Chromium, and workers in Python and Node.
package lockserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// screenshots is a directory to keep pictures in; empty keeps none.
var screenshots = os.Getenv("FENCEPOST_SCREENSHOTS")

// chromium starts a browser, which ends with the test.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("this test needs chromium, which .ci/setup servers installs: %v", err)
	}
	dir, err := os.MkdirTemp("", "fencepost-browser-")
	testkit.Must(t, err)
	t.Cleanup(func() { // its other processes end after the first, and write until then
		testkit.Eventually(t, "the end of the browser", func() bool { return os.RemoveAll(dir) == nil })
	})
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(dir), chromedp.WSURLReadTimeout(testkit.Patience), chromedp.WindowSize(1200, 900))
	ctx, cancel := context.WithTimeout(context.Background(), 4*testkit.Patience)
	t.Cleanup(cancel)
	ctx, end := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(end)
	return ctx
}

// session is a browser window with cookies of its own.
func session(t *testing.T, browser context.Context) context.Context {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	// What the policy blocks and what a script throws is reported here.
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("the page's script: %v", e.ExceptionDetails)
		case *log.EventEntryAdded:
			if strings.Contains(e.Entry.Text, "Content Security Policy") {
				t.Errorf("the page: %s", e.Entry.Text)
			}
		}
	})
	do(t, ctx, log.Enable())
	return ctx
}

func do(t *testing.T, ctx context.Context, actions ...chromedp.Action) {
	t.Helper()
	testkit.Must(t, chromedp.Run(ctx, actions...))
}

func signIn(t *testing.T, ctx context.Context, url, token string) {
	t.Helper()
	do(t, ctx, chromedp.Navigate(url+"/ui"), chromedp.SendKeys("#token", token+"\r", chromedp.ByQuery), chromedp.WaitVisible("#filter", chromedp.ByQuery))
}

// text is what the page shows, within an element.
func text(t *testing.T, ctx context.Context, selector string) (s string) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(`(document.querySelector(`+"`"+selector+"`"+`)||{innerText:"(nothing)"}).innerText`, &s))
	return s
}

// shows waits until a part of the page has a text, or no longer has it.
func shows(t *testing.T, ctx context.Context, selector, part string, want bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("it shows:\n%s", text(t, ctx, selector))
		}
	}()
	testkit.Eventually(t, fmt.Sprintf("%s: %q there: %v", selector, part, want), func() bool { return strings.Contains(text(t, ctx, selector), part) == want })
}

func picture(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if screenshots == "" {
		return
	}
	var png []byte
	do(t, ctx, chromedp.FullScreenshot(&png, 100))
	testkit.Must(t, os.WriteFile(filepath.Join(screenshots, name+".png"), png, 0o644))
}

// visible is the text of the view that the page shows.
func visible(t *testing.T, ctx context.Context) string {
	t.Helper()
	return text(t, ctx, "main > section:not([hidden])")
}

// fill fills in the form of a force unlock and sends it.
func fill(t *testing.T, ctx context.Context, reason, typed string) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(`for (const id of ["actor", "reason", "typed"]) document.getElementById(id).value = ""`, nil),
		chromedp.SendKeys("#actor", "ada", chromedp.ByQuery), chromedp.SendKeys("#reason", reason, chromedp.ByQuery),
		chromedp.SendKeys("#typed", typed+"\r", chromedp.ByQuery))
}

// TestPage: two people look at the locks of two tenants. The list follows the
// server, the countdowns run, the filter works; a force unlock requires the
// typed name, and is in the audit.
func TestPage(t *testing.T) {
	url, _, _, _ := serve(t)
	acquireAs := func(status int, tenant, period, owner, metadata string, ttl int) {
		send(t, url, tenant+"-worker", "/v1/locks/acquire", fmt.Sprintf(`{"resource":"%s:billing-close:%s","ownerId":%q,"metadata":%q,"ttlSeconds":%d}`, tenant, period, owner, metadata, ttl), status)
	}
	acquire := func(tenant, period, owner, metadata string, ttl int) {
		acquireAs(http.StatusOK, tenant, period, owner, metadata, ttl)
	}
	for n, month := range []string{"2026-01", "2026-02", "2026-03"} {
		acquire("demo", month, fmt.Sprintf("worker-%d@host-%d", n+1, n), "closing the books, log /var/log/close", 900+n*600)
	}
	acquire("demo", "2026-04", "<script>alert(1)</script>", "<b>bold</b>", 3000)
	acquire("umbrella", "2026-01", "secret-worker", "", 900)
	for range 3 {
		acquireAs(http.StatusConflict, "demo", "2026-01", "worker-9", "", 60)
	}
	browser := chromium(t)
	ops := session(t, browser)
	do(t, ops, chromedp.Navigate(url+"/ui"))
	picture(t, ops, "sign-in")
	do(t, ops, chromedp.SendKeys("#token", "wrong\r", chromedp.ByQuery), chromedp.WaitVisible("#sign-in .problem", chromedp.ByQuery))
	signIn(t, ops, url, "demo-ops")
	shows(t, ops, "#status", "4 locks", true)
	if got := text(t, ops, "#lock-rows"); !strings.Contains(got, "<script>alert(1)</script>") || !strings.Contains(got, "<b>bold</b>") || strings.Contains(got, "umbrella") || strings.Contains(got, "secret-worker") {
		t.Errorf("the list shows %s", got)
	}

	// Another session of another tenant sees its own.
	another := session(t, chromium(t))
	signIn(t, another, url, "umbrella-worker")
	shows(t, another, "tbody", "secret-worker", true)
	if got := visible(t, another); strings.Contains(got, "demo:") || strings.Contains(got, "Force-unlock") || strings.Contains(got, "Audit") || !strings.Contains(got, "hidden") {
		t.Errorf("a worker of another tenant sees %s", got)
	}

	// The countdown runs on its own between two refreshes.
	var left [2]string
	first := `document.querySelector("[data-down]").textContent`
	do(t, ops, chromedp.Evaluate(first, &left[0]))
	testkit.Eventually(t, "a tick", func() bool { do(t, ops, chromedp.Evaluate(first, &left[1])); return left[1] != left[0] })
	if left[1] == "expired" || len(left[1]) > len("14:59") {
		t.Errorf("the countdown stands at %q", left)
	}

	// A new lock is shown, and the focus stays where it is.
	do(t, ops, chromedp.Evaluate(`document.querySelector('[data-key="demo:billing-close:2026-03"] button').focus()`, nil))
	acquire("demo", "2026-00", "worker-0", "", 900)
	shows(t, ops, "tbody", "worker-0", true)
	var focused string
	do(t, ops, chromedp.Evaluate(`document.activeElement.closest("tr").dataset.key`, &focused))
	if focused != "demo:billing-close:2026-03" {
		t.Errorf("the focus went to %q", focused)
	}
	picture(t, ops, "locks")

	do(t, ops, chromedp.SendKeys(`input[name=filter]`, "WORKER-2", chromedp.ByQuery))
	shows(t, ops, "#status", "1 lock shown", true)
	if got := text(t, ops, "tbody"); !strings.Contains(got, "2026-02") || strings.Contains(got, "2026-03") {
		t.Errorf("filtered: %s", got)
	}

	// By keyboard: to the link, into the form, and sent.
	do(t, ops, chromedp.Focus(`[data-key="demo:billing-close:2026-02"] button`, chromedp.ByQuery), chromedp.KeyEvent("\r"), chromedp.WaitVisible("#typed", chromedp.ByQuery))
	shows(t, ops, "main", "worker-2@host-1", true)
	picture(t, ops, "force-unlock")
	fill(t, ops, "worker-2 hangs since 02:10", "demo:billing-close:2026-01")
	shows(t, ops, "main", "Nothing was done", true)
	fill(t, ops, "worker-2 hangs since 02:10", "demo:billing-close:2026-02")
	shows(t, ops, "main", "the cut holder's writes are refused", true)
	picture(t, ops, "done")
	do(t, ops, chromedp.Click("#done a", chromedp.ByQuery), chromedp.WaitVisible("#filter", chromedp.ByQuery))
	shows(t, ops, "#audit-rows", "worker-2 hangs since 02:10", true)
	if got := text(t, ops, "#audit-rows"); !strings.Contains(got, "ada") || !strings.Contains(got, "demo:billing-close:2026-02") || !strings.Contains(got, "worker-2@host-1") {
		t.Errorf("the audit shows %s", got)
	}
	shows(t, ops, "#lock-rows", "worker-2", false)

	// What assistive technology reads: names for all controls, a language, one
	// heading of the first level. On a phone, and dark, nothing is cut off.
	var problems []string
	do(t, ops, chromedp.Evaluate(`[...document.querySelectorAll("input,select,textarea,button,a,svg,[role=region]")].filter((e) =>
		!(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute("aria-label")).map((e) => e.outerHTML)
		.concat(document.documentElement.lang === "en" && [...document.querySelectorAll("h1")].filter((e) => e.checkVisibility()).length === 1 ? [] : ["language or heading"])`, &problems))
	if len(problems) > 0 {
		t.Errorf("without a name: %q", problems)
	}
	do(t, ops, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}),
		chromedp.EmulateViewport(360, 780, chromedp.EmulateMobile))
	var wide, ground string
	do(t, ops, chromedp.Evaluate(`String(document.documentElement.scrollWidth)`, &wide), chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &ground))
	if wide != "360" || ground == "rgb(255, 255, 255)" {
		t.Errorf("on a phone in the dark the page is %s wide on %s", wide, ground)
	}
	picture(t, ops, "phone")

	do(t, ops, chromedp.Evaluate(`document.getElementById("sign-out").click()`, nil), chromedp.WaitVisible("#token", chromedp.ByQuery))
}

// TestPageCutsWhatWasSeen (P5, P6): the page cuts the lease that the operator saw and that
// of nobody who came after it, a force unlock whose outcome is unknown is never said to be
// not done, and what could not be read is not shown as "no lock".
func TestPageCutsWhatWasSeen(t *testing.T) {
	_, handler, _, _ := serve(t)
	var mu sync.Mutex
	fault := func(http.ResponseWriter, *http.Request) bool { return false }
	set := func(f func(http.ResponseWriter, *http.Request) bool) {
		mu.Lock()
		defer mu.Unlock()
		fault = f
	}
	var bodies []string // of the force unlocks
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		fault := fault
		if strings.HasSuffix(r.URL.Path, "/force-unlock") {
			body, _ := io.ReadAll(r.Body)
			bodies = append(bodies, string(body))
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		mu.Unlock()
		if !fault(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	defer web.Close()
	// fails answers requests for a path instead of the server.
	fails := func(suffix string, status int, body string) {
		set(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, suffix) {
				return false
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
			return true
		})
	}
	works := func() { set(func(http.ResponseWriter, *http.Request) bool { return false }) }
	const resource = "demo:billing-close:1"
	acquire := func(id string) {
		send(t, web.URL, "demo-worker", "/v1/locks/acquire", `{"resource":"`+resource+`","ownerId":"owner of `+id+`","leaseId":"`+id+`","ttlSeconds":900}`, http.StatusOK)
	}
	release := func(id string) {
		send(t, web.URL, "demo-worker", "/v1/locks/release", `{"resource":"`+resource+`","leaseId":"`+id+`"}`, http.StatusOK)
	}
	page := session(t, chromium(t))
	do(t, page, chromedp.Navigate(web.URL+"/ui"), chromedp.WaitVisible("#token", chromedp.ByQuery))
	fails("/v1/time", http.StatusBadGateway, "<html>")
	do(t, page, chromedp.SendKeys("#token", "demo-ops\r", chromedp.ByQuery))
	shows(t, page, "#sign-in", "could not be verified", true)
	works()
	acquire("first")
	signIn(t, page, web.URL, "demo-ops")
	shows(t, page, "#lock-rows", "owner of first", true)

	fails("/v1/locks", http.StatusServiceUnavailable, `{"type":"tag:fencepost-go.github.io,2026:problem/unavailable","detail":"it is down"}`)
	shows(t, page, "#locks", "Not up to date: it is down", true)
	if got := text(t, page, "#lock-rows"); !strings.Contains(got, "owner of first") || strings.Contains(got, "No lock") {
		t.Errorf("while nothing can be read: %s", got)
	}
	works()
	shows(t, page, "#locks", "Not up to date", false)

	wait := func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
	choose := func(seen string) {
		do(t, page, chromedp.Evaluate(`choose({ resource: "`+resource+`", leaseId: "`+seen+`" })`, nil, wait), chromedp.WaitVisible("#confirm", chromedp.ByQuery))
	}
	choose("before")
	shows(t, page, "#confirm", "another one than you chose", true)
	choose("first")
	shows(t, page, "#confirm", "another one than you chose", false)
	release("first")
	acquire("second")
	fill(t, page, "it hangs", resource)
	shows(t, page, "#confirm", "Nothing was done: the lease is another one by now", true)

	choose("second")
	mu.Lock()
	bodies = nil
	mu.Unlock()
	unavailable := `{"type":"tag:fencepost-go.github.io,2026:problem/unavailable","detail":"try again"}`
	unknown := `{"type":"tag:fencepost-go.github.io,2026:problem/outcome_unknown","detail":"nobody knows"}`
	fails("/force-unlock", http.StatusServiceUnavailable, unavailable)
	fill(t, page, "it hangs", resource)
	shows(t, page, "#confirm", "Nothing was done: try again", true)
	for _, body := range []string{unknown, "<html>", `{}`} {
		fails("/force-unlock", http.StatusInternalServerError, body)
		do(t, page, chromedp.Evaluate(`show("confirm")`, nil))
		fill(t, page, "it hangs", resource)
		shows(t, page, "#confirm", "not known whether it was done", true)
		if got := visible(t, page); strings.Contains(got, "Nothing was done") {
			t.Errorf("%s: %s", body, got)
		}
	}
	// A later refusal, by the server or by the page, does not say that nothing was done.
	fails("/force-unlock", http.StatusServiceUnavailable, unavailable)
	fill(t, page, "it hangs", resource)
	shows(t, page, "#confirm", "try again", true)
	if got := visible(t, page); strings.Contains(got, "Nothing was done") || !strings.Contains(got, "not known whether it was done") {
		t.Errorf("after an unknown outcome: %s", got)
	}
	fill(t, page, "it hangs", "mistyped")
	shows(t, page, "#confirm", "what you typed is not", true)
	if got := visible(t, page); strings.Contains(got, "Nothing was done") {
		t.Errorf("after an unknown outcome: %s", got)
	}
	// The control, and the repetition: the same request, carried out once.
	works()
	fill(t, page, "it hangs", resource)
	shows(t, page, "#done", "the cut holder's writes are refused", true)
	mu.Lock()
	for _, body := range bodies {
		if body != bodies[len(bodies)-1] || !strings.Contains(body, `"leaseId":"second"`) {
			t.Errorf("sent: %s, at last %s", body, bodies[len(bodies)-1])
		}
	}
	mu.Unlock()

	choose("second")
	shows(t, page, "#confirm", "nothing to cut", true)
	if got := visible(t, page); strings.Contains(got, "Type the resource") {
		t.Errorf("a free lease can be cut: %s", got)
	}

	// A lease whose ID the page does not see is not cut without it.
	acquire("third")
	set(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasPrefix(r.URL.Path, "/v1/resources/") {
			r.Header.Set("Authorization", "Bearer demo-worker") // no operator any more
		}
		return false
	})
	do(t, page, chromedp.Evaluate(`choose({ resource: "`+resource+`" })`, nil, wait))
	shows(t, page, "#confirm", "does not show you the lease's ID", true)
	if got := visible(t, page); strings.Contains(got, "Type the resource") {
		t.Errorf("it can be cut without its ID: %s", got)
	}

	// A response that arrives while another lease's form is shown is not about that one.
	works()
	choose("third")
	sent, answer, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	set(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/force-unlock") {
			return false
		}
		defer close(answered)
		close(sent)
		<-answer
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, unknown)
		return true
	})
	do(t, page, chromedp.Evaluate(`for (const id of ["actor", "reason"]) byId(id).value = "x"; byId("typed").value = cutting.resource; window.late = cut(); 0`, nil))
	<-sent
	choose("third")
	close(answer)
	<-answered
	do(t, page, chromedp.Evaluate(`window.late`, nil, wait))
	if got := visible(t, page); strings.Contains(got, "not known whether it was done") || !strings.Contains(got, "Type the resource") {
		t.Errorf("a late response: %s", got)
	}

	// A filter whose second look-up fails is not "no lock".
	works()
	do(t, page, chromedp.Evaluate(`look()`, nil, wait))
	set(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path != "/v1/locks":
			return false
		case r.URL.Query().Get("prefix") == "":
			io.WriteString(w, `{"locks":[],"next":"demo:a"}`) // of more than one page
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, unavailable)
		}
		return true
	})
	do(t, page, chromedp.SendKeys(`input[name=filter]`, "demo:billing-close", chromedp.ByQuery))
	shows(t, page, "#locks", "Not up to date: try again", true)
	if got := text(t, page, "#lock-rows"); !strings.Contains(got, "owner of third") {
		t.Errorf("while the look-up fails: %s", got)
	}

	// Who signs in next sees nothing of who signed out, and does not act under that name.
	do(t, page, chromedp.Evaluate(`byId("sign-out").click()`, nil), chromedp.WaitVisible("#token", chromedp.ByQuery))
	fails("/v1/locks", http.StatusServiceUnavailable, unavailable)
	do(t, page, chromedp.SendKeys("#token", "umbrella-worker\r", chromedp.ByQuery), chromedp.WaitVisible("#filter", chromedp.ByQuery))
	shows(t, page, "#locks", "Not up to date: try again", true)
	var left, typed string
	do(t, page, chromedp.Evaluate(`document.body.textContent`, &left), chromedp.Evaluate(`byId("actor").value + byId("reason").value + filter.elements.filter.value`, &typed))
	if strings.Contains(left, "owner of") || strings.Contains(left, "demo:") || typed != "" {
		t.Errorf("the next person sees %q in %s", typed, left)
	}
}
