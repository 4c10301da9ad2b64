package httpfence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestInTx: the response is sent if the work is committed, and only then.
func TestInTx(t *testing.T) {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			write(r.Context(), "work")
			w.Header().Set("Location", "/new")
			if status != 0 {
				w.WriteHeader(status)
			}
			_, _ = io.WriteString(w, body)
		}
	}
	big := strings.Repeat("x", 101)
	for _, c := range []struct {
		name      string
		handler   http.HandlerFunc
		commitErr error
		status    int
		body      string // "" is a problem
		reason    string
		committed bool
	}{
		{"no status", answer(0, "done"), nil, 200, "done", "", true},
		{"201", answer(201, "done"), nil, 201, "done", "", true},
		{"303 after a POST", answer(303, "see"), nil, 303, "see", "", true},
		{"400", answer(400, "no"), nil, 400, "no", "", false},
		{"409", answer(409, "no"), nil, 409, "no", "", false},
		{"500", answer(500, "no"), nil, 500, "no", "", false},
		{"at the cap", answer(200, big[:100]), nil, 200, big[:100], "", true},
		{"over the cap", answer(200, big), nil, 500, "", "other", false},
		{"over the cap, 4xx", answer(404, big), nil, 500, "", "other", false},
		{"COMMIT refused", answer(200, "done"), guard.Unavailable("commit", guard.Claim{}, nil), 503, "", "unavailable", false},
		{"COMMIT lost", answer(200, "done"), guard.OutcomeUnknown("commit", guard.Claim{}, io.EOF), 500, "", "outcome_unknown", false},
		{"COMMIT violates a constraint", answer(200, "done"), errors.New("SQLSTATE 23505"), 500, "", "other", false},
		{"COMMIT is stale", answer(200, "done"), &guard.RejectedError{Reason: guard.ReasonStale}, 412, "", "stale", false},
		{"flushes by the controller", func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Errorf("Flush: %v", err)
			}
			answer(0, "done")(w, r)
		}, nil, 200, "done", "", true},
		{"flushes by the interface", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			answer(0, "done")(w, r)
		}, nil, 200, "done", "", true},
		{"flushes, then fails", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			answer(500, "no")(w, r)
		}, nil, 500, "", "other", false},
		{"hijacks by the controller", func(w http.ResponseWriter, r *http.Request) {
			write(r.Context(), "work")
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, ErrResponseHeld) || !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Hijack: %v", err)
			}
			if _, err := io.WriteString(w, "done"); !errors.Is(err, ErrResponseHeld) {
				t.Errorf("Write after Hijack: %v", err)
			}
		}, nil, 500, "", "other", false},
		{"hijacks", func(w http.ResponseWriter, r *http.Request) {
			write(r.Context(), "work")
			if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, ErrResponseHeld) {
				t.Errorf("Hijack: %v", err)
			}
			w.WriteHeader(200)
		}, nil, 500, "", "other", false},
		{"switches protocols", answer(101, ""), nil, 500, "", "other", false},
		{"early hints", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(103)
			answer(201, "done")(w, r)
		}, nil, 201, "done", "", true},
		{"two statuses", func(w http.ResponseWriter, r *http.Request) {
			answer(201, "done")(w, r)
			w.WriteHeader(500)
		}, nil, 500, "", "other", false},
		{"two statuses, both fine", func(w http.ResponseWriter, r *http.Request) {
			answer(201, "done")(w, r)
			w.WriteHeader(200)
		}, nil, 201, "done", "", true},
		{"an RPC fails with a status of HTTP", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			answer(415, "no")(w, r)
		}, nil, 415, "no", "", false},
		{"refuses by itself", func(w http.ResponseWriter, r *http.Request) {
			write(r.Context(), "work")
			newFence(newStore(), byPath, nil).Reject(w, r, guard.ErrSpent)
		}, nil, 412, "", "spent", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			limit := int64(600)
			if strings.Contains(c.name, "the cap") {
				limit = 100
			}
			s := inTxService(t, &Options{MaxBody: limit}, c.handler)
			f := s.work
			f.commitErr = c.commitErr
			a := s.post(t, "acme", "5", "b")
			if got := s.claim.Load(); got == nil || *got != (guard.Claim{Resource: "acme", Token: 5, LeaseID: "b"}) {
				t.Errorf("the handler's claim is %+v, though the Transactor sets none", got)
			}
			if a.status != c.status || a.body != c.body && c.body != "" || a.reason() != c.reason {
				t.Errorf("%d %q, want %d %q %s", a.status, a.body, c.status, c.body, c.reason)
			}
			if (len(f.committed) == 1) != c.committed || (f.rolled == 0) != c.committed {
				t.Errorf("committed %q, rolled back %d", f.committed, f.rolled)
			}
			if location := a.header.Get("Location"); (location != "") != (c.body != "") && !strings.HasPrefix(c.name, "flushes") {
				t.Errorf("Location %q with the answer %d", location, a.status)
			}
		})
	}
}

// TestInTxOfNoTransaction: an unguarded method has neither a claim nor a
// transaction. A claim that was presented well is not the client's mistake if the
// Transactor calls it invalid.
func TestInTxOfNoTransaction(t *testing.T) {
	s := newServiceAt(t, (*service).inTx, ChiParam("id"), nil)
	if a := do(t, "GET", s.URL+goodPath); a.status != 200 || s.work.committed != nil || s.claim.Load() != nil {
		t.Errorf("GET: %d, claim %+v, %q", a.status, s.claim.Load(), s.work.committed)
	}
	s.store.failWith(guard.Invalid("InTx", "acme", "is called inside another InTx"))
	if a := s.post(t, "acme", "12", ""); a.status != 500 || a.reason() != "other" {
		t.Errorf("nested: %d %s", a.status, a.body)
	}
}

// TestInTxPanic: the work is rolled back and the panic goes on as it is.
func TestInTxPanic(t *testing.T) {
	type mine struct{ int }
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    any
	}{
		"own":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "half"); panic(mine{7}) }, mine{7}},
		"abort":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) }, http.ErrAbortHandler},
		"status 0":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(0) }, "httpfence: invalid WriteHeader code 0"},
		"status 1k": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(1000) }, "httpfence: invalid WriteHeader code 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeTx{store: newStore()}
			h := newTx(f, byPath, nil).InTx(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				write(r.Context(), "work")
				c.handler(w, r)
			}))
			w := httptest.NewRecorder()
			defer func() {
				if got := recover(); got != c.want {
					t.Errorf("panic %v, want %v", got, c.want)
				}
				if f.rolled != 1 || len(f.committed) != 0 || w.Body.Len() != 0 {
					t.Errorf("rolled back %d, committed %q, sent %q", f.rolled, f.committed, w.Body)
				}
			}()
			h.ServeHTTP(w, newRequest("r", "5", ""))
		})
	}
}

// TestInTxBrokenTransactors: what a Transactor claims does not count without
// the handler's word.
func TestInTxBrokenTransactors(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*fakeTx)
		handler http.HandlerFunc
		reason  string
	}{
		"calls twice":      {func(f *fakeTx) { f.twice = true }, ok, "other"},
		"swallows a 409":   {func(f *fakeTx) { f.swallow = true }, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(409) }, "outcome_unknown"},
		"swallows a panic": {func(f *fakeTx) { f.swallow = true }, func(http.ResponseWriter, *http.Request) { panic(1) }, "outcome_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			s := inTxService(t, nil, c.handler)
			c.change(s.work)
			if a := s.post(t, "acme", "5", ""); a.status != 500 || a.reason() != c.reason || s.invoked.Load() != 1 {
				t.Errorf("%d %s, %d invocations", a.status, a.body, s.invoked.Load())
			}
		})
	}
}

// endedTx is a Transactor whose transactions a newer holder ends: what the
// handler responds then is about the end, which the Transactor explains.
type endedTx struct{ *fakeTx }

func (e endedTx) InTx(ctx context.Context, claim guard.Claim, fn func(context.Context) error) error {
	err := e.fakeTx.InTx(ctx, claim, fn)
	if err == nil {
		return nil
	}
	return &guard.RejectedError{Reason: guard.ReasonStale, Claim: claim, Mark: guard.Mark{Token: claim.Token + 1}, Cause: err}
}

// TestInTxEndedByASuccessor: the client of the older holder learns that it is
// stale, whatever failure its handler reports. What the handler found to be the
// client's mistake, and a success, stay.
func TestInTxEndedByASuccessor(t *testing.T) {
	var fence *TxMiddleware
	lost := guard.Unavailable("insert", guard.Claim{}, errors.New("connection terminated"))
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		status  int
		reason  string
	}{
		"http.Error":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "failed", 500) }, 412, "stale"},
		"Reject":          {func(w http.ResponseWriter, r *http.Request) { fence.Reject(w, r, lost) }, 412, "stale"},
		"Reject of other": {func(w http.ResponseWriter, r *http.Request) { fence.Reject(w, r, io.ErrUnexpectedEOF) }, 412, "stale"},
		"Rollback":        {func(_ http.ResponseWriter, r *http.Request) { Rollback(r.Context(), lost) }, 412, "stale"},
		"not its failure": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no such period", http.StatusUnprocessableEntity)
		}, http.StatusUnprocessableEntity, ""},
		"success": {ok, 200, ""},
	} {
		fence = newTx(endedTx{&fakeTx{store: newStore()}}, byPath, nil)
		w := httptest.NewRecorder()
		fence.InTx(c.handler).ServeHTTP(w, newRequest("r", "5", ""))
		if w.Code != c.status || w.Header().Get(ReasonHeader) != c.reason {
			t.Errorf("%s: %d %q, want %d %q", name, w.Code, w.Header().Get(ReasonHeader), c.status, c.reason)
		}
	}
}

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
				testkit.Must(t, err)
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
