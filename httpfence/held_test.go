package httpfence

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestHeldAnswerIsTheBareOne sends the same handlers with and without InTx and
// compares what the client gets.
func TestHeldAnswerIsTheBareOne(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"body only":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>sniffed") },
		"no content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		"created": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-A"] = []string{"1", "2"}
			w.WriteHeader(201)
		},
		"header late":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); w.Header().Set("X-Late", "1") },
		"removes outer": func(w http.ResponseWriter, r *http.Request) { w.Header().Del("X-Outer"); ok(w, r) },
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "x")
		},
		"large": func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				_, _ = io.WriteString(w, strings.Repeat("0123456789", 100))
			}
		},
		"length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "abc")
		},
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, x-count")
			_, _ = io.WriteString(w, "abc")
			w.Header().Set("X-Sum", "3")
			w.Header().Set("X-Count", "1")
			w.Header().Set(http.TrailerPrefix+"X-More", "4")
			w.Header().Set("X-Late", "1")
		},
		"trailers after Flush": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "abc")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Sum", "3")
		},
		"trailers after Flush alone": func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Sum", "3")
			w.Header().Set(http.TrailerPrefix+"X-Count", "1")
		},
		"a trailer with the name of a header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Sum", "header")
			_, _ = io.WriteString(w, "abc")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Sum", "3")
		},
		"no trailers beside a length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "abc")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Sum", "3")
		},
		"no trailers with 204": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			w.Header().Set(http.TrailerPrefix+"X-Sum", "3")
		},
		"body with 204": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); err != http.ErrBodyNotAllowed {
				panic(fmt.Sprint(err))
			}
		},
		"deadline": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		},
		"http.Error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnprocessableEntity) },
	} {
		t.Run(name, func(t *testing.T) {
			outer := func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("X-Outer", "1")
					w.Header().Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
					next.ServeHTTP(w, r)
				})
			}
			f := &fakeTx{store: newStore()}
			get := func(h http.Handler) string {
				server := httptest.NewServer(outer(h))
				defer server.Close()
				req, _ := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/r", nil)
				req.Header.Set(TokenHeader, "5")
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				a := read(t, resp)
				return fmt.Sprint(a.status, a.header, resp.TransferEncoding, resp.ContentLength, resp.Trailer, len(a.body), a.body)
			}
			bare, held := get(h), get(newTx(f, byPath, nil).InTx(h))
			if bare != held {
				t.Errorf("bare\n%.400s\nheld\n%.400s", bare, held)
			}
		})
	}
}
