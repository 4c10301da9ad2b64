package httpfence

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// vector is a case of testdata/vectors.json; FORMAT.md describes it.
type vector struct {
	Case, Resource string
	Requests       []struct {
		Method, Path                    string
		Fields                          [][2]string
		Status                          int
		Reason, Field, Claimed, Guarded string
	}
}

// vectored is the server that FORMAT.md describes for the vectors.
func vectored(store guard.Store, opts Options) http.Handler {
	opts.Logger = silent
	fence := guard.Must(New(downStore{store}, func(r *http.Request) (string, error) {
		_, name, _ := strings.Cut(r.URL.EscapedPath()[1:], "/")
		if strings.HasPrefix(name, "absent:") {
			return "", guard.ErrNotFound
		}
		return url.PathUnescape(name)
	}, &opts))
	mux := http.NewServeMux()
	mux.Handle("/r/", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	mux.HandleFunc("/raise/", fence.Raise)
	return mux
}

// downStore cannot be reached for the resources that begin with "down:".
type downStore struct{ guard.Store }

func (s downStore) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	if strings.HasPrefix(c.Resource, "down:") {
		return guard.Mark{}, guard.Unavailable("admit", c, nil)
	}
	return s.Store.Admit(ctx, c)
}

// sameLease is a store that decides otherwise where a claim has the mark's lease ID and
// another token.
type sameLease struct {
	guard.Store
	lower, higher func(guard.Claim) error
}

func (s sameLease) Admit(ctx context.Context, c guard.Claim) (guard.Mark, error) {
	mark, err := s.Mark(ctx, c.Resource)
	switch {
	case err == nil && mark.LeaseID == c.LeaseID && c.Token < mark.Token && s.lower != nil:
		return mark, s.lower(c)
	case err == nil && mark.LeaseID == c.LeaseID && c.Token > mark.Token && mark.Token != guard.NoToken && s.higher != nil:
		return mark, s.higher(c)
	}
	return s.Store.Admit(ctx, c)
}

// TestVectors: the middleware decides as the vectors for other languages say, and servers
// that are wrong in one point do not. internal/suites/http sends them over the network, to
// a Python server as well.
func TestVectors(t *testing.T) {
	var vectors []vector
	testkit.Must(t, json.Unmarshal(guard.Must(os.ReadFile("testdata/vectors.json")), &vectors))
	wrong := func(handler http.Handler, report func(string, ...any)) {
		for _, v := range vectors {
			for i, step := range v.Requests {
				method, path := step.Method, step.Path
				if method == "" {
					method = http.MethodPut
				}
				if path == "" {
					path = "/r/"
				}
				r := httptest.NewRequest(method, path+Encode(v.Resource), nil)
				for _, field := range step.Fields {
					r.Header[field[0]] = append(r.Header[field[0]], latin1(field[1]))
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				a := read(t, w.Result())
				member := func(name string) string { s, _ := a.problem[name].(string); return s }
				if a.status != step.Status || a.header.Get(ReasonHeader) != step.Reason || a.reason() != step.Reason ||
					member("field") != step.Field || member("claimed") != step.Claimed || member("guarded") != step.Guarded {
					report("%s, request %d: %d %s, want %+v", v.Case, i, a.status, a.body, step)
				}
				number, _ := a.problem["status"].(float64)
				if step.Reason != "" && (a.header.Get("Content-Type") != "application/problem+json" || int(number) != step.Status || a.header.Get("Cache-Control") != "no-store") ||
					(a.header.Get("Retry-After") != "") != (step.Status == 503) || (a.header.Get("Allow") == "POST") != (step.Status == 405) {
					report("%s, request %d: %d %v %s", v.Case, i, a.status, a.header, a.body)
				}
			}
		}
	}
	wrong(vectored(guard.NewMemory(), Options{}), t.Errorf)

	// The controls: each fails the vectors.
	right := func() http.Handler { return vectored(guard.NewMemory(), Options{}) }
	before := func(change func(*http.Request)) http.Handler {
		next := right()
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			change(r)
			next.ServeHTTP(w, r)
		})
	}
	after := func(change func(*httptest.ResponseRecorder)) http.Handler {
		next := right()
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			response := httptest.NewRecorder()
			next.ServeHTTP(response, r)
			change(response)
			for name, lines := range response.Header() {
				w.Header()[name] = lines
			}
			w.WriteHeader(response.Code)
			_, _ = w.Write(response.Body.Bytes())
		})
	}
	header := func(name, value string) http.Handler {
		return after(func(w *httptest.ResponseRecorder) {
			if w.Header().Get(name) != "" {
				w.Header().Set(name, value)
			}
		})
	}
	trimming := func(name, cut string) http.Handler {
		return before(func(r *http.Request) {
			for i, line := range r.Header[name] {
				r.Header[name][i] = strings.TrimSuffix(strings.TrimPrefix(line, cut), cut)
			}
		})
	}
	conflict := func(c guard.Claim) error {
		return guard.Decide(guard.SameOrNewer, guard.Mark{Token: c.Token, LeaseID: "another"}, c)
	}
	for name, server := range map[string]http.Handler{
		"no fence":                             http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		"admits a lower token of one lease":    vectored(sameLease{Store: guard.NewMemory(), lower: func(guard.Claim) error { return nil }}, Options{}),
		"a higher token of one lease conflict": vectored(sameLease{Store: guard.NewMemory(), higher: conflict}, Options{}),
		"methods without case":                 before(func(r *http.Request) { r.Method = strings.ToUpper(r.Method) }),
		"guards GET, HEAD and TRACE":           vectored(guard.NewMemory(), Options{UnguardedMethods: []string{http.MethodOptions}}),
		"trims A0 off the token":               trimming(TokenHeader, "\xa0"),
		"trims 85 off the token":               trimming(TokenHeader, "\x85"),
		"trims 85 off the lease":               trimming(LeaseHeader, "\x85"),
		"trims A0 off the name":                trimming(ResourceHeader, "\xa0"),
		"joins the lines":                      before(func(r *http.Request) { join(r.Header, TokenHeader) }),
		"no Retry-After":                       header("Retry-After", ""),
		"may be cached":                        header("Cache-Control", "max-age=60"),
		"another media type":                   header("Content-Type", "application/json"),
		"no reason":                            header(ReasonHeader, ""),
		"no Allow":                             header("Allow", "GET, POST"),
		"another type":                         after(func(w *httptest.ResponseRecorder) { edit(w, problemPrefix, "https://example.org/") }),
		"names exchanged": after(func(w *httptest.ResponseRecorder) {
			edit(w, `"claimed":`, `"x":`, `"guarded":`, `"claimed":`, `"x":`, `"guarded":`)
		}),
		"raises by any method": before(func(r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/raise/") {
				r.Method = http.MethodPost
			}
		}),
		"a raise that raises nothing": before(func(r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/raise/") && r.Method == http.MethodPost {
				r.Method, r.URL = http.MethodGet, guard.Must(url.Parse("/r/x"))
			}
		}),
	} {
		failures := 0
		wrong(server, func(string, ...any) { failures++ })
		if failures == 0 {
			t.Errorf("control: no vector notices: %s", name)
		}
	}
}

// join has the last line of a field for all of them.
func join(h http.Header, name string) {
	if lines := h[name]; len(lines) > 1 {
		h[name] = lines[len(lines)-1:]
	}
}

func edit(w *httptest.ResponseRecorder, oldnew ...string) {
	body := w.Body.String()
	for i := 0; i < len(oldnew); i += 2 {
		body = strings.ReplaceAll(body, oldnew[i], oldnew[i+1])
	}
	w.Body.Reset()
	w.Body.WriteString(body)
}

// latin1 is a field's value of the vectors as it is on the wire.
func latin1(text string) string {
	var b []byte
	for _, c := range text {
		b = append(b, byte(c))
	}
	return string(b)
}
