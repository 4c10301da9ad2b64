package lockserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestDescription: the document that the server returns is valid, and every
// operation's requests and answers match it, refusals included.
func TestDescription(t *testing.T) {
	_, handler, _, _ := serve(t)
	get := func(path string) []byte {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Body.Bytes()
	}
	doc, err := openapi3.NewLoader().LoadFromData(get("/openapi.json"))
	testkit.Must(t, err)
	testkit.Must(t, doc.Validate(t.Context()))
	// Fields may be added to responses; here every field that there is must be described.
	closed := false
	for _, schema := range doc.Components.Schemas {
		if schema.Value.Type.Is("object") {
			schema.Value.AdditionalProperties = openapi3.BoolSchema{Has: &closed}
		}
	}
	router, err := gorillamux.NewRouter(doc)
	testkit.Must(t, err)
	seen := map[string]bool{}
	const demo, r = "demo-ops", "demo:billing-close:1"
	var token, lease string
	// ask sends a request and checks both sides against the document.
	ask := func(who, method, path, body string, status int, wellFormed bool) string {
		t.Helper()
		body = strings.NewReplacer("TOKEN", token, "LEASE", lease).Replace(body)
		path = strings.NewReplacer("TOKEN", token, "LEASE", lease).Replace(path)
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+who)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		ctx := t.Context()
		if strings.HasPrefix(path, "/v1/watch") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			req = req.WithContext(ctx)
			w := &firstWrite{ResponseRecorder: httptest.NewRecorder(), then: cancel}
			handler.ServeHTTP(w, req)
			if w.Code != status || w.Header().Get("Content-Type") != "text/event-stream" {
				t.Errorf("%s %s: %d %v", method, path, w.Code, w.Header())
			}
			if route, _, err := router.FindRoute(req); err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			} else {
				seen[route.Operation.OperationID] = true
			}
			return ""
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		answer := w.Body.String()
		if w.Code != status {
			t.Errorf("%s %s %s: %d, want %d: %s", method, path, body, w.Code, status, answer)
		}
		again := httptest.NewRequest(method, path, strings.NewReader(body))
		again.Header = req.Header
		id, requestErr, answerErr := matches(router, again, w.Result())
		seen[id] = true
		if (requestErr == nil) != wellFormed {
			t.Errorf("%s %s %s: the document says of the request: %v", method, path, body, requestErr)
		}
		if answerErr != nil {
			t.Errorf("%s %s %s: the document says of the answer %s: %v", method, path, body, answer, answerErr)
		}
		return answer
	}
	part := func(answer, name string) string {
		_, rest, _ := strings.Cut(answer, `"`+name+`":"`)
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	got := ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600,"ownerId":"a","metadata":"m","waitSeconds":0.5,"waiting":true,"notAfter":"2100-01-01T00:00:00Z"}`, 200, true)
	token, lease = part(got, "token"), part(got, "leaseId")
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600}`, 409, true)
	ask("demo-worker", "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600}`, 409, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"ttlSeconds":600}`, 200, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", "", 200, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"resource":"`+r+`","fencingToken":TOKEN,"ttlSeconds":600}`, 200, true)
	ask(demo, "POST", "/v1/locks/renew", `{"leaseId":"LEASE","resource":"`+r+`","fencingToken":"TOKEN","ttlSeconds":600}`, 200, true)
	ask(demo, "GET", "/v1/locks?prefix=demo&limit=1&state=held", "", 200, true)
	ask(demo, "GET", "/v1/resources/"+r, "", 200, true)
	ask("demo-worker", "GET", "/v1/resources/"+r, "", 200, true)
	ask(demo, "POST", "/v1/resources/"+r+"/force-unlock", `{"actorId":"ada","reason":"x","leaseId":"LEASE"}`, 200, true)
	ask(demo, "POST", "/v1/resources/"+r+"/force-unlock", `{"actorId":"ada","reason":"x","leaseId":"LEASE"}`, 409, true)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"resource":"`+r+`","fencingToken":"TOKEN","ttlSeconds":600}`, 404, true)
	ask(demo, "POST", "/v1/locks/renew", `{"leaseId":"x","resource":"umbrella:billing-close:1","fencingToken":"1","ttlSeconds":600}`, 403, true)
	ask(demo, "GET", "/v1/audit?limit=5", "", 200, true)
	got = ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600}`, 200, true)
	token, lease = part(got, "token"), part(got, "leaseId")
	ask(demo, "DELETE", "/v1/locks/LEASE?resource="+r+"&fencingToken=TOKEN", "", 200, true)
	ask(demo, "DELETE", "/v1/locks/LEASE?resource="+r, "", 404, true)
	ask(demo, "POST", "/v1/locks/release", `{"resource":"`+r+`","leaseId":"LEASE"}`, 404, true)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","leaseId":"LEASE","ttlSeconds":600}`, 410, true)
	ask(demo, "GET", "/v1/resources/demo:billing-close:none", "", 404, true)
	ask(demo, "POST", "/v1/resources/"+r+"/advance", `{"fencingToken":"5"}`, 200, true)
	ask("demo-worker", "POST", "/v1/resources/"+r+"/advance", `{"fencingToken":5}`, 403, true)
	ask(demo, "POST", "/v1/advance", `{"fencingToken":5}`, 403, true)
	ask("root-ops", "POST", "/v1/advance", `{"fencingToken":5}`, 200, true)
	ask("root-ops", "GET", "/v1/epoch", "", 200, true)
	ask("root-ops", "POST", "/v1/epoch/raise", "", 200, true)
	ask("root-ops", "POST", "/v1/purge", `{"olderThanSeconds":3600,"batch":10,"lockTimeoutSeconds":0.1}`, 200, true)
	ask(demo, "GET", "/v1/time", "", 200, true)
	ask("", "GET", "/health", "", 200, true)
	ask("", "GET", "/readyz", "", 200, true)
	ask("", "GET", "/openapi.json", "", 200, true)
	ask(demo, "GET", "/v1/watch?resource="+r, "", 200, true)
	// The server does not allow what the document does not allow.
	ask("umbrella-1", "GET", "/v1/resources/"+r, "", 403, true)
	ask("nobody", "GET", "/v1/locks", "", 401, true)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`"}`, 400, false)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":"600"}`, 400, false)
	ask(demo, "POST", "/v1/locks/acquire", `{"resource":"`+r+`","ttlSeconds":600,"ttl":1}`, 400, false)
	ask(demo, "POST", "/v1/locks/renew", `{"resource":"`+r+`"}`, 400, false)
	ask(demo, "POST", "/v1/locks/LEASE/renew", `{"resource":"`+r+`","fencingToken":"01","ttlSeconds":600}`, 400, false)
	ask(demo, "DELETE", "/v1/locks/LEASE", "", 404, true)
	ask(demo, "GET", "/v1/locks?state=lost", "", 400, false)
	ask(demo, "GET", "/v1/locks?limit=1001", "", 400, false)
	ask(demo, "GET", "/v1/locks?limit=0", "", 400, false)

	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			if !seen[operation.OperationID] {
				t.Errorf("%s %s was not tried", method, path)
			}
		}
	}
	// The control: another answer does not match.
	req := httptest.NewRequest("GET", "/v1/time", nil)
	for _, spoiled := range []string{`{}`, `{"serverTime":5}`, `{"serverTime":"2026-01-01T00:00:00Z","x":1}`} {
		resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(spoiled))}
		if _, _, err := matches(router, req, resp); err == nil {
			t.Errorf("accepted: %s", spoiled)
		}
	}
}

// matches returns how a request and its answer violate the document.
func matches(router routers.Router, r *http.Request, resp *http.Response) (id string, request, answer error) {
	route, params, err := router.FindRoute(r)
	if err != nil {
		return "", err, err
	}
	in := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	request = openapi3filter.ValidateRequest(r.Context(), in)
	answer = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Body: resp.Body,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if answer == nil && resp.Header.Get("Content-Type") == "" {
		answer = fmt.Errorf("there is no Content-Type")
	}
	return route.Operation.OperationID, request, answer
}

// firstWrite ends a stream after its first write.
type firstWrite struct {
	*httptest.ResponseRecorder
	then func()
}

func (f *firstWrite) Write(b []byte) (int, error) {
	defer f.then()
	return f.ResponseRecorder.Write(b)
}
