package frameworks

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Huma returns mux for humago.New with a middleware of net/http, such as Admit or
// InTx of a fence, around each operation:
//
//	api := humago.New(Huma(mux, fence.InTx), huma.DefaultConfig("Ledger", "1.0.0"))
//
// The route's parameters are path values already, for [httpfence.PathValue], and
// huma renders errors and failed validations inside the middleware. On chi
// humachi.New(router.With(fence.InTx), config) does the same. Make an API for each
// fence; operations that only read pass by their method.
//
// Do not put a fence into huma's own middleware: a next that gets the context
// from before writes past the fence, so that InTx refuses to commit what it
// cannot judge. The body of a huma.StreamResponse cannot return an error: it calls
// [httpfence.Rollback].
func Huma(mux *http.ServeMux, guard func(http.Handler) http.Handler) humago.Mux {
	return humaMux{mux, guard}
}

type humaMux struct {
	*http.ServeMux
	guard func(http.Handler) http.Handler
}

func (m humaMux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	m.Handle(pattern, m.guard(http.HandlerFunc(handler)))
}
