package httpfence

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// The tests in this file show what admission does not do: they pin down what
// happens to handlers that continue after their response or their admission.

// inside is how long a handler gets. It is running before its time runs out,
// because on the fake time of synctest that happens when all goroutines wait.
const inside = 200 * time.Millisecond

// TestTimeoutHandlerAroundAdmit: the client has its 503 while the handler
// continues and writes. Only the write's own comparison stops it, which the
// second half shows: a newer holder came in between.
func TestTimeoutHandlerAroundAdmit(t *testing.T) { synctest.Test(t, timeoutAroundAdmit) }

func timeoutAroundAdmit(t *testing.T) {
	store := newStore()
	fence := newFence(store, byPath, nil)
	for _, fenced := range []bool{false, true} {
		answered, outcome := make(chan struct{}), make(chan error, 1)
		h := http.TimeoutHandler(fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			claim, _ := guard.ClaimFrom(r.Context())
			<-answered
			var err error
			if fenced { // a write that compares; the handler ignores that its context has ended
				_, err = store.Store.Admit(context.WithoutCancel(r.Context()), claim)
			}
			outcome <- err
		})), inside, "timed out")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, newRequest("r", "10", "a"))
		if w.Code != 503 || strings.Contains(w.Body.String(), problemPrefix) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if _, err := store.Store.Admit(t.Context(), guard.Claim{Resource: "r", Token: 11, LeaseID: "b"}); err != nil {
			t.Fatal(err)
		}
		close(answered)
		err := <-outcome
		if (err != nil) != fenced || fenced && guard.ReasonOf(err) != guard.ReasonStale {
			t.Errorf("fenced %v: the write after the 503 gave %v", fenced, err)
		}
		store.Store = guard.NewMemory(nil)
	}
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
		}), inside, "timed out")
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

// TestStreamsGoOn: a stream and a hijacked connection were admitted once, and
// continue after a newer holder has taken over: the handler has the server's own
// ResponseWriter. TestInTx shows that a transaction's response is held back.
func TestStreamsGoOn(t *testing.T) {
	next := make(chan struct{})
	for name, handler := range map[string]http.HandlerFunc{
		"server-sent events": func(w http.ResponseWriter, _ *http.Request) {
			if _, ok := w.(io.ReaderFrom); !ok {
				t.Error("ReaderFrom is gone")
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for range 2 {
				<-next
				_, _ = io.WriteString(w, "data: x\n\n")
				_ = http.NewResponseController(w).Flush()
			}
		},
		"hijacked": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
			for range 2 {
				<-next
				_, _ = io.WriteString(conn, "data: x\n\n")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore()
			fence := newFence(store, byPath, nil)
			server := httptest.NewServer(fence.Admit(handler))
			defer server.Close()
			req := guard.Must(http.NewRequestWithContext(t.Context(), "POST", server.URL+"/r", nil))
			req.Header.Set(TokenHeader, "10")
			go func() { next <- struct{}{} }()
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			events := bufio.NewReader(resp.Body)
			if line, err := events.ReadString('\n'); line != "data: x\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if _, err := store.Admit(t.Context(), guard.Claim{Resource: "r", Token: 11}); err != nil {
				t.Fatal(err)
			}
			next <- struct{}{}
			rest, err := io.ReadAll(events)
			if string(rest) != "\ndata: x\n\n" || err != nil {
				t.Errorf("after the takeover: %q, %v", rest, err)
			}
		})
	}
}
