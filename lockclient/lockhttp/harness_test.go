package lockhttp_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

const problemPrefix = "tag:fencepost-go.github.io,2026:problem/"

// response is an answer that was read.
type response struct {
	status int
	header http.Header
	text   string
	body   map[string]any
}

func (r response) problem() string {
	name, _ := r.body["type"].(string)
	return strings.TrimPrefix(name, problemPrefix)
}

func (r response) str(name string) string {
	s, _ := r.body[name].(string)
	return s
}

// ask sends a request as the identity that the token names.
func ask(t testing.TB, base, token, method, path, body string) response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
	testkit.Must(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return send(t, r)
}

func send(t testing.TB, r *http.Request) response {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	defer resp.Body.Close()
	return read(t, resp)
}

func read(t testing.TB, resp *http.Response) response {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	got := response{status: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.Unmarshal(text, &got.body) // not every answer is JSON
	return got
}

var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))

// people are the identities of most tests, by their tokens.
func people(r *http.Request) (*lockhttp.Identity, error) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	id := &lockhttp.Identity{Subject: token, Templates: []*guard.Template{closes}}
	switch token {
	case "acme-1", "acme-2":
		id.Tenant = "acme"
	case "acme-ops":
		id.Tenant, id.Operator = "acme", true
	case "umbrella-1":
		id.Tenant = "umbrella"
	case "umbrella-ops":
		id.Tenant, id.Operator = "umbrella", true
	case "root":
		id.AllResources, id.Operator = true, true
	case "named":
		id.Tenant, id.Owner = "acme", "named"
	case "store down":
		return nil, guard.Unavailable("authenticate", guard.Claim{}, io.ErrUnexpectedEOF)
	default:
		return nil, guard.Invalid("token", token, "is unknown")
	}
	return id, nil
}

// record returns the answer of a handler that is called directly.
func record(h http.Handler, method, path, token, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func decode(t testing.TB, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}
