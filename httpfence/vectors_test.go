package httpfence

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

// vector is a case of testdata/vectors.json; FORMAT.md describes it.
type vector struct {
	Case, Resource string
	Requests       []struct {
		Method        string
		Fields        [][2]string
		Status        int
		Reason, Field string
	}
}

// TestVectors: the middleware decides as the vectors for other languages say.
// internal/suites/http sends them over the network, to a Python server as well.
func TestVectors(t *testing.T) {
	var vectors []vector
	if err := json.Unmarshal(guard.Must(os.ReadFile("testdata/vectors.json")), &vectors); err != nil {
		t.Fatal(err)
	}
	store := newStore()
	resource := func(r *http.Request) (string, error) {
		return url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/r/"))
	}
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	admit := guard.Must(New(store, resource, &Options{Logger: silent})).Admit(served)
	wrong := func(handler http.Handler, report func(string, ...any)) {
		for _, v := range vectors {
			for i, step := range v.Requests {
				method := step.Method
				if method == "" {
					method = http.MethodPut
				}
				r := httptest.NewRequest(method, "/r/"+Encode(v.Resource), nil)
				for _, field := range step.Fields {
					r.Header[field[0]] = append(r.Header[field[0]], latin1(field[1]))
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				a := read(t, w.Result())
				field, _ := a.problem["field"].(string)
				if a.status != step.Status || a.header.Get(ReasonHeader) != step.Reason || field != step.Field {
					report("%s, request %d: %d %s, want %+v", v.Case, i, a.status, a.body, step)
				}
			}
		}
	}
	wrong(admit, t.Errorf)
	// The control: a server that does not compare fails the vectors.
	failures := 0
	wrong(served, func(string, ...any) { failures++ })
	if len(vectors) < 60 || failures < 60 {
		t.Errorf("%d vectors, and a server without a fence fails %d requests", len(vectors), failures)
	}
}

// latin1 is a field's value of the vectors as it is on the wire.
func latin1(text string) string {
	var b []byte
	for _, c := range text {
		b = append(b, byte(c))
	}
	return string(b)
}
