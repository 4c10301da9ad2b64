package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// TestHeldAnswerIsTheBareOne sends the same handlers with and without InTx and
// compares what the client gets.
func TestHeldAnswerIsTheBareOne(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"nothing":    func(http.ResponseWriter, *http.Request) {},
		"body only":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>sniffed") },
		"no content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		"created": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-A"] = []string{"1", "2"}
			w.WriteHeader(201)
		},
		"header late":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); w.Header().Set("X-Late", "1") },
		"removes outer": func(w http.ResponseWriter, _ *http.Request) { w.Header().Del("X-Outer") },
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
		"deadlines": func(w http.ResponseWriter, _ *http.Request) {
			c := http.NewResponseController(w)
			err := errors.Join(c.SetReadDeadline(time.Now().Add(time.Minute)), c.SetWriteDeadline(time.Now().Add(time.Minute)), c.EnableFullDuplex())
			fmt.Fprint(w, err)
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
			bare, held := get(h), get(newTx(f, byPath).InTx(h))
			if bare != held {
				t.Errorf("bare\n%.400s\nheld\n%.400s", bare, held)
			}
		})
	}
}

// TestInTxReportOnly: what would have been refused is counted, logged and still
// carried out in a transaction.
func TestInTxReportOnly(t *testing.T) {
	var events []guard.Event
	var log bytes.Buffer
	var claims []guard.Token
	s, f := inTxService(t, &Options{
		InsecureReportOnly: true,
		Observer:           guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) }),
		Logger:             slog.New(slog.NewJSONHandler(&log, nil)),
	}, func(w http.ResponseWriter, r *http.Request) {
		claim, _ := guard.ClaimFrom(r.Context())
		claims = append(claims, claim.Token)
		if !write(r.Context(), "work") {
			t.Error("no transaction")
		}
		if r.URL.Query().Has("fail") {
			w.WriteHeader(409)
		}
	})
	for i, c := range []struct {
		token  string
		reason guard.Reason
		claim  guard.Token
	}{{"10", "", 10}, {"11", "", 11}, {"10", "stale", 0}, {"x", "invalid", 0}} {
		log.Reset()
		if a := s.post(t, "acme", c.token, ""); a.status != 200 {
			t.Errorf("%+v: %d %s", c, a.status, a.body)
		}
		if e := events[i]; e.Op != guard.OpTransaction || e.Surface != "http" || e.Reason != c.reason || claims[i] != c.claim {
			t.Errorf("%+v: event %+v, claim %v", c, e, claims[i])
		}
		if logged := strings.Contains(log.String(), `"reportOnly":true`); logged != (c.reason != "") {
			t.Errorf("%+v: %s", c, &log)
		}
	}
	if f.unfenced != 2 || len(f.committed) != 4 || f.rolled != 0 {
		t.Errorf("%d unfenced, committed %q", f.unfenced, f.committed)
	}
	// The handler's own failure is not run again, nor reported as a refusal.
	log.Reset()
	if a := do(t, "POST", s.URL+goodPath+"?fail", TokenHeader, "11"); a.status != 409 || f.unfenced != 2 || log.Len() != 0 {
		t.Errorf("%d, %d unfenced, log %s", a.status, f.unfenced, &log)
	}
	if e := events[len(events)-1]; e.Reason != guard.ReasonOther || e.Err == nil {
		t.Errorf("event %+v", e)
	}
	if a := do(t, "POST", s.URL+goodPath+"?fail"); a.status != 409 || f.unfenced != 3 || f.rolled != 2 {
		t.Errorf("%d, %d unfenced, %d rolled back", a.status, f.unfenced, f.rolled)
	}
	// COMMIT fails: report-only does not turn that into a success.
	f.commitErr = guard.ErrOutcomeUnknown
	for _, token := range []string{"11", "9"} {
		if a := s.post(t, "acme", token, ""); a.status != 500 || a.reason() != "outcome_unknown" {
			t.Errorf("token %s: %d %s", token, a.status, a.body)
		}
	}
}
