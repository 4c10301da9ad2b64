package lockserver

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func post(t *testing.T, url, token, path, body string) string {
	t.Helper()
	return send(t, url, token, path, body, http.StatusOK)
}

// send posts a body and wants a status.
func send(t *testing.T, url, token, path, body string, status int) string {
	t.Helper()
	r, _ := http.NewRequest("POST", url+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s: %s %s %v", path, resp.Status, answer, err)
	}
	return string(answer)
}

// TestForgedForms: a form of another site is refused, and the cookie gives
// access only to the page.
func TestForgedForms(t *testing.T) {
	url, _, _, _ := serve(t)
	post(t, url, "demo-worker", "/v1/locks/acquire", `{"resource":"demo:billing-close:1","leaseId":"L","ttlSeconds":900}`)
	form := "resource=demo%3Abilling-close%3A1&leaseId=L&actor=ada&reason=x&confirm=demo%3Abilling-close%3A1&requestId=R"
	const cookie = "fencepost_page=ZGVtby1vcHM" // demo-ops
	send := func(path, origin, body, kind string) int {
		r, _ := http.NewRequest("POST", url+path, strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Cookie", cookie)
		r.Header.Set("Origin", origin)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := send("/ui/force-unlock", "https://evil.example", form, "application/x-www-form-urlencoded"); got != http.StatusForbidden {
		t.Errorf("from another site: %d", got)
	}
	if got := send("/v1/locks/demo:billing-close:1/force-unlock", url, `{"actorId":"ada","reason":"x"}`, "application/json"); got != http.StatusUnauthorized {
		t.Errorf("by the cookie alone: %d", got)
	}
	if got := post(t, url, "demo-worker", "/v1/locks/L/renew", `{"resource":"demo:billing-close:1","fencingToken":1,"ttlSeconds":900}`); !strings.Contains(got, "extended") {
		t.Errorf("the lease: %s", got)
	}
	// The control: the form of the page itself.
	if got := send("/ui/force-unlock", url, form, "application/x-www-form-urlencoded"); got != http.StatusOK {
		t.Errorf("from the page: %d", got)
	}
}
