// Package lockserver tests lockclient/lockhttp with tools that the root module
// does not depend on: its description with an OpenAPI validator, its page in
// headless Chromium, and workers in Python and Node.
package lockserver

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // its other processes end after the first, and write until then
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			if err = os.RemoveAll(dir); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.UserDataDir(dir), chromedp.WSURLReadTimeout(2*time.Minute), chromedp.WindowSize(1200, 900))
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
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
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
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
	for end := time.Now().Add(time.Minute); strings.Contains(text(t, ctx, selector), part) != want; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %q should be there: %v. It shows:\n%s", selector, part, want, text(t, ctx, selector))
		}
	}
}

func picture(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if screenshots == "" {
		return
	}
	var png []byte
	do(t, ctx, chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(screenshots, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
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
	do(t, ops, chromedp.SendKeys("#token", "wrong\r", chromedp.ByQuery), chromedp.WaitVisible(".problem", chromedp.ByQuery))
	signIn(t, ops, url, "demo-ops")
	shows(t, ops, "#status", "4 locks", true)
	if got := text(t, ops, "tbody"); !strings.Contains(got, "<script>alert(1)</script>") || !strings.Contains(got, "<b>bold</b>") || strings.Contains(got, "umbrella") || strings.Contains(got, "secret-worker") {
		t.Errorf("the list shows %s", got)
	}

	// Another session of another tenant sees its own.
	another := session(t, chromium(t))
	signIn(t, another, url, "umbrella-worker")
	shows(t, another, "tbody", "secret-worker", true)
	if got := text(t, another, "main"); strings.Contains(got, "demo:") || strings.Contains(got, "Force-unlock") || strings.Contains(got, "Audit") || !strings.Contains(got, "hidden") {
		t.Errorf("a worker of another tenant sees %s", got)
	}

	// The countdown runs on its own between two refreshes.
	var left [2]string
	first := `document.querySelector("[data-down]").textContent`
	do(t, ops, chromedp.Evaluate(first, &left[0]))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if do(t, ops, chromedp.Evaluate(first, &left[1])); left[1] != left[0] {
			break
		}
	}
	if left[0] == left[1] || left[1] == "expired" || len(left[1]) > len("14:59") {
		t.Errorf("the countdown stands at %q", left)
	}

	// A new lock is shown, and the focus stays where it is.
	do(t, ops, chromedp.Evaluate(`document.querySelector('[data-key="demo:billing-close:2026-03"] a').focus()`, nil))
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
	do(t, ops, chromedp.Focus(`[data-key="demo:billing-close:2026-02"] a`, chromedp.ByQuery), chromedp.KeyEvent("\r"), chromedp.WaitVisible("#confirm", chromedp.ByQuery))
	shows(t, ops, "main", "worker-2@host-1", true)
	picture(t, ops, "force-unlock")
	fill := func(confirm string) {
		do(t, ops, chromedp.Evaluate(`for (const id of ["actor", "reason", "confirm"]) document.getElementById(id).value = ""`, nil),
			chromedp.SendKeys("#actor", "ada", chromedp.ByQuery), chromedp.SendKeys("#reason", "worker-2 hangs since 02:10", chromedp.ByQuery),
			chromedp.SendKeys("#confirm", confirm+"\r", chromedp.ByQuery))
	}
	fill("demo:billing-close:2026-01")
	shows(t, ops, "main", "Nothing was done", true)
	fill("demo:billing-close:2026-02")
	shows(t, ops, "main", "the cut holder's writes are refused", true)
	picture(t, ops, "done")
	do(t, ops, chromedp.Click("main p a", chromedp.ByQuery), chromedp.WaitVisible("#filter", chromedp.ByQuery))
	shows(t, ops, "#audit-rows", "worker-2 hangs since 02:10", true)
	if got := text(t, ops, "#audit-rows"); !strings.Contains(got, "ada") || !strings.Contains(got, "demo:billing-close:2026-02") || !strings.Contains(got, "worker-2@host-1") {
		t.Errorf("the audit shows %s", got)
	}
	shows(t, ops, "tbody", "worker-2", false)

	// What assistive technology reads: names for all controls, a language, one
	// heading of the first level. On a phone, and dark, nothing is cut off.
	var problems []string
	do(t, ops, chromedp.Evaluate(`[...document.querySelectorAll("input,select,textarea,button,a,svg,[role=region]")].filter((e) =>
		!(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute("aria-label")).map((e) => e.outerHTML)
		.concat(document.documentElement.lang === "en" && document.querySelectorAll("h1").length === 1 ? [] : ["language or heading"])`, &problems))
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

	do(t, ops, chromedp.Evaluate(`document.querySelector("header form button").click()`, nil), chromedp.WaitVisible("#token", chromedp.ByQuery))
}
