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

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"
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
	"huma": func(t *testing.T, fence *httpfence.TxMiddleware) string {
		mux := http.NewServeMux()
		humaClose(humago.New(Huma(mux, fence.InTx), huma.DefaultConfig("Ledger", "1.0.0")))
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server.URL
	},
	"huma on chi": func(t *testing.T, fence *httpfence.TxMiddleware) string {
		router := chi.NewRouter()
		humaClose(humachi.New(router.With(fence.InTx), huma.DefaultConfig("Ledger", "1.0.0")))
		server := httptest.NewServer(router)
		t.Cleanup(server.Close)
		return server.URL
	},
	"Go kit": func(t *testing.T, fence *httpfence.TxMiddleware) string {
		mux := http.NewServeMux()
		mux.Handle("POST /accounts/{id}/close", fence.InTx(kithttp.NewServer(
			Kit(func(_ context.Context, as any) (any, error) {
				switch as {
				case "error":
					return kitResponse{failed: errStock}, nil
				case "conflict":
					return nil, kitConflict{}
				}
				return kitResponse{late: as == "late"}, nil
			}),
			func(_ context.Context, r *http.Request) (any, error) { return r.URL.Query().Get("as"), nil },
			func(_ context.Context, w http.ResponseWriter, response any) error {
				w.WriteHeader(http.StatusCreated)
				_, err := io.WriteString(w, "done")
				if response.(kitResponse).late {
					return errStock
				}
				return err
			})))
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server.URL
	},
}

func humaClose(api huma.API) {
	type input struct {
		As string `query:"as"`
	}
	huma.Register(api, huma.Operation{OperationID: "close", Method: http.MethodPost, Path: "/accounts/{id}/close", DefaultStatus: http.StatusCreated},
		func(ctx context.Context, in *input) (*huma.StreamResponse, error) {
			switch in.As {
			case "error":
				return nil, errStock
			case "conflict":
				return nil, huma.Error409Conflict("no")
			}
			return &huma.StreamResponse{Body: func(c huma.Context) {
				c.SetStatus(http.StatusCreated)
				_, _ = io.WriteString(c.BodyWriter(), "done")
				if in.As == "late" {
					httpfence.Rollback(ctx, errStock)
				}
			}}, nil
		})
}

type kitResponse struct {
	failed error
	late   bool
}

func (r kitResponse) Failed() error { return r.failed }

type kitConflict struct{}

func (kitConflict) Error() string   { return "no" }
func (kitConflict) StatusCode() int { return http.StatusConflict }

// TestFrameworks: what is refused, what is rolled back, and that all spellings
// of one path are one name.
func TestFrameworks(t *testing.T) {
	for name, serve := range frameworks {
		t.Run(name, func(t *testing.T) {
			l := &ledger{Store: guard.NewMemory()}
			resource := guard.Must(httpfence.Named(guard.Must(guard.NewTemplate("account:{id}")), httpfence.Bindings{"id": httpfence.PathValue("id")}))
			fence, err := httpfence.NewTx(l, resource, &httpfence.Options{Logger: slog.New(slog.DiscardHandler)})
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
				req.Header.Set(httpfence.ResourceHeader, httpfence.Encode(c.resource))
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

// TestAdapters: frameworks' own ways around a handler that fails. The fence sees
// a handler that wrote nothing, commits nothing and reports it. The controls are the
// recipes, and an endpoint of Go kit without its recipe, whose failure is committed.
func TestAdapters(t *testing.T) {
	echoed := func(wrap func(*httpfence.TxMiddleware) echo.MiddlewareFunc) func(*httpfence.TxMiddleware) http.Handler {
		return func(fence *httpfence.TxMiddleware) http.Handler {
			e := echo.New()
			e.POST("/a", func(echo.Context) error { return echo.NewHTTPError(http.StatusConflict) }, wrap(fence))
			return e
		}
	}
	refuse := func(api huma.API) {
		huma.Register(api, huma.Operation{OperationID: "a", Method: http.MethodPost, Path: "/a"},
			func(context.Context, *struct{}) (*struct{}, error) { return nil, huma.Error409Conflict("no") })
	}
	kit := func(around endpoint.Middleware) func(*httpfence.TxMiddleware) http.Handler {
		return func(fence *httpfence.TxMiddleware) http.Handler {
			return fence.InTx(kithttp.NewServer(around(func(context.Context, any) (any, error) { return kitResponse{failed: errStock}, nil }),
				kithttp.NopRequestDecoder, kithttp.EncodeJSONResponse))
		}
	}
	for name, c := range map[string]struct {
		serve        func(fence *httpfence.TxMiddleware) http.Handler
		status, rows int
		log          string
	}{
		"echo.WrapMiddleware": {echoed(func(fence *httpfence.TxMiddleware) echo.MiddlewareFunc { return echo.WrapMiddleware(fence.InTx) }), 500, 0, "it wrote nothing"},
		"echo, the recipe":    {echoed(func(fence *httpfence.TxMiddleware) echo.MiddlewareFunc { return Echo(fence.InTx) }), 409, 0, ""},
		"huma's middleware": {func(fence *httpfence.TxMiddleware) http.Handler {
			mux := http.NewServeMux()
			api := humago.New(mux, huma.DefaultConfig("Ledger", "1.0.0"))
			api.UseMiddleware(func(c huma.Context, next func(huma.Context)) {
				r, w := humago.Unwrap(c)
				fence.InTx(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { next(c) })).ServeHTTP(w, r)
			})
			refuse(api)
			return mux
		}, 409, 0, "it wrote nothing"},
		"huma, the recipe": {func(fence *httpfence.TxMiddleware) http.Handler {
			mux := http.NewServeMux()
			refuse(humago.New(Huma(mux, fence.InTx), huma.DefaultConfig("Ledger", "1.0.0")))
			return mux
		}, 409, 0, ""},
		"Go kit, the recipe":    {kit(Kit), 500, 0, errStock.Error()},
		"Go kit without recipe": {kit(func(next endpoint.Endpoint) endpoint.Endpoint { return next }), 200, 1, ""},
	} {
		var log bytes.Buffer
		l := &ledger{Store: guard.NewMemory()}
		fence := guard.Must(httpfence.NewTx(l, func(*http.Request) (string, error) { return "acme", nil },
			&httpfence.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		r := httptest.NewRequest("POST", "/a", nil)
		r.Header = http.Header{httpfence.TokenHeader: {"5"}, httpfence.LeaseHeader: {"l"}, httpfence.ResourceHeader: {"acme"}}
		w := httptest.NewRecorder()
		c.serve(fence).ServeHTTP(w, r)
		if w.Code != c.status || l.count() != c.rows || !strings.Contains(log.String(), c.log) || c.log == "" && log.Len() != 0 {
			t.Errorf("%s: %d, %d committed, log %s", name, w.Code, l.count(), &log)
		}
	}
}
