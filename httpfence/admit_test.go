package httpfence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestP1NoStaleRequest: an older token is refused after a newer one was
// admitted, and so is the newer one under another lease ID. The control sends the
// same to the same handler without the guard.
func TestP1NoStaleRequest(t *testing.T) {
	for name, guarded := range map[string]func(*service, http.Handler) http.Handler{"Admit": (*service).admit, "InTx": (*service).inTx} {
		s := newServiceAt(t, guarded, ChiParam("id"), nil)
		for _, step := range []struct {
			token, lease string
			status       int
			reason       string
		}{
			{"10", "a", 200, ""}, {"10", "a", 200, ""}, {"11", "b", 200, ""},
			{"10", "a", 412, "stale"}, {"11", "a", 412, "conflict"}, {"11", "", 412, "conflict"},
			{"11", "b", 200, ""},
		} {
			before := s.invoked.Load()
			a := s.post(t, "acme", step.token, step.lease)
			if a.status != step.status || a.reason() != step.reason {
				t.Errorf("%s, %+v: %d %s", name, step, a.status, a.body)
			}
			if n := s.invoked.Load() - before; (n == 1) != (step.status == 200) {
				t.Errorf("%s, %+v: %d invocations", name, step, n)
			}
			if want := (guard.Claim{Resource: "acme", Token: guard.Token(10 + step.token[1] - '0'), LeaseID: step.lease}); step.status == 200 && *s.claim.Load() != want {
				t.Errorf("%s: claim in the context %+v, want %+v", name, *s.claim.Load(), want)
			}
		}
		if m := s.store.mark(t, "acme"); m != (guard.Mark{Token: 11, LeaseID: "b"}) {
			t.Errorf("%s: mark %+v", name, m)
		}
		if a := s.post(t, "other", "10", "a"); a.status != 200 {
			t.Errorf("%s, another resource: %d %s", name, a.status, a.body)
		}
		if n := len(s.work.committed); name == "InTx" && n != 5 {
			t.Errorf("%d transactions were committed", n)
		}
	}

	t.Run("control without the guard", func(t *testing.T) {
		s := &service{store: newStore()}
		s.Server = httptest.NewServer(s.handler(nil))
		t.Cleanup(s.Close)
		for _, token := range []string{"11", "10"} {
			if a := s.post(t, "acme", token, "a"); a.status != 200 {
				t.Fatalf("token %s: %d", token, a.status)
			}
		}
		if s.invoked.Load() != 2 {
			t.Error("the control does not show a stale request getting through")
		}
	})
}

// TestP1Overtaken: a newer holder that comes at the last moment is noticed: the
// store's own comparison decides, not one that was made before. In the control
// the claim that comes is the request's own.
func TestP1Overtaken(t *testing.T) {
	for _, newest := range []guard.Token{5, 6} {
		for _, raise := range []bool{false, true} {
			handled := false
			store := newStore()
			store.before(func(ctx context.Context) error {
				_, err := store.Store.Admit(ctx, guard.Claim{Resource: "r", Token: newest})
				return err
			})
			fence := newFence(store, byPath, nil)
			h := fence.Admit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled = true }))
			if raise {
				h = http.HandlerFunc(fence.Raise)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, newRequest("r", "5", ""))
			if stale := newest > 5; stale != (w.Code == 412) || handled != (!stale && !raise) {
				t.Errorf("the mark is %v, raise: %t: status %d, handled: %t", newest, raise, w.Code, handled)
			}
		}
	}
}

func TestMethods(t *testing.T) {
	all := []string{"GET", "HEAD", "OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE"}
	for name, c := range map[string]struct {
		opts *Options
		free []string
	}{
		"default":     {nil, []string{"GET", "HEAD", "OPTIONS", "TRACE"}},
		"none":        {&Options{GuardAllMethods: true}, nil},
		"only DELETE": {&Options{UnguardedMethods: []string{"DELETE"}}, []string{"DELETE"}},
		"lower case":  {&Options{UnguardedMethods: []string{"get"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, c.opts)
			for _, method := range all {
				before := s.invoked.Load()
				a := do(t, method, s.URL+goodPath)
				free := strings.Contains(" "+strings.Join(c.free, " ")+" ", " "+method+" ")
				if (a.status == 200) != free || (s.invoked.Load() > before) != free || (!free && a.status != 428) {
					t.Errorf("%s: %d, want free %v", method, a.status, free)
				}
				if free && s.claim.Load() != nil {
					t.Errorf("%s has a claim that nobody checked", method)
				}
			}
		})
	}
}

func TestStoreFailures(t *testing.T) {
	s := newService(t, nil)
	for _, c := range []struct {
		err    error
		status int
		reason string
	}{
		{guard.Unavailable("admit", guard.Claim{}, errors.New("secret dsn")), 503, "unavailable"},
		{guard.OutcomeUnknown("admit", guard.Claim{}, io.ErrUnexpectedEOF), 500, "outcome_unknown"},
		{errors.Join(guard.ErrUnavailable, guard.ErrOutcomeUnknown), 500, "outcome_unknown"},
		{guard.ErrMarkAhead, 412, "mark_ahead"},
		{guard.ErrUnfenced, 409, "unfenced"},
		{guard.ErrNotFound, 404, "not_found"},
		{context.DeadlineExceeded, 500, "other"},
		{errors.New("secret"), 500, "other"},
	} {
		s.store.failWith(c.err)
		a := s.post(t, "acme", "5", "")
		if a.status != c.status || a.reason() != c.reason || strings.Contains(a.body, "secret") {
			t.Errorf("%v: %d %s", c.err, a.status, a.body)
		}
		if retry := a.header.Get("Retry-After"); (retry == "2") != (c.status == 503) {
			t.Errorf("%v: Retry-After %q", c.err, retry)
		}
	}
	if s.invoked.Load() != 0 {
		t.Error("the handler was invoked")
	}
}

func TestMarkIsDisclosedOnlyWhenAsked(t *testing.T) {
	for _, disclose := range []bool{false, true} {
		s := newService(t, &Options{DiscloseMark: disclose})
		s.post(t, "acme", "9007199254740993", "holder-of-the-mark")
		for _, offered := range [][2]string{{"7654321", ""}, {"9007199254740993", "x"}} {
			a := s.post(t, "acme", offered[0], offered[1])
			if a.status != 412 || strings.Contains(a.body+fmt.Sprint(a.header), "holder-of-the-mark") {
				t.Errorf("%+v", a)
			}
			if shown := strings.Contains(a.body+fmt.Sprint(a.header), "9007199254740993"); shown != disclose {
				t.Errorf("disclose %v: %s", disclose, a.body)
			}
			if disclose && (a.problem["mark"] != "9007199254740993" || a.problem["token"] != offered[0]) {
				t.Errorf("%s", a.body)
			}
		}
		// Nothing was compared, so there is nothing to disclose.
		if a := s.post(t, "acme", "0", ""); strings.Contains(a.body, "mark\"") {
			t.Errorf("%s", a.body)
		}
	}
}

// TestRejectDropsTheOtherAnswer: fields that a handler has set for a response
// that it does not send must not describe the refusal.
func TestRejectDropsTheOtherAnswer(t *testing.T) {
	fence := newFence(newStore(), literal("r"), nil)
	w := httptest.NewRecorder()
	for _, name := range []string{"Content-Length", "Content-Encoding", "Content-Range", "ETag", "Last-Modified", "X-Trace"} {
		w.Header().Set(name, "1")
	}
	fence.Reject(w, newRequest("", "5", ""), guard.ErrStale)
	if h := w.Result().Header; len(h) != 4 || h.Get("X-Trace") != "1" {
		t.Errorf("header %v", h)
	}
}

// TestRaise: after the raise the old holder is refused at every surface of the
// resource, before the new one has written anything.
func TestRaise(t *testing.T) {
	var events []guard.Event
	s := &service{store: newStore()}
	s.fence = newFence(s.store, ChiParam("id"), &Options{
		Observer: guard.ObserverFunc(func(_ context.Context, e guard.Event) { events = append(events, e) }),
	})
	router := chi.NewRouter()
	router.With(s.fence.Admit).Post("/acct/{id}/close", s.handler(nil).ServeHTTP)
	router.HandleFunc("/acct/{id}/raise", s.fence.Raise)
	s.Server = httptest.NewServer(router)
	t.Cleanup(s.Close)
	raise := func(method, token, lease string) answer {
		return do(t, method, s.URL+"/acct/acme/raise", TokenHeader, token, LeaseHeader, lease)
	}

	if a := s.post(t, "acme", "10", "a"); a.status != 200 {
		t.Fatal(a)
	}
	// The control: without a raise the old holder still gets through.
	if a := s.post(t, "acme", "10", "a"); a.status != 200 {
		t.Fatalf("control: %+v", a)
	}
	for range 2 { // idempotent
		a := raise("POST", "11", "b")
		if a.status != 204 || a.body != "" || a.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%+v", a)
		}
		if e := events[len(events)-1]; e.Op != guard.OpRaise || e.Surface != "http" || e.Reason != "" || e.Claim.Token != 11 {
			t.Errorf("event %+v", e)
		}
	}
	if a := s.post(t, "acme", "10", "a"); a.status != 412 || a.reason() != "stale" {
		t.Errorf("%+v", a)
	}
	invoked := s.invoked.Load()
	for _, c := range []struct {
		method, token, lease string
		status               int
		reason               string
	}{
		{"POST", "10", "a", 412, "stale"}, {"POST", "11", "a", 412, "conflict"}, {"PUT", "12", "b", 405, ""}, {"POST", "+12", "b", 400, "invalid"}, {"DELETE", "12", "b", 405, ""},
		{"GET", "12", "b", 405, ""}, {"HEAD", "12", "b", 405, ""}, {"OPTIONS", "12", "b", 405, ""}, {"TRACE", "12", "b", 405, ""},
	} {
		a := raise(c.method, c.token, c.lease)
		if a.status != c.status || a.reason() != c.reason || (a.header.Get("Allow") == "POST") != (c.status == 405) {
			t.Errorf("%+v: %+v", c, a)
		}
	}
	if m := s.store.mark(t, "acme"); m != (guard.Mark{Token: 11, LeaseID: "b"}) || s.invoked.Load() != invoked {
		t.Errorf("mark %+v, %d invocations", m, s.invoked.Load()-invoked)
	}
	s.store.failWith(guard.Unavailable("admit", guard.Claim{}, nil))
	if a := raise("POST", "12", "b"); a.status != 503 {
		t.Errorf("store down: %+v", a)
	}
}

// told is an observer that sends what it is told.
type told chan guard.Event

func (c told) Observe(_ context.Context, e guard.Event) { c <- e }

// TestReportOnly: nobody is refused, the handler gets no claim, and the observer and the
// log learn who would have been refused.
func TestReportOnly(t *testing.T) {
	events, lines := make(told, 10), new(lockedLog)
	var hooks atomic.Int64
	s := newServiceAt(t, func(s *service, next http.Handler) http.Handler { return s.fence.InsecureReportOnly(next) }, ChiParam("id"), &Options{
		Logger: slog.New(slog.NewTextHandler(lines, nil)), Observer: events,
		OnReject: func(http.ResponseWriter, *http.Request, *Rejection) { hooks.Add(1) },
	})
	for _, c := range []struct {
		token, lease string
		reason       guard.Reason
	}{
		{"10", "a", ""}, {"11", "b", ""}, {"10", "a", "stale"}, {"11", "c", "conflict"}, {"+1", "", "invalid"}, {"", "", "missing"},
	} {
		var header []string
		if c.token != "" {
			header = append(header, TokenHeader, c.token, LeaseHeader, c.lease)
		}
		if a := do(t, "POST", s.URL+goodPath, header...); a.status != 200 || a.body != "done" || s.claim.Load() != nil {
			t.Errorf("%+v: %d %s, claim %v", c, a.status, a.body, s.claim.Load())
		}
		e := testkit.Receive(t, "the event", events)
		if e.Op != guard.OpAdmit || e.Surface != "http" || e.Reason != c.reason || (e.Err == nil) != (c.reason == "") || e.ReportOnly != (c.reason != "") || e.Duration <= 0 {
			t.Errorf("%+v: event %+v", c, e)
		}
		if c.reason == "stale" && (e.Claim != guard.Claim{Resource: "acme", Token: 10, LeaseID: "a"} || e.Mark != guard.Mark{Token: 11, LeaseID: "b"}) {
			t.Errorf("event %+v", e)
		}
	}
	if n := strings.Count(lines.String(), "fencing_rejected"); n != 4 || strings.Count(lines.String(), "reportOnly=true") != n || hooks.Load() != 0 {
		t.Errorf("%d hooks, log %s", hooks.Load(), lines)
	}
}

// TestReportOnlyHoldsNobody: whatever does not respond, requests are handled, and how many
// were not compared is reported. The control is Admit, which waits.
func TestReportOnlyHoldsNobody(t *testing.T) {
	const extra = 6
	for _, stuck := range []string{"store", "Verify", "observer", "resource"} {
		gate := make(chan struct{})
		wait := func(what string) {
			if what == stuck {
				<-gate
			}
		}
		store := newStore()
		store.before(func(context.Context) error { wait("store"); return nil })
		events, handled := make(told, 4*shadows), atomic.Int64{}
		fence := newFence(store, func(r *http.Request) (string, error) { wait("resource"); return byPath(r) }, &Options{
			Verify:   func(guard.Claim, *http.Request) error { wait("Verify"); return nil },
			Observer: guard.ObserverFunc(func(ctx context.Context, e guard.Event) { wait("observer"); events.Observe(ctx, e) }),
		})
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handled.Add(1); ok(w, r) })
		h := fence.InsecureReportOnly(next)
		for range shadows + extra {
			h.ServeHTTP(httptest.NewRecorder(), newRequest("r", "5", "a"))
		}
		if n := handled.Load(); n != shadows+extra {
			t.Errorf("%s: %d handled", stuck, n)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			fence.Admit(next).ServeHTTP(httptest.NewRecorder(), newRequest("r", "5", "a"))
		}()
		if handled.Load() != shadows+extra {
			t.Errorf("control, %s: Admit did not wait", stuck)
		}
		close(gate)
		testkit.Receive(t, "the control", done)
		skipped := 0
		for compared := 0; compared < shadows+1 || skipped < extra; {
			e := testkit.Receive(t, stuck+": the events", events)
			var n, all int
			if _, err := fmt.Sscanf(strings.TrimPrefix(fmt.Sprint(e.Err), "fencepost: admit: store unavailable: "), "%d requests were not compared, because %d others", &n, &all); err == nil && e.ReportOnly && e.Reason == guard.ReasonUnavailable {
				skipped += n
			} else if compared++; e.Reason != guard.ReasonNone {
				t.Fatalf("%s: %+v", stuck, e)
			}
		}
		if skipped != extra {
			t.Errorf("%s: %d skipped, want %d", stuck, skipped, extra)
		}
	}
}

// TestReportOnlyOutlivesTheHandler: a comparison that runs when the handler has returned
// reads its own request, though chi has given the route's context to another; and a hook
// that panics ends nothing but itself.
func TestReportOnlyOutlivesTheHandler(t *testing.T) {
	gate, events, lines := make(chan struct{}), make(told, 10), new(lockedLog)
	fence := newFence(newStore(), func(r *http.Request) (string, error) {
		<-gate
		name, err := ChiParam("id")(r)
		if name == "bug" {
			panic("a bug")
		}
		return name + r.Header.Get("X-Own"), err
	}, &Options{Observer: events, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	router := chi.NewRouter()
	router.With(fence.InsecureReportOnly).Post("/acct/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Own", "changed")
		ok(w, r)
	})
	for _, id := range []string{"a", "b", "bug", "c"} {
		r := httptest.NewRequest("POST", "/acct/"+id+"/close", nil)
		r.Header.Set(TokenHeader, "5")
		router.ServeHTTP(httptest.NewRecorder(), r)
	}
	close(gate)
	seen := map[string]bool{}
	for range 3 {
		seen[testkit.Receive(t, "the event", events).Claim.Resource] = true
	}
	if !seen["a"] || !seen["b"] || !seen["c"] {
		t.Errorf("compared %v", seen)
	}
	testkit.Eventually(t, "the line of the panic", func() bool {
		return strings.Contains(lines.String(), "fencing_failed") && strings.Contains(lines.String(), "a bug")
	})
}

// TestUploadsAreRemoved: the files of a form that a handler parses are gone after
// the request, whatever guards the handler and whatever router is in front. The
// control finds them while the handler runs.
func TestUploadsAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	files := func() int { return len(guard.Must(os.ReadDir(os.Getenv("TMPDIR")))) }
	var during, after atomic.Int64
	reads := func(next http.Handler) http.Handler { // as middleware that scans uploads does
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(w, r)
			if f, err := r.MultipartForm.File["f"][0].Open(); err == nil {
				after.Store(1)
				_ = f.Close()
			}
		})
	}
	parse := func(w http.ResponseWriter, r *http.Request) error {
		testkit.Check(t, r.ParseMultipartForm(1<<10))
		during.Store(int64(files()))
		if r.URL.Query().Has("panic") {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = parse(w, r) })
	tx := newTx(&fakeTx{store: newStore()}, literal("r"), &Options{MaxBody: 1 << 21})
	for name, guarded := range map[string]http.Handler{
		"Admit": tx.Admit(handler), "InTx": tx.InTx(handler), "InTxFunc": tx.InTxFunc(parse),
		"report-only": newFence(newStore(), literal("r"), nil).InsecureReportOnly(handler),
	} {
		router := chi.NewRouter()
		router.Use(reads)
		router.Handle("/", guarded)
		for front, h := range map[string]http.Handler{"net/http": reads(guarded), "chi": router} {
			for _, query := range []string{"", "?panic"} {
				if name == "report-only" && front+query != "net/http" {
					continue // such a request goes on as it is; net/http leaves the files after a panic, chi always
				}
				server := httptest.NewServer(h)
				server.Config.ErrorLog = log.New(io.Discard, "", 0)
				var body bytes.Buffer
				form := multipart.NewWriter(&body)
				_, _ = guard.Must(form.CreateFormFile("f", "f")).Write(make([]byte, 1<<20))
				_ = form.Close()
				r := guard.Must(http.NewRequestWithContext(t.Context(), "POST", server.URL+"/"+query, &body))
				r.Header.Set("Content-Type", form.FormDataContentType())
				if name != "report-only" {
					r.Header.Set(TokenHeader, "5")
				}
				resp, err := http.DefaultTransport.RoundTrip(r)
				if err == nil {
					_ = resp.Body.Close()
				}
				server.Close() // waits for the handler
				testkit.Eventually(t, "the end of the form's files", func() bool { return files() == 0 })
				// Middleware in front finds them, as it does without the fence.
				if during.Load() != 1 || (err == nil) != (query == "") || after.Swap(0) != 1 && query == "" {
					t.Errorf("%s behind %s%s: %d files during the request, %v, or none for middleware in front", name, front, query, during.Load(), err)
				}
			}
		}
	}
}

// TestRequestIsHandedBack: what a handler leaves on its request is there for
// middleware in front, as without a fence; its context and its body are not. Admit
// passes on the server's own ResponseWriter, InTx does not.
func TestRequestIsHandedBack(t *testing.T) {
	mux := http.NewServeMux()
	var handlers http.ResponseWriter
	mux.HandleFunc("POST /form/{id}", func(w http.ResponseWriter, r *http.Request) {
		handlers = w
		_ = r.ParseForm()
		ok(w, r)
	})
	tx := newTx(&fakeTx{store: newStore()}, literal("r"), nil)
	for name, h := range map[string]http.Handler{"control": mux, "Admit": tx.Admit(mux), "InTx": tx.InTx(mux)} {
		r := httptest.NewRequest("POST", "/form/7", strings.NewReader("a=b"))
		r.Header = http.Header{TokenHeader: {"5"}, "Content-Type": {"application/x-www-form-urlencoded"}}
		body, ctx := r.Body, r.Context()
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); (handlers == w) != (name != "InTx") {
			t.Errorf("%s: the handler has the ResponseWriter %T", name, handlers)
		}
		if r.Pattern != "POST /form/{id}" || r.PathValue("id") != "7" || r.PostForm.Get("a") != "b" || r.Body != body || r.Context() != ctx {
			t.Errorf("%s: pattern %q, path value %q, form %v", name, r.Pattern, r.PathValue("id"), r.PostForm)
		}
	}
}

// TestSilentHandlers: a handler that writes nothing may have failed: its framework
// renders the error when the middleware has returned. Nothing is committed, and the
// log says what to do; what the framework then writes is reported. The control
// writes a status.
func TestSilentHandlers(t *testing.T) {
	var text bytes.Buffer
	f := &fakeTx{store: newStore()}
	tx := newTx(f, byPath, &Options{Logger: slog.New(slog.NewTextHandler(&text, nil))})
	var inner http.ResponseWriter
	serve := func(h http.HandlerFunc) int {
		text.Reset()
		w := httptest.NewRecorder()
		tx.InTx(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner = w
			write(r.Context(), "row")
			h(w, r)
		})).ServeHTTP(w, newRequest("r", "5", ""))
		return w.Code
	}
	if code := serve(func(http.ResponseWriter, *http.Request) {}); code != 500 || len(f.committed) != 0 || !strings.Contains(text.String(), "it wrote nothing") {
		t.Errorf("%d, committed %q, log %s", code, f.committed, &text)
	}
	if code := serve(ok); code != 200 || len(f.committed) != 1 || text.Len() != 0 {
		t.Errorf("control: %d, committed %q, log %s", code, f.committed, &text)
	}
	inner.WriteHeader(409)
	if _, err := inner.Write([]byte("no")); !errors.Is(err, ErrResponseBroken) || strings.Contains(err.Error(), "hijack") || !strings.Contains(text.String(), "it set 409 after its transaction had ended") {
		t.Errorf("after the COMMIT: %v, log %s", err, &text)
	}
}

// TestNestedLimit: the 413 names the limit that was exceeded, also if middleware
// in front has set a lower one.
func TestNestedLimit(t *testing.T) {
	inTx := newTx(&fakeTx{store: newStore()}, byPath, &Options{MaxBody: 100}).InTx(http.HandlerFunc(ok))
	for outer, want := range map[int64]string{10: "10 bytes", 1000: "100 bytes"} {
		r := newRequest("r", "5", "")
		w := httptest.NewRecorder()
		r.Body = http.MaxBytesReader(w, io.NopCloser(strings.NewReader(strings.Repeat("x", 200))), outer)
		r.ContentLength = -1
		inTx.ServeHTTP(w, r)
		if w.Code != 413 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("a limit of %d in front: %d %s", outer, w.Code, w.Body)
		}
	}
}
