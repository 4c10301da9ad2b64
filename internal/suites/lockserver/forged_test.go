package lockserver

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
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
	testkit.Must(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s: %s %s %v", path, resp.Status, answer, err)
	}
	return string(answer)
}

// TestForgedForms: the page has no cookie of its own, and a request that a form of another
// site can send, with whatever cookie, cuts nothing. The control is the same as JSON.
func TestForgedForms(t *testing.T) {
	url, _, _, _ := serve(t)
	post(t, url, "demo-worker", "/v1/locks/acquire", `{"resource":"demo:billing-close:1","leaseId":"L","ttlSeconds":900}`)
	for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain", "multipart/form-data", ""} {
		r, _ := http.NewRequest("POST", url+"/v1/resources/demo:billing-close:1/force-unlock", strings.NewReader(`{"actorId":"ada","reason":"x"}`))
		r.Header.Set("Content-Type", kind)
		r.Header.Set("Authorization", "Bearer demo-ops") // as of a hook that takes a cookie
		resp, err := http.DefaultClient.Do(r)
		testkit.Must(t, err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnsupportedMediaType || len(resp.Cookies()) > 0 {
			t.Errorf("%q: %s, cookies %v", kind, resp.Status, resp.Cookies())
		}
	}
	if got := post(t, url, "demo-worker", "/v1/locks/L/renew", `{"resource":"demo:billing-close:1","fencingToken":1,"ttlSeconds":900}`); !strings.Contains(got, "extended") {
		t.Errorf("the lease: %s", got)
	}
	if got := post(t, url, "demo-ops", "/v1/resources/demo:billing-close:1/force-unlock", `{"actorId":"ada","reason":"x"}`); !strings.Contains(got, `"raised":true`) {
		t.Errorf("as JSON: %s", got)
	}
}
