package httpfence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	chimw "github.com/go-chi/chi/v5/middleware"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestVotes: the handler's result decides, and the client never sees a success
// that was rolled back. The control lets the same handler return nil.
func TestVotes(t *testing.T) {
	sentinel, own := errors.New("out of stock"), guard.Claim{Resource: "r", Token: 5}
	for _, c := range []struct {
		name      string
		handler   func(w http.ResponseWriter, r *http.Request) error
		committed bool
		status    int
		reason    string
		body      string
	}{
		{"control", func(w http.ResponseWriter, _ *http.Request) error { _, err := io.WriteString(w, "done"); return err }, true, 200, "", "done"},
		{"error", func(http.ResponseWriter, *http.Request) error { return sentinel }, false, 500, "other", ""},
		{"error after the answer", func(w http.ResponseWriter, _ *http.Request) error {
			_, _ = io.WriteString(w, "done")
			return guard.ErrNotFound
		}, false, 404, "not_found", ""},
		{"success without an answer", func(http.ResponseWriter, *http.Request) error { return nil }, true, 200, "", ""},
		{"stale", func(http.ResponseWriter, *http.Request) error {
			return &guard.RejectedError{Reason: guard.ReasonStale, Claim: own}
		}, false, 412, "stale", ""},
		{"stale, without facts", func(http.ResponseWriter, *http.Request) error { return guard.ErrStale }, false, 412, "stale", ""},
		{"stale elsewhere", func(http.ResponseWriter, *http.Request) error {
			return &guard.RejectedError{Reason: guard.ReasonStale, Claim: guard.Claim{Resource: "elsewhere", Token: 5}}
		}, false, 500, "other", ""},
		{"another service's refusal of the same claim", func(_ http.ResponseWriter, r *http.Request) error {
			claim, _ := guard.ClaimFrom(r.Context())
			return ErrorFrom(refusalOf(t, claim, guard.ErrStale))
		}, false, 500, "other", ""},
		{"another service that is down, by a vote", func(_ http.ResponseWriter, r *http.Request) error {
			claim, _ := guard.ClaimFrom(r.Context())
			Rollback(r.Context(), ErrorFrom(refusalOf(t, claim, guard.ErrUnavailable)))
			return nil
		}, false, 500, "other", ""},
		{"another service did not get the claim", func(_ http.ResponseWriter, r *http.Request) error { return guard.Missing(TokenHeader) }, false, 500, "other", ""},
		{"its own lease is lost", func(_ http.ResponseWriter, r *http.Request) error {
			return &guard.LostError{Claim: guard.Claim{Resource: "elsewhere", Token: 5}}
		}, false, 500, "other", ""},
		{"its own statement is unavailable", func(_ http.ResponseWriter, r *http.Request) error { return guard.Unavailable("update", own, sentinel) }, false, 503, "unavailable", ""},
		{"its own 409", func(w http.ResponseWriter, _ *http.Request) error { w.WriteHeader(409); return sentinel }, false, 409, "", ""},
		{"votes", func(w http.ResponseWriter, r *http.Request) error {
			if !Rollback(r.Context(), sentinel) || !Rollback(r.Context(), guard.ErrNotFound) {
				t.Error("Rollback found no transaction")
			}
			w.WriteHeader(201)
			return nil
		}, false, 500, "other", ""},
		{"votes for no reason", func(_ http.ResponseWriter, r *http.Request) error { Rollback(r.Context(), nil); return nil }, false, 500, "other", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeTx{store: newStore()}
			w := httptest.NewRecorder()
			fence := newTx(f, byPath, nil)
			fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
				write(r.Context(), "row")
				return c.handler(w, r)
			}).ServeHTTP(w, newRequest("r", "5", ""))
			a := read(t, w.Result())
			if (len(f.committed) == 1) != c.committed || a.status != c.status || a.reason() != c.reason || c.reason == "" && a.body != c.body {
				t.Errorf("committed %q, answered %d %s", f.committed, a.status, a.body)
			}
			// A Transactor that logs what rolled it back logs the status and the vote,
			// and does not take the handler's words for its own.
			if text := fmt.Sprint(f.told); c.status == 409 && (!strings.Contains(text, "409") || !strings.HasSuffix(text, ": out of stock")) || guard.ReasonOf(f.told) != guard.ReasonOther && f.told != nil {
				t.Error(text)
			}
		})
	}
	if Rollback(t.Context(), sentinel) {
		t.Error("Rollback found a transaction where there is none")
	}
	// An unguarded method has no transaction, and its error a response.
	w := httptest.NewRecorder()
	newTx(&fakeTx{store: newStore()}, byPath, nil).InTxFunc(func(http.ResponseWriter, *http.Request) error { return guard.ErrNotFound }).
		ServeHTTP(w, httptest.NewRequest("GET", "/r", nil))
	if w.Code != 404 {
		t.Errorf("GET: %d", w.Code)
	}
}

// refusalOf is the response of another service whose fence says err of claim.
func refusalOf(t *testing.T, claim guard.Claim, err error) *http.Response {
	w := httptest.NewRecorder()
	other := newFence(newStore(), literal("r"), nil)
	other.Relay(w, newRequest("r", "5", ""), err)
	resp := w.Result()
	resp.Request = guard.Must(http.NewRequestWithContext(guard.WithClaim(t.Context(), claim), "POST", "http://other.test/", nil))
	return resp
}

// TestLateFailures: a response that began as a success and then failed. TestInTx
// has those that set a second status.
func TestLateFailures(t *testing.T) {
	for _, c := range []struct {
		name      string
		handler   http.HandlerFunc
		committed bool
	}{
		{"control", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			_, _ = io.WriteString(w, "done")
		}, true},
		{"a panic after 201, recovered inside", func(w http.ResponseWriter, r *http.Request) {
			chimw.Recoverer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(201)
				panic("a bug")
			})).ServeHTTP(w, quietly(r))
		}, false},
		{"a panic recovered inside with a vote", func(w http.ResponseWriter, r *http.Request) {
			defer func() { Rollback(r.Context(), errors.New(recover().(string))) }()
			w.WriteHeader(201)
			panic("a bug")
		}, false},
		{"more than the length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "3")
			_, _ = io.WriteString(w, "0123456789")
		}, false},
		{"less than the length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "012")
		}, false},
		{"no length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "x")
			_, _ = io.WriteString(w, "012")
		}, false},
		{"the response of gRPC", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc-web+proto")
			w.Header().Set("Grpc-Status", "0")
			_, _ = io.WriteString(w, "\x00\x00\x00\x00\x00")
		}, false},
		{"the response of a stream of Connect", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "Application/connect+json")
			_, _ = io.WriteString(w, "\x02\x00\x00\x00\x02{}")
		}, false},
		{"control: a unary call of Connect", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "{}")
		}, true},
		{"hijacks after its answer", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "done")
			_, _, _ = w.(http.Hijacker).Hijack()
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := inTxService(t, nil, func(w http.ResponseWriter, r *http.Request) {
				write(r.Context(), "row")
				c.handler(w, r)
			})
			f := s.work
			a := s.post(t, "acme", "5", "l")
			if (len(f.committed) == 1) != c.committed || (a.status < 300) != c.committed || !c.committed && a.reason() != "other" {
				t.Errorf("committed %q, answered %d %q", f.committed, a.status, a.body)
			}
		})
	}
	// The response to a HEAD has no body and may say how long it would be.
	f := &fakeTx{store: newStore()}
	w := httptest.NewRecorder()
	r := newRequest("r", "5", "")
	r.Method = "HEAD"
	newTx(f, byPath, &Options{GuardAllMethods: true}).InTx(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(200)
	})).ServeHTTP(w, r)
	if w.Code != 200 || f.rolled != 0 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

// TestUpgrade: a panic commits nothing and is no success, whatever the client
// sends. chi's Recoverer sets no status for a request to upgrade its connection,
// which InTx cannot grant. The controls are a request without that field, and
// a handler that does not panic.
func TestUpgrade(t *testing.T) {
	for _, fields := range [][]string{nil, {"X-Other"}, {"Upgrade"}, {"Upgrade", "X-Other"}, {"X-Other, upgrade"}, {"Upgrade ,X-Other"}} {
		for _, first := range []int{0, 201} {
			for _, inside := range []bool{true, false} {
				for _, bug := range []bool{true, false} {
					f := &fakeTx{store: newStore()}
					fence := newTx(f, byPath, nil)
					h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						write(r.Context(), "row")
						// A reverse proxy removes the fields that are named.
						got := strings.Join(r.Header["Connection"], ",")
						if strings.Contains(strings.ToLower(got), "upgrade") || strings.Contains(got, "X-Other") != strings.Contains(strings.Join(fields, ","), "X-Other") {
							t.Errorf("%q: the handler got %q", fields, got)
						}
						if first != 0 {
							w.WriteHeader(first)
						}
						if bug {
							panic("a bug")
						}
						w.WriteHeader(201)
					}))
					if inside {
						h = fence.InTx(chimw.Recoverer(h))
					} else {
						h = chimw.Recoverer(fence.InTx(h))
					}
					r, w := newRequest("r", "5", ""), httptest.NewRecorder()
					if fields != nil {
						r.Header["Connection"] = slices.Clone(fields)
					}
					h.ServeHTTP(w, quietly(r))
					if (len(f.committed) == 0) != bug || (w.Code == 500) != bug {
						t.Errorf("%q, first %d, recovered inside: %t, panics: %t: committed %q, status %d", fields, first, inside, bug, f.committed, w.Code)
					}
				}
			}
		}
	}
}

// TestBodyBeforeBegin: no transaction begins before the whole body is there, and
// none at all for one that is too long, breaks off or comes too late. The
// control is Admit, whose handler has begun by then.
func TestBodyBeforeBegin(t *testing.T) {
	for _, control := range []bool{false, true} {
		begun := make(chan struct{}, 2)
		var got string
		f := &fakeTx{store: newStore(), begun: begun}
		fence := newTx(f, byPath, &Options{MaxBody: 8})
		guarded := fence.InTx
		if control {
			guarded = fence.Admit
		}
		h := guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			b, _ := io.ReadAll(r.Body)
			got = string(b)
			ok(w, r)
		}))
		half, rest := io.Pipe()
		r := newRequest("r", "5", "")
		r.Body, r.ContentLength = half, -1
		w, done := httptest.NewRecorder(), make(chan struct{})
		go func() { defer close(done); h.ServeHTTP(w, r) }()
		_, _ = io.WriteString(rest, "1234")
		_, _ = io.WriteString(rest, "5678") // the reader has the first half, and waits
		select {
		case <-begun:
			if !control {
				t.Error("a transaction began before the body was there")
			}
		default:
			if control {
				t.Error("control: the handler has not begun")
			}
		}
		_ = rest.Close()
		<-done
		if w.Code != 200 || got != "12345678" || f.rolled != 0 {
			t.Errorf("control %v: %d, the handler read %q", control, w.Code, got)
		}
	}
	f := &fakeTx{store: newStore()}
	inTx := newTx(f, byPath, &Options{MaxBody: 8}).InTx(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ok(w, r)
		_, _ = io.Copy(io.Discard, r.Body)
		write(r.Context(), r.Trailer.Get("X-Sum"))
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Late") != "" { // what ReadTimeout does, once the header has arrived
			testkit.Check(t, http.NewResponseController(w).SetReadDeadline(time.Now()))
		}
		inTx.ServeHTTP(w, r)
	}))
	defer server.Close()
	s := &service{Server: server}
	head := "POST /r HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nX-Fencing-Token: 5\r\n"
	for _, c := range []struct {
		name, rest string
		status     int
		committed  int
	}{
		{"fits", "Content-Length: 8\r\n\r\n12345678", 200, 1},
		{"is announced as too long", "Content-Length: 9\r\n\r\n", 413, 1},
		{"is too long", "Transfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n", 413, 1},
		{"has trailers", "Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 7\r\n\r\n", 200, 2},
		{"is broken", "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, 2},
		{"never ends", "X-Late: 1\r\nContent-Length: 8\r\n\r\n1234", 408, 2},
	} {
		a := s.raw(t, head+c.rest)
		if a.status != c.status || c.status != 200 && (a.reason() != "invalid" || a.problem["status"] != float64(c.status)) || len(f.committed) != c.committed || f.rolled != 0 {
			t.Errorf("%s: %d %s, committed %q, rolled back %d", c.name, a.status, a.body, f.committed, f.rolled)
		}
	}
	if f.committed[1] != "7" {
		t.Errorf("trailer %q", f.committed[1])
	}
}

// TestBoundedWaits: a request that waits for a store or for a transaction to
// begin gets 503 when the time is over; the handler itself is not
// bounded.
func TestBoundedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		fence := newTx(&fakeTx{store: store}, byPath, &Options{MaxWait: 3 * time.Second})
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Hour); ok(w, r) })
		for _, c := range []struct {
			surface string
			h       http.Handler
			wait    time.Duration
		}{
			{"Check", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := fence.Check(r); err != nil {
					fence.Reject(w, r, err)
				}
			}), 3 * time.Second},
			{"Admit", fence.Admit(next), 3 * time.Second},
			{"InTx", fence.InTx(next), 3 * time.Second},
			{"Raise", http.HandlerFunc(fence.Raise), 9 * time.Second},
		} {
			for _, late := range []bool{true, false} {
				store.before(func(ctx context.Context) error {
					if late { // there is no free connection
						<-ctx.Done()
					}
					return ctx.Err()
				})
				start, w := time.Now(), httptest.NewRecorder()
				c.h.ServeHTTP(w, newRequest("r", "5", ""))
				took := time.Since(start)
				if late && (w.Code != 503 || w.Header().Get("Retry-After") != "2" || took != c.wait) || !late && w.Code >= 300 {
					t.Errorf("%s, late %v: %d after %v", c.surface, late, w.Code, took)
				}
			}
		}
	})
}

// TestWaitEndsAsItBegins: a transaction that begins just after the time is over
// does not run its handler.
func TestWaitEndsAsItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTx{store: newStore(), slow: 3 * time.Second}
		called := false
		w := httptest.NewRecorder()
		newTx(f, byPath, &Options{MaxWait: 2 * time.Second}).InTx(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true })).
			ServeHTTP(w, newRequest("r", "5", ""))
		if w.Code != 503 || called || len(f.committed) != 0 || f.rolled != 1 {
			t.Errorf("%d, called %v, rolled back %d", w.Code, called, f.rolled)
		}
	})
}

// TestTimeoutHandlerAroundInTx: work that is not yet at its COMMIT is rolled
// back with the request's context. A COMMIT in flight is not: the 503 then says
// nothing about it, and has no problem type.
func TestTimeoutHandlerAroundInTx(t *testing.T) { synctest.Test(t, timeoutAroundInTx) }

func timeoutAroundInTx(t *testing.T) {
	for _, late := range []bool{false, true} {
		f := &fakeTx{store: newStore()}
		timedOut, ended := make(chan struct{}), make(chan struct{})
		if late {
			f.commit = func() { <-timedOut }
		}
		inTx := newTx(f, byPath, nil).InTx(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			write(r.Context(), "work")
			if !late {
				<-r.Context().Done()
			}
			w.WriteHeader(http.StatusCreated)
		}))
		h := http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			inTx.ServeHTTP(w, r)
		}), 200*time.Millisecond, "timed out")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, newRequest("r", "10", "a"))
		if w.Code != 503 || ErrorFrom(w.Result()) != nil {
			t.Errorf("late %v: %d %s", late, w.Code, w.Body)
		}
		close(timedOut)
		<-ended
		if (len(f.committed) == 1) != late {
			t.Errorf("late %v: committed %q", late, f.committed)
		}
	}
}
