package openapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

func TestFragmentIsValid(t *testing.T) {
	validate := func(text string) error {
		doc, err := openapi3.NewLoader().LoadFromData([]byte(text))
		if err != nil {
			return err
		}
		return doc.Validate(t.Context())
	}
	file, err := os.ReadFile("../../../httpfence/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	good := string(file)
	// The document has no paths; this library requires a paths object.
	good = strings.Replace(good, `"openapi": "3.1.0"`, `"paths": {}, "openapi": "3.1.0"`, 1)
	if err := validate(good); err != nil {
		t.Error(err)
	}
	// The validator must be able to say no.
	for old, bad := range map[string]string{
		`"in": "header"`:                      `"in": "nowhere"`,
		"#/components/schemas/FencingProblem": "#/components/schemas/None",
		`"type": "object"`:                    `"type": "thing"`,
		`"pattern": "^[1-9][0-9]{0,18}$"`:     `"pattern": "("`,
	} {
		broken := strings.Replace(good, old, bad, 1)
		if broken == good {
			t.Errorf("the document has no %s", old)
		}
		if validate(broken) == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
}

// TestAnswersMatch checks a guarded service's answers against service.yaml.
func TestAnswersMatch(t *testing.T) {
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	doc, err := loader.LoadFromFile("service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	var fail error
	store := failing{guard.NewMemory(), &fail}
	for _, disclose := range []bool{false, true} {
		fence := guard.Must(httpfence.New(store, httpfence.PathValue("id"), &httpfence.Options{DiscloseMark: disclose}))
		mux := http.NewServeMux()
		mux.Handle("POST /accounts/{id}/close", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		})))
		ask := func(lines ...string) *http.Response {
			r := httptest.NewRequest("POST", "/accounts/acme/close", nil)
			for i := 0; i < len(lines); i += 2 {
				r.Header.Add(lines[i], lines[i+1])
			}
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			resp := w.Result()
			resp.Request = r
			return resp
		}
		const token, lease, resource = httpfence.TokenHeader, httpfence.LeaseHeader, httpfence.ResourceHeader
		for _, c := range []struct {
			status int
			lines  []string
		}{
			{204, []string{token, "11", lease, "b", resource, "acme"}}, {412, []string{token, "10", lease, "a", resource, "acme"}},
			{412, []string{token, "11", lease, "a", resource, "acme"}}, {400, []string{token, "11", lease, "b", resource, "other"}}, {428, []string{token, "11"}},
			{428, nil}, {400, []string{token, "+11"}}, {400, []string{token, "11", token, "11"}},
		} {
			resp := ask(c.lines...)
			if err := matches(t.Context(), router, resp); err != nil || resp.StatusCode != c.status {
				t.Errorf("%q: %d: %v", c.lines, resp.StatusCode, err)
			}
		}
		for _, reason := range append(guard.Reasons(), guard.ReasonOther) {
			fail = reason.Err()
			if fail == nil {
				fail = io.ErrUnexpectedEOF
			}
			if err := matches(t.Context(), router, ask(token, "12", lease, "c", resource, "acme")); err != nil {
				t.Errorf("%s: %v", reason, err)
			}
		}
		fail = nil
	}
	// The control: an answer that is none of ours does not match.
	for name, spoil := range map[string]func(http.Header, *string){
		"another type": func(_ http.Header, body *string) {
			*body = strings.ReplaceAll(*body, "problem/stale", "problem/stalemate")
		},
		"another status":  func(_ http.Header, body *string) { *body = strings.ReplaceAll(*body, "412", "409") },
		"a number":        func(_ http.Header, body *string) { *body = strings.ReplaceAll(*body, `"mark":"11"`, `"mark":11`) },
		"no detail":       func(_ http.Header, body *string) { *body = strings.ReplaceAll(*body, `"detail"`, `"details"`) },
		"another content": func(h http.Header, _ *string) { h.Set("Content-Type", "application/json") },
		"may be cached":   func(h http.Header, _ *string) { h.Del("Cache-Control") },
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/accounts/acme/close", nil)
		guard.Must(httpfence.New(store, httpfence.PathValue("id"), &httpfence.Options{DiscloseMark: true})).
			Relay(w, r, &guard.RejectedError{Reason: guard.ReasonStale, Claim: guard.Claim{Token: 10}, Mark: guard.Mark{Token: 11}})
		resp := w.Result()
		resp.Request = r
		body, _ := io.ReadAll(resp.Body)
		text := string(body)
		spoil(resp.Header, &text)
		resp.Body = io.NopCloser(strings.NewReader(text))
		if matches(t.Context(), router, resp) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func matches(ctx context.Context, router routers.Router, resp *http.Response) error {
	r := resp.Request.Clone(ctx)
	r.URL = &url.URL{Path: r.URL.Path}
	route, params, err := router.FindRoute(r)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateResponse(ctx, &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header, Body: resp.Body,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
}

// failing is a store that fails when it is told to.
type failing struct {
	guard.Store
	err *error
}

func (f failing) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	if *f.err != nil {
		return guard.Mark{}, *f.err
	}
	return f.Store.Admit(ctx, c)
}
