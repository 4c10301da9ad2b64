// Package frameworks has a recipe for each framework that renders a handler's
// error after its middleware has returned, has a ResponseWriter of its own, or calls
// a failure a success: echo, gin, fiber, huma and Go kit. Copy the one that you
// need. With such a framework's own adapter for net/http middleware, InTx of a fence
// refuses to commit what it cannot judge. ../rpc is for RPCs.
package frameworks

import (
	"net/http"
	"net/url"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/labstack/echo/v4"

	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
)

// Echo puts a middleware of net/http, such as Admit or InTx of a fence, around
// echo handlers, per route:
//
//	e.POST("/accounts/:id/close", closeAccount, Echo(fence.InTx))
//
// The route's parameters become path values, for [httpfence.PathValue]. Echo
// matches the escaped path when there is one and does not unescape. An error of
// the handler is rendered, and votes, while the transaction is still open: echo
// itself would render it after the COMMIT.
func Echo(guard func(http.Handler) http.Handler) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, outer := c.Request(), c.Response()
			for i, name := range c.ParamNames() {
				value := c.ParamValues()[i]
				if r.URL.RawPath != "" {
					v, err := url.PathUnescape(value)
					if err != nil {
						return echo.ErrBadRequest
					}
					value = v
				}
				r.SetPathValue(name, value)
			}
			guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.SetRequest(r)
				c.SetResponse(echo.NewResponse(w, c.Echo()))
				defer c.SetResponse(outer)
				if err := next(c); err != nil {
					c.Error(err)
					httpfence.Rollback(r.Context(), err)
				}
			})).ServeHTTP(outer, r)
			return nil
		}
	}
}

// Gin puts a middleware of net/http around gin handlers, per route:
//
//	g.POST("/accounts/:id/close", Gin(fence.InTx), closeAccount)
//
// The route's parameters become path values, for [httpfence.PathValue]. By
// default gin matches the unescaped path; with UseRawPath it unescapes the
// values itself. A handler that calls c.Error votes for a rollback.
func Gin(guard func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		for _, p := range c.Params {
			c.Request.SetPathValue(p.Key, p.Value)
		}
		outer, reached := c.Writer, false
		guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reached = true
			c.Request = r
			c.Writer = &ginWriter{ResponseWriter: outer, to: w}
			defer func() { c.Writer = outer }()
			c.Next()
			if last := c.Errors.Last(); last != nil {
				httpfence.Rollback(r.Context(), last)
			}
		})).ServeHTTP(outer, c.Request)
		if !reached {
			c.Abort()
		}
	}
}

// ginWriter is gin's writer on top of the middleware's.
type ginWriter struct {
	gin.ResponseWriter // for gin's own methods
	to                 http.ResponseWriter
	status, size       int
}

func (w *ginWriter) Header() http.Header { return w.to.Header() }

// WriteHeader sends the status at once. Gin keeps it until the first byte, and
// so would silently change it after a failure.
func (w *ginWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.to.WriteHeader(status)
}

func (w *ginWriter) Write(b []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(b)
	w.size += n
	return n, err
}

func (w *ginWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }
func (w *ginWriter) Status() int                       { return max(w.status, 200) }
func (w *ginWriter) Size() int                         { return w.size }
func (w *ginWriter) Written() bool                     { return w.status != 0 }
func (w *ginWriter) Flush()                            { _ = http.NewResponseController(w.to).Flush() }

func (w *ginWriter) WriteHeaderNow() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
}

// Fiber mounts handlers of net/http, fenced as usual, in a fiber application:
//
//	mux.Handle("POST /accounts/{id}/close", fence.InTx(closeAccount))
//	Fiber(app, "/accounts/*", mux)
//
// The adaptor keeps only the last of several lines of a field. Two tokens are
// therefore refused here, because a proxy in front may believe the other one.
//
// Do not put a fence around fiber's own handlers with adaptor.HTTPMiddleware:
// they bypass the ResponseWriter, so that InTx would commit what they report as
// a failure.
func Fiber(app *fiber.App, pattern string, h http.Handler) {
	app.All(pattern, func(c *fiber.Ctx) error {
		for name, lines := range c.GetReqHeaders() {
			switch http.CanonicalHeaderKey(name) {
			case httpfence.TokenHeader, httpfence.LeaseHeader, httpfence.ResourceHeader, proof.Header:
				if len(lines) > 1 {
					return fiber.NewError(http.StatusBadRequest, name+" is given more than once")
				}
			}
		}
		return c.Next()
	}, adaptor.HTTPHandler(h))
}
