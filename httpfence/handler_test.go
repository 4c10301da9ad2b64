package httpfence

import (
	"bytes"
	"errors"
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

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/go-chi/chi/v5"
)

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
		if err := r.ParseMultipartForm(1 << 10); err != nil {
			t.Error(err)
		}
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
