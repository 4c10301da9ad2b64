package frameworks

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v2"
	"github.com/labstack/echo/v4"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

// ledger is a Transactor in memory.
type ledger struct {
	guard.Store
	mu   sync.Mutex
	rows int
}

func (l *ledger) Marks() guard.Store { return l.Store }

func (l *ledger) InTx(ctx context.Context, claim guard.Claim, fn func(context.Context) error) error {
	if _, err := l.Admit(ctx, claim); err != nil {
		return err
	}
	if err := fn(guard.WithClaim(ctx, claim)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows++
	return nil
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rows
}

var errStock = errors.New("out of stock")

// frameworks serves POST /accounts/{id}/close, which answers as ?as says, in a
// fenced transaction.
var frameworks = map[string]func(t *testing.T, fence *httpfence.TxMiddleware) string{
	"echo": func(t *testing.T, fence *httpfence.TxMiddleware) string {
		e := echo.New()
		e.POST("/accounts/:id/close", func(c echo.Context) error {
			switch c.QueryParam("as") {
			case "error":
				return errStock
			case "conflict":
				return c.String(http.StatusConflict, "no")
			case "late":
				_ = c.String(http.StatusCreated, "half")
				return errStock
			}
			return c.String(http.StatusCreated, "done")
		}, Echo(fence.InTx))
		server := httptest.NewServer(e)
		t.Cleanup(server.Close)
		return server.URL
	},
	"gin": func(t *testing.T, fence *httpfence.TxMiddleware) string {
		gin.SetMode(gin.ReleaseMode)
		g := gin.New()
		g.POST("/accounts/:id/close", Gin(fence.InTx), func(c *gin.Context) {
			switch c.Query("as") {
			case "error":
				_ = c.AbortWithError(http.StatusInternalServerError, errStock)
			case "conflict":
				c.String(http.StatusConflict, "no")
			case "late":
				c.String(http.StatusCreated, "half")
				_ = c.Error(errStock)
			default:
				c.String(http.StatusCreated, "done")
			}
		})
		server := httptest.NewServer(g)
		t.Cleanup(server.Close)
		return server.URL
	},
	"fiber": func(t *testing.T, fence *httpfence.TxMiddleware) string {
		mux := http.NewServeMux()
		mux.Handle("POST /accounts/{id}/close", fence.InTxFunc(func(w http.ResponseWriter, r *http.Request) error {
			switch r.URL.Query().Get("as") {
			case "error":
				return errStock
			case "conflict":
				w.WriteHeader(http.StatusConflict)
				return nil
			case "late":
				w.WriteHeader(http.StatusCreated)
				return errStock
			}
			w.WriteHeader(http.StatusCreated)
			_, err := io.WriteString(w, "done")
			return err
		}))
		app := fiber.New(fiber.Config{DisableStartupMessage: true})
		Fiber(app, "/accounts/*", mux)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = app.Listener(l) }()
		t.Cleanup(func() { _ = app.Shutdown() })
		return "http://" + l.Addr().String()
	},
}

// TestFrameworks: what is refused, what is rolled back, and that all spellings
// of one path are one name.
func TestFrameworks(t *testing.T) {
	for name, serve := range frameworks {
		t.Run(name, func(t *testing.T) {
			l := &ledger{Store: guard.NewMemory(nil)}
			resource := guard.Must(httpfence.Named(guard.Must(guard.NewTemplate("account:{id}")), httpfence.Bindings{"id": httpfence.PathValue("id")}))
			fence, err := httpfence.NewTx(l, resource, &httpfence.Options{Observer: guard.LogObserver(slog.New(slog.DiscardHandler))})
			if err != nil {
				t.Fatal(err)
			}
			base := serve(t, fence)
			for _, c := range []struct {
				path, resource string
				token          []string
				status, rows   int
			}{
				{"/accounts/acme/close", "account:acme", []string{"11"}, 201, 1},
				{"/accounts/%61cme/close", "account:acme", []string{"11"}, 201, 2},
				{"/accounts/acme/close", "account:acme", []string{"10"}, 412, 2},
				{"/accounts/%61cme/close", "account:acme", []string{"10"}, 412, 2},
				{"/accounts/acme/close", "account:other", []string{"12"}, 400, 2},
				{"/accounts/acme/close", "account:acme", nil, 428, 2},
				{"/accounts/acme/close", "account:acme", []string{"11", "11"}, 400, 2},
				{"/accounts/acme/close", "account:acme", []string{"11", "12"}, 400, 2},
				{"/accounts/a%252Fb/close", "account:a%252Fb", []string{"11"}, 201, 3},
				{"/accounts/acme/close?as=error", "account:acme", []string{"11"}, 500, 3},
				{"/accounts/acme/close?as=conflict", "account:acme", []string{"11"}, 409, 3},
				{"/accounts/acme/close?as=late", "account:acme", []string{"11"}, 500, 3},
				{"/accounts/acme/none", "account:acme", []string{"99"}, 404, 3},
				{"/accounts/acme/close", "account:acme", []string{"11"}, 201, 4},
			} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+c.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header[httpfence.TokenHeader] = c.token
				req.Header.Set(httpfence.LeaseHeader, "l")
				req.Header.Set(httpfence.ResourceHeader, httpfence.EncodeResource(c.resource))
				resp, err := http.DefaultTransport.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != c.status || l.count() != c.rows || c.status == 201 && string(body) != "done" {
					t.Errorf("%+v: %d %s, %d rows", c, resp.StatusCode, body, l.count())
				}
			}
		})
	}
}

// TestAdapters: echo's own adapter around a handler that fails. The fence sees
// a handler that wrote nothing, commits nothing and reports it. The control is the
// recipe.
func TestAdapters(t *testing.T) {
	for name, c := range map[string]struct {
		wrap   func(fence *httpfence.TxMiddleware) echo.MiddlewareFunc
		status int
		log    string
	}{
		"echo.WrapMiddleware": {func(fence *httpfence.TxMiddleware) echo.MiddlewareFunc { return echo.WrapMiddleware(fence.InTx) }, 500, "it wrote nothing"},
		"control: the recipe": {func(fence *httpfence.TxMiddleware) echo.MiddlewareFunc { return Echo(fence.InTx) }, 409, ""},
	} {
		var log bytes.Buffer
		l := &ledger{Store: guard.NewMemory(nil)}
		fence := guard.Must(httpfence.NewTx(l, func(*http.Request) (string, error) { return "acme", nil },
			&httpfence.Options{Observer: guard.LogObserver(slog.New(slog.NewTextHandler(&log, nil)))}))
		e := echo.New()
		e.POST("/a", func(echo.Context) error { return echo.NewHTTPError(http.StatusConflict) }, c.wrap(fence))
		r := httptest.NewRequest("POST", "/a", nil)
		r.Header = http.Header{httpfence.TokenHeader: {"5"}, httpfence.LeaseHeader: {"l"}, httpfence.ResourceHeader: {"acme"}}
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if w.Code != c.status || l.count() != 0 || !strings.Contains(log.String(), c.log) || c.log == "" && log.Len() != 0 {
			t.Errorf("%s: %d, %d committed, log %s", name, w.Code, l.count(), &log)
		}
	}
}
